"""Defines the records of a regression check: what was compared, what was decided, and why it was not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from harness.judge.confounds import Confound
from harness.judge.doubts import Doubt, barred
from harness.regress.decision import Decision, Outcome, Undecided, decide
from harness.regress.policy import MEMORY_WITHIN, STARTUP_WITHIN, STEP_WITHIN
from harness.study.contract import PHASES, STAGES
from harness.study.records import OtherDefault

TOTAL = "all time together"  # the name of a comparison's total
StepKind = Literal["phase", "stage"]
PARTS: Mapping[str, StepKind] = {**dict.fromkeys(PHASES, "phase"), **dict.fromkeys(STAGES, "stage")}


@dataclass(frozen=True)
class Limits:
    """What counts as the same, as fractions of the baseline; None: not judged."""

    step: float = STEP_WITHIN
    memory: float | None = MEMORY_WITHIN
    startup: float | None = STARTUP_WITHIN


@dataclass(frozen=True)
class Part:
    """A phase or a stage: milliseconds per step of both sides (medians over blocks), and what was decided."""

    name: str
    kind: StepKind
    baseline_ms: float
    candidate_ms: float
    decision: Decision
    exposed_ms: float | None = None  # of a stage of the candidate: what it made the step wait, where replay found it

    @property
    def hidden(self) -> bool:
        """Whether most of a stage's work runs behind the step."""
        return self.exposed_ms is not None and self.exposed_ms < self.candidate_ms / 2


@dataclass(frozen=True)
class Gate:
    """Something besides the step that must not grow; ``unit`` of both medians."""

    name: str
    unit: str
    baseline: float
    candidate: float
    decision: Decision


MissingKind = Literal[
    "failed runs", "no shared block", "other tokens per step", "code changed", "differences", "no baseline"
]


# Why a comparison is undecided. "other check open": memory, startup or all time together looks worse than allowed.
Cause = MissingKind | Undecided | Literal["no core", "other work", "used lead", "other check open"]


@dataclass(frozen=True)
class WhyUndecided:
    """Why nothing could be compared.

    ``details``: from a run or a file (the first error; the folders that changed; no baseline).
    ``tokens``: per step, of both sides.
    """

    kind: MissingKind
    details: tuple[str, ...] = ()
    tokens: tuple[float, float] | None = None


@dataclass(frozen=True)
class OneSidedProblem:
    """A problem that a probe reported in every run of ``arm`` and in no run of the other side."""

    arm: str
    message: str  # the probe's own


@dataclass(frozen=True)
class Difference:
    """Something that two studies do not share. ``forbids``: they cannot be compared while it differs, unless allowed.

    ``unit``: of numbers: share, MHz or cores; none for a configuration's values, which are shown as they are.
    """

    key: str
    baseline: Any
    candidate: Any
    forbids: bool
    unit: Literal["", "share", "MHz", "cores"] = ""


@dataclass(frozen=True)
class StateComparison:
    """One arm in two states (or two arms). ``missing``: why nothing could be compared."""

    name: str
    baseline: str
    candidate: str
    blocks: int
    step: Decision
    baseline_ms: float | None = None
    candidate_ms: float | None = None
    total: Decision | None = None  # of all measured time together, rare long steps among it
    parts: list[Part] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)
    confounds: list[Confound] = field(default_factory=list)
    defaults: list[OtherDefault] = field(default_factory=list)  # of two states of the harness
    problems: list[OneSidedProblem] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)  # between studies of different times
    missing: WhyUndecided | None = None
    other_work: Confound | None = None  # a difference that makes the two sides do different work
    used_lead: Confound | None = None  # prefetched batches explain as much as is allowed, or as the step changed
    doubts: tuple[Doubt, ...] = ()  # that bar verdicts whatever the figures are
    emulated: bool = False
    alternated: bool = False  # within seconds; else both sides were measured on different days
    same_study: bool = False  # both sides are one study: there is nothing to compare

    @property
    def verdict(self) -> Outcome:
        """Worst outcome of everything that must not grow: the typical round, all time together, and the gates.

        Processes that take cores slow both of two alternating sides, so a slowdown stands. Such times call nothing the
        same, or faster.
        """
        every = [self.step, *([self.total] if self.total is not None else []), *(gate.decision for gate in self.gates)]
        is_barred = barred(self.doubts, "loss") is not None
        if any(decision.outcome == "slower" for decision in every) and (self.alternated or not is_barred):
            return "slower"
        if is_barred:
            return "undecided"
        unlike = self.other_work is not None or self.used_lead is not None
        return "undecided" if unlike or self.open else self.step.outcome

    @property
    def cause(self) -> Cause | None:
        """Why the verdict is undecided: the first cause that holds; None where it is decided."""
        if self.verdict != "undecided":
            return None
        if self.missing is not None:
            return self.missing.kind
        if barred(self.doubts, "loss") is not None:
            return "no core"
        if self.step.why is not None:
            return self.step.why
        if self.other_work is not None:
            return "other work"
        return "used lead" if self.used_lead is not None else "other check open"

    @property
    def open(self) -> dict[str, Decision]:
        """The undecided checks besides the step whose median is worse than allowed, by name: more blocks may decide."""
        others = {TOTAL: self.total} if self.total is not None else {}
        others |= {gate.name: gate.decision for gate in self.gates}
        return {name: decision for name, decision in others.items() if _looks_worse(decision)}

    @property
    def settled(self) -> bool:
        """Whether no more blocks are needed: the step is slower, or it is decided and no other check looks worse."""
        return self.step.outcome == "slower" or (self.step.outcome != "undecided" and not self.open)

    @property
    def rare(self) -> bool:
        """Whether fewer than half of the rounds made it slower: the total says so and the typical round does not."""
        return self.total is not None and self.total.outcome == "slower" and self.step.outcome != "slower"


def _looks_worse(decision: Decision) -> bool:
    """Whether it is undecided with its median beyond what is allowed."""
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
    """A comparison of which nothing can be decided."""
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
