"""Keep the trials in Optuna's journal, each change appended and synchronized.

One record creates a trial with its plan. A half record left by a kill is cut off before anything is written, because
Optuna would append to it. The kernel locks the sweep's folder, because Optuna's lock file outlives a killed process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from harness.sweep.trials import Role, Trial, TrialPlan, TrialStatus
from trainer.errors import InputError, one_line
from trainer.json_types import Json, JsonObject

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

NAME = "learning-rate"
FILE = "trials.journal"
PLAN, OUTCOME, MILESTONE = "plan", "outcome", "milestone/"


def require_optuna() -> None:
    """Raise InputError if Optuna, which keeps the journal, is not installed."""
    if find_spec("optuna") is None:
        raise InputError("harness sweep needs the package optuna: pip install 'llm-training-harness[sweep]'")


class TrialJournal:
    """The trials of one sweep, in Optuna's journal. Only one process at a time opens it (``only_one``)."""

    def __init__(self, folder: Path) -> None:
        """Open the journal in ``folder``, or create it. Raises InputError if it cannot be read."""
        require_optuna()
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.path = folder / FILE
        cut_half_record(self.path)
        try:
            storage = JournalStorage(JournalFileBackend(str(self.path), lock_obj=_held()))
            self._study: Study = optuna.create_study(storage=storage, study_name=NAME, load_if_exists=True)
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise InputError(f"{self.path}: not a journal of a sweep ({one_line(error)})") from error

    def trials(self) -> list[Trial]:
        """Return all trials in the order of their start. Raises InputError if a record was not written by a sweep."""
        try:
            return [_trial(frozen) for frozen in self._study.get_trials(deepcopy=False)]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.path}: has a trial not written by a sweep ({one_line(repr(error))})") from error

    def begin(self, plan: TrialPlan) -> Trial:
        """Add a trial with ``plan`` to the journal as running, and return it."""
        from optuna.distributions import FloatDistribution
        from optuna.trial import TrialState, create_trial

        rate = plan.learning_rate
        self._study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params={"learning_rate": rate},
                distributions={"learning_rate": FloatDistribution(rate, rate, log=True)},
                user_attrs={PLAN: asdict(plan)},
            )
        )
        return self.trials()[-1]

    def milestone(self, trial: Trial, steps: int, loss: float) -> None:
        """Record the mean training loss after ``steps`` steps. A recorded value stays when a trial is resumed."""
        if steps not in trial.milestones:
            self._study._storage.set_trial_intermediate_value(self._id(trial), steps, loss)

    def end(self, trial: Trial) -> None:
        """Record the status, loss and spending of a trial that has ended."""
        from optuna.trial import TrialState

        outcome = {
            "status": trial.status, "training_loss": trial.training_loss, "steps": trial.steps, "tokens": trial.tokens,
            "seconds": trial.seconds, "hellaswag": trial.hellaswag, "loss": trial.loss,
        }  # fmt: skip
        storage, number = self._study._storage, self._id(trial)
        storage.set_trial_user_attr(number, OUTCOME, outcome)
        if trial.status == "done":
            assert trial.loss is not None
            storage.set_trial_state_values(number, TrialState.COMPLETE, [trial.loss])
        else:
            storage.set_trial_state_values(number, TrialState.PRUNED)

    def _id(self, trial: Trial) -> int:
        storage, study = self._study._storage, self._study._study_id
        return int(storage.get_trial_id_from_study_id_trial_number(study, trial.number))


def cut_half_record(path: Path) -> None:
    """Cut off an incomplete last line of the file, which a kill left. A missing file is ignored."""
    try:
        with open(path, "rb+") as file:
            content = file.read()
            end = content.rfind(b"\n") + 1
            if end < len(content):
                file.truncate(end)
                os.fsync(file.fileno())
    except FileNotFoundError:
        pass


def _held() -> object:
    """Return a lock for Optuna that does nothing, because the sweep's folder is locked already."""
    from optuna.storages.journal._file import BaseJournalFileLock

    class HeldLock(BaseJournalFileLock):  # type: ignore[misc]  # where optuna is not installed
        def acquire(self) -> bool:
            return True

        def release(self) -> None:
            pass

    return HeldLock()


def _trial(frozen: FrozenTrial) -> Trial:
    plan = _plan(frozen.user_attrs[PLAN])
    milestones = dict(frozen.intermediate_values)
    if not frozen.state.is_finished():
        return Trial(frozen.number, plan, milestones=milestones)
    outcome: JsonObject = frozen.user_attrs[OUTCOME]
    return Trial(
        frozen.number,
        plan,
        cast("TrialStatus", outcome["status"]),
        cast("float | None", outcome.get("loss") if frozen.values is None else frozen.values[0]),
        cast("float | None", outcome["training_loss"]),
        int(cast("int", outcome["steps"])),
        int(cast("int", outcome["tokens"])),
        float(cast("float", outcome["seconds"])),
        cast("float | None", outcome["hellaswag"]),
        milestones,
    )


def _plan(content: Mapping[str, Json]) -> TrialPlan:
    return TrialPlan(
        float(cast("float", content["learning_rate"])),
        int(cast("int", content["steps"])),
        int(cast("int", content["seed"])),
        str(content["group"]),
        cast("Role", content["role"]),
        bool(content["ends_behind"]),
        dict(cast("JsonObject", content["overrides"])),
    )
