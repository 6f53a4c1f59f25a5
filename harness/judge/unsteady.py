"""Finds what one median over blocks does not describe: long steps, blocks that wait unlike others, and drift.

All time together (:func:`in_total`) shows the long steps that fall into few blocks, or into the steps that begin a
turn. Blocks that wait for unlike shares of a step (:func:`uneven_waits`) have a mean that describes none of them: mean
and median differ, or there are two kinds of blocks with nothing in between. Steps that become slower or faster within
a run (:func:`drift`) have no one speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from harness.explain.ledger import Blocks, RunLedger
from harness.explain.long_steps import FEW, LONG, LongSteps, long_steps, without_long
from harness.explain.statistics import Estimate, from_blocks
from harness.judge.policy import (
    DRIFT_MIN,
    DRIFT_STEPS_MIN,
    TOTAL_APART_MIN,
    UNEVEN_APART_MIN,
    UNEVEN_BLOCKS_MIN,
    UNEVEN_KIND_RATIO,
)
from harness.judge.verdicts import confidence_of_each
from harness.study.contract import PHASES

if TYPE_CHECKING:
    from harness.explain.ledger import Blocks, RunLedger


@dataclass(frozen=True)
class InTotal:
    """``ratio``: how many times as fast the candidate is in all time together, by what the comparison measures.

    ``least``: the same without the block that sets it apart most, as one long step may be an accident of the machine.
    ``long``: the long steps of ``arm``, which set that apart from the median over blocks, in ``blocks`` of ``of``
    blocks; None: its steps are slower throughout in these blocks. ``left_out``: so many long steps begin a turn, and no
    other figure holds them.
    """

    ratio: float
    least: float
    arm: Literal["baseline", "candidate"]
    long: LongSteps | None
    left_out: int
    blocks: int
    of: int


def in_total(baseline: Blocks, candidate: Blocks, steps: float, measured: float) -> InTotal | None:
    """What all time of the shared blocks says; None where that is about the median over blocks.

    ``steps``, ``measured``: medians over blocks of how many times as fast the steps are, and what is measured.
    """
    shared = sorted(set(baseline) & set(candidate))
    base, other = ([blocks[block] for block in shared] for blocks in (baseline, candidate))
    # One bound for both: else the same step would be long in the one arm and typical in the other.
    long_ms = LONG * max(float(np.median(run.step_ms)) for run in (*base, *other))
    ours, theirs = (_Times.of(runs, long_ms) for runs in (base, other))
    found = ours.mean_ms() / theirs.mean_ms()
    usual = ours.usual_ms.sum() / ours.steps.sum() / (theirs.usual_ms.sum() / theirs.steps.sum())
    apart, by_long = math.log(found / steps), math.log(found / usual)
    if abs(apart) <= math.log1p(TOTAL_APART_MIN):
        return None
    runs = other if apart < 0 else base
    long = None
    if by_long / apart >= 0.5:  # else blocks are unlike
        long = _long(runs, long_ms)
    least = steps
    if len(shared) > 1:
        without = [ours.mean_ms(but=one) / theirs.mean_ms(but=one) for one in range(len(shared))]
        least = min(without, key=lambda one: abs(math.log(one / steps)))
    return InTotal(
        measured * found / steps,
        measured * least / steps,
        "candidate" if apart < 0 else "baseline",
        long,
        sum(_count(run.left_out.step_ms, long_ms) for run in runs) if long is not None else 0,
        _with_long(runs, long_ms) if long is not None else _slower(base, other, steps, apart),
        len(runs),
    )


def _long(runs: Sequence[RunLedger], long_ms: float) -> LongSteps | None:
    """Return the steps above ``long_ms``, including the first of a repetition; None if more than :data:`FEW` are."""
    step_ms = np.concatenate([times for run in runs for times in (run.step_ms, run.left_out.step_ms)])
    longest = np.concatenate([places for run in runs for places in (run.longest, run.left_out.longest)])
    found = long_steps(step_ms, longest, PHASES, long_ms / LONG)
    return found if found is not None and found.steps <= FEW * found.of else None


def _with_long(runs: Sequence[RunLedger], long_ms: float) -> int:
    return sum(_count(run.step_ms, long_ms) + _count(run.left_out.step_ms, long_ms) > 0 for run in runs)


def _count(step_ms: NDArray[np.float64], long_ms: float) -> int:
    return int((step_ms > long_ms).sum())


def _slower(base: Sequence[RunLedger], other: Sequence[RunLedger], steps: float, apart: float) -> int:
    """Blocks that are further from the median than half of the way that sets all time apart, in its direction."""
    logs = [math.log(one.mean_step_ms / two.mean_step_ms / steps) for one, two in zip(base, other, strict=True)]
    return sum(log * math.copysign(1, apart) > abs(apart) / 2 for log in logs)


@dataclass(frozen=True)
class _Times:
    """Of the runs of one arm: steps, those that begin a turn among them, and their times together; all (runs,).

    Of steps that begin a turn only what is longer than a bound counts as it is, else as a typical step. ``usual_ms``:
    every step that long as a typical one.
    """

    steps: NDArray[np.float64]
    total_ms: NDArray[np.float64]
    usual_ms: NDArray[np.float64]

    @classmethod
    def of(cls, runs: Sequence[RunLedger], long_ms: float) -> _Times:
        found = []
        for run in runs:
            typical_ms = float(np.median(run.step_ms))
            left_ms = np.where(run.left_out.step_ms > long_ms, run.left_out.step_ms, typical_ms)
            times_ms = np.concatenate([run.step_ms, left_ms])
            usual_ms = np.where(times_ms > long_ms, typical_ms, times_ms)
            found.append((float(len(times_ms)), float(times_ms.sum()), float(usual_ms.sum())))
        return cls(*np.array(found).T)

    def mean_ms(self, but: int | None = None) -> float:
        """Milliseconds a step; ``but``: without that run."""
        kept = np.arange(len(self.steps)) != (-1 if but is None else but)
        return float(self.total_ms[kept].sum() / self.steps[kept].sum())


@dataclass(frozen=True)
class UnevenWaits:
    """Blocks fall into two kinds; times are means per step, in milliseconds, over the blocks of a kind."""

    blocks: tuple[int, ...]  # that wait for more
    of: int
    waited_ms: float  # of these
    step_ms: float  # of these
    others_ms: float  # what the others wait
    waited_range_ms: tuple[float, float]  # the least and the most that one of these waits, of a step of ``step_ms``
    others_range_ms: tuple[float, float]  # of the others

    @property
    def half(self) -> bool:
        """Whether as many wait for more as do not: a median over blocks lies between both kinds."""
        return 2 * len(self.blocks) == self.of


@dataclass(frozen=True)
class UnevenSpeed:
    """A speed of either kind of blocks, medians: of those that wait for more, and of the others."""

    more: float
    others: float


def uneven_waits(runs: Sequence[RunLedger]) -> UnevenWaits | None:
    """None where all blocks wait for about the same share of a step, or it is not known of one of them."""
    if not runs or any(run.waited_ms is None for run in runs):
        return None
    typical_ms = median(run.mean_step_ms for run in runs)  # a block that one long step makes slow waits for no less
    known = [(run, (run.waited_ms or 0.0) / typical_ms) for run in runs]
    shares = [share for _, share in known]
    middle = (min(shares) + max(shares)) / 2
    more = [run for run, share in known if share > middle]
    others = [run for run, share in known if share <= middle]
    if abs(mean(shares) - median(shares)) <= UNEVEN_APART_MIN and not _two_kinds(shares, middle):
        return None
    waited_ms, others_ms = ([run.waited_ms or 0.0 for run in kind] for kind in (more, others))
    step_ms = mean(run.mean_step_ms for run in more)
    # A block that waits longest may be the one with the longest steps: its wait is a share of these.
    of_step_ms = [(run.waited_ms or 0.0) / run.mean_step_ms * step_ms for run in more]
    return UnevenWaits(
        blocks=tuple(run.record.block for run in more),
        of=len(known),
        waited_ms=mean(waited_ms),
        step_ms=step_ms,
        others_ms=mean(others_ms),
        waited_range_ms=(min(of_step_ms), max(of_step_ms)),
        others_range_ms=(min(others_ms), max(others_ms)),
    )


def _two_kinds(shares: Sequence[float], middle: float) -> bool:
    """Whether ``shares`` above and below ``middle`` are far apart, and those of one kind near one another."""
    low, high = [share for share in shares if share <= middle], [share for share in shares if share > middle]
    if not high or min(len(low), len(high)) < min(UNEVEN_BLOCKS_MIN, len(shares) // 2):
        return False
    gap = min(high) - max(low)
    close = max(max(kind) - min(kind) for kind in (low, high))
    return gap > UNEVEN_APART_MIN and gap > close and mean(low) < UNEVEN_KIND_RATIO * mean(high)


def uneven_speed(uneven: UnevenWaits | None, speeds: Mapping[int, float]) -> UnevenSpeed | None:
    """``speeds``: by block. None where blocks are alike, or one kind of them has no speed."""
    if uneven is None:
        return None
    more = [value for block, value in speeds.items() if block in uneven.blocks]
    others = [value for block, value in speeds.items() if block not in uneven.blocks]
    return UnevenSpeed(median(more), median(others)) if more and others else None


def drift(base: Blocks, other: Blocks, noise_floor: float | None, comparisons: int = 1) -> Estimate | None:
    """Times as long as in the first repetition the candidate's steps last in the last one, next to the baseline's.

    What slows both alike cancels, and a rare long step (a checkpoint, say) counts as a typical one: which repetitions
    hold one is no drift. None where the interval, that holds for all ``comparisons`` together, holds 1; or the
    median is within the noise floor or :data:`DRIFT_MIN`; or there are too few blocks or repetitions.
    """
    logs = [
        candidates - baselines
        for block in sorted(set(base) & set(other))
        if (candidates := _log_change(other[block], base[block])) is not None
        and (baselines := _log_change(base[block], other[block])) is not None
    ]
    found = from_blocks(logs, confidence_of_each(comparisons))
    if found is None or found.ci_low is None or found.ci_high is None or found.ci_low <= 1 <= found.ci_high:
        return None
    return found if abs(found.median - 1) > max(DRIFT_MIN, noise_floor or 0.0) else None


def _log_change(run: RunLedger, other: RunLedger) -> float | None:
    """Of the step time, from the first repetition that both have to the last; from half to half where there is one."""
    shared = sorted(set(run.repetitions) & set(other.repetitions))
    if not shared or (len(shared) < 2 and min(len(run.step_ms), len(other.step_ms)) < DRIFT_STEPS_MIN):
        return None
    if len(shared) < 2:
        steps_ms = without_long(run.step_ms)
        half = len(steps_ms) // 2
        return math.log(float(steps_ms[-half:].mean())) - math.log(float(steps_ms[:half].mean()))
    first, last = (run.repetitions[number] for number in (shared[0], shared[-1]))
    return math.log(last.usual_ns / last.steps) - math.log(first.usual_ns / first.steps)
