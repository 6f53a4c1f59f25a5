"""What a training leaves besides its checkpoints: the table of its losses, and the ledger's recorder that fills it."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from harness.probes.ledger.steps import StepRecorder
from trainer.errors import InputError
from trainer.files import write_text

if TYPE_CHECKING:
    from harness.probes.ledger.run_queue import RunQueue
    from trainer.telemetry import BatchTrace

COLUMNS = ("step", "tokens", "loss")


class LossRow(NamedTuple):
    """The loss of one step; ``tokens``: positions computed since the training began, this step included."""

    step: int
    tokens: int
    loss: float


class LossTable:
    """losses.csv: a row for each step, without gap or repeat, however often the training was resumed."""

    def __init__(self, path: Path, steps: int) -> None:
        """Go on after ``steps`` steps: rows beyond are of steps that are done again."""
        self.path = path
        kept = [row for row in read_losses(path) if row.step < steps] if path.exists() else []
        if [row.step for row in kept] != list(range(steps)):
            print(f"warning: {path}: of the first {steps} steps it has {len(kept)} losses", file=sys.stderr)
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


def read_losses(path: Path) -> list[LossRow]:
    """The rows of a loss table; what a killed process left half written at its end is left out.

    Raises InputError for any other file.
    """
    try:
        with open(path, newline="") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    if not rows or rows[0] != list(COLUMNS):
        raise InputError(f"{path}: not a table of losses: its first line is not {','.join(COLUMNS)}")
    found = []
    for number, row in enumerate(rows[1:], 2):
        try:
            step, tokens, loss = row
            found.append(LossRow(int(step), int(tokens), float(loss)))
        except ValueError as error:
            if number == len(rows):
                break
            raise InputError(f"{path}:{number}: not a row of step, tokens and loss") from error
    return found


class TrainingRecorder(StepRecorder):
    """The ledger's recorder, which also writes each loss to the table, with the tokens until then."""

    def __init__(self, run_queue: RunQueue | None, table: LossTable | None, tokens: int, ranks: int = 1) -> None:
        """``table``: None in all ranks but the first of ``ranks``, which count the same tokens each."""
        super().__init__(run_queue)
        self._ranks = ranks
        self.run_queue = run_queue
        self._table = table
        self._step = 0
        self._tokens_at: dict[int, int] = {}  # of steps whose loss is not known yet
        self.tokens = tokens
        self.last_loss: float | None = None

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
