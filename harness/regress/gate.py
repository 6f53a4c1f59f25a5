"""Compares two sides that alternated, from the runs of a study: the step, each of its parts, peak memory, startup.

Numbers and kinds only; harness.regress.report makes the sentences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

from harness.explain.ledger import Blocks, RunLedger, measure
from harness.judge.comparisons import used_share, without_core
from harness.judge.confounds import USEFUL, confounds, used_lead
from harness.judge.doubts import Doubt, barred
from harness.judge.losses import compare_losses
from harness.regress.decision import Decision, Outcome, confidence_at, decide
from harness.regress.one_sided import one_sided_problems
from harness.regress.rounds import EXPOSED, STEP, Rounds, rounds, total_log, typical_log
from harness.regress.thresholds import MEMORY_WITHIN, NOTICEABLE, STARTUP_WITHIN, STEP_WITHIN
from harness.show.confounds import confound_lines
from harness.study.contract import PHASES, STAGES
from harness.study.records import ArmRecord, RunRecord, StudyRecord
from harness.study.run_data import RunData

# How confounds begin that make the two sides do different work.
OTHER_WORK = (
    "losses differ", "loss of", "useful tokens", "parameters", "flops_per_token", "corpus_fingerprint",
    "tokenizer_fingerprint", "model_fingerprint",
)  # fmt: skip
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
    confounds: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)  # between studies of different times
    missing: WhyUndecided | None = None
    other_work: str | None = None  # a difference that makes the two sides do different work
    used_lead: str | None = None  # batches that lay ready, by which a side was as much faster as is allowed, or changed
    doubts: tuple[Doubt, ...] = ()  # of a record that bars verdicts whatever the figures are
    emulated: bool = False
    same_study: bool = False  # both sides are one study: there is nothing to compare

    @property
    def verdict(self) -> Outcome:
        """Of everything that must not grow: the typical round, all time together, and the gates."""
        if barred(self.doubts, "loss") is not None:
            return "undecided"
        every = [self.step, *([self.total] if self.total is not None else []), *(gate.decision for gate in self.gates)]
        if any(decision.outcome == "slower" for decision in every):
            return "slower"
        unlike = self.other_work is not None or self.used_lead is not None
        return "undecided" if unlike or self.open else self.step.outcome

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


def nothing(
    name: str,
    baseline: str,
    candidate: str,
    within: float,
    missing: WhyUndecided,
    blocks: int = 0,
    confounds: Sequence[str] = (),
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


@dataclass(frozen=True)
class _FinishedRun:
    """What is read from a finished run."""

    ledger: RunLedger
    rounds: Rounds


@dataclass(frozen=True)
class _Sides:
    """The finished runs of one comparison: by side, then by block."""

    baseline: Mapping[int, _FinishedRun]
    candidate: Mapping[int, _FinishedRun]
    control: Mapping[int, _FinishedRun]  # the baseline's A/A control


def comparisons(study: StudyRecord, runs: Sequence[RunData], limits: Limits) -> list[StateComparison]:
    """Every comparison of ``study``, decided from the blocks that ``runs`` have."""
    by_arm: dict[str, dict[int, _FinishedRun]] = {}
    records: dict[str, list[RunRecord]] = {}
    for run in runs:
        records.setdefault(run.record.arm, []).append(run.record)
        ledger, its_rounds = measure(run), rounds(run)
        if ledger is not None and its_rounds is not None:
            by_arm.setdefault(run.record.arm, {})[run.record.block] = _FinishedRun(ledger, its_rounds)
    return [
        _comparison(
            study,
            (pair.baseline, pair.candidate),
            by_arm,
            records,
            limits,
            one_sided_problems(runs, pair.baseline, pair.candidate),
        )
        for pair in study.comparisons
    ]


def _comparison(
    study: StudyRecord,
    names: tuple[str, str],
    by_arm: Mapping[str, Mapping[int, _FinishedRun]],
    records: Mapping[str, Sequence[RunRecord]],
    limits: Limits,
    other_probes: Sequence[str],
) -> StateComparison:
    baseline, candidate = names
    arms = {arm.name: arm for arm in study.arms}
    control = next((arm.name for arm in study.arms if arm.control == "a-a" and arm.of == baseline), "")
    sides = _Sides(*(by_arm.get(name, {}) for name in (baseline, candidate, control)))
    shared = sorted(set(sides.baseline) & set(sides.candidate))
    first, second = (arms.get(name, ArmRecord(name)) for name in (baseline, candidate))
    ours_is, theirs_is = map(_state, (first, second))
    name = first.contest or f"{candidate} against {baseline}"
    if not shared:
        return nothing(name, ours_is, theirs_is, limits.step, _why_missing(names, records))
    attempted = 1 + max(record.block for name in (baseline, candidate) for record in records.get(name, ()))
    level = confidence_at(attempted)  # a block that failed on one side was a block all the same
    ours, theirs, aa = (
        {block: run.rounds for block, run in side.items()} for side in (sides.baseline, sides.candidate, sides.control)
    )
    ledgers = [
        {block: run.ledger for block, run in side.items()} for side in (sides.baseline, sides.candidate, sides.control)
    ]
    losses = compare_losses(names, *ledgers)
    differing = confound_lines(confounds(ledgers[0], ledgers[1], records, names, len(shared), losses))
    differing += [*second.other_defaults, *other_probes]
    tokens = [_tokens_per_step(ledger) for ledger in ledgers[:2]]
    if tokens[0] and tokens[1] and abs(tokens[1] / tokens[0] - 1) > USEFUL:
        missing = WhyUndecided("other tokens per step", tokens=(tokens[0], tokens[1]))
        return nothing(name, ours_is, theirs_is, limits.step, missing, len(shared), differing)
    step = decide(_typical(ours, theirs, aa), limits.step, _typical(ours, aa), level)
    baseline_ms = _median_ms(ours, shared, STEP)
    shares = used_share(ledgers[0]), used_share(ledgers[1])
    changed = limits.step if step.change is None else max(limits.step, abs(step.change.median))
    differing += (lead := confound_lines(used_lead(shares, changed, names)))
    return StateComparison(
        name,
        ours_is,
        theirs_is,
        len(shared),
        step,
        baseline_ms=baseline_ms,
        # As the paired change has it: medians of either side alone may lie the other way round.
        candidate_ms=None if step.change is None else baseline_ms * (1 + step.change.median),
        total=decide(_totals(ours, theirs), limits.step, _totals(ours, aa), level),
        parts=_parts(ours, theirs, aa, shared, limits.step, level),
        gates=_gates(sides, shared, limits, level),
        confounds=differing,
        other_work=next((what for what in differing if what.startswith(OTHER_WORK)), None),
        used_lead=next(iter(lead), None),
        doubts=tuple(without_core(names, ledgers[:2])),
        emulated=any(run.ledger.record.facts.emulated for run in sides.baseline.values()),
    )


def _state(arm: ArmRecord) -> str:
    """What the side is called: the state of the code that it runs, else the arm."""
    if arm.code is not None:
        return arm.code.label
    declared = arm.declared.get("code")  # of a command, which runs none of ours
    return declared if isinstance(declared, str) else arm.name


def _typical(
    baseline: Mapping[int, Rounds],
    candidate: Mapping[int, Rounds],
    control: Mapping[int, Rounds] | None = None,
    part: str = STEP,
) -> list[float]:
    """One value for each block that both finished."""
    found = [
        typical_log(baseline[block], candidate[block], part, (control or {}).get(block))
        for block in sorted(set(baseline) & set(candidate))
    ]
    return [log for log in found if log is not None]


def _median_ms(side: Mapping[int, Rounds], blocks: Sequence[int], part: str) -> float:
    return median(found for block in blocks if (found := side[block].typical_ms(part)) is not None)


def _exposed_ms(side: Mapping[int, Rounds], blocks: Sequence[int], stage: str) -> float | None:
    """None where no block knows it: its replay was impossible, or too far off to be believed."""
    known = [found for block in blocks if (found := side[block].typical_ms(f"{EXPOSED}{stage}")) is not None]
    return median(known) if known else None


def _parts(
    baseline: Mapping[int, Rounds],
    candidate: Mapping[int, Rounds],
    control: Mapping[int, Rounds],
    blocks: Sequence[int],
    within: float,
    level: float,
) -> list[Part]:
    """Of the parts that are worth a line, each at a level that holds for all of them together (Bonferroni)."""
    step_ms = _median_ms(baseline, blocks, STEP)
    found = []
    for name in PARTS:
        if all(name in side[block].parts for block in blocks for side in (baseline, candidate)):
            times = _median_ms(baseline, blocks, name), _median_ms(candidate, blocks, name)
            if max(times) >= NOTICEABLE * step_ms:
                found.append((name, times))
    one = 1 - (1 - level) / max(len(found), 1)
    return [
        Part(
            name,
            PARTS[name],
            *times,
            decide(_typical(baseline, candidate, control, name), within, _typical(baseline, control, {}, name), one),
            _exposed_ms(candidate, blocks, name) if PARTS[name] == "stage" else None,
        )
        for name, times in found
    ]


def _gates(sides: _Sides, blocks: Sequence[int], limits: Limits, level: float) -> list[Gate]:
    found = []
    kinds: tuple[tuple[str, str, float | None, Callable[[RunRecord], float | None]], ...] = (
        ("peak memory", "MiB", limits.memory, lambda record: _scaled(record.peak_memory_bytes, 2**20)),
        ("peak device memory", "MiB", limits.memory, lambda record: _scaled(record.peak_device_bytes, 2**20)),
        ("startup", "ms", limits.startup, lambda record: _scaled(record.startup_ns, 1e6)),
    )
    for name, unit, within, value in kinds:
        if within is None:
            continue
        ours, theirs, control = (
            {block: amount for block, run in side.items() if (amount := value(run.ledger.record))}
            for side in (sides.baseline, sides.candidate, sides.control)
        )
        both = [block for block in blocks if block in ours and block in theirs]
        if both:
            logs = [math.log(theirs[block] / ours[block]) for block in both]
            noise = [math.log(control[block] / ours[block]) for block in both if block in control]
            medians = median(ours[block] for block in both), median(theirs[block] for block in both)
            found.append(Gate(name, unit, *medians, decide(logs, within, noise, level)))
    return found


def _scaled(amount: int | None, unit: float) -> float | None:
    return amount / unit if amount else None


def _looks_worse(decision: Decision) -> bool:
    """Whether it is undecided with its median beyond what is allowed."""
    change = decision.change
    return decision.outcome == "undecided" and change is not None and change.median > decision.within


def _tokens_per_step(ledgers: Blocks) -> float | None:
    """Positions, over all measured steps; None where they were not counted."""
    steps = sum(len(one.step_ms) for one in ledgers.values())
    counted = [one.tokens for one in ledgers.values() if one.tokens is not None]
    return sum(counted) / steps if steps and len(counted) == len(ledgers) else None


def _totals(baseline: Mapping[int, Rounds], candidate: Mapping[int, Rounds]) -> list[float]:
    found = (total_log(baseline[block], candidate[block]) for block in sorted(set(baseline) & set(candidate)))
    return [log for log in found if log is not None]


def _why_missing(names: tuple[str, str], records: Mapping[str, Sequence[RunRecord]]) -> WhyUndecided:
    errors = [record.error for name in names for record in records.get(name, ()) if record.error]
    return WhyUndecided("failed runs", (errors[0].splitlines()[0],)) if errors else WhyUndecided("no shared block")
