"""Predicts one edit over a range of values, with and without tokenization, and finds where tokenization matters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.explain.policy import CROSSING_SHARE
from harness.explain.replay.predict import Replays
from harness.explain.replay.prediction import Prediction
from harness.scenario.edits import COUNTS, Edits, parse_edits
from trainer.errors import InputError

SWEPT = ("device", *COUNTS)
_HALVINGS = 6  # of the stretch in which the crossover lies


@dataclass(frozen=True)
class Crossing:
    """Where the cost of tokenization passes 1 % of the step, between two neighbours of the values given."""

    at: float  # the first value on the other side
    between: tuple[str, str]  # the neighbours, as given
    matters_below: bool  # whether tokenization matters at the lower one, and no longer at the higher one


@dataclass(frozen=True)
class Sweep:
    """Predictions at each of ``values``, in rising order."""

    key: str
    was: float  # the value recorded
    values: tuple[float, ...]
    texts: tuple[str, ...]  # the values as given
    recorded: tuple[Prediction, ...]
    without: tuple[Prediction, ...]  # tokenize=0
    crossings: tuple[Crossing, ...]

    @property
    def shares(self) -> tuple[float, ...]:
        """What part of the step tokenization costs, at each value."""
        return tuple(_share(full, free) for full, free in zip(self.recorded, self.without, strict=True))


def parse_sweep(text: str, edits: Edits) -> tuple[str, list[tuple[float, str]]]:
    """Key and values of ``device=1x,2x,4x`` in rising order; InputError (one line) for anything wrong."""
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or key not in SWEPT:
        raise InputError(f"--sweep {text}: expected KEY=VALUE,VALUE,... with one of the keys {', '.join(SWEPT)}")
    if any(one.partition("=")[0] == key for one in edits.texts):
        raise InputError(f"--sweep {text}: {key} is set by --set as well")
    texts = list(dict.fromkeys(value.strip() for value in values.split(",")))
    if len(texts) < 2:
        raise InputError(f"--sweep {text}: a sweep needs at least 2 different values, separated by commas")
    found = []
    for value in texts:
        try:
            one = parse_edits([f"{key}={value}"])
        except InputError as error:
            raise InputError(str(error).replace("--set", "--sweep", 1)) from error
        found.append((float(getattr(one, key)), value))
    return key, sorted(found)


def sweep(replays: Replays, edits: Edits, key: str, values: Sequence[tuple[float, str]]) -> Sweep:
    """Predict ``values`` of ``key`` (see :func:`parse_sweep`) on top of ``edits``, with and without tokenization."""

    def at(text: str) -> tuple[Prediction, Prediction]:
        full = edits.with_text(f"{key}={text}")
        return replays.predict(full), replays.predict(full.with_text("tokenize=0"))

    points = [at(text) for _, text in values]
    matters = [_share(*point) > CROSSING_SHARE for point in points]
    return Sweep(
        key,
        replays.recorded(key),
        tuple(value for value, _ in values),
        tuple(text for _, text in values),
        tuple(full for full, _ in points),
        tuple(free for _, free in points),
        tuple(
            _crossing(key, values[i], values[i + 1], matters[i], lambda text: _share(*at(text)) > CROSSING_SHARE)
            for i in range(len(values) - 1)
            if matters[i] != matters[i + 1]
        ),
    )


def _share(full: Prediction, free: Prediction) -> float:
    return 1 - free.step_ms.median / full.step_ms.median


def _crossing(
    key: str, low: tuple[float, str], high: tuple[float, str], before: bool, matters: Callable[[str], bool]
) -> Crossing:
    """Halve the stretch between two neighbours of which one ``matters``, with a replay each time."""
    left, right = low[0], high[0]
    for _ in range(_HALVINGS):
        middle = math.sqrt(left * right) if key == "device" else (left + right) // 2
        if middle in (left, right):
            break
        if matters(f"{middle:.6g}x" if key == "device" else f"{middle:.0f}") == before:
            left = middle
        else:
            right = middle
    return Crossing(right, (low[1], high[1]), before)
