"""Slower, faster, the same, or not known yet: a decision that may be taken again after every few blocks.

Who looks at a 95 % interval after each block and stops when it pleases him will be wrong far more often than one time
in twenty. So there are set looks, each half as many blocks again as the one before, and the i-th look spends
alpha / (i (i + 1)) of the error allowed: these sum to alpha however many looks there will be, and by the union bound no
assumption is made about how looks depend on one another (Bonferroni with unequal shares). Group-sequential designs
(Pocock; O'Brien and Fleming) need about half the blocks at late looks, for normal increments and a last look fixed
beforehand: here neither is known, as a budget of time ends when it ends.

All values are logarithms of candidate time / baseline time, one a block: above 0 the candidate takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.analysis.statistics import CONFIDENCE, MIN_BLOCKS, Estimate, from_block_values, student_t

Outcome = Literal["slower", "faster", "same", "undecided"]
FIRST_LOOK = 4  # blocks: at three, Student's quantile is so wide that only landslides would be seen
GROWTH = 1.5  # of the number of blocks from one look to the next
MOST_BLOCKS = 1000  # a question that takes more is not one for this machine


@dataclass(frozen=True)
class Decision:
    """``change`` is a fraction of the baseline's time (0.03: 3 % longer), with the interval the decision rests on."""

    outcome: Outcome
    within: float  # fraction: what counts as the same
    change: Estimate | None
    confidence: float  # of the interval, at this look
    floor: float | None = None  # fraction: how far from 0 the baseline's twin reaches
    more_blocks: int | None = None  # of an undecided one: about how many more would decide, if there is such a number
    reason: str = ""  # why it is undecided


def looks() -> Iterator[int]:
    """Numbers of blocks after which a decision is tried: 4, 6, 9, 14, 21, ..."""
    blocks = FIRST_LOOK
    while True:
        yield blocks
        blocks = math.ceil(blocks * GROWTH)


def is_look(blocks: int) -> bool:
    return blocks == next(look for look in looks() if look >= blocks)


def confidence_at(blocks: int) -> float:
    """Of the interval at the look that ``blocks`` make or, where the budget ends between two looks, the next."""
    number = next(i for i, look in enumerate(looks(), 1) if look >= blocks)
    return 1 - (1 - CONFIDENCE) / (number * (number + 1))


def decide(
    logs: Sequence[float], within: float, twin: Sequence[float] = (), confidence: float | None = None
) -> Decision:
    """The decision that ``logs`` allow, and the baseline's ``twin`` against itself (both: one value a block).

    Slower: the interval lies beyond ``within``, and the median beyond the noise floor. Same: the interval lies within.
    ``confidence``: of the interval, where it is not that of a look.
    """
    level = confidence_at(len(logs)) if confidence is None else confidence
    return judge(from_block_values(logs, level), within, from_block_values(twin), level)


def judge(found: Estimate | None, within: float, twin: Estimate | None, level: float) -> Decision:
    """The same of estimates: ``found`` at ``level``, ``twin`` at the usual one; both of logarithms."""
    change = None if found is None else _fractions(found)
    floor = _reach(twin)
    shown = None if floor is None else math.expm1(floor)
    if found is None or found.ci_low is None or found.ci_high is None:
        count = 0 if found is None else found.n
        reason = f"{count} of the {MIN_BLOCKS} blocks that an interval takes"
        return Decision("undecided", within, change, level, shown, max(FIRST_LOOK - count, 1), reason)
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
        reason = "no larger than what the baseline differs from its own twin"
        return Decision("undecided", within, change, level, shown, max(more, 1), reason)
    if outcome != "undecided":
        return Decision(outcome, within, change, level, shown)
    more_blocks = _more_blocks(found, edge, level)
    reason = "the interval still holds both what is allowed and what is not"
    if more_blocks is None:
        reason = "the change is about as large as what is allowed: hardly any number of blocks would tell"
    return Decision("undecided", within, change, level, shown, more_blocks, reason)


def _more_blocks(found: Estimate, edge: float, level: float) -> int | None:
    """Until an interval that shrinks as Student's quantile / sqrt(n) no longer holds the edge nearest to its median."""
    assert found.ci_low is not None
    assert found.ci_high is not None
    low_side = found.median - found.ci_low
    high_side = found.ci_high - found.median
    now = student_t((1 + level) / 2, found.n - 1) / math.sqrt(found.n)
    for look in looks():
        if look > MOST_BLOCKS:
            return None
        if look <= found.n:
            continue
        shrunk = student_t((1 + confidence_at(look)) / 2, look - 1) / math.sqrt(look) / now
        low, high = found.median - low_side * shrunk, found.median + high_side * shrunk
        if low > edge or high < -edge or (low > -edge and high < edge):
            return look - found.n
    return None


def _fractions(found: Estimate) -> Estimate:
    low, high = (None if bound is None else math.expm1(bound) for bound in (found.ci_low, found.ci_high))
    return Estimate(math.expm1(found.median), low, high, found.n)


def _reach(twin: Estimate | None) -> float | None:
    if twin is None or twin.ci_low is None or twin.ci_high is None:
        return None
    return max(abs(twin.ci_low), abs(twin.ci_high))
