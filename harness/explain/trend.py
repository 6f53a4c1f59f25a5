"""Finds steps that get longer and longer, the part of them that grows, and its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.explain import policy
from harness.explain.causes import REST, Z_95

Float = NDArray[np.float64]
EDGE_BINS = 2  # bins at each end of a run that give its first and last typical step
QUARTERS = (
    policy.TREND_BINS // 4,
    policy.TREND_BINS // 2,
    3 * policy.TREND_BINS // 4,
)  # bins where the quarters of a run end


@dataclass(frozen=True)
class Trend:
    """Growth of the step time within one run; :func:`trend` finds it."""

    part: str
    """Phase that grows most; :data:`REST` for the time outside of all phases."""
    first_ms: float
    """Typical step time at step 0, extrapolated from the first half of the run."""
    last_ms: float
    """Typical step time in the last tenth of the run."""
    part_share: float
    """Share of the growth that is in that phase."""
    ms: float
    """Mean milliseconds per step above ``first_ms``; ``low_ms`` and ``high_ms`` are its 95 % interval."""
    low_ms: float
    high_ms: float


def trend(
    wall_ms: Float, parts_ms: Mapping[str, Float], work: Float, *, before: int = 0, evident: bool = False
) -> Trend | None:
    """Return the growth of the step time over a run; None if steps do not clearly grow.

    None, too, if more work per step or a slower machine explains the growth.
    ``wall_ms``: time of each step without waits for a core. ``parts_ms``: the same by phase. ``work``: tokens or
    samples of each step; 0: unknown.
    ``before``: number of steps before the first of ``wall_ms``, which are assumed to have grown at the same rate.
    ``evident``: True if the program adds more and more hooks. Growth then counts even if it is uneven, because other
    programs may use the machine.
    """
    if len(wall_ms) < policy.TREND_STEPS_MIN:
        return None
    walls = _medians(wall_ms)
    slope, low, high = _slope(walls)
    first, last = _edges(walls)
    quarters = np.diff([first, *(float(walls[edge - 1 : edge + 1].mean()) for edge in QUARTERS), last])
    steady = evident or bool((quarters >= policy.TREND_QUARTER_MIN * quarters.mean()).all())
    if low <= 0 or first <= 0 or last < policy.TREND_RATIO_MIN * first or not steady:
        return None
    work_first, work_last = _edges(_medians(work))
    if work_first > 0 and work_last / work_first - 1 > policy.TREND_WORK_MAX * (last / first - 1):
        return None
    parts = {**parts_ms, REST: wall_ms - sum(parts_ms.values(), np.zeros(len(wall_ms)))}
    edges = {name: _edges(_medians(ms)) for name, ms in parts.items()}
    rises = [end / begin for begin, end in edges.values() if begin >= policy.TREND_PART_MIN * first]
    if len(rises) > 1 and min(rises) >= policy.TREND_ALIKE_MIN * max(*rises, last / first):
        return None
    growth = {name: end - begin for name, (begin, end) in edges.items()}
    part = max(growth, key=lambda name: growth[name])
    # The cost cannot exceed the growing part itself.
    least = first - max(edges[part][0], 0.0)
    # Bins from step 0 to the middle of the first bins.
    early_bins = EDGE_BINS / 2 + min(before / len(wall_ms), policy.TREND_BEFORE_MAX) * policy.TREND_BINS
    costs = []
    for bound in _slope(walls[: policy.TREND_BINS // 2]):
        begin = max(first - max(bound, 0.0) * early_bins, least)
        costs.append(float(walls.mean()) - begin)
    cost, fewest, most = costs
    return Trend(
        part,
        first_ms=float(walls.mean()) - cost,
        last_ms=last,
        part_share=min(1.0, growth[part] / (last - first)),
        ms=cost,
        low_ms=fewest * min(low / slope, 1.0),
        high_ms=most * max(high / slope, 1.0),
    )


def _medians(values: Float) -> Float:
    return np.array([float(np.median(part)) for part in np.array_split(values, policy.TREND_BINS)])


def _edges(bins: Float) -> tuple[float, float]:
    return float(bins[:EDGE_BINS].mean()), float(bins[-EDGE_BINS:].mean())


def _slope(values: Float) -> tuple[float, float, float]:
    """Return (slope, low, high) of ``values``: change from one value to the next, median with 95 % interval.

    Median of all pairwise slopes: Theil 1950. Interval: Sen 1968."""
    n = len(values)
    earlier, later = np.triu_indices(n, 1)
    slopes = np.sort((values[later] - values[earlier]) / (later - earlier))
    spread = Z_95 * np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = int((len(slopes) - spread) / 2)
    high = min(len(slopes) - 1, int((len(slopes) + spread) / 2))
    return float(np.median(slopes)), float(slopes[max(low, 0)]), float(slopes[high])
