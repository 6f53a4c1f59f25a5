"""Compare two sides that alternated, from the runs of a study: the step, its parts, peak memory and startup."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from harness.explain.ledger import Blocks, RunLedger, epoch_steps, measure
from harness.explain.statistics import trimmed_mean
from harness.judge.comparisons import run_doubts, used_share
from harness.judge.confounds import ConfoundKind, confounds, used_lead
from harness.judge.doubts import barred
from harness.judge.losses import compare_losses, repeated_data
from harness.judge.policy import USEFUL_TOKENS_WITHIN
from harness.regress.decision import (
    PARTS,
    Gate,
    Limits,
    OneSidedProblem,
    Part,
    StateComparison,
    WhyUndecided,
    confidence_at,
    decide,
    high_blocks,
    nothing,
)
from harness.regress.policy import NOTICEABLE_PART
from harness.regress.series import EXPOSED, STEP, Rounds, rounds, total_log, typical_log
from harness.study.records import ArmRecord, RunRecord, StudyRecord
from harness.study.run_data import RunData

# Confounds that mean different work on the two sides: by kind, and for the kind "fact" by key.
OTHER_WORK: frozenset[ConfoundKind] = frozenset(
    {"diverged", "losses", "repeated data", "useful tokens", "mixed data", "mixed code"}
)
OTHER_WORK_FACTS = frozenset(
    {"parameters", "flops_per_token", "corpus_fingerprint", "tokenizer_fingerprint", "model_fingerprint"}
)


@dataclass(frozen=True)
class _FinishedRun:
    """Times of one finished run: by step (``ledger``), and means over each round by part of the step (``rounds``)."""

    ledger: RunLedger
    rounds: Rounds


@dataclass(frozen=True)
class _Sides:
    """Finished runs of one comparison, by side and block."""

    baseline: Mapping[int, _FinishedRun]
    candidate: Mapping[int, _FinishedRun]
    control: Mapping[int, _FinishedRun]  # the baseline's A/A control


def comparisons(study: StudyRecord, runs: Sequence[RunData], limits: Limits) -> list[StateComparison]:
    """Return one result for every comparison of ``study``, decided from the blocks that both sides finished."""
    by_arm: dict[str, dict[int, _FinishedRun]] = {}
    records: dict[str, list[RunRecord]] = {}
    for run in runs:
        records.setdefault(run.record.arm, []).append(run.record)
        ledger, its_rounds = measure(run), rounds(run)
        if ledger is not None and its_rounds is not None:
            by_arm.setdefault(run.record.arm, {})[run.record.block] = _FinishedRun(ledger, its_rounds)
    pairs = [(pair.baseline, pair.candidate) for pair in study.comparisons]
    return [_comparison(study, pair, by_arm, records, limits, _one_sided_problems(runs, pair)) for pair in pairs]


def _comparison(
    study: StudyRecord,
    names: tuple[str, str],
    by_arm: Mapping[str, Mapping[int, _FinishedRun]],
    records: Mapping[str, Sequence[RunRecord]],
    limits: Limits,
    problems: list[OneSidedProblem],
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
        errors = [record.error for side in names for record in records.get(side, ()) if record.error]
        why = WhyUndecided("failed runs", (errors[0].splitlines()[0],)) if errors else WhyUndecided("no shared block")
        return nothing(name, ours_is, theirs_is, limits.step, why)
    attempted = 1 + max(record.block for name in (baseline, candidate) for record in records.get(name, ()))
    level = confidence_at(attempted)  # Blocks that failed on one side count too.
    base_rounds, other_rounds, aa_rounds = (
        {block: run.rounds for block, run in side.items()} for side in (sides.baseline, sides.candidate, sides.control)
    )
    ledgers = [
        {block: run.ledger for block, run in side.items()} for side in (sides.baseline, sides.candidate, sides.control)
    ]
    losses = compare_losses(names, *ledgers)
    repeated = repeated_data(ledgers[0], ledgers[1])
    differing = [*confounds(ledgers[0], ledgers[1], records, names, len(shared), losses, repeated)]
    tokens = [_tokens_per_step(ledger) for ledger in ledgers[:2]]
    if tokens[0] and tokens[1] and abs(tokens[1] / tokens[0] - 1) > USEFUL_TOKENS_WITHIN:
        missing = WhyUndecided("other tokens per step", tokens=(tokens[0], tokens[1]))
        return nothing(name, ours_is, theirs_is, limits.step, missing, len(shared), differing)
    typical = _typical(base_rounds, other_rounds, aa_rounds)
    step = decide([*typical.values()], limits.step, [*_typical(base_rounds, aa_rounds).values()], level)
    baseline_ms = _median_ms(base_rounds, shared, STEP)
    shares = used_share(ledgers[0]), used_share(ledgers[1])
    changed = limits.step if step.change is None else max(limits.step, abs(step.change.median))
    lead = used_lead(shares, changed, names)
    total = decide(
        _totals(base_rounds, other_rounds), limits.step, _totals(base_rounds, aa_rounds), level, trimmed_mean
    )
    own = {block: math.log(_median_ms(other_rounds, [block], STEP)) for block in typical}
    other_work = (c for c in differing if c.kind in OTHER_WORK or (c.kind == "fact" and c.key in OTHER_WORK_FACTS))
    return StateComparison(
        name,
        ours_is,
        theirs_is,
        len(shared),
        step,
        steps=min(len(side[block].step_ms) for side in ledgers[:2] for block in shared),
        epoch_steps=max(filter(None, map(epoch_steps, ledgers[:2])), default=None),
        baseline_ms=baseline_ms,
        # Follows from the paired change, because the medians of both sides may differ the other way.
        candidate_ms=None if step.change is None else baseline_ms * (1 + step.change.median),
        total=total,
        parts=_parts(base_rounds, other_rounds, aa_rounds, shared, limits.step, level),
        gates=_gates(sides, shared, limits, level),
        confounds=[*differing, *lead],
        defaults=[*second.other_defaults],
        problems=problems,
        other_work=next(other_work, None),
        used_lead=next(iter(lead), None),
        slow_blocks=high_blocks(typical, limits.step, own),
        doubts=tuple(entry for entry in run_doubts(names, ledgers[:2]) if barred([entry], "loss")),
        alternated=True,
        emulated=any(run.ledger.record.facts.emulated for run in sides.baseline.values()),
    )


def _one_sided_problems(runs: Sequence[RunData], names: tuple[str, str]) -> list[OneSidedProblem]:
    reported: dict[str, list[set[str]]] = {name: [] for name in names}
    for run in runs:
        if run.record.arm in names and run.record.status == "done":
            reported[run.record.arm].append(set(run.probes.problems))
    return [
        OneSidedProblem(arm, message)
        for arm, opposite in (names, names[::-1])
        if reported[arm]
        for message in sorted(set.intersection(*reported[arm]).difference(*reported[opposite]))
    ]


def _state(arm: ArmRecord) -> str:
    """Return the label of a side of a comparison: the state of the code that the arm runs, else the arm's name."""
    if arm.code is not None:
        return arm.code.label
    declared = arm.declared.get("code")  # set for commands, which do not run the harness's own trainer
    return declared if isinstance(declared, str) else arm.name


def _typical(
    baseline: Mapping[int, Rounds],
    candidate: Mapping[int, Rounds],
    control: Mapping[int, Rounds] | None = None,
    part: str = STEP,
) -> dict[int, float]:
    """Return {block: typical_log() of ``part``} for the blocks that both sides finished. ``control``: the A/A runs."""
    logs = {
        block: typical_log(baseline[block], candidate[block], part, (control or {}).get(block))
        for block in sorted(set(baseline) & set(candidate))
    }
    return {block: log for block, log in logs.items() if log is not None}


def _median_ms(side: Mapping[int, Rounds], blocks: Sequence[int], part: str) -> float:
    return median(time_ms for block in blocks if (time_ms := side[block].typical_ms(part)) is not None)


def _parts(
    baseline: Mapping[int, Rounds],
    candidate: Mapping[int, Rounds],
    control: Mapping[int, Rounds],
    blocks: Sequence[int],
    within: float,
    level: float,
) -> list[Part]:
    """Return a decision per noticeable phase and stage; together they hold with confidence ``level`` (Bonferroni)."""

    def exposed_ms(stage: str) -> float | None:
        times_ms = [candidate[block].typical_ms(f"{EXPOSED}{stage}") for block in blocks]
        return median(known) if (known := [time_ms for time_ms in times_ms if time_ms is not None]) else None

    step_ms = _median_ms(baseline, blocks, STEP)
    noticeable = []
    for name in PARTS:
        if all(name in side[block].parts for block in blocks for side in (baseline, candidate)):
            times = _median_ms(baseline, blocks, name), _median_ms(candidate, blocks, name)
            if max(times) >= NOTICEABLE_PART * step_ms:
                noticeable.append((name, times))
    part_level = 1 - (1 - level) / max(len(noticeable), 1)
    return [
        Part(
            name,
            PARTS[name],
            *times,
            decide(
                [*_typical(baseline, candidate, control, name).values()],
                within,
                [*_typical(baseline, control, {}, name).values()],
                part_level,
            ),
            exposed_ms(name) if PARTS[name] == "stage" else None,
        )
        for name, times in noticeable
    ]


def _gates(sides: _Sides, blocks: Sequence[int], limits: Limits, level: float) -> list[Gate]:
    gates = []
    kinds: tuple[tuple[str, str, float | None, Callable[[RunRecord], float | None]], ...] = (
        ("peak memory", "MiB", limits.memory, lambda record: _scaled(record.peak_memory_bytes, 2**20)),
        ("peak device memory", "MiB", limits.memory, lambda record: _scaled(record.peak_device_bytes, 2**20)),
        ("startup", "ms", limits.startup, lambda record: _scaled(record.startup_ns, 1e6)),
    )
    for name, unit, limit, value in kinds:
        if limit is None:
            continue
        base_amounts, other_amounts, control = (
            {block: amount for block, run in side.items() if (amount := value(run.ledger.record))}
            for side in (sides.baseline, sides.candidate, sides.control)
        )
        shared = [block for block in blocks if block in base_amounts and block in other_amounts]
        if shared:
            logs = {block: math.log(other_amounts[block] / base_amounts[block]) for block in shared}
            noise = [math.log(control[block] / base_amounts[block]) for block in shared if block in control]
            medians = median(base_amounts[block] for block in shared), median(other_amounts[block] for block in shared)
            decision = decide([*logs.values()], limit, noise, level)
            own = {block: math.log(other_amounts[block]) for block in shared}
            gates.append(Gate(name, unit, *medians, decision, high_blocks(logs, limit, own)))
    return gates


def _scaled(amount: int | None, unit: float) -> float | None:
    return amount / unit if amount else None


def _tokens_per_step(ledgers: Blocks) -> float | None:
    """Return token positions per measured step, padding included; None if not counted or without measured steps."""
    steps = sum(len(ledger.step_ms) for ledger in ledgers.values())
    counted = [ledger.tokens for ledger in ledgers.values() if ledger.tokens is not None]
    return sum(counted) / steps if steps and len(counted) == len(ledgers) else None


def _totals(baseline: Mapping[int, Rounds], candidate: Mapping[int, Rounds]) -> list[float]:
    logs = (total_log(baseline[block], candidate[block]) for block in sorted(set(baseline) & set(candidate)))
    return [log for log in logs if log is not None]
