"""Decides what a comparison's figures allow to be stated: a verdict needs an interval, a noise floor and like losses.

All comparisons of a study together err at most once in twenty: each is judged by an interval of 1 - 5 % / N, so that
by the union bound all N hold together with 95 %, whatever they share (the baseline's runs, its A/A control). The noise
floor is one draw that all of them share, and may be small by luck: so no verdict rests on it. It only takes some away.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from harness.explain.policy import CONFIDENCE, MIN_BLOCKS
from harness.explain.statistics import Estimate, student_t
from harness.judge import policy
from harness.judge.doubts import Doubt, RemedyKind, barred, doubt, in_order
from harness.judge.losses import Losses

Verdict = Literal["gain", "loss", "none", "undecided"]
Direction = Literal["gain", "loss", "none"]
# The doubts that can be the cause of "undecided".
UndecidedKind = Literal[
    "too few blocks", "no noise floor", "no core", "too noisy", "too coarse", "lead", "diverged", "other loss",
    "a-a apart", "long steps",
]  # fmt: skip
_UNDECIDED: Mapping[str, UndecidedKind] = {kind: kind for kind in get_args(UndecidedKind)}


@dataclass(frozen=True)
class Judged:
    """``resolution``: a difference up to this fraction would have gone unnoticed; None: nothing can be resolved.

    ``of``: the ratio with the interval that was judged; None where it is not kept. ``doubts``: all, by precedence.
    ``cause``: the one that bars the verdict; None where there is a verdict.
    """

    verdict: Verdict
    resolution: float | None = None
    cause: Doubt | None = None
    of: Estimate | None = None
    doubts: tuple[Doubt, ...] = ()

    @property
    def undecided(self) -> UndecidedKind | None:
        """Kind of the cause; None where there is a verdict."""
        return None if self.cause is None else _UNDECIDED[self.cause.kind]


def confidence_of_each(comparisons: int) -> float:
    """The level of each interval that keeps ``comparisons`` of them together at 95 % (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / max(comparisons, 1)


def judge(
    ratio: Estimate,
    noise_floor: float | None,
    losses: Losses | None = None,
    *,
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
    """``ratio``: with the interval that holds for all comparisons of the study together.

    Gain or loss: only where that interval excludes 1 and the median clears the floor. Else no difference. Then the
    doubts are collected; the first that bars this verdict makes it undecided.
    ``doubts``: found elsewhere, as where other processes took so many cores that the times say more of them.
    ``used_lead``: by which share of a step the baseline's and the candidate's may have been faster than they can go on
    being. That explains a loss or a gain that is no larger. It hides a difference as large: no difference is seen only
    where that of the steps as they go on could be seen.
    ``same_again``: the ratio of the A/A control to its arm. Where its interval excludes 1, the same arm again is faster
    or slower by something other than luck, which the candidate may have as well: only an interval all of which lies
    beyond that is a difference.
    ``in_total``: the ratio in all time together, whichever block is left out, where that is not about the median: no
    verdict stands that it contradicts.
    ``shown``: the ratio with the interval that a reader sees, where that is another one.
    ``step_time``: of the same blocks, which tells scatter of times from scatter of what steps hold. ``cores``: used by
    other processes, and how many there are. ``no_floor``, ``few_blocks``: what to ask for without either of both.
    """
    if ratio.distance is None:
        found = in_order(
            [*doubts, doubt("too few blocks", blocks=policy.ENOUGH_BLOCKS, remedy=few_blocks), *_of_losses(losses)]
        )
        return Judged("undecided", None, barred(found, "gain"), doubts=found)
    missing = [doubt("no noise floor", remedy=no_floor, blocks=policy.ENOUGH_BLOCKS)] if noise_floor is None else []
    floor = noise_floor or 0.0
    direction, resolution = _direction(ratio, floor), max(ratio.distance, floor)
    unnoticed = resolution + max(used_lead) if direction == "none" else resolution
    found = in_order(
        [
            *doubts,
            *missing,
            *_of_size(direction, ratio, floor, step_time, few_blocks),
            *_of_noise(direction, shown or ratio, floor, step_time, cores),
            *_of_lead(direction, ratio, resolution, used_lead),
            *_of_losses(losses),
            *_of_control(direction, ratio, same_again),
            *_of_total(direction, unnoticed, floor, in_total),
        ]
    )
    cause = barred(found, direction)
    if missing:
        return Judged("undecided", None, cause, doubts=found)
    if cause is None:
        return Judged(direction, unnoticed, doubts=found)
    return Judged("undecided", unnoticed if cause.kind == "long steps" else resolution, cause, doubts=found)


def is_useless(ratio: Estimate) -> bool:
    """True if the interval includes :data:`USELESS_RATIO` times as fast and as slow."""
    low, high = ratio.ci_low, ratio.ci_high
    return low is not None and high is not None and low <= 1 / policy.USELESS_RATIO and high >= policy.USELESS_RATIO


def is_apart(same_again: Estimate | None) -> bool:
    """Whether an A/A control differs from its arm, surely and by more than :data:`CONTROL_APART_MIN`."""
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
    """Yield a doubt where no difference was seen, and none could have been."""
    resolution = max(ratio.distance or 0.0, noise_floor)
    if direction != "none" or resolution <= policy.COARSE_RESOLUTION:
        return
    if few_blocks == "finish the study":  # its planned blocks come before any others
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
    """Yield a doubt where the figure itself says nothing, and that is not for what steps hold."""
    noisy = is_useless(shown) and not holds_other_work(step_time, shown)
    if direction == "none" and (noisy or noise_floor > policy.USELESS_FLOOR):
        yield doubt("too noisy", share=max(shown.distance or 0.0, noise_floor), cores=cores)


def _of_lead(
    direction: Direction, ratio: Estimate, resolution: float, used_lead: tuple[float, float]
) -> Iterator[Doubt]:
    most = max(used_lead)
    applies = {
        "none": 0 < most >= resolution or (resolution <= policy.COARSE_RESOLUTION < resolution + most),
        "loss": ratio.median * (1 + used_lead[0]) >= 1 > ratio.median,
        "gain": ratio.median / (1 + used_lead[1]) <= 1 < ratio.median,
    }
    if applies[direction]:
        yield doubt("lead", share=most)


def _of_losses(losses: Losses | None) -> Iterator[Doubt]:
    if losses is not None and losses.diverged:
        yield doubt("diverged", *losses.diverged)
    if losses is not None and losses.differ:
        yield doubt("other loss" if losses.unlike else "explained loss")


def _of_control(direction: Direction, ratio: Estimate, same_again: Estimate | None) -> Iterator[Doubt]:
    if direction != "none" and same_again is not None and is_apart(same_again) and not _beyond(ratio, same_again):
        yield doubt("a-a apart", share=same_again.median - 1)


def _beyond(ratio: Estimate, same_again: Estimate) -> bool:
    """Whether all of the interval of ``ratio`` is further from 1 than any of that of ``same_again``."""
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
    """True if the times of steps are steady, and only how much is in a step scatters: no other machine mends that."""
    steps, found = (_spread(one) for one in (step_time, ratio))
    return steps is not None and found is not None and steps <= policy.COARSE_RESOLUTION < found and 2 * steps < found


def _spread(one: Estimate | None) -> float | None:
    """Half the width of the interval, as a fraction."""
    if one is None or not one.ci_low or not one.ci_high:
        return None
    return math.sqrt(one.ci_high / one.ci_low) - 1


def blocks_to_decide(ratio: Estimate, noise_floor: float) -> int | None:
    """About how many blocks would decide, or show no difference of :data:`COARSE_RESOLUTION`; None: too many.

    Interval and floor shrink as Student's quantile / sqrt(blocks).
    """
    if not ratio.ci_low or not ratio.ci_high or ratio.median <= 0 or ratio.n < MIN_BLOCKS:
        return None
    centre, level = math.log(ratio.median), (1 + CONFIDENCE) / 2
    below, above = centre - math.log(ratio.ci_low), math.log(ratio.ci_high) - centre
    now = student_t(level, ratio.n - 1) / math.sqrt(ratio.n)
    for blocks in range(ratio.n + 1, policy.BLOCKS_ASKED_MAX + 1):
        shrunk = student_t(level, blocks - 1) / math.sqrt(blocks) / now
        low, high, floor = centre - below * shrunk, centre + above * shrunk, noise_floor * shrunk
        decided = not low <= 0 <= high and abs(math.expm1(centre)) > floor
        if decided or max(math.expm1(max(abs(low), abs(high))), floor) <= policy.COARSE_RESOLUTION:
            return blocks
    return None
