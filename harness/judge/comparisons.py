"""Measure what a change gains: ratios of each comparison (above 1: the candidate is faster), and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from harness.explain.ledger import (
    MEASURES,
    Blocks,
    Rate,
    arm_lead,
    per_step_of,
    rates_of,
    speed,
    speed_logs,
    steps_per_s,
    tokens_per_s,
)
from harness.explain.policy import INDEPENDENT_BLOCKS, INDEPENDENT_BLOCKS_ALONE
from harness.explain.statistics import Estimate, Likeness, likeness
from harness.judge import policy
from harness.judge.doubts import UNDECIDED_KINDS, Doubt, DoubtKind, RemedyKind, RunFailure, barred, unseen_of
from harness.judge.losses import Losses, compare_losses, repeated_data
from harness.judge.verdicts import InTotal, Judged, Verdict, confidence_of_each, in_total, is_useless, judge
from harness.judge.waits import Waits, gain_from_waits, open_ranks, waits_of
from harness.study.records import RunRecord

Figure = Literal["isolated", "ideal", "ceiling", "predicted", "noise_floor"]
AbsentKind = Literal[
    "no data-only control", "data-only controls apart", "no ideal-data control", "ideal-data of another length",
    "no finite ceiling", "ranks", "no a-a control", "too few a-a blocks", "no tables", "too noisy",
    "more than the data path differs", "replay refused", "doubted",
]  # fmt: skip
MissingKind = Literal["no finished run", "no shared block", "no throughput", "nothing trained"]


@dataclass(frozen=True)
class Absent:
    """Reason why one figure of a comparison is missing. ``arms``: those that it concerns."""

    kind: AbsentKind
    arms: tuple[str, ...] = ()
    blocks: int = 0
    positions: float = 1.0  # positions per step of the ideal-data control / those of its arm
    detail: str = ""  # configuration key that differs, or the replay's error message
    doubt: Doubt | None = None  # "doubted": the doubt that bars the figure


@dataclass(frozen=True)
class Missing:
    """Reason why a comparison has no figures at all. ``failures``: the first failed run of each arm that has one."""

    kind: MissingKind
    arms: tuple[str, ...] = ()
    failures: tuple[RunFailure, ...] = ()


@dataclass(frozen=True)
class Measured:
    """Figures of one comparison, made by :func:`compare`; ``absent``: the reason for each figure that is None."""

    measure: str  # unit of the rate that ``ratio`` compares
    ratio: Estimate
    tokens_ratio: Estimate | None  # positions per second, padding included
    step_time: Estimate | None  # baseline's step time / candidate's
    isolated: Estimate | None  # positions per second of the data-only controls
    ceiling: Estimate | None  # baseline's step time / step time without any data work; see ``without_data``
    from_waits: Estimate | None  # ``ceiling`` by replay alone, from the data work in the ledger
    ideal: Estimate | None  # baseline's step time / its ideal-data control's: a second estimate of the ceiling
    noise_floor: float | None  # fraction: how far the interval of an arm's ratio to its own A/A control reaches from 1
    noise_floor_of: str | None  # unset if the scenario declares the noise floor and no A/A control shows it
    positions_per_step: float | None  # candidate / baseline
    trained_per_step: float | None  # candidate / baseline
    baseline_waits: Waits
    candidate_waits: Waits
    verdict: Verdict
    resolution: float | None  # smallest difference, as a fraction, that the comparison could have detected
    absent: Mapping[Figure, Absent]
    together: Estimate | None = None  # ``ratio`` with the verdict's interval: 95 % for all comparisons together
    comparisons: int = 1  # number of comparisons in the study
    cause: Doubt | None = None  # the doubt that bars the verdict; None if there is a verdict
    losses: Losses = field(default_factory=Losses)
    repeated: tuple[float, float] | None = None  # shares of rows that were trained again; None if the arms agree
    # Shares of a step by which (baseline, candidate) may have been faster than they can sustain.
    used_lead: tuple[float, float] = (0.0, 0.0)
    same_again: Estimate | None = None  # speed ratio of the A/A control of ``noise_floor_of`` to its arm
    in_total: InTotal | None = None  # set if long steps, which the median ignores, change the total time
    steps: Judged | None = None  # verdict on ``step_time``
    doubts: tuple[Doubt, ...] = ()  # sorted by precedence, including those that bar nothing

    @property
    def undecided(self) -> DoubtKind | None:
        """Kind of the doubt that bars the verdict; None if there is a verdict."""
        return None if self.cause is None else self.cause.kind

    @property
    def figure(self) -> Estimate | None:
        """``ratio`` for display; None if the runs were too noisy to detect even a 2x change."""
        return None if barred(self.doubts, "ratio") else self.ratio

    @property
    def measured_per_step(self) -> float | None:
        """Candidate / baseline of tokens per step, in the tokens (trained, or all) that :attr:`measure` counts.

        None if ``measure`` is steps per second."""
        ratios = {"trained tokens/s": self.trained_per_step, "tokens/s": self.positions_per_step}
        return ratios.get(self.measure)

    def agree(self, one: Estimate, other: Estimate) -> bool:
        """True if the intervals of two speed ratios overlap, once widened by a fraction.

        The fraction is the noise floor, or :data:`WITNESSES_WITHIN` if that is larger."""
        floor = 1 + max(self.noise_floor or 0.0, policy.WITNESSES_WITHIN)
        (low, high), (other_low, other_high) = (
            (estimate.ci_low or estimate.median, estimate.ci_high or estimate.median) for estimate in (one, other)
        )
        return low <= other_high * floor and other_low <= high * floor

    @property
    def ceilings(self) -> tuple[float, float] | None:
        """Both estimates of the speed-up without data work, smaller first, if they clearly disagree; else None.

        The estimates disagree if the larger exceeds the smaller by over the fraction :data:`CEILINGS_WITHIN`, or if
        :attr:`ceilings_apart`. Medians are compared, because on a busy machine both intervals may be wide enough to
        overlap.
        Causes: an ideal-data control repeats few batches, and a replay does not model cores and caches.
        """
        replayed, ideal = self.from_waits, self.ideal
        if replayed is None or ideal is None or ideal.ci_low is None or ideal.ci_high is None:
            return None
        low, high = sorted((replayed.median, ideal.median))
        return (low, high) if self.ceilings_apart or high > low * (1 + policy.CEILINGS_WITHIN) else None

    @property
    def ceilings_apart(self) -> bool:
        """True if both estimates of the ceiling differ by more than intervals and noise floor allow."""
        replayed, ideal = self.from_waits, self.ideal
        if replayed is None or ideal is None or ideal.ci_low is None or ideal.ci_high is None:
            return False
        return not self.agree(replayed, ideal)


@dataclass(frozen=True)
class Controls:
    """Finished runs of a study's controls: ``by[kind, arm]``, by kind of control and the arm that it belongs to."""

    by: Mapping[tuple[str, str], Blocks]

    def get(self, kind: str, arm: str) -> Blocks:
        return self.by.get((kind, arm), {})


def compare(
    baseline: str,
    candidate: str,
    arms: Mapping[str, Blocks],
    controls: Controls,
    *,
    comparisons: int = 1,
    allowance: float | None = None,
    few_blocks: RemedyKind = "more blocks",
) -> Measured | Missing:
    """Return all ratios and the verdict of one comparison, from ledgers alone; Missing if there is nothing to compare.

    ``comparisons``: number in the study; all verdicts together have a 5 % chance of any error. ``allowance``: declared
    noise floor, a fraction, used if no A/A control shows it. ``few_blocks``: remedy to report."""
    baseline_runs, candidate_runs = arms.get(baseline, {}), arms.get(candidate, {})
    lacking = [name for name, blocks in ((baseline, baseline_runs), (candidate, candidate_runs)) if not blocks]
    if lacking:
        return Missing("no finished run", tuple(dict.fromkeys(lacking)))
    if not set(baseline_runs) & set(candidate_runs):
        return Missing("no shared block")
    idle = [
        name
        for name, blocks in ((baseline, baseline_runs), (candidate, candidate_runs))
        if per_step_of(blocks, "trained_tokens") == 0
    ]
    if idle:
        return Missing("nothing trained", tuple(dict.fromkeys(idle)))
    by_measure = ((name, rate, speed(baseline_runs, candidate_runs, rate)) for name, rate in MEASURES)
    best = next(((name, rate, ratio) for name, rate, ratio in by_measure if ratio is not None), None)
    if best is None:
        return Missing("no throughput")
    measure, rate, _ = best
    judging = _Judging(
        (baseline, candidate),
        arms,
        controls,
        alike_blocks(baseline, arms, controls),
        confidence_of_each(comparisons),
        allowance,
        doubts=tuple(run_doubts((baseline, candidate), (baseline_runs, candidate_runs))),
        used_lead=(used_share(baseline_runs), used_share(candidate_runs)),
        few_blocks=few_blocks,
    )
    isolated = _isolated(baseline, candidate, controls)
    from_waits = gain_from_waits(baseline_runs)
    ideal_or_absent = ideal_speed(baseline, baseline_runs, controls, judging.alike)
    if isinstance(ideal_or_absent, Estimate) and is_useless(ideal_or_absent):
        ideal_or_absent = Absent("too noisy", (baseline,))
    ideal = None if isinstance(ideal_or_absent, Absent) else ideal_or_absent
    limit = without_data(from_waits, ideal)
    positions = _quotient(per_step_of(candidate_runs, "tokens"), per_step_of(baseline_runs, "tokens"))
    trained = _quotient(per_step_of(candidate_runs, "trained_tokens"), per_step_of(baseline_runs, "trained_tokens"))
    learned_from = positions if trained is None else trained
    losses = compare_losses(
        (baseline, candidate),
        baseline_runs,
        candidate_runs,
        controls.get("a-a", baseline),
        tokens_ratio=1.0
        if learned_from is None or abs(learned_from - 1) <= policy.SAME_TOKENS_WITHIN
        else learned_from,
    )
    repeated = repeated_data(baseline_runs, candidate_runs)
    by_rate = judging.by(rate, losses, repeated)
    counted = {"trained tokens/s": trained, "tokens/s": positions}.get(measure)
    absent: dict[Figure, Absent | None] = {
        "isolated": isolated if isinstance(isolated, Absent) else None,
        "ideal": ideal_or_absent if isinstance(ideal_or_absent, Absent) else None,
        "ceiling": Absent("ranks" if open_ranks(baseline_runs) else "no finite ceiling") if limit is None else None,
        "noise_floor": by_rate.same if isinstance(by_rate.same, Absent) else None,
    }
    return Measured(
        measure=measure,
        ratio=by_rate.ratio,
        tokens_ratio=speed(baseline_runs, candidate_runs, tokens_per_s, alike=judging.alike),
        step_time=speed(baseline_runs, candidate_runs, steps_per_s, alike=judging.alike),
        isolated=None if isinstance(isolated, Absent) else isolated,
        ceiling=limit,
        from_waits=from_waits,
        ideal=ideal,
        noise_floor=by_rate.noise_floor,
        noise_floor_of=by_rate.floor_of,
        positions_per_step=positions,
        trained_per_step=trained,
        baseline_waits=waits_of(baseline_runs),
        candidate_waits=waits_of(candidate_runs),
        verdict=by_rate.judged.verdict,
        resolution=by_rate.judged.resolution,
        absent={figure: reason for figure, reason in absent.items() if reason is not None},
        together=by_rate.together,
        comparisons=comparisons,
        cause=by_rate.judged.cause,
        losses=losses,
        repeated=repeated,
        used_lead=judging.used_lead,
        same_again=None if isinstance(by_rate.same, Absent) else by_rate.same,
        in_total=by_rate.in_total,
        doubts=by_rate.judged.doubts,
        # Steps with equal work are judged by the rate of that work, so that both verdicts agree.
        steps=judging.by(
            rate if counted is not None and abs(counted - 1) <= policy.SAME_TOKENS_WITHIN else steps_per_s
        ).judged,
    )


@dataclass(frozen=True)
class _ByRate:
    """One comparison by one rate (such as tokens per second): the ratio, the noise floor, and the verdict."""

    ratio: Estimate
    together: Estimate | None
    same: Estimate | Absent
    floor_of: str | None
    noise_floor: float | None
    in_total: InTotal | None
    judged: Judged


@dataclass(frozen=True)
class _Judging:
    """Inputs that :func:`compare` uses to judge every figure of one comparison; see ``verdicts.judge``."""

    names: tuple[str, str]
    arms: Mapping[str, Blocks]
    controls: Controls
    alike: Likeness | None
    confidence: float  # confidence level of each comparison of the study
    allowance: float | None
    doubts: tuple[Doubt, ...]  # apply to every comparison of these arms
    used_lead: tuple[float, float]
    few_blocks: RemedyKind

    def by(self, rate: Rate, losses: Losses | None = None, repeated: tuple[float, float] | None = None) -> _ByRate:
        """Return the comparison by ``rate``, which both arms have; without ``losses``, ``repeated``: only speed."""
        baseline_runs, candidate_runs = (self.arms[name] for name in self.names)
        ratio = speed(baseline_runs, candidate_runs, rate, alike=self.alike)
        assert ratio is not None
        together = speed(baseline_runs, candidate_runs, rate, self.confidence, self.alike)
        same_again, floor_of = _same_again(*self.names, self.arms, self.controls, rate)
        noise_floor = self.allowance if isinstance(same_again, Absent) else same_again.distance
        steps = speed(baseline_runs, candidate_runs, steps_per_s, alike=self.alike)
        total_ratio = None if steps is None else in_total(baseline_runs, candidate_runs, steps.median, ratio.median)
        judged = judge(
            together or ratio,
            noise_floor,
            losses,
            repeated=repeated,
            doubts=self.doubts,
            used_lead=self.used_lead,
            same_again=None if isinstance(same_again, Absent) else same_again,
            in_total=None if total_ratio is None else total_ratio.least,
            shown=ratio,
            step_time=steps,
            cores=cores_of((baseline_runs, candidate_runs)),
            no_floor=_floor_remedy(same_again, self.few_blocks),
            few_blocks=self.few_blocks,
        )
        return _ByRate(
            ratio, together, same_again, floor_of, noise_floor, total_ratio, replace(judged, of=together or ratio)
        )


def run_doubts(names: Sequence[str], sides: Sequence[Blocks]) -> Iterator[Doubt]:
    """Yield the doubts about all figures of an arm, by its runs; ``sides``: the runs of the arms ``names``."""
    for name, blocks in zip(names, sides, strict=True):
        unseen = unseen_of([run.record.facts for run in blocks.values()])
        for entry in () if unseen is None else unseen.doubts(name):
            # The others say what cannot be replayed; a comparison states that for each figure (Absent).
            if entry.kind in UNDECIDED_KINDS or entry.kind == "blocked":
                yield replace(entry, cores=cores_of([blocks])) if entry.kind == "no core" else entry


def cores_of(sides: Sequence[Blocks]) -> tuple[float, float] | None:
    """Return (cores used by other processes, all cores of the machine); None if either was not recorded.

    ``sides``: runs of each arm. The first value is a median over an arm's blocks, for the arm with the larger one."""
    runs = [[*blocks.values()] for blocks in sides]
    others_by_side = [[run.other_cpu_cores for run in side if run.other_cpu_cores is not None] for side in runs]
    totals = [cores for side in runs for run in side if (cores := _cores_of(run.record))]
    used = [median(side) for side in others_by_side if side]
    return (max(used), float(max(totals))) if used and totals else None


def _cores_of(record: RunRecord) -> float | None:
    """Return the cores that the run could use, else its machine's cores; None if neither is recorded."""
    cores = record.facts.cores or record.environment.get("cores")
    return float(cores) if isinstance(cores, int | float) else None


def _floor_remedy(same: Estimate | Absent, few_blocks: RemedyKind) -> RemedyKind:
    if not isinstance(same, Absent) or same.kind != "too few a-a blocks":
        return "a-a control"
    return "more a-a blocks" if few_blocks == "more blocks" else few_blocks


def used_share(blocks: Blocks) -> float:
    """Return by which share of a step an arm may have been faster than it can sustain, as it used up ready batches.

    Upper end of the 95 % interval; 0 if it is not certain that ready batches were used up, or if the share is small."""
    use = arm_lead(blocks)
    return use.ci_high if use is not None and use.is_worth_saying else 0.0


def alike_blocks(baseline: str, arms: Mapping[str, Blocks], controls: Controls) -> Likeness | None:
    """Return how similar neighbouring blocks are (their correlation), estimated from log speed ratios by block.

    Ratios: each arm / ``baseline``, and each A/A control / its arm. None if ``baseline`` has no runs."""
    if not arms.get(baseline):
        return None
    plain = [blocks for blocks in arms.values() if blocks and next(iter(blocks.values())).record.control is None]
    pairs = [(arms[baseline], blocks) for blocks in plain if blocks is not arms[baseline]]
    repeated = [(arms.get(arm, {}), blocks) for (kind, arm), blocks in controls.by.items() if kind == "a-a" and blocks]
    logs = [speed_logs(base, compared, steps_per_s) or [] for base, compared in (*pairs, *repeated)]
    return likeness(logs, INDEPENDENT_BLOCKS if repeated else INDEPENDENT_BLOCKS_ALONE)


def ideal_speed(arm: str, blocks: Blocks, controls: Controls, alike: Likeness | None) -> Estimate | Absent:
    """Return how many times as fast the steps of ``arm`` (``blocks``) are with ideal data, from its ideal-data control.

    Absent without a control, or if its steps have more or fewer token positions (padding included) than those of
    ``arm``. ``alike``: from :func:`alike_blocks`."""
    control = controls.get("ideal-data", arm)
    ratio = speed(blocks, control, steps_per_s, alike=alike)
    if ratio is None:
        return Absent("no ideal-data control", (arm,))
    positions = _quotient(per_step_of(control, "tokens"), per_step_of(blocks, "tokens"))
    if positions is not None and abs(positions - 1) > policy.CONTROL_POSITIONS_WITHIN:
        return Absent("ideal-data of another length", (arm,), positions=positions)
    return ratio


def without_data(from_waits: Estimate | None, ideal: Estimate | None) -> Estimate | None:
    """Return how many times as fast steps would be without any data work: an estimate, not a bound; None if unknown.

    ``ideal``: measured with the ideal-data control. ``from_waits``: by replay of the run alone, which ignores that
    caches and clocks cool during waits. If only one is known, it is returned.
    The result is the median of ``ideal``, with an interval that covers both intervals. Exception: if the interval of
    ``ideal`` is very wide and includes 1 and all of the other, that control measured only noise, and ``from_waits`` is
    returned.
    """
    estimates = [ratio for ratio in (ideal, from_waits) if ratio is not None]
    if len(estimates) < 2:
        return next(iter(estimates), None)
    first, second = estimates
    if first.ci_low is None or first.ci_high is None or second.ci_low is None or second.ci_high is None:
        return first
    contains = first.ci_low <= min(1.0, second.ci_low) and second.ci_high <= first.ci_high
    if contains and first.ci_high > policy.CEILING_INTERVAL_MAX * first.ci_low:
        return second
    return Estimate(first.median, min(first.ci_low, second.ci_low), max(first.ci_high, second.ci_high), first.n)


def _isolated(baseline: str, candidate: str, controls: Controls) -> Estimate | Absent:
    """Return the speed ratio candidate / baseline of both data-only controls; Absent if it is unknown.

    In token positions per second, padding included, or in steps per second if tokens were not counted."""
    base_runs, candidate_runs = controls.get("data-only", baseline), controls.get("data-only", candidate)
    ratio = speed(base_runs, candidate_runs, tokens_per_s) or speed(base_runs, candidate_runs, steps_per_s)
    if ratio is not None:
        return ratio
    lacking = tuple(arm for arm, runs in ((baseline, base_runs), (candidate, candidate_runs)) if not runs)
    return Absent("no data-only control", lacking) if lacking else Absent("data-only controls apart")


def _same_again(
    baseline: str, candidate: str, arms: Mapping[str, Blocks], controls: Controls, rate: Rate
) -> tuple[Estimate | Absent, str | None]:
    """Return (speed ratio A/A control / its arm, that arm's name), or (Absent with the reason, None). Arms on the
    baseline's device are tried in this order: baseline, candidate, others. The first one with an interval counts."""
    reason = Absent("no a-a control")
    device = _device(arms[baseline])
    controlled = [arm for kind, arm in controls.by if kind == "a-a" and _device(arms.get(arm, {})) == device]
    for arm in sorted(controlled, key=lambda arm: (arm != baseline, arm != candidate, arm)):
        ratio = speed(arms[arm], controls.get("a-a", arm), rate, alike=alike_blocks(arm, arms, controls))
        if ratio is not None and ratio.distance is not None:
            return ratio, arm
        if ratio is not None:
            reason = Absent("too few a-a blocks", blocks=ratio.n)
    return reason, None


def arm_floor(arm: str, arms: Mapping[str, Blocks], controls: Controls, allowance: float | None = None) -> float | None:
    """Return the noise floor of an arm that is in no comparison: by its A/A control, else ``allowance``.

    ``allowance``: noise floor that the scenario declares, a fraction, or None."""
    for _, rate in MEASURES:
        if arms.get(arm) and rates_of(arms[arm], rate) is not None:
            ratio, _ = _same_again(arm, arm, arms, controls, rate)
            return allowance if isinstance(ratio, Absent) else ratio.distance
    return None


def _device(blocks: Blocks) -> str | None:
    return next((run.record.facts.device or "" for run in blocks.values()), None)


def _quotient(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None
