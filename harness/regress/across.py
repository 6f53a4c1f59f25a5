"""Compare two studies of different times: find the differences that forbid it or must be reported, and decide.

The studies did not alternate, so a change of the machine in between looks like a regression, and no interval over
blocks shows it. The intervals therefore allow for the variation between days (harness.regress.series).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

from harness.explain.policy import CONFIDENCE
from harness.explain.statistics import Estimate, from_block_values
from harness.judge.confounds import alike_environment
from harness.judge.policy import CORE_WAIT_SHARE_MAX, OTHER_CORES_MAX, SM_CLOCKS_WITHIN, USEFUL_TOKENS_WITHIN
from harness.regress.decision import (
    PARTS,
    Decision,
    Difference,
    Gate,
    HighBlocks,
    Limits,
    Part,
    StateComparison,
    WhyUndecided,
    fractions,
    high_blocks,
    judge,
    nothing,
)
from harness.regress.policy import COMMON_MOVE_ARMS, COMMON_MOVE_SHARE, DAY_LOSSES_WITHIN, NOTICEABLE_PART
from harness.regress.series import MACHINE, PROGRAM, STARTUP, STEP, BetweenDays, BlockSeries, Days
from harness.study.records import COMMAND
from trainer.config import BEFORE
from trainer.json_types import JsonObject

# Configuration that changes the work of a step, so different values forbid a comparison. Corpus and tokenizer are
# compared by their fingerprints. A key that one side lacks was added later and forbids nothing.
WORK = ("model.", "data.", "compute.", "optimizer.")
SYNCHRONOUS = ("cpu", "none")  # devices whose calls return after the work is done
FINGERPRINTED = ("data.corpus.", "data.tokenizer.", "compute.threads")


@dataclass(frozen=True)
class CommonMove:
    """Change of the step time of all ``arms`` in one direction, found by :func:`common_move`."""

    arms: int
    least: float  # smallest change, a signed fraction of the baseline
    most: float  # largest change


@dataclass(frozen=True)
class Across:
    """Comparison of one arm of two studies, made by :func:`compare_series`."""

    arm: str
    comparison: StateComparison
    refused: list[Difference] = field(default_factory=list)  # differences that forbid the comparison
    warned: list[Difference] = field(default_factory=list)  # all others, and those that the user allowed


def compare_series(
    baseline: BlockSeries, candidate: BlockSeries, limits: Limits, allowed: Iterable[str] = (), days: Days | None = None
) -> Across:
    """Compare ``candidate`` with ``baseline``: one arm of two studies of different times.

    Undecided if a difference forbids it, unless its key is in ``allowed``. ``days``: kept sessions; None: assumed.
    """
    if is_same_study(baseline, candidate):
        return Across(candidate.arm, _same_study(candidate, limits))
    all_differences = differences(baseline, candidate)
    allowed = set(allowed)
    refused = [difference for difference in all_differences if difference.forbids and difference.key not in allowed]
    warned = [difference for difference in all_differences if difference not in refused]
    comparison = _comparison(baseline, candidate, limits, warned, days or Days())
    if refused:
        sides = comparison.name, comparison.baseline, comparison.candidate
        missing = WhyUndecided("differences")
        comparison = nothing(*sides, limits.step, missing, comparison.blocks, differences=[*refused, *warned])
    return Across(candidate.arm, comparison, refused, warned)


def is_same_study(baseline: BlockSeries, candidate: BlockSeries) -> bool:
    """Return True if both are one arm of one study: equal scenario, start, blocks, step times, machine and facts."""
    same = ("scenario", "arm", "created_utc", "blocks", "environment", "facts")
    return baseline.part_ms[STEP] == candidate.part_ms[STEP] and all(
        getattr(baseline, name) == getattr(candidate, name) for name in same
    )


def _same_study(series: BlockSeries, limits: Limits) -> StateComparison:
    """Return the comparison of a study with itself: no change, with an interval of width 0."""
    blocks = len(series.blocks)
    step_ms, none = median(series.part_ms[STEP]), Estimate(0.0, 0.0, 0.0, blocks)
    return StateComparison(
        series.arm,
        series.created_utc,
        series.created_utc,
        blocks,
        Decision("same", limits.step, none, CONFIDENCE),
        baseline_ms=step_ms,
        candidate_ms=step_ms,
        same_study=True,
        emulated=series.emulated,
    )


def differences(baseline: BlockSeries, candidate: BlockSeries) -> list[Difference]:
    """Return all differences between two studies of an arm, those that forbid a comparison first."""
    result = []

    def check(key: str, one: Any, other: Any, forbids: bool) -> None:
        if one != other:
            result.append(Difference(key, one, other, forbids))

    for key in sorted(set(baseline.environment) | set(candidate.environment)):
        if key != "git_commit":
            ours_is, theirs_is = baseline.environment.get(key), candidate.environment.get(key)
            if alike_environment(key, ours_is, theirs_is):
                continue
            # otherwise written by an older version
            recorded = key in baseline.environment and key in candidate.environment
            check(f"environment.{key}", ours_is, theirs_is, recorded and key in MACHINE)
    facts, other_facts = baseline.facts.to_json(), candidate.facts.to_json()
    for key in sorted(set(facts) | set(other_facts)):
        recorded = key in facts and key in other_facts
        if recorded or key != PROGRAM:  # Older studies and baselines do not have it.
            check(key, facts.get(key, "unknown"), other_facts.get(key, "unknown"), recorded and key != PROGRAM)
    check("scenario", baseline.scenario, candidate.scenario, False)
    synchronous = any(series.facts.device in SYNCHRONOUS for series in (baseline, candidate))
    configs = [_with_before(series.config, synchronous) for series in (baseline, candidate)]
    for key in sorted(set(configs[0]) | set(configs[1])):
        recorded = key in configs[0] and key in configs[1]
        work = recorded and key.startswith((*WORK, COMMAND)) and not key.startswith(FINGERPRINTED)
        check(key, configs[0].get(key), configs[1].get(key), work)

    def pair(name: str) -> list[Any]:
        return [getattr(baseline, name), getattr(candidate, name)]

    shares, clocks, loads, waits = map(pair, ("useful_fraction", "sm_clock_mhz", "other_cpu_cores", "waiting_share"))
    diverged, losses, failed = map(pair, ("diverged_runs", "loss", "failed_runs"))
    unlike_tokens = None not in shares and abs(shares[1] - shares[0]) > USEFUL_TOKENS_WITHIN * max(shares)
    unlike_clocks = all(clocks) and abs(clocks[1] / clocks[0] - 1) > SM_CLOCKS_WITHIN
    measured: tuple[tuple[str, list[Any], bool, bool, Literal["", "share", "MHz", "cores"]], ...] = (
        ("useful tokens", shares, unlike_tokens, True, "share"),
        ("SM clock", clocks, unlike_clocks, True, "MHz"),
        ("load by other processes", loads, max(load or 0.0 for load in loads) > OTHER_CORES_MAX, False, "cores"),
        ("waiting for a core", waits, max(share or 0.0 for share in waits) > CORE_WAIT_SHARE_MAX, True, "share"),
        ("diverged runs", diverged, any(diverged), True, ""),
        ("loss", losses, not any(diverged) and not _alike_losses(*losses), True, ""),
        ("failed runs", failed, any(failed), True, ""),
    )
    result += [
        Difference(key, values[0], values[1], forbids, unit)
        for key, values, differ, forbids, unit in measured
        if differ
    ]
    check("interleave", baseline.interleave, candidate.interleave, False)
    # Older baselines do not record these.
    if baseline.arms and candidate.arms and baseline.probes and candidate.probes:
        check("arms of the study", baseline.arms, candidate.arms, False)
        for key in sorted(set(baseline.probes) | set(candidate.probes)):
            check(f"probes.{key}", baseline.probes.get(key), candidate.probes.get(key), False)
    return sorted(result, key=lambda difference: not difference.forbids)


def _with_before(config: JsonObject, synchronous: bool) -> JsonObject:
    """Return ``config`` with the keys of ``BEFORE`` that it lacks; without any of ``BEFORE`` if ``synchronous``."""
    if synchronous:
        return {key: value for key, value in config.items() if key not in BEFORE}
    return {**BEFORE, **config}


def _alike_losses(ours: float | None, theirs: float | None) -> bool:
    """Return True if both losses agree within :data:`DAY_LOSSES_WITHIN`, or if one is unknown (older baselines)."""
    return ours is None or theirs is None or abs(theirs - ours) <= DAY_LOSSES_WITHIN * min(abs(ours), abs(theirs))


def common_move(comparisons: Sequence[StateComparison]) -> CommonMove | None:
    """Return the change of all arms if each surely changed alike: the machine, not one arm's code, causes that."""
    # Intervals from blocks alone, without the variation between days.
    steps = [comparison.step for comparison in comparisons]
    found = [step.change if step.between is None else step.between.blocks_only for step in steps]
    changes = [change.median for change in found if change is not None and _is_sure(change)]
    if len(changes) < len(comparisons) or len(changes) < COMMON_MOVE_ARMS:
        return None
    smallest, largest = min(changes), max(changes)
    sizes = abs(smallest), abs(largest)
    if (smallest > 0 or largest < 0) and min(sizes) > COMMON_MOVE_SHARE * max(sizes):
        return CommonMove(len(changes), smallest, largest)
    return None


def _is_sure(change: Estimate) -> bool:
    return (change.ci_low or 0.0) > 0 or (change.ci_high or 0.0) < 0


def _comparison(
    baseline: BlockSeries, candidate: BlockSeries, limits: Limits, warned: Sequence[Difference], days: Days
) -> StateComparison:
    step_ms = baseline.part_ms[STEP]
    both = (name for name in PARTS if name in baseline.part_ms and name in candidate.part_ms)
    least_ms = NOTICEABLE_PART * median(step_ms)
    sides = (baseline, candidate)
    parts = [name for name in both if max(median(side.part_ms[name]) for side in sides) >= least_ms]
    level = 1 - (1 - CONFIDENCE) / max(len(parts), 1)

    def part(name: str, confidence: float) -> Decision:
        noisy = baseline if name == STEP else None  # An A/A control is kept of the step only.
        values = _PartValues(name, baseline.part_ms[name], candidate.part_ms[name])
        return _decide(values, limits.step, noisy, confidence, days)

    return StateComparison(
        candidate.arm,
        baseline.created_utc,
        candidate.created_utc,
        min(len(baseline.blocks), len(candidate.blocks)),
        part(STEP, CONFIDENCE),
        baseline_ms=median(step_ms),
        candidate_ms=median(candidate.part_ms[STEP]),
        parts=[
            Part(name, PARTS[name], median(baseline.part_ms[name]), median(candidate.part_ms[name]), part(name, level))
            for name in parts
        ],
        gates=_gates(baseline, candidate, limits, days),
        slow_blocks=_high_blocks(_PartValues(STEP, step_ms, candidate.part_ms[STEP]), candidate.blocks, limits.step),
        differences=list(warned),
        steps=min(baseline.steps or 0, candidate.steps or 0),
        epoch_steps=max(filter(None, (baseline.epoch_steps, candidate.epoch_steps)), default=None),
        emulated=candidate.emulated,
    )


def _high_blocks(sides: _PartValues, blocks: Sequence[int], within: float) -> HighBlocks | None:
    """Return the candidate's separate group of high blocks (:func:`high_blocks`); None if the baseline has one too."""
    names = blocks if len(blocks) == len(sides.candidate) else range(len(sides.candidate))
    ours, theirs = (
        {block: math.log(value / median(values)) for block, value in zip(places, values, strict=True) if value > 0}
        for places, values in ((range(len(sides.baseline)), sides.baseline), (names, sides.candidate))
    )
    return None if high_blocks(ours, within, ours) else high_blocks(theirs, within, theirs)


def _gates(baseline: BlockSeries, candidate: BlockSeries, limits: Limits, days: Days) -> list[Gate]:
    gates = []
    kinds: tuple[tuple[str, str, float | None, Callable[[BlockSeries], list[float]]], ...] = (
        ("peak memory", "MiB", limits.memory, lambda series: [value / 2**20 for value in series.peak_memory_bytes]),
        (STARTUP, "ms", limits.startup, lambda series: series.startup_ms),
    )
    for name, unit, limit, values in kinds:
        base_values, other_values = values(baseline), values(candidate)
        if name == STARTUP and baseline.started != candidate.started:
            continue  # A start-up alone and one beside others are not comparable.
        if limit is not None and base_values and other_values:
            timed = days if name == STARTUP else None  # Memory does not vary between days.
            sides = _PartValues(name, base_values, other_values)
            decision = _decide(sides, limit, None, CONFIDENCE, timed)
            high = _high_blocks(sides, candidate.blocks, limit)
            gates.append(Gate(name, unit, median(base_values), median(other_values), decision, high))
    return gates


@dataclass(frozen=True)
class _PartValues:
    """Values of one quantity in two studies, one per block: ms per step, MiB of peak memory, or ms of startup."""

    part: str
    baseline: Sequence[float]
    candidate: Sequence[float]


def _decide(sides: _PartValues, within: float, noisy: BlockSeries | None, level: float, days: Days | None) -> Decision:
    """Decide from two studies that did not alternate. ``noisy``: its A/A control gives the noise floor. ``days``: or
    None.
    """
    base_log, other_log = (
        from_block_values([math.log(value) for value in values if value > 0], level)
        for values in (sides.baseline, sides.candidate)
    )
    noise = None if noisy is None else from_block_values(noisy.twin_logs)
    blocks_only = _difference(base_log, other_log)
    decision = judge(blocks_only, within, noise, level)
    if days is not None and blocks_only is not None and base_log is not None and other_log is not None:
        centre = days.centre(sides.part)
        allowance, measured = days.between(sides.part, level)
        # The scatter of a centre of several sessions already includes that of their blocks.
        known_ours = base_log if centre is None else Estimate(centre, centre, centre, base_log.n)
        by_blocks = decision
        decision = judge(_difference(known_ours, other_log, allowance), within, noise, level)
        day_scatter = BetweenDays(math.expm1(allowance), len(days.level), measured, fractions(blocks_only))
        decision = replace(decision, between=day_scatter)
        if decision.outcome == "undecided" and by_blocks.outcome != "undecided":
            decision = replace(decision, why="day to day")
    return replace(decision, more_blocks=None)  # More blocks of one study would not narrow the other's interval.


def _difference(first: Estimate | None, second: Estimate | None, allowance: float = 0.0) -> Estimate | None:
    """Return ``second`` minus ``first`` (None without both); errors and ``allowance`` add in quadrature."""
    if first is None or second is None:
        return None
    centre, n = second.median - first.median, min(first.n, second.n)
    if first.ci_low is None or first.ci_high is None or second.ci_low is None or second.ci_high is None:
        return Estimate(centre, None, None, n)
    lower = math.hypot(second.median - second.ci_low, first.ci_high - first.median, allowance)
    upper = math.hypot(second.ci_high - second.median, first.median - first.ci_low, allowance)
    return Estimate(centre, centre - lower, centre + upper, n)
