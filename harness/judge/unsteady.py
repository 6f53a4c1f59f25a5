"""Finds what one median over blocks does not describe: long steps that it passes over, and drift within runs.

All time together (:func:`in_total`) shows the long steps that fall into few blocks, or into the steps that begin a
turn. Steps that become slower or faster within a run (:func:`drift`) have no one speed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from harness.explain.ledger import Blocks, RunLedger
from harness.explain.policy import LONG_STEP_FACTOR, LONG_STEPS_SHARE_MAX
from harness.explain.statistics import Estimate, from_blocks
from harness.explain.unusual_steps import LongSteps, long_steps, without_long
from harness.judge.policy import (
    DRIFT_MIN,
    DRIFT_STEPS_MIN,
    TOTAL_APART_MIN,
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
    long_ms = LONG_STEP_FACTOR * max(float(np.median(run.step_ms)) for run in (*base, *other))
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
    """Return the steps above ``long_ms``, with the first of a repetition; None if they are too many to be rare."""
    step_ms = np.concatenate([times for run in runs for times in (run.step_ms, run.left_out.step_ms)])
    longest = np.concatenate([places for run in runs for places in (run.longest, run.left_out.longest)])
    found = long_steps(step_ms, longest, PHASES, long_ms / LONG_STEP_FACTOR)
    return found if found is not None and found.steps <= LONG_STEPS_SHARE_MAX * found.of else None


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
