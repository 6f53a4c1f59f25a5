"""Expands a scenario to every arm at every matrix point, before controls are added. Pure and cheap."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.scenario.model import Scenario
from harness.scenario.overrides import Nested, expand, flatten, merge
from trainer.config import TrainerConfig
from trainer.json_types import Json


@dataclass(frozen=True)
class MatrixPoint:
    """One combination of the matrix values.

    ``suffix`` (``@batch_size=8``) is appended to an arm's name; ``values`` are nested.
    """

    suffix: str
    values: Nested


@dataclass(frozen=True)
class Variant:
    """One arm at one matrix point; :func:`variants` makes it. ``name``: the arm's name with the point's suffix.

    ``declared``: the point's and the arm's own keys, nested. ``nested``: the whole configuration.
    """

    name: str
    arm: str
    point: MatrixPoint
    declared: Nested
    nested: Nested


def count_arms(scenario: Scenario) -> int:
    """Return the number of arms times matrix points, without controls. Nothing is built."""
    return len(scenario.arms) * math.prod(len(values) for values in scenario.matrix.values())


def points(matrix: Mapping[str, Sequence[Json]]) -> Iterator[MatrixPoint]:
    """Yield every combination of the matrix values, the last key varying fastest; one empty point without a matrix."""
    last_parts = [key.rpartition(".")[2] for key in matrix]
    labels = [key if last_parts.count(part) > 1 else part for key, part in zip(matrix, last_parts, strict=True)]
    for values in itertools.product(*matrix.values()):
        named = [f"{label}={value_name(value)}" for label, value in zip(labels, values, strict=True)]
        suffix = f"@{','.join(named)}" if named else ""
        yield MatrixPoint(suffix, expand(dict(zip(matrix, values, strict=True))))


def variants(scenario: Scenario) -> Iterator[Variant]:
    """Yield every arm at every matrix point, arms in the outer loop.

    Each configuration merges the defaults, then base, then the point, then the arm's own overrides.
    """
    # The base starts from the defaults, so that `data.corpus.documents: 40` means the first 40 of the default corpus.
    base = merge(TrainerConfig().model_dump(), expand(scenario.base))
    combinations = list(points(scenario.matrix))
    for arm, overrides in scenario.arms.items():
        arm_values = expand(overrides or {})
        for point in combinations:
            nested = merge(merge(base, point.values), arm_values)
            yield Variant(f"{arm}{point.suffix}", arm, point, merge(point.values, arm_values), nested)


def value_name(value: Json) -> str:
    """Format a matrix value as part of a folder name: at most 40 safe characters, or longer for a mapping."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return (
            "-".join(f"{key.rpartition('.')[2]}-{value_name(leaf)}" for key, leaf in flatten(value).items()) or "empty"
        )
    return re.sub(r"[^A-Za-z0-9._-]+", "-", str(value)).strip("-.")[-40:] or "empty"
