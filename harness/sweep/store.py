"""The folder of a sweep: the request, the journal of its trials, a training's folder for each, and the report.

``chosen_rate`` reads the learning rate that a sweep chose from its report.

DIR/sweep.json        the request, and the sweep's status
DIR/trials.journal    Optuna's journal
DIR/trials/0003/      the training of trial 3: see launch.training; result.json once it has ended
DIR/summary.md, summary.json, plots/
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, cast

from pydantic import ValidationError

from harness.judge.cost import ArmMeasurement
from harness.study.records import first_fault, made_of
from harness.sweep.journal import FILE
from harness.sweep.trial_run import RESULT
from harness.sweep.trials import Trial
from trainer.errors import InputError
from trainer.files import expanded, read_json, shell_word, write_text
from trainer.json_types import Json, JsonObject

SWEEP_SCHEMA = 1
SweepStatus = Literal["running", "done", "interrupted", "failed", "budget", "diverged"]
CHECKPOINTS, SPENT, PILOT = "checkpoints", "spent.json", "pilot"


@dataclass(frozen=True)
class Pilot:
    """Times (s) measured in a few steps before the first trial of a kind. A budget of time or money needs them."""

    start_s: float
    """Seconds of a short training except its steps and passes: from the start of its process, and its end."""
    step_s: float
    """Median of a step, in seconds."""
    pass_s: float = 0.0
    """Seconds of the last pass over held-out data; 0 in older sweeps, whose ``start_s`` includes one."""
    answers_s: float = 0.0
    """Seconds of the last pass over multiple-choice questions; 0 in older sweeps."""

    @property
    def measurement(self) -> ArmMeasurement:
        """The times as an :class:`ArmMeasurement`, which predicts the cost, without checkpoints."""
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
    pilots: dict[str, Pilot] = field(default_factory=dict)
    """Pilots by kind of trial (:meth:`TrialPlan.kind`): trials of a larger model take longer."""
    lost_s: float = 0.0
    """Seconds spent on pilots, which are no trials."""


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
        try:
            data = read_json(self.sweep_json)
        except FileNotFoundError as error:
            raise InputError(f"{self.path}: no sweep there (no sweep.json)") from error
        except (OSError, ValueError) as error:
            raise InputError(f"{self.sweep_json}: cannot be read ({error})") from error
        try:
            content = dict(data)
            if content.pop("schema") != SWEEP_SCHEMA:
                raise InputError(
                    f"{self.sweep_json}: of another version of this program; this one reads schema {SWEEP_SCHEMA}"
                )
            record = made_of(SweepRecord, content)
        except ValidationError as error:
            raise InputError(f"{self.sweep_json}: not one of harness sweep ({first_fault(error)})") from error
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self.sweep_json}: not one of harness sweep") from error
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
        """Return ``trial``; if it is still running, with its spending so far, which the journal does not have."""
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


def chosen_rate(place: str, option: str) -> tuple[float, Path]:
    """Return the chosen rate and folder of the (newest) sweep at ``place``. Raises InputError, naming ``option``."""
    root = expanded(place)
    folders = (
        [root] if _summary(root).is_file() else sorted(path for path in root.glob("*") if _summary(path).is_file())
    )
    if not folders:
        raise InputError(f"{option} {place}: no sweep with a report there; give the folder that harness sweep prints")
    folder = folders[-1]  # Folder names begin with the time of the sweep's start.
    try:
        summary = cast(JsonObject, read_json(_summary(folder)))
        status, chosen = summary["status"], cast("JsonObject | None", summary["chosen"])
        rate = None if chosen is None else float(cast(float, chosen["learning_rate"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{_summary(folder)}: no report of a sweep ({error})") from error
    if status != "done":
        raise InputError(
            f"{option} {folder}: the sweep is not done ({status}); complete it: harness sweep --resume "
            f"{shell_word(folder)}"
        )
    if rate is None:
        raise InputError(
            f"{option} {folder}: the sweep chose no learning rate; its {SweepFolder(folder).summary_md.name} says why"
        )
    return rate, folder


def _summary(folder: Path) -> Path:
    return SweepFolder(folder).summary_json
