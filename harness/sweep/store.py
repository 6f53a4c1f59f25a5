"""The folder of a sweep. ``chosen_rate`` reads the learning rate that a sweep chose from its report.

sweep.json is the request and the sweep's status; trials.journal is Optuna's journal; trials/0003/ is the training of
trial 3 (see launch.training), with result.json once it has ended; then summary.md, summary.json and plots/.

A change of a trial is appended to the journal and synchronized. A half record left by a kill is cut off before anything
is written, because Optuna would append to it. The kernel locks the folder, as Optuna's lock file outlives a kill.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from harness.judge.cost import ArmMeasurement
from harness.study.records import made_of, read_record
from harness.sweep.trial_run import RESULT
from harness.sweep.trials import Trial, TrialPlan
from trainer.errors import InputError, one_line
from trainer.files import expanded, read_json, shell_word, write_text
from trainer.json_types import Json, JsonObject

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial


NAME = "learning-rate"
FILE = "trials.journal"
PLAN, OUTCOME = "plan", "outcome"
OUTCOME_KEYS = ("status", "training_loss", "steps", "tokens", "seconds", "hellaswag", "loss")


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

        outcome = {key: getattr(trial, key) for key in OUTCOME_KEYS}
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
    facts = {
        "number": frozen.number,
        "plan": made_of(TrialPlan, frozen.user_attrs[PLAN]),
        "milestones": dict(frozen.intermediate_values),
    }
    if not frozen.state.is_finished():
        return made_of(Trial, facts)
    loss = {} if frozen.values is None else {"loss": frozen.values[0]}
    return made_of(Trial, facts | frozen.user_attrs[OUTCOME] | loss)


SWEEP_SCHEMA = 1
SweepStatus = Literal["running", "done", "interrupted", "failed", "budget", "diverged"]
CHECKPOINTS, SPENT, PILOT = "checkpoints", "spent.json", "pilot"


@dataclass(frozen=True)
class Pilot:
    """Times (s) of a few steps, trained before the first trial of a kind. A budget of time or money needs them."""

    start_s: float  # seconds of a short training except its steps and passes: start of its process, and its end
    step_s: float  # Median of a step, in seconds
    pass_s: float = 0.0  # seconds of the last held-out pass; 0 in older sweeps, whose ``start_s`` includes one
    answers_s: float = 0.0  # Seconds of the last pass over multiple-choice questions; 0 in older sweeps.

    @property
    def measurement(self) -> ArmMeasurement:
        """The times as an :class:`ArmMeasurement` without checkpoints, which predicts the cost of trials."""
        passes, answers = (self.pass_s,), (self.answers_s,)
        steps = (self.step_s, self.step_s)  # The first step does not differ from the others.
        return ArmMeasurement(
            "trial", steps, unsettled=1, startup_s=self.start_s, ending_s=0.0, passes_s=passes, answers_s=answers
        )


@dataclass(frozen=True)
class Taken:
    """Content of spent.json: time, steps and tokens that a trial has used up to its last heartbeat."""

    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class SweepRecord:
    """Content of sweep.json. ``settings``: the resolved sweep file. ``config``: what the trials share."""

    name: str
    arm: str
    settings: JsonObject
    config: JsonObject
    steps: int
    step_tokens: int
    parameters: int | None
    price_usd_per_hour: float | None
    status: SweepStatus
    created_utc: str
    command: list[str]
    file: str
    environment: JsonObject
    ended_utc: str | None = None
    error: str | None = None
    pilots: dict[str, Pilot] = field(default_factory=dict)  # key: :meth:`TrialPlan.kind`; larger models take longer
    lost_s: float = 0.0  # Seconds spent on pilots, which are no trials


@dataclass(frozen=True)
class SweepFolder:
    """The folder of one sweep, with methods to read and write its files."""

    path: Path

    @property
    def sweep_json(self) -> Path:
        return self.path / "sweep.json"

    @property
    def summary_md(self) -> Path:
        return self.path / "summary.md"

    @property
    def summary_json(self) -> Path:
        return self.path / "summary.json"

    def trial(self, number: int) -> Path:
        """Return the folder of the training of trial ``number``."""
        return self.path / "trials" / f"{number:04d}"

    def write(self, record: SweepRecord) -> None:
        write_text(self.sweep_json, json.dumps({"schema": SWEEP_SCHEMA, **asdict(record)}, indent=1) + "\n")

    def read(self) -> SweepRecord:
        """Read sweep.json. Raises InputError if it is missing or invalid, or if trials have no journal beside them."""
        record = read_record(self.sweep_json, SweepRecord, SWEEP_SCHEMA)
        if record is None:
            raise InputError(f"{self.path}: no sweep there (no sweep.json)")
        if not (self.path / FILE).exists() and any(self.path.glob("trials/*")):
            raise InputError(f"{self.path}: trials.journal is missing, so its trials are unknown")
        return record

    def result(self, number: int) -> JsonObject | None:
        """Return a trial's result.json; None if it has not ended, or if the file is incomplete."""
        with suppress(OSError, ValueError):
            result = read_json(self.trial(number) / RESULT)
            return cast("JsonObject", result) if isinstance(result, dict) else None
        return None

    def taken(self, number: int) -> Taken:
        """Return what all parts of trial ``number`` have used; zeros if nothing is recorded."""
        with suppress(OSError, ValueError, TypeError, AttributeError):
            return made_of(Taken, read_json(self.trial(number) / SPENT))
        return Taken()

    def note_taken(self, number: int, taken: Taken) -> None:
        write_text(self.trial(number) / SPENT, json.dumps(asdict(taken)) + "\n")

    def as_it_stands(self, trial: Trial) -> Trial:
        """Return ``trial``; if it still runs, with its seconds, steps and tokens so far from spent.json."""
        if trial.status != "running":
            return trial
        progress = self.taken(trial.number)
        return replace(trial, seconds=progress.seconds, steps=progress.steps, tokens=progress.tokens)

    def remove_checkpoints(self, number: int) -> None:
        """Remove the checkpoints of a trial."""
        shutil.rmtree(self.trial(number) / CHECKPOINTS, ignore_errors=True)

    def update(self, record: SweepRecord, **changes: Json) -> SweepRecord:
        """Return ``record`` with ``changes``, after writing it to sweep.json."""
        changed = replace(record, **changes)  # type: ignore[arg-type]  # checked by its dataclass's readers
        self.write(changed)
        return changed


@dataclass(frozen=True)
class _Chosen:
    learning_rate: float


@dataclass(frozen=True)
class _Summary:
    status: str
    chosen: _Chosen | None


def chosen_rate(place: str, option: str) -> tuple[float, Path]:
    """Return the chosen rate and folder of the (newest) sweep at ``place``. Raises InputError."""
    root = expanded(place)
    folders = (
        [root] if _summary(root).is_file() else sorted(path for path in root.glob("*") if _summary(path).is_file())
    )
    if not folders:
        raise InputError(f"{option} {place}: no sweep with a report there; give the folder that harness sweep prints")
    folder = folders[-1]  # Folder names begin with the time of the sweep's start.
    summary = read_record(_summary(folder), _Summary, SWEEP_SCHEMA)
    assert summary is not None
    status = summary.status
    if status != "done":
        raise InputError(
            f"{option} {folder}: the sweep is not done ({status}); complete it: harness sweep --resume "
            f"{shell_word(folder)}"
        )
    if summary.chosen is None:
        raise InputError(f"{option} {folder}: the sweep chose no learning rate; its summary.md says why")
    return summary.chosen.learning_rate, folder


def _summary(folder: Path) -> Path:
    return SweepFolder(folder).summary_json
