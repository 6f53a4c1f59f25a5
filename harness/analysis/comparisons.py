"""What a change bought: every comparison's numbers from several witnesses, and the verdict they allow.

All ratios are "how many times as fast": above 1 the candidate (or the control) is faster than the baseline.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.analysis.dose import Dose
from harness.analysis.ledger import Bound, RepetitionTotals, RunLedger, mean_over
from harness.analysis.statistics import MIN_BLOCKS, Estimate, from_blocks, paired_ratio

Verdict = Literal["gain", "loss", "none"]
Blocks = Mapping[int, RunLedger]  # the finished runs of one arm, by block
Rate = Callable[
    [RepetitionTotals], tuple[float, float] | None
]  # what a turn did, and the time or steps it took for that


def per_second(amount: float | None, turn: RepetitionTotals) -> tuple[float, float] | None:
    """``amount`` of ``turn`` as a rate; None where it was not counted."""
    return None if amount is None else (amount, turn.wall_ns / 1e9)


def trained_tokens_per_s(turn: RepetitionTotals) -> tuple[float, float] | None:
    return per_second(turn.trained_tokens, turn)


def tokens_per_s(turn: RepetitionTotals) -> tuple[float, float] | None:
    return per_second(turn.tokens, turn)


def steps_per_s(turn: RepetitionTotals) -> tuple[float, float] | None:
    return per_second(turn.steps, turn)


# What "faster" means, best first: a trainer that does not count tokens is compared by what it does tell.
MEASURES: tuple[tuple[str, Rate], ...] = (
    ("trained tokens/s", trained_tokens_per_s),
    ("tokens/s", tokens_per_s),
    ("steps/s", steps_per_s),
)


@dataclass(frozen=True)
class WhatIf:
    """A comparison under edits, by replay of both arms. Step times in ms; ``ratio``: baseline's / candidate's."""

    edits: str  # as they are written: "ranks=16"; empty: unedited
    baseline_ms: Estimate | None = None
    candidate_ms: Estimate | None = None
    ratio: Estimate | None = None
    waits_ms: float | None = None  # per step of the baseline: what it would wait for data
    reason: str | None = None  # why nothing could be predicted


@dataclass(frozen=True)
class ChainLink:
    """One step of the way from the gain in isolation to the gain in training."""

    name: str
    ratio: float | None  # how many times as fast the step could be, as far as this link knows
    words: str


SAME = 0.01  # tokens per step that differ by less are called the same


@dataclass
class Waits:
    """Where one arm waits for data, in mean milliseconds per step; None and missing stages were not measured."""

    step_ms: float
    waited_ms: float | None
    exposed_ms: dict[str, float]
    hidden_ms: dict[str, float]
    contended_ms: float | None
    slack_ms: float | None = None  # only with an asynchronous device, as are the next two
    starved_ms: dict[str, float] = field(default_factory=dict)
    bound: Bound | None = None
    hidden_behind: dict[str, float] = field(default_factory=dict)  # by kernel or phase, largest first

    @property
    def work_ms(self) -> float:
        """All data work, waited for or not; the host does it for every step."""
        return sum(self.exposed_ms.values()) + sum(self.hidden_ms.values())


@dataclass
class Comparison:
    """One candidate against its baseline. A None always has its reason in ``missing`` or ``reasons``."""

    baseline: str
    candidate: str
    missing: str | None = None  # why nothing could be compared
    measure: str = ""  # what measured is a ratio of
    measured: Estimate | None = None
    tokens_ratio: Estimate | None = None  # positions per second, padding included
    step_time: Estimate | None = None  # baseline's step time / candidate's
    isolated: Estimate | None = None  # positions per second of the data-only controls
    ceiling: Estimate | None = None  # step time / step time without any wait for data, of the baseline
    ideal: Estimate | None = None  # baseline's step time / its ideal-data control's: a second witness of the ceiling
    predicted: Estimate | None = None  # of what measured is, by replay of the baseline with the candidate's data path
    predicted_step: Estimate | None = None  # the same of the step time: baseline's / the replay's
    validation: float | None = None  # fraction: how far unedited replays of the baseline typically are off
    within_tolerance: bool = True  # whether that is little enough to believe the prediction
    doses: list[Dose] = field(default_factory=list)  # of the baseline
    chain: list[ChainLink] = field(default_factory=list)
    whatifs: list[WhatIf] = field(default_factory=list)  # as it is, then under each of the scenario's whatif edits
    noise_floor: float | None = None  # fraction: how far from 1 an arm's ratio to its own twin reaches
    noise_floor_of: str | None = None
    positions_per_step: float | None = None  # candidate / baseline
    trained_per_step: float | None = None  # candidate / baseline
    baseline_waits: Waits | None = None
    candidate_waits: Waits | None = None
    verdict: Verdict = "none"
    resolution: float | None = None  # a difference up to this fraction would have gone unnoticed
    reasons: dict[str, str] = field(default_factory=dict)  # by field: why it is None
    confounds: list[str] = field(default_factory=list)
    emulated: str | None = None  # the device that both ran on, where it exists on paper only
    sentence: str = ""


@dataclass(frozen=True)
class Controls:
    """Finished runs of the controls by kind and the arm they belong to: ``by[kind, arm]``."""

    by: Mapping[tuple[str, str], Blocks]

    def get(self, kind: str, arm: str) -> Blocks:
        return self.by.get((kind, arm), {})


def compare(baseline: str, candidate: str, arms: Mapping[str, Blocks], controls: Controls) -> Comparison:
    """All numbers and the verdict of one comparison; sentence and confounds are added by others."""
    result = Comparison(baseline, candidate)
    base, other = arms.get(baseline, {}), arms.get(candidate, {})
    absent = [name for name, blocks in ((baseline, base), (candidate, other)) if not blocks]
    if absent:
        result.missing = f"no finished run of {' and of '.join(dict.fromkeys(absent))}"
        return result
    if not set(base) & set(other):
        result.missing = "no block in which both finished"
        return result

    for name, rate in MEASURES:
        result.measured = speed(base, other, rate)
        if result.measured is not None:
            result.measure = name
            break
    result.tokens_ratio = speed(base, other, tokens_per_s)
    result.step_time = speed(base, other, steps_per_s)
    result.positions_per_step = _quotient(_per_step(other, "tokens"), _per_step(base, "tokens"))
    result.trained_per_step = _quotient(_per_step(other, "trained_tokens"), _per_step(base, "trained_tokens"))
    result.baseline_waits, result.candidate_waits = _waits(base), _waits(other)
    result.ceiling = ceiling(base)
    _add_controls(result, base, controls)
    _add_noise_floor(result, arms, controls)
    _judge(result)
    return result


def speed(baseline: Blocks, candidate: Blocks, rate: Rate) -> Estimate | None:
    """How many times as fast ``candidate`` is by ``rate``; None where a measured turn does not have that rate."""
    base, other = _rates(baseline, rate), _rates(candidate, rate)
    if base is None or other is None:
        return None
    by_turn = {block: alternated(baseline[block], candidate[block]) for block in set(base) & set(other)}
    return paired_ratio(base, other, by_turn)


def alternated(first: RunLedger, second: RunLedger) -> bool:
    """Whether turn k of both ran side by side in time."""
    return first.by_turn and second.by_turn and first.record.session == second.record.session


def ceiling(blocks: Blocks) -> Estimate | None:
    """The largest gain in step time that removing every wait for data could give: wall / (wall - waited)."""
    logs = []
    for run in blocks.values():
        waited, wall = run.waited_ms, run.mean_step_ms
        if waited is None or waited >= wall * (1 - 1e-6):  # nothing but waiting: no finite ceiling
            return None
        logs.append(math.log(wall / (wall - waited)))
    found = from_blocks(logs)
    if found is None or found.ci_low is None:
        return found
    return Estimate(found.median, max(1.0, found.ci_low), found.ci_high, found.n)


def _add_controls(result: Comparison, base: Blocks, controls: Controls) -> None:
    alone = [controls.get("data-only", arm) for arm in (result.baseline, result.candidate)]
    result.isolated = speed(alone[0], alone[1], tokens_per_s)
    if result.isolated is None:
        result.isolated = speed(alone[0], alone[1], steps_per_s)
    if result.isolated is None:
        without = [arm for arm, runs in zip((result.baseline, result.candidate), alone, strict=True) if not runs]
        result.reasons["isolated"] = (
            f"no finished data-only control of {' or '.join(without)}"
            if without
            else ("the data-only controls share no finished block")
        )
    result.ideal = speed(base, controls.get("ideal-data", result.baseline), steps_per_s)
    if result.ideal is None:
        result.reasons["ideal"] = f"no finished ideal-data control of {result.baseline}"
    if result.ceiling is None:
        result.reasons["ceiling"] = "the steps do nothing but wait for data, or their waits were not measured"
    result.reasons["predicted"] = "no replay of this pair"


def _add_noise_floor(result: Comparison, arms: Mapping[str, Blocks], controls: Controls) -> None:
    """The baseline's own twin says what no change looks like; else another arm's twin of the same study must do."""
    rate = dict(MEASURES)[result.measure]
    result.reasons["noise_floor"] = "no finished a-a control"
    twins = [arm for kind, arm in controls.by if kind == "a-a" and arm in arms]
    for arm in sorted(twins, key=lambda arm: (arm != result.baseline, arm != result.candidate, arm)):
        ratio = speed(arms[arm], controls.get("a-a", arm), rate)
        if ratio is not None and ratio.distance is not None:
            result.noise_floor, result.noise_floor_of = ratio.distance, arm
            del result.reasons["noise_floor"]
            return
        if ratio is not None:
            result.reasons["noise_floor"] = f"the a-a control needs {MIN_BLOCKS} blocks and has {ratio.n}"


def _judge(result: Comparison) -> None:
    """Gain or loss only where the interval excludes 1 and the median clears the noise floor."""
    measured, floor = result.measured, result.noise_floor or 0.0
    if measured is None or measured.ci_low is None or measured.ci_high is None or measured.distance is None:
        return
    clears = abs(measured.median - 1) > floor
    if clears and measured.ci_low > 1:
        result.verdict = "gain"
    elif clears and measured.ci_high < 1:
        result.verdict = "loss"
    result.resolution = max(measured.distance, floor)


def _rates(blocks: Blocks, rate: Rate) -> dict[int, dict[int, tuple[float, float]]] | None:
    """{block: {turn: rate}}; None where any turn lacks it, so that a ratio never mixes turns with and without."""
    rates: dict[int, dict[int, tuple[float, float]]] = {}
    for block, run in blocks.items():
        for turn, totals in run.turns.items():
            value = rate(totals)
            if value is None:
                return None
            rates.setdefault(block, {})[turn] = value
    return rates


def _per_step(blocks: Blocks, name: Literal["tokens", "trained_tokens"]) -> float | None:
    totals: Sequence[float | None] = [getattr(run, name) for run in blocks.values()]
    if any(total is None for total in totals):
        return None
    return sum(total or 0.0 for total in totals) / sum(len(run.step_ms) for run in blocks.values())


def _quotient(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def _waits(blocks: Blocks) -> Waits:
    runs = list(blocks.values())
    return Waits(
        step_ms=mean_over(runs, lambda run: run.mean_step_ms) or 0.0,
        waited_ms=mean_over(runs, lambda run: run.waited_ms),
        exposed_ms=stage_means(runs, "exposed_ms"),
        hidden_ms=stage_means(runs, "hidden_ms"),
        contended_ms=mean_over(runs, lambda run: run.contended_ms),
        slack_ms=mean_over(runs, lambda run: run.device_slack_ms),
        starved_ms=stage_means(runs, "starved_ms"),
        bound=commonest(run.bound for run in runs),
    )


def commonest(found: Iterable[Bound | None]) -> Bound | None:
    """What most runs are bound by; None without an asynchronous device."""
    known = Counter(one for one in found if one is not None).most_common(1)
    return known[0][0] if known else None


def stage_means(
    runs: Sequence[RunLedger], name: Literal["exposed_ms", "hidden_ms", "phase_ms", "starved_ms"]
) -> dict[str, float]:
    """Mean milliseconds per step over ``runs`` of every stage or phase that any of them measured."""
    means: dict[str, float] = {}
    for key in dict.fromkeys(key for run in runs for key in getattr(run, name)):
        known = [(getattr(run, name)[key], len(run.step_ms)) for run in runs if key in getattr(run, name)]
        means[key] = sum(value * steps for value, steps in known) / sum(steps for _, steps in known)
    return means
