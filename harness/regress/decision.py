"""Decide by a sequential test if a candidate is slower, faster or the same, and define the records of a check.

A check that stops at the first suitable 95 % interval errs far more often than 1 in 20 times. So decisions are tried at
fixed looks, each with half as many blocks again as the one before. Look i spends alpha / (i (i + 1)) of the allowed
error; these shares sum to alpha for any number of looks, and by the union bound hold under any dependence (Bonferroni
with unequal shares). Group-sequential designs (Pocock; O'Brien and Fleming) need a last look that is fixed in advance,
but here a time budget ends the check.

All values are logarithms of candidate time / baseline time, one per block: above 0 the candidate takes longer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from harness.explain.policy import CONFIDENCE
from harness.explain.statistics import Estimate, from_block_values, student_t
from harness.judge.confounds import Confound
from harness.judge.doubts import Doubt, DoubtKind, barred
from harness.judge.policy import UNEVEN_BLOCKS_MIN
from harness.regress.policy import (
    FIRST_LOOK,
    HIGH_GAP_MIN,
    LOOK_GROWTH,
    MEMORY_WITHIN,
    MOST_BLOCKS_WORTH,
    STARTUP_WITHIN,
    STEP_WITHIN,
)
from harness.study.contract import PHASES, STAGES
from harness.study.records import OtherDefault
from trainer.errors import InputError

if TYPE_CHECKING:
    from harness.regress.series import BetweenDays

Outcome = Literal["slower", "faster", "same", "undecided"]
# Reasons for "undecided":
#
# - "too few blocks": too few for an interval.
# - "within the noise": the change is no larger than the noise floor.
# - "both possible": the interval includes both allowed and forbidden changes.
# - "at the limit": as "both possible", with a median so near the limit that more blocks would hardly decide.
# - "scattered": as "both possible", with so much scatter that more blocks would hardly decide.
# - "not compared": there is nothing to compare.
# - "day to day": the studies ran on different days, which alone may explain the change.
Undecided = Literal[
    "too few blocks", "within the noise", "both possible", "at the limit", "scattered", "not compared", "day to day"
]  # fmt: skip


@dataclass(frozen=True)
class Decision:
    """Outcome of the check of one quantity, such as the step's time, made by :func:`judge`."""

    outcome: Outcome
    within: float  # fraction that counts as the same
    change: Estimate | None  # fraction of the baseline's value (0.03: 3 % more), with interval; None without any value
    confidence: float  # level of the interval at this look
    floor: float | None = None  # fraction: how far the interval of the baseline's A/A control reaches from 0
    more_blocks: int | None = None  # if undecided: estimated number of further blocks that would decide, if any
    why: Undecided | None = None  # reason for "undecided"
    between: BetweenDays | None = None  # allowance for studies of different days


def looks() -> Iterator[int]:
    """Yield the numbers of blocks after which a decision is tried, without end: 4, 6, 9, 14, 21, ..."""
    blocks = FIRST_LOOK
    while True:
        yield blocks
        blocks = math.ceil(blocks * LOOK_GROWTH)


def is_look(blocks: int) -> bool:
    """Return True if a decision is tried after this number of blocks (see :func:`looks`)."""
    return blocks == next(look for look in looks() if look >= blocks)


def confidence_at(blocks: int) -> float:
    """Return the confidence level (0 to 1) of the interval at the first look with at least ``blocks`` blocks."""
    number = next(i for i, look in enumerate(looks(), 1) if look >= blocks)
    return 1 - (1 - CONFIDENCE) / (number * (number + 1))


def decide(
    logs: Sequence[float],
    within: float,
    noise: Sequence[float] = (),
    confidence: float | None = None,
    estimate: Callable[[Sequence[float], float], Estimate | None] = from_block_values,
) -> Decision:
    """Decide from ``logs``: log(candidate / baseline), one per block. ``within``: fraction that counts as the same.

    ``noise``: log(A/A control / baseline), one per block. ``confidence``: of the interval; None: :func:`confidence_at`
    this number of blocks. ``estimate``: returns the centre with its interval, from logs and a level.
    """
    level = confidence_at(len(logs)) if confidence is None else confidence
    return judge(estimate(logs, level), within, estimate(noise, CONFIDENCE), level)


def judge(found: Estimate | None, within: float, noise: Estimate | None, level: float) -> Decision:
    """Decide from estimates of log(candidate / baseline). Undecided if ``found`` is None or has no interval.

    Slower or faster: the interval lies beyond the range ``within``, and the median beyond the noise floor. Same: the
    interval lies inside that range. ``found``: at confidence ``level``; ``noise``: of the A/A control.
    """
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
        further = math.ceil(found.n * (floor / abs(found.median)) ** 2) - found.n  # A floor shrinks as 1 / sqrt(n).
        return Decision("undecided", within, change, level, shown, max(further, 1), "within the noise")
    if outcome != "undecided":
        return Decision(outcome, within, change, level, shown)
    more_blocks = _more_blocks(found, edge, level)
    reason: Undecided = "both possible"
    if more_blocks is None:
        reason = "at the limit" if abs(abs(found.median) - edge) < edge / 2 else "scattered"
    return Decision("undecided", within, change, level, shown, more_blocks, reason)


def _more_blocks(found: Estimate, edge: float, level: float) -> int | None:
    """Return how many more blocks would decide if the median stays (at most MOST_BLOCKS_WORTH in all); else None."""
    assert found.ci_low is not None
    assert found.ci_high is not None
    low_side = found.median - found.ci_low
    high_side = found.ci_high - found.median
    half_width = student_t((1 + level) / 2, found.n - 1) / math.sqrt(found.n)
    for look in looks():
        if look > MOST_BLOCKS_WORTH:
            return None
        if look <= found.n:
            continue
        shrunk = student_t((1 + confidence_at(look)) / 2, look - 1) / math.sqrt(look) / half_width
        low, high = found.median - low_side * shrunk, found.median + high_side * shrunk
        if low > edge or high < -edge or (low > -edge and high < edge):
            return look - found.n
    return None


def fractions(found: Estimate) -> Estimate:
    """Convert an estimate of logarithms of ratios to fractions of change (0.03: 3 % more)."""
    low, high = (None if bound is None else math.expm1(bound) for bound in (found.ci_low, found.ci_high))
    return Estimate(math.expm1(found.median), low, high, found.n)


def _reach(noise: Estimate | None) -> float | None:
    if noise is None or noise.ci_low is None or noise.ci_high is None:
        return None
    return max(abs(noise.ci_low), abs(noise.ci_high))


TOTAL = "all time together"  # name of the check of all measured time
StepKind = Literal["phase", "stage"]
PARTS: Mapping[str, StepKind] = {**dict.fromkeys(PHASES, "phase"), **dict.fromkeys(STAGES, "stage")}


@dataclass(frozen=True)
class Limits:
    """Largest changes that count as the same, as fractions of the baseline's value. None: not judged."""

    step: float = STEP_WITHIN
    memory: float | None = MEMORY_WITHIN
    startup: float | None = STARTUP_WITHIN


@dataclass(frozen=True)
class Part:
    """Decision on a phase or a stage of the step, with its ms per step on both sides (medians over blocks)."""

    name: str
    kind: StepKind
    baseline_ms: float
    candidate_ms: float
    decision: Decision
    # stage of the candidate only: milliseconds that the step waited for it, if replay shows them
    exposed_ms: float | None = None

    @property
    def hidden(self) -> bool:
        """True if the step waits for less than half of the stage's work. False if the wait is unknown."""
        return self.exposed_ms is not None and self.exposed_ms < self.candidate_ms / 2


@dataclass(frozen=True)
class HighBlocks:
    """Blocks whose value exceeds that of the others by ``change``, a fraction. The typical block does not show it."""

    blocks: tuple[int, ...]
    change: float


def high_blocks(logs: Mapping[int, float], within: float, candidate: Mapping[int, float]) -> HighBlocks | None:
    """Return the candidate's blocks that form a separate group with high values; None if there is no such group.

    ``logs``: log of the change, by block; ``candidate``: of the candidate's own value, which has to be high too. The
    group has two to half of the blocks, raises the mean of all by more than ``within`` (a fraction), and its gap to the
    others exceeds :data:`HIGH_GAP_MIN` times their scatter.
    """
    order = sorted(logs, key=logs.__getitem__)
    splits = range(len(order) // 2 + 1, len(order) - UNEVEN_BLOCKS_MIN + 1)
    if not splits:
        return None
    at = max(splits, key=lambda place: logs[order[place]] - logs[order[place - 1]])
    usual, high = [logs[block] for block in order[:at]], [logs[block] for block in order[at:]]
    gap, excess = high[0] - usual[-1], fmean(high) - fmean(usual)
    if gap <= HIGH_GAP_MIN * (usual[-1] - usual[0]) or excess * len(high) / len(order) <= math.log1p(within):
        return None
    own = fmean(candidate[block] for block in order[at:]) - fmean(candidate[block] for block in order[:at])
    if own < excess / 2 or fmean(high) <= math.log1p(within):
        return None
    return HighBlocks(tuple(sorted(order[at:])), math.expm1(excess))


@dataclass(frozen=True)
class Gate:
    """Decision on a quantity besides the step that must not grow, such as peak memory."""

    name: str
    unit: str  # of both medians
    baseline: float  # median
    candidate: float  # median
    decision: Decision
    high_blocks: HighBlocks | None = None  # the candidate's blocks of a higher kind


MissingKind = Literal[
    "failed runs", "no shared block", "other tokens per step", "code changed", "differences", "no baseline"
]


# Reasons for an undecided comparison, besides doubts. "other check open": memory, startup or total time looks worse
# than allowed.
Cause = MissingKind | Undecided | Literal["other work", "used lead", "slow blocks", "other check open"]


@dataclass(frozen=True)
class WhyUndecided:
    """Reason why two sides could not be compared at all."""

    kind: MissingKind
    details: tuple[str, ...] = ()  # texts from a run or a file, such as the first error or the changed folders
    tokens: tuple[float, float] | None = None  # tokens per step of baseline and candidate


@dataclass(frozen=True)
class OneSidedProblem:
    """Problem that a probe reported in every finished run of ``arm`` and in no run of the other side."""

    arm: str
    message: str  # message of the probe


@dataclass(frozen=True)
class Difference:
    """Difference between two studies in ``key``."""

    key: str
    baseline: Any
    candidate: Any
    forbids: bool  # True if it forbids a comparison, unless the user allows it
    unit: Literal["", "share", "MHz", "cores"] = ""  # unit of both values, if they are numbers


@dataclass(frozen=True)
class StateComparison:
    """Comparison of one arm in two states of the code, or of two arms: all decisions and what qualifies them."""

    name: str
    baseline: str  # label of the side
    candidate: str  # label of the side
    blocks: int
    step: Decision
    steps: int = 0  # measured steps of the shortest block; later steps of a training are not compared
    epoch_steps: float | None = None  # steps of an epoch of the side with the longer one; None if unknown
    baseline_ms: float | None = None
    candidate_ms: float | None = None
    total: Decision | None = None  # decision on all measured time, including rare long steps
    parts: list[Part] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)
    confounds: list[Confound] = field(default_factory=list)
    defaults: list[OtherDefault] = field(default_factory=list)  # defaults that differ between two states of the harness
    problems: list[OneSidedProblem] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)  # between studies of different times
    missing: WhyUndecided | None = None  # why nothing could be compared; None if it could
    other_work: Confound | None = None  # difference that makes the two sides do different work
    used_lead: Confound | None = None  # prefetched batches explain the allowed change, or the measured one
    slow_blocks: HighBlocks | None = None  # candidate's blocks of a slower kind, which the typical step does not show
    doubts: tuple[Doubt, ...] = ()  # doubts that bar verdicts for any figures
    emulated: bool = False
    alternated: bool = False  # True if both sides alternated within seconds; False if they ran on different days
    same_study: bool = False  # both sides are one study, so there is nothing to compare

    @property
    def verdict(self) -> Outcome:
        """Outcome over everything that must not grow: the typical step, all measured time, memory and startup.

        "slower" if one of these is, unless a doubt bars it (sides that alternated share what slows both). "undecided"
        if one looks worse than allowed, or a doubt, different work, prefetched batches or a group of slower blocks bars
        "same" and "faster". Else the step's outcome.
        """
        decisions = [self.step, *filter(None, [self.total]), *(gate.decision for gate in self.gates)]
        is_barred = barred(self.doubts, "loss") is not None
        if any(decision.outcome == "slower" for decision in decisions) and (self.alternated or not is_barred):
            return "slower"
        if is_barred:
            return "undecided"
        unlike = any(entry is not None for entry in (self.other_work, self.used_lead, self.slow_blocks))
        return "undecided" if unlike or self.open else self.step.outcome

    @property
    def cause(self) -> Cause | DoubtKind | None:
        """First reason why the verdict is undecided; None if it is decided."""
        if self.verdict != "undecided":
            return None
        if self.missing is not None:
            return self.missing.kind
        if (first := barred(self.doubts, "loss")) is not None:
            return first.kind
        if self.slow_blocks is not None:
            return "slow blocks"
        if self.step.why is not None and not (self.step.why in ("scattered", "at the limit") and TOTAL in self.open):
            return self.step.why
        if self.other_work is not None:
            return "other work"
        return "used lead" if self.used_lead is not None else "other check open"

    @property
    def open(self) -> dict[str, Decision]:
        """Checks besides the step, by name, that look worse than allowed and that more blocks may decide."""
        totals = {TOTAL: self.total} if self.total is not None and _looks_worse(self.total) else {}
        return totals | {
            gate.name: gate.decision
            for gate in self.gates
            if _looks_worse(gate.decision) or (gate.high_blocks is not None and gate.decision.outcome != "slower")
        }

    @property
    def settled(self) -> bool:
        """True if no more blocks are needed: the step is slower, or it is decided and no other check looks worse."""
        return self.step.outcome == "slower" or (self.step.outcome != "undecided" and not self.open)

    @property
    def rare(self) -> bool:
        """True if the total time is slower, but the typical round is not: few rounds contain the slow steps."""
        return self.total is not None and self.total.outcome == "slower" and self.step.outcome != "slower"


def _looks_worse(decision: Decision) -> bool:
    change = decision.change
    return decision.outcome == "undecided" and change is not None and change.median > decision.within


def nothing(
    name: str,
    baseline: str,
    candidate: str,
    within: float,
    missing: WhyUndecided,
    blocks: int = 0,
    confounds: Sequence[Confound] = (),
    differences: Sequence[Difference] = (),
) -> StateComparison:
    """Return a comparison in which nothing can be decided, for the reason ``missing``."""
    return StateComparison(
        name,
        baseline,
        candidate,
        blocks,
        replace(decide([], within), why="not compared", more_blocks=None),
        confounds=list(confounds),
        differences=list(differences),
        missing=missing,
    )


_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?")
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, None: 1.0}


def read_share(text: str, what: str) -> float:
    """Return a share of 0.1 % to 100 % as a fraction: ``3%`` as 0.03. Else raise InputError, which names ``what``."""
    match = _SHARE.fullmatch(str(text).strip())
    if match is None or not 0.1 <= float(match[1]) <= 100:
        raise InputError(f"{what} {text!r}: allowed: a share such as 3%, from 0.1% to 100%")
    return float(match[1]) / 100


def read_limit(text: str, what: str) -> float | None:
    """Return a share as a fraction, or None for ``off``. ``what`` and errors: as for :func:`read_share`."""
    return None if text == "off" else read_share(text, what)


def read_seconds(text: str, what: str) -> float:
    """Return ``90s``, ``10m``, ``1.5h`` or plain seconds as seconds. Else raise InputError, which names ``what``."""
    match = _TIME.fullmatch(str(text).strip())
    if match is None or not float(match[1]) > 0:
        raise InputError(f"{what} {text!r}: allowed: a time such as 90s, 10m or 1h")
    return float(match[1]) * _SECONDS[match[2]]
