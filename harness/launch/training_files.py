"""Reads and writes the files of a training besides its checkpoints, and has the recorder that fills them."""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO, TypeVar

from harness.probes.ledger.steps import StepRecorder
from trainer.errors import InputError
from trainer.evaluate import KINDS, Kind
from trainer.files import write_text

if TYPE_CHECKING:
    from harness.probes.ledger.run_queue import RunQueue
    from trainer.sample import Sample
    from trainer.telemetry import BatchTrace, Validation

CHECKPOINTS, LOSSES, EVALUATIONS, LOG = "checkpoints", "losses.csv", "evaluations.csv", "log.txt"
SAMPLES = "samples.jsonl"
Row = TypeVar("Row")
COLUMNS = ("step", "tokens", "loss")


class LossRow(NamedTuple):
    """The loss of one step; ``tokens``: positions computed since the training began, this step included."""

    step: int
    tokens: int
    loss: float


class LossTable:
    """losses.csv: a row for each step, without gap or repeat, however often the training was resumed."""

    def __init__(self, path: Path, steps: int, first_step: int = 0) -> None:
        """Go on after ``steps`` steps: rows beyond are of steps that are done again.

        ``first_step``: of the training.
        """
        self.path = path
        kept = [row for row in read_losses(path) if row.step < steps] if path.exists() else []
        if [row.step for row in kept] != list(range(first_step, steps)):
            span = f"the first {steps} steps" if not first_step else f"steps {first_step} to {steps - 1}"
            print(f"warning: {path}: of {span} it has {len(kept)} losses", file=sys.stderr)
        lines = [",".join(COLUMNS), *(f"{row.step},{row.tokens},{row.loss!r}" for row in kept)]
        write_text(path, "\n".join(lines) + "\n")
        self._file: TextIO = open(path, "a")  # noqa: SIM115  # open as long as the training

    def add(self, row: LossRow) -> None:
        self._file.write(f"{row.step},{row.tokens},{row.loss!r}\n")

    def flush(self) -> None:
        """Hand what was added to the system: it outlives this process."""
        self._file.flush()

    def synchronize(self) -> None:
        """Wait until what was handed over is on the disk: it outlives the machine. Also called from another thread."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class EvaluationRow(NamedTuple):
    """A pass after a step, over held-out documents or multiple-choice questions. Other fields are None.

    ``accuracy``: of a masked-LM objective. The others are as in :class:`trainer.telemetry.Validation`.
    """

    step: int
    loss: float | None
    accuracy: float | None
    tokens: int | None
    """Labels that the loss is the mean over; None where another trainer's log does not say."""
    questions: int | None = None
    acc: float | None = None
    acc_norm: float | None = None
    acc_bytes: float | None = None
    acc_tokens: float | None = None

    @property
    def kind(self) -> Kind:
        """Kind of the pass: a diverged model has a loss too, which is NaN."""
        return "choices" if self.loss is None else "loss"


class SampleTable:
    """samples.jsonl: a line for each text that the model wrote."""

    def __init__(self, path: Path, steps: int) -> None:
        """Resume after ``steps`` steps. Remove later lines, as their texts are written again."""
        self._path = path
        if path.exists():
            lines = path.read_text(encoding="utf-8").split("\n")  # str.splitlines would also cut within texts.
            write_text(path, "".join(line + "\n" for line in lines if _step(line) < steps))

    def add(self, sample: Sample) -> None:
        """Append a text and flush it at once, as texts are rare."""
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(sample._asdict(), ensure_ascii=False) + "\n")


def _step(line: str) -> float:
    """Return the step of a line of samples.jsonl; infinity for a line that a killed process left half written."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


OLD_COLUMNS = EvaluationRow._fields[:4]  # before there were questions


class EvaluationTable:
    """evaluations.csv: a row for each pass, also of a part of the training that was killed and has no ledger."""

    def __init__(self, path: Path, steps: int) -> None:
        """Go on after ``steps`` steps: rows beyond are of passes that are done again."""
        self.is_whole = not steps or path.exists()  # else an older state of the code began the training, without it
        kept = [row for row in read_evaluations(path) if row.step < steps] if path.exists() else []
        self.last: dict[Kind, int] = {row.kind: row.step for row in kept}
        write_text(path, "\n".join([",".join(EvaluationRow._fields), *map(_evaluation_line, kept)]) + "\n")
        self._path = path

    def lacking(self, step: int) -> frozenset[Kind]:
        """Return the passes after ``step``, before this part, that may be missing: checkpoints are saved first."""
        return frozenset(kind for kind in KINDS if step >= 0 and self.is_whole and self.last.get(kind) != step)

    def add(self, row: EvaluationRow) -> None:
        """Passes are rare: each is handed to the system at once."""
        with open(self._path, "a") as file:
            file.write(_evaluation_line(row) + "\n")
        self.last[row.kind] = row.step


def _evaluation_line(row: EvaluationRow) -> str:
    return ",".join("" if value is None else repr(value) for value in row)


def read_evaluations(path: Path) -> list[EvaluationRow]:
    """Return the rows of a table of passes. Damaged files: see :func:`read_losses`."""

    def made(step: str, loss: str, accuracy: str, tokens: str, questions: str = "", *shares: str) -> EvaluationRow:
        if shares and len(shares) != len(EvaluationRow._fields) - 5:
            raise ValueError("a row that is not whole")
        values = [float(text) if text else None for text in (loss, accuracy, *shares)]
        labels, asked = (int(text) if text else None for text in (tokens, questions))
        return EvaluationRow(int(step), values[0], values[1], labels, asked, *values[2:])

    return _rows(path, EvaluationRow._fields, made, OLD_COLUMNS)


def has_rows(path: Path) -> bool:
    """True if a table of a training exists and has more than its first line. Reads two lines."""
    try:
        with open(path, "rb") as file:
            return len(list(islice(file, 2))) == 2
    except OSError:
        return False


def read_losses(path: Path) -> list[LossRow]:
    """The rows of a loss table; what a killed process left half written at its end is left out.

    Raises InputError for any other file.
    """
    return _rows(path, COLUMNS, lambda step, tokens, loss: LossRow(int(step), int(tokens), float(loss)))


def _rows(
    path: Path, columns: Sequence[str], made: Callable[..., Row], older: Sequence[str] | None = None
) -> list[Row]:
    """``older``: the columns of a table of before some of them."""
    try:
        with open(path, newline="") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    if not rows or rows[0] not in (list(columns), list(older or columns)):
        raise InputError(f"{path}: not a table of losses: its first line is not {','.join(columns)}")
    parsed = []
    for number, row in enumerate(rows[1:], 2):
        try:
            parsed.append(made(*row))
        except (ValueError, TypeError) as error:
            if number == len(rows):
                break
            raise InputError(f"{path}:{number}: not a row of {', '.join(columns[:-1])} and {columns[-1]}") from error
    return parsed


class TrainingRecorder(StepRecorder):
    """The ledger's recorder, which also writes each loss to the table, with the tokens until then."""

    def __init__(
        self,
        run_queue: RunQueue | None,
        table: LossTable | None,
        tokens: int,
        evaluations: EvaluationTable | None = None,
        ranks: int = 1,
    ) -> None:
        """``table``: None in all ranks but the first of ``ranks``, which count the same tokens each.

        ``tokens``: before this part of the training. ``evaluations``: where passes are due.
        """
        super().__init__(run_queue)
        self.evaluations = evaluations
        self._ranks = ranks
        self.run_queue = run_queue
        self._table = table
        self._step = 0
        self._tokens_at: dict[int, int] = {}  # tokens of steps without a known loss
        self.tokens = tokens
        self.last_loss: float | None = None
        self.loss_seen: Callable[[int, float], None] | None = None  # is called with each step's

    def step(self, index: int) -> None:
        super().step(index)
        self._step = index

    def received(self, trace: BatchTrace | None, tokens: int, trained_tokens: int, samples: int) -> None:
        super().received(trace, tokens, trained_tokens, samples)
        self.tokens += tokens * self._ranks
        self._tokens_at[self._step] = self.tokens

    def loss(self, step: int, value: float) -> None:
        super().loss(step, value)
        self.last_loss = value
        row = LossRow(step, self._tokens_at.pop(step), value)
        if self._table is not None:
            self._table.add(row)
        if self.loss_seen is not None:
            self.loss_seen(step, value)

    def validated(self, validation: Validation) -> None:
        super().validated(validation)
        if self.evaluations is not None:
            result = validation
            fields = {name: getattr(result, name) for name in EvaluationRow._fields}
            self.evaluations.add(EvaluationRow(**fields))
