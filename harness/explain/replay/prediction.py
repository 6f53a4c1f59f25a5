"""Defines what a replay answers: a prediction with its interval, its reasons and its validation error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.explain.replay.assumptions import Assumption
from harness.explain.statistics import Estimate, from_blocks, holding
from harness.scenario.edits import Edits

TOLERANCE = 0.05  # a prediction is not to be relied on where the unedited replay is further off than this


@dataclass(frozen=True)
class ReplayValidation:
    """How far the unedited replay is off, replayed / measured - 1, by block.

    ``errors``: every step and batch in the order recorded. ``resampled``: as this prediction is made, mostly from the
    durations of the measured steps alone, begun anywhere in their order.
    """

    errors: Mapping[int, float]
    resampled: Mapping[int, float]

    @property
    def median(self) -> float:
        """The median error of the replay in the order recorded, with its sign."""
        return float(np.median(list(self.errors.values())))

    @property
    def worst(self) -> float:
        """The error furthest from 0 of the replay in the order recorded, with its sign."""
        return max(self.errors.values(), key=abs)

    @property
    def resampled_median(self) -> float:
        """The median error of the resampled replay, with its sign."""
        return float(np.median(list(self.resampled.values())))

    @property
    def typical(self) -> float:
        """The typical error without its sign: in the order recorded or resampled, whichever is larger."""
        return max(float(np.median(np.abs(list(errors.values())))) for errors in (self.errors, self.resampled))

    @property
    def within_tolerance(self) -> bool:
        """Whether that is small enough (:data:`TOLERANCE`) to believe a prediction."""
        return self.typical <= TOLERANCE


@dataclass(frozen=True)
class Prediction:
    """What the edited run would have done. Times in milliseconds per step, ratios relative to what was measured.

    ``waits_ms`` and ``starved_ms`` are those of the edited replay: by stage, what the step waited for (on an
    asynchronous device: the device idle while the host waited), and all the device's idle time. ``was_waits_ms`` are
    the same of the unedited replay. ``tokens_per_s`` counts the positions of all ranks.
    """

    edits: Edits
    step_ms: Estimate
    tokens_per_s: Estimate | None
    measured_ms: Estimate
    ratio: Estimate  # predicted step time / measured
    speedup: Estimate  # measured step time / predicted: how many times as fast
    interval_from: str  # blocks, or replicates where there are too few
    validation: ReplayValidation
    waits_ms: Mapping[str, float]
    was_waits_ms: Mapping[str, float]
    starved_ms: float | None
    unedited_starved_ms: float | None
    block_ms: Mapping[int, float]  # predicted step time by block
    unedited_ms: Mapping[int, float]  # the same of the unedited replay
    assumptions: tuple[Assumption, ...]
    emulated: bool

    @property
    def gain(self) -> Estimate:
        """What the edits alone change: unedited replay / edited replay. Its interval includes that of ``speedup``."""
        found = from_blocks([math.log(self.unedited_ms[block] / ms) for block, ms in self.block_ms.items()])
        assert found is not None
        return replace(self.speedup, median=found.median)

    def over_blocks(self, one: Estimate) -> Estimate:
        """``one`` of its figures without an interval that is from replicates: that knows nothing of luck."""
        return one if self.interval_from == "blocks" else replace(one, ci_low=None, ci_high=None)


def widened(likely: Prediction, others: Sequence[Prediction]) -> Prediction:
    """``likely`` with intervals that hold those of ``others``: the same runs by other readings of what is not known."""
    if not others:
        return likely
    tokens = [one.tokens_per_s for one in others]
    return replace(
        likely,
        step_ms=holding(likely.step_ms, [one.step_ms for one in others]),
        ratio=holding(likely.ratio, [one.ratio for one in others]),
        speedup=holding(likely.speedup, [one.speedup for one in others]),
        tokens_per_s=None
        if likely.tokens_per_s is None
        else holding(likely.tokens_per_s, [one for one in tokens if one is not None]),
    )
