"""Sums up one run: totals per repetition, and milliseconds per step by phase and by stage, without warm-up steps.

A figure whose columns have only nulls ("not measured") is None, never 0. Rates are compared block by block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from harness.explain.bounds import Bound, BoundShares, device_work_of, launch_bound_shares, room_ns
from harness.explain.derived import stage_spans, waits_of, with_derived
from harness.explain.lead_use import LeadUse, UsedLead, lead_use, makers_of, used_leads
from harness.explain.policy import CONFIDENCE, DIVERGED_BY, DIVERGED_TIMES, LOSS_STEPS
from harness.explain.replay.recording import record
from harness.explain.spans import bounds, clip, column, loader_workers, once_per_run, spans_of
from harness.explain.statistics import Estimate, Likeness, from_blocks, paired_logs
from harness.explain.unusual_steps import LeftOut, Places, longest_phases, without_long
from harness.explain.waits import TRANSFER
from harness.scenario.overrides import lookup_number
from harness.study.contract import CAUSES, PHASES, STAGES
from harness.study.records import RunRecord
from harness.study.run_data import RunData
from trainer.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, eq=False)
class StepLosses:
    """Losses of one run by step, including warm-up steps. They are read on demand because a long run has a million."""

    run: RunData | None = None

    def by_step(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return (steps, losses): the steps with a finite loss, ascending and without duplicates, and these losses."""
        steps, losses = self.recorded()
        finite = np.isfinite(losses)
        return steps[finite], losses[finite]

    def recorded(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return (steps, losses), ascending, with NaN and infinite losses: a run that diverged still trained them."""
        table = None if self.run is None else self.run.step_columns(["step", "loss"])
        if table is None:
            return np.empty(0, np.int64), np.empty(0)
        rows = table.drop_null()
        steps, losses = (rows.column(name).to_numpy() for name in ("step", "loss"))
        steps, first = np.unique(steps, return_index=True)
        return steps, losses[first]


def at_common_steps(ours: StepLosses, theirs: StepLosses) -> tuple[float, float] | None:
    """Return the mean loss of each run over the last LOSS_STEPS steps that both trained; None without a common step."""
    (our_steps, our_losses), (their_steps, their_losses) = ours.by_step(), theirs.by_step()
    _, our_places, their_places = np.intersect1d(our_steps, their_steps, assume_unique=True, return_indices=True)
    if not len(our_places):
        return None
    return float(our_losses[our_places[-LOSS_STEPS:]].mean()), float(their_losses[their_places[-LOSS_STEPS:]].mean())


Array = NDArray[np.float64]
DERIVED = "derived steps"


@dataclass(frozen=True, slots=True)  # a long run has a hundred thousand
class RepetitionTotals:
    """Totals over the measured steps of one repetition. Token counts: None where the trainer reports none."""

    steps: int
    wall_ns: float
    usual_ns: float  # total in which each rare long step counts as a typical one
    tokens: float | None
    trained_tokens: float | None


@dataclass(frozen=True)
class RunLedger:
    """Figures of one finished run with a measured step; :func:`measure` makes it. ``*_ms``: mean per measured step."""

    record: RunRecord
    repetitions: dict[int, RepetitionTotals]
    step_ms: Array  # (measured steps,)
    phase_ms: dict[str, float]  # measured phases; they sum to the mean step time
    exposed_ms: dict[str, float]
    hidden_ms: dict[str, float]
    work_ms: dict[str, float]  # all time of each stage, wherever it ran
    during_wait_ms: dict[str, float]  # part of ``work_ms`` that ran while the step waited for that batch
    parallel_ms: dict[str, float]  # part that ran while the step waited for another batch
    between_steps_ms: dict[str, float]  # part that ran between training steps
    unsplit: str | None  # why the waits were not split by stage, if exposed and hidden are empty for that reason
    contended_ms: float | None
    waited_otherwise_ms: tuple[float, ...]  # data costs under other readings of the record; see derived.Derived
    device_busy_ms: float | None  # unknown also if phases still being launched leave it open
    device_launch_bound_ms: float | None  # time within launch-bound phases: working or waiting for launches
    device_open_ms: float | None  # time in other phases while the host was still launching them
    launch_bound: dict[str, float]  # share of the measured steps in which work was launch-bound, by name
    device_starved_ms: float | None
    device_slack_ms: float | None  # work still queued when the host began its fetch
    device_room_ms: float | None  # possible extra fetch time at almost no cost, see ``bounds``
    starved_ms: dict[str, float]  # device idle time by what the host did; empty without an asynchronous device
    tokens: float | None  # token positions, sum over the measured steps
    trained_tokens: float | None
    loss: float | None  # mean of the last measured steps; None if not finite or not measured
    other_cpu_cores: float | None  # cores that other processes took from this host, mean over the run
    loader_share: float = 0.0  # share of the loader workers' time within measured steps spent building batches
    diverged: bool = False  # the loss was NaN or infinite at any measured step, or rose far above its start
    used_leads: dict[int, UsedLead] = field(default_factory=dict)  # keys are the repetitions with known leads
    losses: StepLosses = field(default_factory=StepLosses)  # losses to compare with those of another run
    longest: Places = field(default_factory=lambda: np.zeros(0, dtype=np.int8))  # see :func:`longest_phases`
    left_out: LeftOut = field(default_factory=LeftOut)
    idle_workers: int = 0  # loader workers that made no batch
    # Milliseconds that a step of several ranks would save without data work; None with one rank, or if unknown.
    data_costs_all_ms: float | None = None

    @property
    def mean_step_ms(self) -> float:
        return float(self.step_ms.mean())

    @property
    def ranks(self) -> int:
        """Number of ranks that trained together. With several ranks every other figure here is of rank 0."""
        return self.record.facts.ranks or 1

    @property
    def waited_ms(self) -> float | None:
        """Milliseconds per step that data work cost; None on an asynchronous device if waits were not split."""
        if self.exposed_ms:
            return sum(self.exposed_ms.values())
        return None if self.record.facts.asynchronous else self.phase_ms.get("fetch")

    @property
    def waited_range_ms(self) -> tuple[float, float] | None:
        """Least and most ms per step that data work may cost. None if the record allows one value only
        (:attr:`waited_ms`), or if that is unknown."""
        if self.waited_ms is None or not self.waited_otherwise_ms:
            return None
        readings = (self.waited_ms, *self.waited_otherwise_ms)
        return min(readings), max(readings)

    @property
    def bound_shares(self) -> BoundShares | None:
        """Shares that determine what limits the step. None unless device idle time, room and data costs are all known.

        They are unknown without an asynchronous device."""
        idle, room, wall = self.device_starved_ms, self.device_room_ms, self.mean_step_ms
        waited = self.waited_ms
        # A record that the replay could not reproduce may lack device work, which would look like idle time.
        if idle is None or room is None or waited is None:
            return None
        for_data = sum(self.starved_ms.get(stage, 0.0) for stage in STAGES)
        return BoundShares(
            data=waited / wall,
            host=max(0.0, idle - for_data) / wall,
            launch=(self.device_launch_bound_ms or 0.0) / wall,
            open=(self.device_open_ms or 0.0) / wall,
            room=room / wall,
            loader=self.loader_share,
        )

    @property
    def bound(self) -> Bound | None:
        """Name of what limits the step, such as "data"; None if :attr:`bound_shares` is None."""
        return None if (shares := self.bound_shares) is None else shares.bound

    @property
    def split_by_replay(self) -> bool:
        """True if the waits were split by stage with a replay."""
        facts = self.record.facts
        workers = lookup_number(self.record.config, "data.workers", facts.workers or 0)
        return bool(self.exposed_ms) and bool(workers or facts.asynchronous)

    @property
    def by_repetition(self) -> bool:
        """True if this run's repetitions alternated with those of other runs (with the same ``record.session``)."""
        return self.record.interleave == "slices" and bool(self.record.session)


Blocks = Mapping[int, RunLedger]  # the finished runs of one arm, by block


def without_split(ledger: RunLedger) -> RunLedger:
    """Return ``ledger`` without its split of waits by stage, because the replay that split them is wrong."""
    return replace(ledger, exposed_ms={}, hidden_ms={}, waited_otherwise_ms=(), unsplit="replay is off")


class DerivedSteps(NamedTuple):
    """Result of :func:`derived_steps`. ``table``: None if the run has no steps, as recorded if it has no spans.

    The other fields are those of :class:`harness.explain.derived.Derived`."""

    table: pa.Table | None
    changed: bool
    unsplit: str | None = None
    otherwise: Array | None = None  # (readings, steps), see ``derived.Derived``


@once_per_run(DERIVED)
def derived_steps(run: RunData) -> DerivedSteps:
    """Return the steps table of ``run`` with derived columns, computed once.

    Without spans, the table is as recorded; without steps, it is None."""
    if not run.step_count or not run.has_spans:
        return DerivedSteps(run.steps, changed=False)
    try:
        recording = record(run)
    except InputError:
        recording = None
    work = device_work_of(run) if run.record.facts.asynchronous else None
    # The table has no local name here, so that the table of a long run is freed column by column.
    return DerivedSteps(*with_derived(cast("pa.Table", run.steps), spans_of(run), work, recording))


@once_per_run("ledger")
def measure(run: RunData) -> RunLedger | None:
    """Return the ledger of a finished run, computed once; None if it did not finish or has no measured step."""
    if run.record.status != "done" or (steps := derived_steps(run).table) is None:
        return None
    measured = np.not_equal(column(steps, "warmup"), 1) & (column(steps, "wall_ns") > 0)
    if not measured.any():
        return None

    def values(name: str) -> Array:
        return column(steps, name)[measured]

    def stages(kind: str) -> dict[str, float]:
        return _means(values, STAGES, f"{kind}_{{}}_ns")

    # Zeros in a phase without a timer are not a measured wait.
    fetched = run.record.facts.times_fetches or bool(np.nansum(values("fetch_ns")))
    wall = values("wall_ns")
    tokens, trained = values("tokens"), values("trained_tokens")
    if not np.nansum(tokens):  # Every step has tokens, so 0 in all steps means that they were not counted.
        tokens, trained = np.full_like(tokens, np.nan), np.where(trained == 0, np.nan, trained)
    losses = values("loss")[steps.column("loss").is_valid().to_numpy()[measured]]  # null: not measured; NaN: diverged
    exposed, hidden = stages("exposed"), stages("hidden")
    makers = spans_of(run).makers if (workers := loader_workers(run)) and run.has_spans else np.zeros(0, dtype=np.int16)
    return RunLedger(
        record=run.record,
        repetitions=_repetitions(np.nan_to_num(values("turn")).astype(np.int64), wall, tokens, trained),
        step_ms=wall / 1e6,
        phase_ms=_means(values, PHASES if fetched else [phase for phase in PHASES if phase != "fetch"], "{}_ns"),
        exposed_ms=exposed if fetched else {},
        hidden_ms=hidden if fetched else {},
        # Older tables have no column for work; there it is the sum of exposed and hidden.
        work_ms=stages("work") or {stage: value + hidden.get(stage, 0.0) for stage, value in exposed.items()},
        during_wait_ms=stages("during_wait"),
        parallel_ms=stages("parallel"),
        between_steps_ms=stages("between_steps"),
        unsplit=derived_steps(run).unsplit,
        waited_otherwise_ms=_otherwise_ms(derived_steps(run).otherwise, measured),
        contended_ms=_mean_ms(values("contended_ns")),
        device_busy_ms=_busy_ms(values("device_busy_ns")),
        device_launch_bound_ms=_mean_ms(values("device_launch_bound_ns")),
        device_open_ms=_mean_ms(values("device_open_ns")),
        launch_bound=_launch_bound(run, steps, measured),
        device_starved_ms=_mean_ms(values("device_starved_ns")),
        device_slack_ms=_mean_ms(values("device_slack_ns")),
        device_room_ms=_room_ms(run, steps, measured),
        starved_ms=_means(values, CAUSES, "starved_{}_ns"),
        tokens=_sum(tokens),
        trained_tokens=_sum(trained),
        loss=float(losses[-LOSS_STEPS:].mean()) if losses.size and np.isfinite(losses).all() else None,
        other_cpu_cores=_other_load(run.samples),
        loader_share=_loader_share(run, steps, measured),
        diverged=_diverged(losses),
        used_leads=_used_leads(run, steps),
        losses=StepLosses(run),
        longest=longest_phases(PHASES, lambda phase: values(f"{phase}_ns")),
        left_out=_left_out(run, steps, measured),
        idle_workers=makers_of(makers, len(makers), workers).idle if len(makers) else 0,
    )


def _left_out(run: RunData, steps: pa.Table, measured: NDArray[np.bool_]) -> LeftOut:
    """Return the unmeasured steps between the first and the last measured step, with their longest phases. Left out:
    the first step of each group of unmeasured steps, and steps with other work than training
    (``facts.marked_steps``)."""
    facts = run.record.facts
    inside = ~measured & (column(steps, "wall_ns") > 0)
    first, last = np.flatnonzero(measured)[[0, -1]]
    inside[:first] = inside[last:] = False
    inside[1:] &= inside[:-1].copy()  # drop the first step of each turn
    if facts.attached is not None:
        if facts.marked_steps is None:
            return LeftOut()
        inside &= ~np.isin(column(steps, "step"), facts.marked_steps)
    if not inside.any():
        return LeftOut()
    counted = measured | inside

    def values(name: str) -> Array:
        return column(steps, name)[counted]

    longest = longest_phases(PHASES, lambda phase: values(f"{phase}_ns"), inside[counted])
    return LeftOut(column(steps, "wall_ns")[inside] / 1e6, longest)


def _otherwise_ms(otherwise: Array | None, measured: NDArray[np.bool_]) -> tuple[float, ...]:
    """Return the mean data cost in ms per replayed measured step, under each reading of the record but the likely one.

    ``otherwise``: ns, (readings, steps). Empty if it is None."""
    if otherwise is None or not otherwise.size or not (counted := measured[: otherwise.shape[1]]).any():
        return ()
    return tuple((otherwise[:, counted].mean(axis=1) / 1e6).tolist())


def _room_ms(run: RunData, steps: pa.Table, measured: NDArray[np.bool_]) -> float | None:
    """Return how many ms longer the fetches of a step could take at almost no cost (``bounds.room_ns``).

    None with a synchronous device, or if device work or fetches were not recorded."""
    if not run.record.facts.asynchronous or np.isnan(column(steps, "device_slack_ns")[measured]).all():
        return None
    spans = spans_of(run)
    if (waits := waits_of(steps, spans)) is None:
        return None
    room = room_ns(bounds(steps, measured), spans, waits, known_queue=bool(run.record.facts.emulated))
    return None if room is None else room / 1e6


def _loader_share(run: RunData, steps: pa.Table, measured: NDArray[np.bool_]) -> float:
    """Return the share of the workers' time in measured steps spent making batches; 0 on a synchronous device."""
    workers = loader_workers(run)
    if not workers or not run.record.facts.asynchronous or not run.has_spans:
        return 0.0
    stages = stage_spans(spans_of(run))
    building = stages.stages != TRANSFER
    inside = clip(stages.starts[building], stages.ends[building], bounds(steps, measured))
    return float((inside.ends - inside.starts).sum() / (workers * column(steps, "wall_ns")[measured].sum()))


def _used_leads(run: RunData, steps: pa.Table) -> dict[int, UsedLead]:
    """Return the lead that each repetition used up (``RunLedger.used_leads``).

    Empty if the device is synchronous and batches are made inline, or if spans or times of steps are missing."""
    facts = run.record.facts
    workers = loader_workers(run)
    timed = not steps.column("start_ns").null_count and not steps.column("wall_ns").null_count
    if not (workers or facts.asynchronous) or not run.has_spans or not timed:
        return {}
    spans = spans_of(run)
    if (waits := waits_of(steps, spans)) is None:
        return {}
    prefetch = int(lookup_number(run.record.config, "data.prefetch", 2))
    return used_leads(steps, spans, waits, workers, prefetch, asynchronous=bool(facts.asynchronous))


def _launch_bound(run: RunData, steps: pa.Table, measured: NDArray[np.bool_]) -> dict[str, float]:
    """Return {name of device work: share of the measured steps with this work in which it was launch-bound}.

    Spans are read only if the steps table shows launch-bound time; otherwise the result is empty."""
    if not np.nansum(column(steps, "device_launch_bound_ns")[measured]):
        return {}
    return launch_bound_shares(bounds(steps, measured), device_work_of(run), spans_of(run).names)


def _repetitions(
    repetition: NDArray[np.int64], wall: Array, tokens: Array, trained: Array
) -> dict[int, RepetitionTotals]:
    """Return totals by repetition. A token count that is NaN for one step is None for its whole repetition."""
    numbers, place, steps = np.unique(repetition, return_inverse=True, return_counts=True)
    columns = (wall, without_long(wall), tokens, trained)
    sums = [np.bincount(place, weights=values, minlength=len(numbers)).tolist() for values in columns]
    return {
        number: RepetitionTotals(count, total, usual, *(None if math.isnan(amount) else amount for amount in counts))
        for number, count, total, usual, *counts in zip(numbers.tolist(), steps.tolist(), *sums, strict=True)
    }


def _diverged(losses: Array) -> bool:
    """Return True if a loss is not finite, or the last losses are far above the first (measured steps, in order)."""
    if not np.isfinite(losses).all():
        return True
    count = min(LOSS_STEPS, len(losses) // 2)
    if not count:
        return False
    first, last = float(losses[:count].mean()), float(losses[-count:].mean())
    return last > DIVERGED_TIMES * first and last > first + DIVERGED_BY


def arm_lead(blocks: Blocks) -> LeadUse | None:
    """Return how much faster the arm's steps were than is sustainable; None if too few repetitions show it."""
    return lead_use(run.used_leads for run in blocks.values())


def epoch_steps(blocks: Blocks) -> float | None:
    """Return the steps of an epoch of the arm's data, median over blocks; None if unknown."""
    lengths = [steps for run in blocks.values() if (steps := run.record.facts.epoch_steps) is not None]
    return float(np.median(lengths)) if lengths else None


def mean_over(runs: Sequence[RunLedger], get: Callable[[RunLedger], float | None]) -> float | None:
    """Return the mean of a figure over all measured steps; None if no run has it. ``get``: a run's mean per step."""
    means = [(value, len(run.step_ms)) for run in runs if (value := get(run)) is not None]
    return sum(value * steps for value, steps in means) / sum(steps for _, steps in means) if means else None


def part_over(
    runs: Sequence[RunLedger], get: Callable[[RunLedger], float | None], known: Sequence[RunLedger] | None = None
) -> float | None:
    """Return the mean of one part of a step over all measured steps of ``runs``; None if no run has it. ``get``: a
    run's mean per step, or None. ``known``: runs whose part counts; None: all. In the other runs, the part is assumed
    to take the same fraction of the step as in these."""
    known = [run for run in known or runs if get(run) is not None]
    mean = mean_over(known, get)
    if mean is None or len(known) == len(runs):
        return mean
    steps_ms = [mean_over(chosen, lambda run: run.mean_step_ms) or 0.0 for chosen in (known, runs)]
    return mean / steps_ms[0] * steps_ms[1] if steps_ms[0] else mean


def _mean_ms(nanoseconds: Array) -> float | None:
    values = nanoseconds[~np.isnan(nanoseconds)]
    return float(values.mean()) / 1e6 if values.size else None


def _busy_ms(nanoseconds: Array) -> float | None:
    """Return the mean of ``nanoseconds`` (by step) in ms; None if any is NaN, as the others are then not typical."""
    return None if np.isnan(nanoseconds).any() else _mean_ms(nanoseconds)


def _means(values: Callable[[str], Array], names: Sequence[str], pattern: str) -> dict[str, float]:
    means = {name: _mean_ms(values(pattern.format(name))) for name in names}
    return {name: value for name, value in means.items() if value is not None}


def _sum(counts: Array) -> float | None:
    return None if np.isnan(counts).any() else float(counts.sum())


def _other_load(samples: pa.Table | None) -> float | None:
    """Return the cores used by other processes, plus those that the hypervisor gave away; None if not sampled."""
    if samples is None or not len(samples):
        return None
    import pyarrow.compute as pc

    means = []
    for metric in ("other_cpu_cores", "stolen_cpu_cores"):
        chosen = pc.and_(pc.equal(samples.column("source"), "host"), pc.equal(samples.column("metric"), metric))
        values = samples.column("value").filter(chosen).drop_null().to_numpy()
        means.append(float(values.mean()) if len(values) else None)
    return None if means[0] is None else means[0] + (means[1] or 0.0)


Counted = Literal["tokens", "trained_tokens"]
COUNTED: tuple[Counted, ...] = ("tokens", "trained_tokens")
# Returns (what a repetition did, the seconds or steps that it took), or None if it was not counted.
Rate = Callable[[RepetitionTotals], tuple[float, float] | None]


def per_second(amount: float | None, repetition: RepetitionTotals) -> tuple[float, float] | None:
    """Return (``amount``, seconds of the repetition), the parts of a rate; None if ``amount`` is None (not counted)."""
    return None if amount is None else (amount, repetition.wall_ns / 1e9)


def trained_tokens_per_s(repetition: RepetitionTotals) -> tuple[float, float] | None:
    return per_second(repetition.trained_tokens, repetition)


def tokens_per_s(repetition: RepetitionTotals) -> tuple[float, float] | None:
    return per_second(repetition.tokens, repetition)


def steps_per_s(repetition: RepetitionTotals) -> tuple[float, float] | None:
    return per_second(repetition.steps, repetition)


# Measures of "faster", best first. A trainer that does not count tokens is compared by its steps.
MEASURES: tuple[tuple[str, Rate], ...] = (
    ("trained tokens/s", trained_tokens_per_s),
    ("tokens/s", tokens_per_s),
    ("steps/s", steps_per_s),
)


def speed(
    baseline: Blocks, candidate: Blocks, rate: Rate, confidence: float = CONFIDENCE, alike: Likeness | None = None
) -> Estimate | None:
    """Return the ratio of speeds candidate / baseline (2: twice as fast), with an interval over common blocks. None
    without a common block, or if a measured repetition lacks the rate. ``alike``: similarity of neighbouring blocks,
    which may widen the interval; None: blocks are independent."""
    logs = speed_logs(baseline, candidate, rate)
    return None if logs is None else from_blocks(logs, confidence, alike)


def speed_logs(baseline: Blocks, candidate: Blocks, rate: Rate) -> list[float] | None:
    """Return the log speed ratio of each block of both arms, in order; None if a measured repetition lacks the rate."""
    baseline_rates, candidate_rates = rates_of(baseline, rate), rates_of(candidate, rate)
    if baseline_rates is None or candidate_rates is None:
        return None
    by_repetition = {
        block: alternated(baseline[block], candidate[block]) for block in set(baseline_rates) & set(candidate_rates)
    }
    return paired_logs(baseline_rates, candidate_rates, by_repetition)


def alternated(first: RunLedger, second: RunLedger) -> bool:
    """Return True if repetition k of both runs ran side by side in time, for every k."""
    return first.by_repetition and second.by_repetition and first.record.session == second.record.session


def rates_of(blocks: Blocks, rate: Rate) -> dict[int, dict[int, tuple[float, float]]] | None:
    """Return {block: {repetition: (amount, seconds or steps)}}; None if ``rate`` is None for any repetition."""
    rates: dict[int, dict[int, tuple[float, float]]] = {}
    for block, run in blocks.items():
        for repetition, totals in run.repetitions.items():
            value = rate(totals)
            if value is None:
                return None
            rates.setdefault(block, {})[repetition] = value
    return rates


def per_step_of(blocks: Blocks, name: Counted) -> float | None:
    """Return the tokens of a measured step, mean over all runs; None if a run did not count them.

    ``name``: "tokens" (all positions, padding included) or "trained_tokens" (positions with a label)."""
    totals: list[float | None] = [getattr(run, name) for run in blocks.values()]
    if any(total is None for total in totals) or not totals:
        return None
    return sum(total or 0.0 for total in totals) / sum(len(run.step_ms) for run in blocks.values())
