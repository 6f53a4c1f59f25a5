"""Decides whether a candidate is slower, faster or the same, or says undecided: a sequential test over blocks.

A check that looks at a 95 % interval after each block, and stops at the first that pleases, is wrong far more often
than one time in twenty. So there are set looks, each with half as many blocks again as the one before, and the i-th
look spends alpha / (i (i + 1)) of the error allowed. These shares sum to alpha however many looks there will be, and by
the union bound no assumption is made about how looks depend on one another (Bonferroni with unequal shares).
Group-sequential designs (Pocock; O'Brien and Fleming) need about half the blocks at late looks, for normal increments
and a last look fixed beforehand: here neither is known, as a budget of time ends when it ends.

All values are logarithms of candidate time / baseline time, one a block: above 0 the candidate takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from harness.explain.statistics import CONFIDENCE, Estimate, from_block_values, student_t
from harness.regress.policy import FIRST_LOOK, LOOK_GROWTH, MOST_BLOCKS_WORTH

if TYPE_CHECKING:
    from harness.regress.days import BetweenDays

Outcome = Literal["slower", "faster", "same", "undecided"]
# Why nothing is decided: fewer blocks than an interval takes; a change no larger than the noise floor; an interval that
# includes both allowed and forbidden changes; such an interval with a median so near the limit, or with so much
# scatter between blocks, that more blocks would hardly decide; nothing to compare.
# Of studies of different days: a change that days alone may make.
Undecided = Literal[
    "too few blocks", "within the noise", "both possible", "at the limit", "scattered", "not compared", "day to day"
]  # fmt: skip


@dataclass(frozen=True)
class Decision:
    """``change`` is a fraction of the baseline's time (0.03: 3 % longer), with the interval the decision rests on."""

    outcome: Outcome
    within: float  # fraction: what counts as the same
    change: Estimate | None
    confidence: float  # of the interval, at this look
    floor: float | None = None  # fraction: how far from 0 the interval of the baseline's A/A control reaches
    more_blocks: int | None = None  # of an undecided one: about how many more would decide, if there is such a number
    why: Undecided | None = None  # it is undecided
    between: BetweenDays | None = None  # of studies of different days: what is allowed for that


def looks() -> Iterator[int]:
    """Numbers of blocks after which a decision is tried: 4, 6, 9, 14, 21, ..."""
    blocks = FIRST_LOOK
    while True:
        yield blocks
        blocks = math.ceil(blocks * LOOK_GROWTH)


def is_look(blocks: int) -> bool:
    """Whether a decision is tried after ``blocks``."""
    return blocks == next(look for look in looks() if look >= blocks)


def confidence_at(blocks: int) -> float:
    """Of the interval at the look that ``blocks`` make or, where the budget ends between two looks, the next."""
    number = next(i for i, look in enumerate(looks(), 1) if look >= blocks)
    return 1 - (1 - CONFIDENCE) / (number * (number + 1))


def decide(
    logs: Sequence[float], within: float, noise: Sequence[float] = (), confidence: float | None = None
) -> Decision:
    """The decision that ``logs`` allow; ``noise``: of the baseline's A/A control (both: one value a block).

    Slower: the interval lies beyond ``within``, and the median beyond the noise floor. Same: the interval lies within.
    ``confidence``: of the interval, where it is not that of a look.
    """
    level = confidence_at(len(logs)) if confidence is None else confidence
    return judge(from_block_values(logs, level), within, from_block_values(noise), level)


def judge(found: Estimate | None, within: float, noise: Estimate | None, level: float) -> Decision:
    """The same from estimates: ``found`` at ``level``, ``noise`` at the usual one; both of logarithms."""
    change = None if found is None else fractions(found)
    floor = _reach(noise)
    shown = None if floor is None else math.expm1(floor)
    if found is None or found.ci_low is None or found.ci_high is None:
        count = 0 if found is None else found.n
        return Decision("undecided", within, change, level, shown, max(FIRST_LOOK - count, 1), "too few blocks")
    edge = math.log1p(within)
    outcome: Outcome = "undecided"
    if found.ci_low > edge:
        outcome = "slower"
    elif found.ci_high < -edge:
        outcome = "faster"
    elif -edge < found.ci_low and found.ci_high < edge:
        outcome = "same"
    if outcome in ("slower", "faster") and floor is not None and abs(found.median) <= floor:
        more = math.ceil(found.n * (floor / abs(found.median)) ** 2) - found.n  # a floor shrinks as 1 / sqrt(n)
        return Decision("undecided", within, change, level, shown, max(more, 1), "within the noise")
    if outcome != "undecided":
        return Decision(outcome, within, change, level, shown)
    more_blocks = _more_blocks(found, edge, level)
    why: Undecided = "both possible"
    if more_blocks is None:
        why = "at the limit" if abs(abs(found.median) - edge) < edge / 2 else "scattered"
    return Decision("undecided", within, change, level, shown, more_blocks, why)


def _more_blocks(found: Estimate, edge: float, level: float) -> int | None:
    """Until an interval that shrinks as Student's quantile / sqrt(n) no longer holds the edge nearest to its median."""
    assert found.ci_low is not None
    assert found.ci_high is not None
    low_side = found.median - found.ci_low
    high_side = found.ci_high - found.median
    now = student_t((1 + level) / 2, found.n - 1) / math.sqrt(found.n)
    for look in looks():
        if look > MOST_BLOCKS_WORTH:
            return None
        if look <= found.n:
            continue
        shrunk = student_t((1 + confidence_at(look)) / 2, look - 1) / math.sqrt(look) / now
        low, high = found.median - low_side * shrunk, found.median + high_side * shrunk
        if low > edge or high < -edge or (low > -edge and high < edge):
            return look - found.n
    return None


def fractions(found: Estimate) -> Estimate:
    """An estimate of logarithms as fractions."""
    low, high = (None if bound is None else math.expm1(bound) for bound in (found.ci_low, found.ci_high))
    return Estimate(math.expm1(found.median), low, high, found.n)


def _reach(noise: Estimate | None) -> float | None:
    if noise is None or noise.ci_low is None or noise.ci_high is None:
        return None
    return max(abs(noise.ci_low), abs(noise.ci_high))
