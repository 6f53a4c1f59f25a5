"""Two states side by side, decided: the step, each of its parts, peak memory and startup."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

from harness.analysis.comparisons import Blocks
from harness.analysis.confounds import USEFUL, confounds
from harness.analysis.ledger import RunLedger, measure
from harness.regression.decision import Decision, Outcome, confidence_at, decide
from harness.regression.rounds import EXPOSED, STEP, Rounds, rounds, total_log, typical_log
from harness.report.confounds import confound_lines
from harness.study.store import PHASES, STAGES, RunData, RunRecord, StudyRecord

# How confounds begin that make the two sides do different work.
OTHER_WORK = ("useful tokens", "parameters", "flops_per_token", "corpus_fingerprint", "tokenizer_fingerprint")
TOTAL = "all time together"  # the name of a contest's total
NOTICEABLE = 0.01  # share of the step: a part below it is left out
StepKind = Literal["phase", "stage"]
PARTS: Mapping[str, StepKind] = {**dict.fromkeys(PHASES, "phase"), **dict.fromkeys(STAGES, "stage")}


@dataclass(frozen=True)
class Limits:
    """What counts as the same, as fractions of the baseline; None: not judged."""

    step: float = 0.01
    memory: float | None = 0.05
    startup: float | None = 0.2


@dataclass(frozen=True)
class Part:
    """A phase or a stage: milliseconds per step of both sides (medians over blocks), and what was decided."""

    name: str
    kind: StepKind
    baseline_ms: float
    candidate_ms: float
    decision: Decision
    exposed_ms: float | None = None  # of a stage of the candidate: what the step waited for

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
    missing: str | None = None
    other_work: str | None = None  # a difference that makes the two sides do different work
    emulated: bool = False

    @property
    def verdict(self) -> Outcome:
        """Of everything that must not grow: the typical round, all time together, and the gates."""
        every = [self.step, *([self.total] if self.total is not None else []), *(gate.decision for gate in self.gates)]
        if any(decision.outcome == "slower" for decision in every):
            return "slower"
        return "undecided" if self.other_work is not None or self.open else self.step.outcome

    @property
    def open(self) -> dict[str, Decision]:
        """What beside the step is not decided and looks worse than allowed, by name: more blocks may decide it."""
        beside = {TOTAL: self.total} if self.total is not None else {}
        beside |= {gate.name: gate.decision for gate in self.gates}
        return {name: decision for name, decision in beside.items() if _looks_worse(decision)}

    @property
    def settled(self) -> bool:
        """Whether no more blocks are needed: the step is slower, or decided and nothing beside it looks worse."""
        return self.step.outcome == "slower" or (self.step.outcome != "undecided" and not self.open)

    @property
    def rare(self) -> bool:
        """Whether fewer than half of the rounds made it slower: the total says so and the typical round does not."""
        return self.total is not None and self.total.outcome == "slower" and self.step.outcome != "slower"


def nothing(
    name: str, baseline: str, candidate: str, within: float, reason: str, blocks: int = 0, confounds: Sequence[str] = ()
) -> StateComparison:
    """A contest of which nothing can be decided, for ``reason``."""
    step = replace(decide([], within), reason=reason, more_blocks=None)
    return StateComparison(name, baseline, candidate, blocks, step, confounds=list(confounds), missing=reason)


@dataclass(frozen=True)
class _Run:
    """What a finished run tells."""

    ledger: RunLedger
    rounds: Rounds


@dataclass(frozen=True)
class _Sides:
    """The finished runs of one contest: by side, then by block."""

    baseline: Mapping[int, _Run]
    candidate: Mapping[int, _Run]
    twin: Mapping[int, _Run]


def comparisons(study: StudyRecord, runs: Sequence[RunData], limits: Limits) -> list[StateComparison]:
    """Every comparison of ``study``, decided from the blocks that ``runs`` have."""
    by_arm: dict[str, dict[int, _Run]] = {}
    records: dict[str, list[RunRecord]] = {}
    for run in runs:
        records.setdefault(run.record.arm, []).append(run.record)
        ledger, its_rounds = measure(run), rounds(run)
        if ledger is not None and its_rounds is not None:
            by_arm.setdefault(run.record.arm, {})[run.record.block] = _Run(ledger, its_rounds)
    return [
        _comparison(study, pair["baseline"], pair["candidate"], by_arm, records, limits) for pair in study.comparisons
    ]


def _comparison(
    study: StudyRecord,
    baseline: str,
    candidate: str,
    by_arm: Mapping[str, Mapping[int, _Run]],
    records: Mapping[str, Sequence[RunRecord]],
    limits: Limits,
) -> StateComparison:
    arms = {arm["name"]: arm for arm in study.arms}
    twin = next((arm["name"] for arm in study.arms if arm.get("control") == "a-a" and arm.get("of") == baseline), "")
    sides = _Sides(*(by_arm.get(name, {}) for name in (baseline, candidate, twin)))
    shared = sorted(set(sides.baseline) & set(sides.candidate))
    ours_is, theirs_is = (
        str((arms.get(name, {}).get("code") or {}).get("label") or name) for name in (baseline, candidate)
    )
    name = str(arms.get(baseline, {}).get("contest") or f"{candidate} against {baseline}")
    names = (baseline, candidate)
    if not shared:
        return nothing(name, ours_is, theirs_is, limits.step, _why_missing(names, records))
    attempted = 1 + max(record.block for name in (baseline, candidate) for record in records.get(name, ()))
    level = confidence_at(attempted)  # a block that failed on one side was a block all the same
    ours, theirs, its_twin = (
        {block: run.rounds for block, run in side.items()} for side in (sides.baseline, sides.candidate, sides.twin)
    )
    ledgers = [{block: run.ledger for block, run in side.items()} for side in (sides.baseline, sides.candidate)]
    differing = confound_lines(confounds(ledgers[0], ledgers[1], records, names, len(shared)))
    differing += arms.get(candidate, {}).get("other_defaults") or []
    tokens = [_tokens_per_step(ledger) for ledger in ledgers]
    if tokens[0] and tokens[1] and abs(tokens[1] / tokens[0] - 1) > USEFUL:
        reason = f"steps of {tokens[0]:,.0f} and of {tokens[1]:,.0f} tokens: their times cannot be compared"
        return nothing(name, ours_is, theirs_is, limits.step, reason, len(shared), differing)
    step = decide(_typical(ours, theirs, its_twin), limits.step, _typical(ours, its_twin), level)
    baseline_ms = _median_ms(ours, shared, STEP)
    return StateComparison(
        name,
        ours_is,
        theirs_is,
        len(shared),
        step,
        baseline_ms=baseline_ms,
        # As the paired change has it: medians of either side alone may lie the other way round.
        candidate_ms=None if step.change is None else baseline_ms * (1 + step.change.median),
        total=decide(_totals(ours, theirs), limits.step, _totals(ours, its_twin), level),
        parts=_parts(ours, theirs, its_twin, shared, limits.step, level),
        gates=_gates(sides, shared, limits, level),
        confounds=differing,
        other_work=next((what for what in differing if what.startswith(OTHER_WORK)), None),
        emulated=any(run.ledger.record.facts.get("emulated") for run in sides.baseline.values()),
    )


def _typical(
    baseline: Mapping[int, Rounds],
    candidate: Mapping[int, Rounds],
    twin: Mapping[int, Rounds] | None = None,
    part: str = STEP,
) -> list[float]:
    """One value for each block that both finished."""
    found = [
        typical_log(baseline[block], candidate[block], part, (twin or {}).get(block))
        for block in sorted(set(baseline) & set(candidate))
    ]
    return [log for log in found if log is not None]


def _median_ms(side: Mapping[int, Rounds], blocks: Sequence[int], part: str) -> float:
    return median(found for block in blocks if (found := side[block].typical_ms(part)) is not None)


def _parts(
    baseline: Mapping[int, Rounds],
    candidate: Mapping[int, Rounds],
    twin: Mapping[int, Rounds],
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
            decide(_typical(baseline, candidate, twin, name), within, _typical(baseline, twin, {}, name), one),
            _median_ms(candidate, blocks, f"{EXPOSED}{name}") if PARTS[name] == "stage" else None,
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
        ours, theirs, twin = (
            {block: amount for block, run in side.items() if (amount := value(run.ledger.record))}
            for side in (sides.baseline, sides.candidate, sides.twin)
        )
        both = [block for block in blocks if block in ours and block in theirs]
        if both:
            logs = [math.log(theirs[block] / ours[block]) for block in both]
            noise = [math.log(twin[block] / ours[block]) for block in both if block in twin]
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


def _why_missing(names: tuple[str, str], records: Mapping[str, Sequence[RunRecord]]) -> str:
    said: list[Any] = [record.error for name in names for record in records.get(name, ()) if record.error]
    return str(said[0]).splitlines()[0] if said else "no block in which both sides finished"
