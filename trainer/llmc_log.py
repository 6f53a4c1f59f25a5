"""Reads the main.log of llm.c (https://github.com/karpathy/llm.c, llmc/logger.h).

Each line has a step and its values:

    s:0 tel:10.9500                      validation loss
    s:0 trl:10.9312 lr:0.000001 norm:15.36   training loss, learning rate, gradient norm (older logs: the loss alone)
    s:250 eval:0.2533                    HellaSwag accuracy (``eva`` in older logs)

A restarted training logs some steps again; the later line of a step counts. Losses are rounded to 4 digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trainer.errors import InputError, literal

_TRAINING, _VALIDATION, _ACCURACY = "trl", "tel", ("eval", "eva")
_MOST_STEPS = 2**31  # limit of a step, which is a C int
_MAX_LOG_LINE_BYTES = 4096


class LoggedStep(NamedTuple):
    """Logged values of step ``step`` (from 0), before its update; None for a value that was not logged."""

    step: int
    loss: float
    learning_rate: float | None
    norm: float | None


class LoggedScore(NamedTuple):
    """Validation loss or HellaSwag accuracy after ``updates`` optimizer steps; 0 is before the first one."""

    updates: int
    value: float


@dataclass(frozen=True)
class LlmcLog:
    """llm.c's main.log by step, where a step's last line counts. ``other_lines``: number of unknown kinds."""

    training: tuple[LoggedStep, ...]
    validation: tuple[LoggedScore, ...]
    hellaswag: tuple[LoggedScore, ...]
    other_lines: int = 0
    cut: bool = False  # True if the last line has no end; it is dropped


def read_log(path: Path) -> LlmcLog:
    """Return the content of llm.c's main.log. Raises InputError if it is another file, or has no loss or accuracy."""
    training: dict[int, LoggedStep] = {}
    validation: dict[int, LoggedScore] = {}
    hellaswag: dict[int, LoggedScore] = {}
    skipped = 0
    cut = False
    for line in _lines(path):
        if line is None:
            cut = True
            continue
        step, values = line
        kind = next(iter(values))
        if kind == _TRAINING:
            training[step] = LoggedStep(step, values[kind], values.get("lr"), values.get("norm"))
        elif kind == _VALIDATION:
            validation[step] = LoggedScore(step, values[kind])
        elif kind in _ACCURACY:
            hellaswag[step] = LoggedScore(step, values[kind])
        else:
            skipped += 1
    if not (training or validation or hellaswag):
        raise InputError(f"{path}: no step in it; a main.log of llm.c has lines such as 's:0 trl:10.9 lr:0.0001'")
    return LlmcLog(
        tuple(training[step] for step in sorted(training)),
        tuple(validation[step] for step in sorted(validation)),
        tuple(hellaswag[step] for step in sorted(hellaswag)),
        skipped,
        cut,
    )


def _lines(path: Path) -> Iterator[tuple[int, dict[str, float]] | None]:
    """Yield (step, values by name) for each line; None for a cut last line. Raises InputError for other lines."""
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LOG_LINE_BYTES), ""), 1):
                if not line.endswith("\n") and len(line) < _MAX_LOG_LINE_BYTES:
                    yield None
                elif line.strip():
                    yield _values(line, f"{path}:{number}")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a main.log of llm.c: it is no text") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _values(line: str, place: str) -> tuple[int, dict[str, float]]:
    first, *rest = (part.partition(":") for part in line.split())
    try:
        step = int(first[2])
        values = {name: float(value) for name, _, value in rest}
    except ValueError:
        step, values = -1, {}
    if first[0] != "s" or not values or not 0 <= step < _MOST_STEPS:
        raise InputError(f"{place}: not a line of llm.c's main.log: {literal(line.strip()[:60])}")
    return step, values
