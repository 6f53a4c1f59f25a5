"""Finds steps that are of two kinds, so that no step is like their mean: half take 20 ms, half 60 ms.

By logarithms of all steps of an arm: they are split in two where that leaves the least scatter within (Otsu 1979), each
kind has a median, and a step belongs to the nearer one. There are two kinds where each has a fair share of the steps,
they are well apart, and hardly any step lies in the middle half of the way from one to the other. Of steps of one kind,
however skewed or scattered, about a quarter lies there.

Both kinds must come in most runs: every run then shows them by itself. Where instead each run has one kind, there are
as many witnesses as runs, and of few runs some are alike by chance: then the runs of a kind must be next to the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.explain.policy import (
    KIND_RUNS_MIN,
    KIND_RUNS_SPREAD,
    KIND_SHARE_MIN,
    KINDS_BETWEEN_MAX,
    KINDS_RATIO_MIN,
    KINDS_STEPS_DRAWN,
    KINDS_STEPS_MIN,
    LONG_STEP_FACTOR,
    NEAR_MEAN_SHARE,
)

Float = NDArray[np.float64]


@dataclass(frozen=True)
class StepKinds:
    """Fast and slow steps among ``of`` measured steps. The weighted mean of all means is the mean of all steps.

    Steps longer than ``LONG_STEP_FACTOR`` times a typical slow step are a part of their own (``longest``).
    ``slow_runs``: number of runs with mostly slow steps, if most runs have a single kind; else None.
    """

    of: int
    slow_share: float
    fast_ms: float  # means
    slow_ms: float
    like_mean: float  # share of the steps that are near their mean
    runs: int
    slow_runs: int | None = None
    longest_share: float = 0.0
    longest_ms: float = 0.0

    @property
    def above_share(self) -> float:
        """Share of all steps that are not fast."""
        return self.slow_share + self.longest_share


def step_kinds(runs: Sequence[Float]) -> StepKinds | None:
    """``runs``: the measured steps of each, in milliseconds. None where they are of one kind, or it is not clear."""
    of = sum(map(len, runs))
    if of < KINDS_STEPS_MIN:
        return None
    steps = np.concatenate(runs)
    if steps.min() <= 0:
        return None
    runs = _drawn(runs, of)
    logs = np.log(np.concatenate(runs))
    first = _split(np.sort(logs))
    fast, slow = _centres(logs, sum(first) / 2) or first
    middle = (fast + slow) / 2
    share = float((logs > middle).mean())
    between = (logs > fast + (slow - fast) / 4) & (logs < slow - (slow - fast) / 4)
    rare = not KIND_SHARE_MIN <= share <= 1 - KIND_SHARE_MIN
    if rare or slow - fast < np.log(KINDS_RATIO_MIN) or between.mean() > KINDS_BETWEEN_MAX:
        return None
    shares = np.array([(np.log(one) > middle).mean() for one in runs if len(one)])
    both = (shares >= KIND_SHARE_MIN) & (shares <= 1 - KIND_SHARE_MIN)
    slow_runs = None
    if both.mean() < 0.5:
        if not _alike([np.median(np.log(one)) for one in runs if len(one)], middle, slow - fast):
            return None
        slow_runs = int((shares > 0.5).sum())
    like_mean = float((np.abs(steps / steps.mean() - 1) <= NEAR_MEAN_SHARE).mean())
    above = np.log(steps) > middle
    longest = steps > LONG_STEP_FACTOR * np.median(steps[above])
    is_slow = above & ~longest
    means = float(steps[~above].mean()), float(steps[is_slow].mean())
    longest_ms = float(steps[longest].mean()) if longest.any() else 0.0
    return StepKinds(
        of, float(is_slow.mean()), *means, like_mean, len(shares), slow_runs, float(longest.mean()), longest_ms
    )


def _drawn(runs: Sequence[Float], of: int) -> Sequence[Float]:
    """At most :data:`KINDS_STEPS_DRAWN` of them, by chance: every so many might be of one kind alone."""
    if of <= KINDS_STEPS_DRAWN:
        return runs
    generator = np.random.default_rng(0)
    return [one[generator.integers(0, len(one), len(one) * KINDS_STEPS_DRAWN // of)] for one in runs if len(one)]


def _split(ordered: Float) -> tuple[float, float]:
    """Medians of both parts of sorted values that differ most, each with its least share of them."""
    n = len(ordered)
    sums = np.cumsum(ordered)
    below = np.arange(1, n)
    below = below[(below >= KIND_SHARE_MIN * n) & (n - below >= KIND_SHARE_MIN * n)]
    apart = (sums[-1] - sums[below - 1]) / (n - below) - sums[below - 1] / below
    place = int(below[np.argmax(below * (n - below) * apart**2)])
    return float(np.median(ordered[:place])), float(np.median(ordered[place:]))


def _centres(logs: Float, middle: float) -> tuple[float, float] | None:
    """Medians of what is below and above ``middle``; None where there is nothing."""
    low, high = logs[logs <= middle], logs[logs > middle]
    return (float(np.median(low)), float(np.median(high))) if len(low) and len(high) else None


def _alike(typical: Sequence[np.floating], middle: float, way: float) -> bool:
    """Whether runs of one kind are next to the same, with enough of each."""
    kinds = [[one for one in typical if (one > middle) == above] for above in (False, True)]
    return all(len(kind) >= KIND_RUNS_MIN and max(kind) - min(kind) <= KIND_RUNS_SPREAD * way for kind in kinds)
