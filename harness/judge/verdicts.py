"""Derive the verdict of a comparison, which needs an interval, a noise floor and similar losses.

All comparisons of a study together have a 5 % chance of any error: each of N uses an interval of 1 - 5 % / N (union
bound, also for shared runs and controls). The noise floor is one draw for all comparisons, and small by chance at
times: it can reject a difference, and never supports one. What a median over blocks hides:

- :func:`in_total` compares total times. It shows long steps in few blocks, or in the steps that begin a turn.
- :func:`drift` finds steps that become slower or faster within a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.explain.ledger import Blocks, RunLedger
from harness.explain.policy import CONFIDENCE, LONG_STEP_FACTOR, LONG_STEPS_SHARE_MAX, MIN_BLOCKS
from harness.explain.statistics import Estimate, from_blocks, student_t
from harness.explain.unusual_steps import LongSteps, long_steps, without_long
from harness.judge import policy
from harness.judge.doubts import Doubt, DoubtKind, RemedyKind, barred, doubt, in_order
from harness.judge.losses import Losses
from harness.judge.policy import DRIFT_MIN, DRIFT_STEPS_MIN, TOTAL_APART_MIN
from harness.study.contract import PHASES

Verdict = Literal["gain", "loss", "none", "undecided"]
Direction = Literal["gain", "loss", "none"]


@dataclass(frozen=True)
class Judged:
    """Verdict on one speed ratio; :func:`judge` makes it."""

    verdict: Verdict
    resolution: float | None = None  # smallest detectable difference, a fraction; None: nothing can be resolved
    cause: Doubt | None = None  # the doubt that bars the verdict; None if there is a verdict
    of: Estimate | None = None  # the ratio with the judged interval, if kept
    doubts: tuple[Doubt, ...] = ()  # all, most important first

    @property
    def undecided(self) -> DoubtKind | None:
        """Kind of the doubt that bars the verdict; None if there is a verdict."""
        return None if self.cause is None else self.cause.kind


def confidence_of_each(comparisons: int) -> float:
    """Return the confidence level of one interval so that ``comparisons`` together hold with 95 % (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / max(comparisons, 1)


def judge(
    ratio: Estimate,
    noise_floor: float | None,
    losses: Losses | None = None,
    *,
    repeated: tuple[float, float] | None = None,
    doubts: Sequence[Doubt] = (),
    used_lead: tuple[float, float] = (0.0, 0.0),
    same_again: Estimate | None = None,
    in_total: float | None = None,
    shown: Estimate | None = None,
    step_time: Estimate | None = None,
    cores: tuple[float, float] | None = None,
    no_floor: RemedyKind = "a-a control",
    few_blocks: RemedyKind = "more blocks",
) -> Judged:
    """Return the verdict on the speed ``ratio``, whose interval holds for all comparisons of the study together.

    Gain or loss if the interval excludes 1 and the median exceeds ``noise_floor`` (a fraction; None: undecided), else
    no difference. The most important doubt that bars this verdict makes it undecided.

    - ``losses``: of both arms; None to judge only speed. ``doubts``: found elsewhere, such as busy cores.
    - ``repeated``: shares of rows that the arms train again, if they differ (:func:`repeated_data`).
    - ``used_lead``: by which share of a step (baseline, candidate) may have been faster than it can sustain. Such speed
    may explain a difference up to this size, or hide one: "none" requires that this share is smaller than the smallest
    detectable difference.
    - ``same_again``: ratio of an A/A control to its arm. If it clearly differs from 1, gain or loss requires that the
    interval of ``ratio`` is entirely further from 1.
    - ``in_total``: ratio of total times without the block that moves it most; None if it is close to ``ratio``. A ratio
    of total times bars a verdict that it contradicts.
    - ``shown``: the ratio with the displayed interval; None: that of ``ratio``.
    - ``step_time``: speed ratio in steps per second, which shows if only the work per step varies.
    - ``cores``: (used by other processes, all cores).
    - ``no_floor``, ``few_blocks``: remedies for a missing noise floor and for too few blocks.
    """
    if ratio.distance is None:
        all_doubts = in_order(
            [
                *doubts,
                doubt("too few blocks", blocks=policy.ENOUGH_BLOCKS, remedy=few_blocks),
                *_of_losses(losses),
                *_of_data(repeated),
            ]
        )
        return Judged("undecided", None, barred(all_doubts, "gain"), doubts=all_doubts)
    missing = [doubt("no noise floor", remedy=no_floor, blocks=policy.ENOUGH_BLOCKS)] if noise_floor is None else []
    floor = noise_floor or 0.0
    direction, resolution = _direction(ratio, floor), max(ratio.distance, floor)
    unnoticed = resolution + max(used_lead) if direction == "none" else resolution
    all_doubts = in_order(
        [
            *doubts,
            *missing,
            *_of_size(direction, ratio, floor, step_time, few_blocks),
            *_of_noise(direction, shown or ratio, floor, step_time, cores),
            *_of_lead(direction, ratio, resolution, used_lead),
            *_of_losses(losses),
            *_of_data(repeated),
            *_of_control(direction, ratio, same_again),
            *_of_total(direction, unnoticed, floor, in_total),
        ]
    )
    cause = barred(all_doubts, direction)
    if missing:
        return Judged("undecided", None, cause, doubts=all_doubts)
    if cause is None:
        return Judged(direction, unnoticed, doubts=all_doubts)
    return Judged("undecided", unnoticed if cause.kind == "long steps" else resolution, cause, doubts=all_doubts)


def is_useless(ratio: Estimate) -> bool:
    """Return True if the interval includes both :data:`USELESS_RATIO` times as fast and as many times as slow."""
    low, high = ratio.ci_low, ratio.ci_high
    return low is not None and high is not None and low <= 1 / policy.USELESS_RATIO and high >= policy.USELESS_RATIO


def is_apart(same_again: Estimate | None) -> bool:
    """True if an A/A control certainly differs from its arm (speed ratio) by over :data:`CONTROL_APART_MIN`."""
    if same_again is None or same_again.ci_low is None or same_again.ci_high is None:
        return False
    return same_again.ci_low > 1 + policy.CONTROL_APART_MIN or same_again.ci_high < 1 / (1 + policy.CONTROL_APART_MIN)


def _direction(ratio: Estimate, noise_floor: float) -> Direction:
    assert ratio.ci_low is not None
    assert ratio.ci_high is not None
    if abs(ratio.median - 1) <= noise_floor or ratio.ci_low <= 1 <= ratio.ci_high:
        return "none"
    return "loss" if ratio.median < 1 else "gain"


def _of_size(
    direction: Direction, ratio: Estimate, noise_floor: float, step_time: Estimate | None, few_blocks: RemedyKind
) -> Iterator[Doubt]:
    """Yield a doubt if no difference was found and even a large one was not detectable."""
    resolution = max(ratio.distance or 0.0, noise_floor)
    if direction != "none" or resolution <= policy.COARSE_RESOLUTION:
        return
    if few_blocks == "finish the study":  # The planned blocks come first.
        yield doubt("too coarse", share=resolution, remedy=few_blocks)
    elif holds_other_work(step_time, ratio):
        yield doubt("too coarse", share=resolution, remedy="more steps a block")
    else:
        blocks = blocks_to_decide(ratio, noise_floor)
        yield doubt("too coarse", share=resolution, blocks=blocks, remedy=None if blocks else "quiet machine")


def _of_noise(
    direction: Direction,
    shown: Estimate,
    noise_floor: float,
    step_time: Estimate | None,
    cores: tuple[float, float] | None,
) -> Iterator[Doubt]:
    """Yield a doubt if no difference was found, and noise could hide a very large one. Very large: the noise floor
    exceeds :data:`USELESS_FLOOR`, or ``shown`` (the ratio with the displayed interval) is useless for another reason
    than varying work per step. ``cores``: (used by other processes, all)."""
    noisy = is_useless(shown) and not holds_other_work(step_time, shown)
    if direction == "none" and (noisy or noise_floor > policy.USELESS_FLOOR):
        yield doubt("too noisy", share=max(shown.distance or 0.0, noise_floor), cores=cores)


def _of_lead(
    direction: Direction, ratio: Estimate, resolution: float, used_lead: tuple[float, float]
) -> Iterator[Doubt]:
    lead_max = max(used_lead)
    applies = {
        "none": 0 < lead_max >= resolution or (resolution <= policy.COARSE_RESOLUTION < resolution + lead_max),
        "loss": ratio.median * (1 + used_lead[0]) >= 1 > ratio.median,
        "gain": ratio.median / (1 + used_lead[1]) <= 1 < ratio.median,
    }
    if applies[direction]:
        yield doubt("lead", share=lead_max)


def _of_losses(losses: Losses | None) -> Iterator[Doubt]:
    if losses is not None and losses.diverged:
        yield doubt("diverged", *losses.diverged)
    if losses is not None and losses.differ:
        yield doubt("other loss" if losses.unlike else "explained loss")


def _of_data(repeated: tuple[float, float] | None) -> Iterator[Doubt]:
    if repeated is not None:
        yield doubt("repeated data", share=max(repeated))


def _of_control(direction: Direction, ratio: Estimate, same_again: Estimate | None) -> Iterator[Doubt]:
    if direction != "none" and same_again is not None and is_apart(same_again) and not _beyond(ratio, same_again):
        yield doubt("a-a apart", share=same_again.median - 1)


def _beyond(ratio: Estimate, same_again: Estimate) -> bool:
    """Return True if the interval of ``ratio`` is entirely further from 1 than that of ``same_again``."""
    assert ratio.ci_low is not None
    assert ratio.ci_high is not None
    assert same_again.ci_low is not None
    assert same_again.ci_high is not None
    near = math.log(ratio.ci_low if ratio.median > 1 else 1 / ratio.ci_high)
    return near > max(abs(math.log(end)) for end in (same_again.ci_low, same_again.ci_high))


def _of_total(direction: Direction, resolution: float, noise_floor: float, in_total: float | None) -> Iterator[Doubt]:
    if in_total is None:
        return
    contradicts = {
        "gain": in_total <= 1 + noise_floor,
        "loss": in_total >= 1 - noise_floor,
        "none": abs(in_total - 1) > resolution,
    }
    yield doubt("long steps" if contradicts[direction] else "all time apart", share=in_total - 1)


def holds_other_work(step_time: Estimate | None, ratio: Estimate) -> bool:
    """True if the interval of ``ratio`` is wide, but that of ``step_time`` narrow: only the work per step varies. Both
    estimates are speed ratios: ``step_time`` in steps per second, ``ratio`` in the comparison's unit, such as tokens
    per second."""
    steps, ratio_spread = (_spread(estimate) for estimate in (step_time, ratio))
    return (
        steps is not None
        and ratio_spread is not None
        and steps <= policy.COARSE_RESOLUTION < ratio_spread
        and 2 * steps < ratio_spread
    )


def _spread(one: Estimate | None) -> float | None:
    """Return half the interval's width, relative to the median (0.1: 10 %); None without an interval."""
    if one is None or not one.ci_low or not one.ci_high:
        return None
    return math.sqrt(one.ci_high / one.ci_low) - 1


def blocks_to_decide(ratio: Estimate, noise_floor: float) -> int | None:
    """Return the estimated total of blocks that would find a difference, or exclude one of :data:`COARSE_RESOLUTION`.

    None if over BLOCKS_ASKED_MAX or not known yet. Interval and floor shrink as Student's quantile / sqrt(blocks)."""
    if not ratio.ci_low or not ratio.ci_high or ratio.median <= 0 or ratio.n < MIN_BLOCKS:
        return None
    centre, level = math.log(ratio.median), (1 + CONFIDENCE) / 2
    lower, upper = centre - math.log(ratio.ci_low), math.log(ratio.ci_high) - centre
    half_width = student_t(level, ratio.n - 1) / math.sqrt(ratio.n)
    for blocks in range(ratio.n + 1, policy.BLOCKS_ASKED_MAX + 1):
        shrunk = student_t(level, blocks - 1) / math.sqrt(blocks) / half_width
        low, high, floor = centre - lower * shrunk, centre + upper * shrunk, noise_floor * shrunk
        decided = not low <= 0 <= high and abs(math.expm1(centre)) > floor
        if decided or max(math.expm1(max(abs(low), abs(high))), floor) <= policy.COARSE_RESOLUTION:
            return blocks
    return None


@dataclass(frozen=True)
class InTotal:
    """Comparison by total time, if it differs from the median over blocks; :func:`in_total` makes it."""

    ratio: float  # speed ratio in total time, in the comparison's unit
    least: float  # ``ratio`` without the block that moves it most: one long step may be an accident
    arm: Literal["baseline", "candidate"]
    long: LongSteps | None  # steps of ``arm`` that cause the difference; None: slower throughout
    left_out: int  # number of these that other figures exclude: warm-up steps after the first
    blocks: int  # number of affected blocks
    of: int  # number of all blocks


def in_total(baseline: Blocks, candidate: Blocks, steps: float, measured: float) -> InTotal | None:
    """Return the comparison by total time over all common blocks; None if it is close to that by medians. ``steps``,
    ``measured``: median speed ratios over blocks, in steps per second and in the comparison's unit. Close: within the
    fraction :data:`TOTAL_APART_MIN`."""
    shared = sorted(set(baseline) & set(candidate))
    base, other = ([blocks[block] for block in shared] for blocks in (baseline, candidate))
    # Use one bound for both, so that equal steps are not long in one arm and typical in the other.
    long_ms = LONG_STEP_FACTOR * max(float(np.median(run.step_ms)) for run in (*base, *other))
    base_times, other_times = (_Times.of(runs, long_ms) for runs in (base, other))
    total = base_times.mean_ms() / other_times.mean_ms()
    usual = base_times.usual_ms.sum() / base_times.steps.sum() / (other_times.usual_ms.sum() / other_times.steps.sum())
    log_gap, by_long = math.log(total / steps), math.log(total / usual)
    if abs(log_gap) <= math.log1p(TOTAL_APART_MIN):
        return None
    runs = other if log_gap < 0 else base
    long = None
    if by_long / log_gap >= 0.5:  # Otherwise blocks differ.
        long = _long(runs, long_ms)
    smallest = steps
    if len(shared) > 1:
        left_out = [base_times.mean_ms(but=index) / other_times.mean_ms(but=index) for index in range(len(shared))]
        smallest = min(left_out, key=lambda value: abs(math.log(value / steps)))
    return InTotal(
        measured * total / steps,
        measured * smallest / steps,
        "candidate" if log_gap < 0 else "baseline",
        long,
        sum(_count(run.left_out.step_ms, long_ms) for run in runs) if long is not None else 0,
        _slower(base, other, steps, log_gap)
        if long is None
        else sum(_count(run.step_ms, long_ms) + _count(run.left_out.step_ms, long_ms) > 0 for run in runs),
        len(runs),
    )


def _long(runs: Sequence[RunLedger], long_ms: float) -> LongSteps | None:
    """Return the steps longer than ``long_ms``, also first ones of repetitions; None without any, or if not rare."""
    step_ms = np.concatenate([times for run in runs for times in (run.step_ms, run.left_out.step_ms)])
    longest = np.concatenate([places for run in runs for places in (run.longest, run.left_out.longest)])
    steps = long_steps(step_ms, longest, PHASES, long_ms / LONG_STEP_FACTOR)
    return steps if steps is not None and steps.steps <= LONG_STEPS_SHARE_MAX * steps.of else None


def _count(step_ms: NDArray[np.float64], long_ms: float) -> int:
    return int((step_ms > long_ms).sum())


def _slower(base: Sequence[RunLedger], other: Sequence[RunLedger], steps: float, apart: float) -> int:
    """Return the number of blocks whose ratio is beyond ``steps`` by more than half of ``apart``, in log ratios.

    ``steps``: median speed ratio over blocks. ``apart``: log (ratio by total time / ``steps``), whose sign is the
    direction that counts."""
    logs = [
        math.log(base_run.mean_step_ms / other_run.mean_step_ms / steps)
        for base_run, other_run in zip(base, other, strict=True)
    ]
    return sum(log * math.copysign(1, apart) > abs(apart) / 2 for log in logs)


@dataclass(frozen=True)
class _Times:
    """Number of steps and their times for each run of one arm.

    Warm-up steps between measured ones are included, with the run's median time unless they are longer than a bound."""

    steps: NDArray[np.float64]
    total_ms: NDArray[np.float64]
    usual_ms: NDArray[np.float64]  # total with every longer step replaced by a typical one

    @classmethod
    def of(cls, runs: Sequence[RunLedger], long_ms: float) -> _Times:
        rows = []
        for run in runs:
            typical_ms = float(np.median(run.step_ms))
            left_ms = np.where(run.left_out.step_ms > long_ms, run.left_out.step_ms, typical_ms)
            times_ms = np.concatenate([run.step_ms, left_ms])
            usual_ms = np.where(times_ms > long_ms, typical_ms, times_ms)
            rows.append((float(len(times_ms)), float(times_ms.sum()), float(usual_ms.sum())))
        return cls(*np.array(rows).T)

    def mean_ms(self, but: int | None = None) -> float:
        """Return milliseconds per step over all runs. ``but``: index of a run to leave out."""
        used = np.arange(len(self.steps)) != (-1 if but is None else but)
        return float(self.total_ms[used].sum() / self.steps[used].sum())


def drift(base: Blocks, other: Blocks, noise_floor: float | None, comparisons: int = 1) -> Estimate | None:
    """Return how the candidate's step time changes within runs, last repetition / first, relative to the baseline's. A
    rare long step counts as a typical one. None with too few blocks or repetitions, if the interval (for all
    ``comparisons`` together) includes 1, or if the median is within the noise floor or :data:`DRIFT_MIN`."""
    logs = [
        candidates - baselines
        for block in sorted(set(base) & set(other))
        if (candidates := _log_change(other[block], base[block])) is not None
        and (baselines := _log_change(base[block], other[block])) is not None
    ]
    change = from_blocks(logs, confidence_of_each(comparisons))
    if change is None or change.ci_low is None or change.ci_high is None or change.ci_low <= 1 <= change.ci_high:
        return None
    return change if abs(change.median - 1) > max(DRIFT_MIN, noise_floor or 0.0) else None


def _log_change(run: RunLedger, other: RunLedger) -> float | None:
    """Return log(last / first) of the step time of ``run``, over repetitions that both runs have; positive: slower.

    With one common repetition, the log of the second half / first half of the steps of ``run``. None without a common
    repetition, or if both halves are too short."""
    shared = sorted(set(run.repetitions) & set(other.repetitions))
    if not shared or (len(shared) < 2 and min(len(run.step_ms), len(other.step_ms)) < DRIFT_STEPS_MIN):
        return None
    if len(shared) < 2:
        steps_ms = without_long(run.step_ms)
        half = len(steps_ms) // 2
        return math.log(float(steps_ms[-half:].mean())) - math.log(float(steps_ms[:half].mean()))
    first, last = (run.repetitions[number] for number in (shared[0], shared[-1]))
    return math.log(last.usual_ns / last.steps) - math.log(first.usual_ns / first.steps)
