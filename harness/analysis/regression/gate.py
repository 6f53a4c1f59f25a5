"""Two states side by side, decided: the step, each of its parts, peak memory and startup."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

from harness.analysis.comparisons import Blocks
from harness.analysis.confounds import confounds
from harness.analysis.ledger import measure
from harness.analysis.regression.decision import Decision, confidence_at, decide
from harness.analysis.regression.rounds import STEP, Rounds, rounds, total_log, typical_log
from harness.analysis.statistics import Estimate, from_block_values
from harness.results import PHASES, STAGES, RunData, RunRecord, StudyRecord

NOTICEABLE = 0.01  # share of the step: a part below it is left out
Verdict = Literal["slower", "faster", "same", "undecided"]
Logs = Mapping[int, float]  # one value a block


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
    kind: Literal["phase", "stage"]
    baseline_ms: float
    candidate_ms: float
    decision: Decision


@dataclass(frozen=True)
class Gate:
    """Something besides the step that must not grow; ``unit`` of both medians."""

    name: str
    unit: str
    baseline: float
    candidate: float
    decision: Decision


@dataclass(frozen=True)
class Contest:
    """One arm in two states (or two arms). ``missing``: why nothing could be compared."""

    name: str
    baseline: str
    candidate: str
    blocks: int
    step: Decision
    baseline_ms: float | None = None
    candidate_ms: float | None = None
    total: Estimate | None = None  # change of all measured time together, rare long steps among it; a fraction
    parts: list[Part] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)
    confounds: list[str] = field(default_factory=list)
    missing: str | None = None
    emulated: bool = False

    @property
    def verdict(self) -> Verdict:
        """Of everything that must not grow: the step, and the gates where one of them did."""
        if any(gate.decision.outcome == "slower" for gate in self.gates):
            return "slower"
        return self.step.outcome

    @property
    def rare(self) -> bool:
        """Whether rare long steps, and they alone, made it slower: the total says so and the typical round does not."""
        low = None if self.total is None else self.total.ci_low
        return low is not None and low > self.step.within and self.step.outcome != "slower"


@dataclass(frozen=True)
class _Sides:
    """The finished runs of one contest: by side, then by block."""

    baseline: Mapping[int, RunData]
    candidate: Mapping[int, RunData]
    twin: Mapping[int, RunData]


def contests(study: StudyRecord, runs: Sequence[RunData], limits: Limits) -> list[Contest]:
    """Every comparison of ``study``, decided from the blocks that ``runs`` have."""
    by_arm: dict[str, dict[int, RunData]] = {}
    records: dict[str, list[RunRecord]] = {}
    for run in runs:
        records.setdefault(run.record.arm, []).append(run.record)
        if measure(run) is not None:
            by_arm.setdefault(run.record.arm, {})[run.record.block] = run
    return [_contest(study, pair["baseline"], pair["candidate"], by_arm, records, limits) for pair in study.comparisons]


def step_decision(study: StudyRecord, runs: Sequence[RunData], limits: Limits) -> dict[str, Decision]:
    """Of every comparison the step's decision alone: what a run that goes on until it is decided asks each time."""
    return {one.name: one.step for one in contests(study, runs, replace(limits, memory=None, startup=None))}


def _contest(
    study: StudyRecord,
    baseline: str,
    candidate: str,
    by_arm: Mapping[str, Mapping[int, RunData]],
    records: Mapping[str, Sequence[RunRecord]],
    limits: Limits,
) -> Contest:
    arms = {arm["name"]: arm for arm in study.arms}
    twin = next((arm["name"] for arm in study.arms if arm.get("control") == "a-a" and arm.get("of") == baseline), "")
    sides = _Sides(*(by_arm.get(name, {}) for name in (baseline, candidate, twin)))
    shared = sorted(set(sides.baseline) & set(sides.candidate))
    ours_is, theirs_is = (
        str((arms.get(name, {}).get("code") or {}).get("label") or name) for name in (baseline, candidate)
    )
    name = str(arms.get(baseline, {}).get("contest") or f"{candidate} against {baseline}")
    if not shared:
        nothing = decide([], limits.step)
        return Contest(name, ours_is, theirs_is, 0, nothing, missing=_why_missing((baseline, candidate), records))
    level = confidence_at(len(shared))
    sets = {side: {block: found for block, run in getattr(sides, side).items() if (found := rounds(run))}
            for side in ("baseline", "candidate", "twin")}  # fmt: skip
    ours, theirs, its_twin = sets["baseline"], sets["candidate"], sets["twin"]
    both = [total_log(ours[block], theirs[block]) for block in shared]
    totals = from_block_values([log for log in both if log is not None], level)
    names = (baseline, candidate)
    ledgers: list[Blocks] = [
        {block: ledger for block, run in side.items() if (ledger := measure(run))}
        for side in (sides.baseline, sides.candidate)
    ]
    return Contest(
        name,
        ours_is,
        theirs_is,
        len(shared),
        decide(_typical(ours, theirs, its_twin), limits.step, _typical(ours, its_twin), level),
        baseline_ms=_median_ms(ours, shared, STEP),
        candidate_ms=_median_ms(theirs, shared, STEP),
        total=None if totals is None else _fraction(totals),
        parts=_parts(ours, theirs, its_twin, shared, limits.step, level),
        gates=_gates(sides, shared, limits, level),
        confounds=confounds(ledgers[0], ledgers[1], records, names, len(shared)),
        emulated=any(run.record.facts.get("emulated") for run in sides.baseline.values()),
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
    kinds: dict[str, Literal["phase", "stage"]] = {**dict.fromkeys(PHASES, "phase"), **dict.fromkeys(STAGES, "stage")}
    found = []
    for name in kinds:
        if all(name in side[block].parts for block in blocks for side in (baseline, candidate)):
            times = _median_ms(baseline, blocks, name), _median_ms(candidate, blocks, name)
            if max(times) >= NOTICEABLE * step_ms:
                found.append((name, times))
    one = 1 - (1 - level) / max(len(found), 1)
    return [
        Part(
            name,
            kinds[name],
            *times,
            decide(_typical(baseline, candidate, twin, name), within, _typical(baseline, twin, {}, name), one),
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
            {block: amount for block, run in side.items() if (amount := value(run.record))}
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


def _fraction(logs: Estimate) -> Estimate:
    low, high = (None if bound is None else math.expm1(bound) for bound in (logs.ci_low, logs.ci_high))
    return Estimate(math.expm1(logs.median), low, high, logs.n)


def _why_missing(names: tuple[str, str], records: Mapping[str, Sequence[RunRecord]]) -> str:
    said: list[Any] = [record.error for name in names for record in records.get(name, ()) if record.error]
    return str(said[0]).splitlines()[0] if said else "no block in which both sides finished"
