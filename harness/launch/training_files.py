"""Reads and writes the files of a training besides its checkpoints, and contains the recorder that fills them."""

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

from harness.probes.ledger.recorders import StepRecorder
from trainer.errors import InputError
from trainer.evaluate import KINDS, Kind
from trainer.files import write_text

if TYPE_CHECKING:
    from harness.probes.ledger.threads import RunQueue
    from trainer.evaluate import Sample
    from trainer.telemetry import BatchTrace, Validation

CHECKPOINTS, LOSSES, EVALUATIONS, LOG = "checkpoints", "losses.csv", "evaluations.csv", "log.txt"
SAMPLES = "samples.jsonl"
Row = TypeVar("Row")
COLUMNS = ("step", "tokens", "loss")


class LossRow(NamedTuple):
    """Row of losses.csv. ``tokens``: positions computed since the training's start, this step included."""

    step: int
    tokens: int
    loss: float


class LossTable:
    """Writer of losses.csv: one row per step, without gaps or repeats, even after resumes."""

    def __init__(self, path: Path, steps: int, first_step: int = 0) -> None:
        """Open the table after ``steps`` steps. Drop later rows; warn of missing ones from ``first_step`` on."""
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
        """Hand the added rows to the operating system, so that they survive the end of this process."""
        self._file.flush()

    def synchronize(self) -> None:
        """Wait until flushed rows are on the disk, so that they survive a crash of the machine. Thread-safe."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class EvaluationRow(NamedTuple):
    """Row of evaluations.csv, a pass after ``step``, of held-out documents (``loss``, ``tokens``, and ``accuracy`` of
    masked language models) or multiple choice (``questions``, four shares of right answers). Other fields are None.
    """

    step: int
    loss: float | None
    accuracy: float | None
    tokens: int | None  # Number of labels in the mean loss; None if another trainer's log does not contain it.
    questions: int | None = None
    acc: float | None = None
    acc_norm: float | None = None
    acc_bytes: float | None = None
    acc_tokens: float | None = None

    @property
    def kind(self) -> Kind:
        """Kind of the pass: "loss" (held-out documents) or "choices". A diverged model also has a loss: NaN."""
        return "choices" if self.loss is None else "loss"


class SampleTable:
    """Writer of samples.jsonl: one line per text that the model wrote."""

    def __init__(self, path: Path, steps: int) -> None:
        """Open ``path`` after ``steps`` steps. Later lines are removed: they are written again."""
        self._path = path
        if path.exists():
            lines = path.read_text(encoding="utf-8").split("\n")  # str.splitlines would also split within texts.
            write_text(path, "".join(line + "\n" for line in lines if _step(line) < steps))

    def add(self, sample: Sample) -> None:
        """Append the line of a text and flush it at once, because texts are rare."""
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(sample._asdict(), ensure_ascii=False) + "\n")


def _step(line: str) -> float:
    """Return the step in a line of samples.jsonl; infinity for an incomplete line of a killed process."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


OLD_COLUMNS = EvaluationRow._fields[:4]  # columns before multiple-choice questions existed


class EvaluationTable:
    """Writer of evaluations.csv: one row per evaluation pass, also for killed parts that have no ledger."""

    def __init__(self, path: Path, steps: int) -> None:
        """Open the table at ``path`` after ``steps`` steps. Remove later rows, because their passes are repeated."""
        self.is_whole = not steps or path.exists()  # False: begun without this table, by older code
        kept = [row for row in read_evaluations(path) if row.step < steps] if path.exists() else []
        self.last: dict[Kind, int] = {row.kind: row.step for row in kept}
        write_text(path, "\n".join([",".join(EvaluationRow._fields), *map(_evaluation_line, kept)]) + "\n")
        self._path = path

    def lacking(self, step: int) -> frozenset[Kind]:
        """Return the kinds of passes after ``step`` that an earlier part did not finish."""
        return frozenset(kind for kind in KINDS if step >= 0 and self.is_whole and self.last.get(kind) != step)

    def add(self, row: EvaluationRow) -> None:
        """Append the row of a pass and flush it at once, because passes are rare."""
        with open(self._path, "a") as file:
            file.write(_evaluation_line(row) + "\n")
        self.last[row.kind] = row.step


def _evaluation_line(row: EvaluationRow) -> str:
    return ",".join("" if value is None else repr(value) for value in row)


def read_evaluations(path: Path) -> list[EvaluationRow]:
    """Return the rows of evaluations.csv, also of older files; InputError for another content."""

    def made(step: str, loss: str, accuracy: str, tokens: str, questions: str = "", *shares: str) -> EvaluationRow:
        if shares and len(shares) != len(EvaluationRow._fields) - 5:
            raise ValueError("a row that is not whole")
        values = [float(text) if text else None for text in (loss, accuracy, *shares)]
        labels, asked = (int(text) if text else None for text in (tokens, questions))
        return EvaluationRow(int(step), values[0], values[1], labels, asked, *values[2:])

    return _rows(path, EvaluationRow._fields, made, OLD_COLUMNS)


def has_rows(path: Path) -> bool:
    """True if the table at ``path`` exists and has a row below its header. Reads only two lines."""
    try:
        with open(path, "rb") as file:
            return len(list(islice(file, 2))) == 2
    except OSError:
        return False


def read_losses(path: Path) -> list[LossRow]:
    """Return the rows of losses.csv without an incomplete last one. Raises InputError for another content."""
    return _rows(path, COLUMNS, lambda step, tokens, loss: LossRow(int(step), int(tokens), float(loss)))


def _rows(
    path: Path, columns: Sequence[str], made: Callable[..., Row], older: Sequence[str] | None = None
) -> list[Row]:
    """Return the rows of the CSV table at ``path``, each ``made`` from its cells, without an incomplete last one.

    ``older``: earlier header. Raises InputError if the file cannot be read, has another header, or a refused row.
    """
    try:
        with open(path, newline="") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    if not rows or rows[0] not in (list(columns), list(older or columns)):
        raise InputError(f"{path}: not a table of a training: its first line is not {','.join(columns)}")
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
    """Step recorder of a training that also writes each loss and each evaluation pass to the training's tables."""

    def __init__(
        self,
        run_queue: RunQueue | None,
        table: LossTable | None,
        tokens: int,
        evaluations: EvaluationTable | None = None,
        ranks: int = 1,
    ) -> None:
        """Set up. ``table``, ``evaluations``: of rank 0. ``tokens``: before this part; ``ranks`` receive as many."""
        super().__init__(run_queue)
        self.evaluations = evaluations
        self._ranks = ranks
        self.run_queue = run_queue
        self._table = table
        self._step = 0
        self._tokens_at: dict[int, int] = {}  # tokens of steps without a known loss
        self.tokens = tokens
        self.last_loss: float | None = None
        self.loss_seen: Callable[[int, float], None] | None = None  # called with each step and its loss

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
            fields = {name: getattr(validation, name) for name in EvaluationRow._fields}
            self.evaluations.add(EvaluationRow(**fields))
