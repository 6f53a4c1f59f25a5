"""Sums up one run: totals per repetition, and milliseconds per step by phase and by stage.

Warm-up steps do not count. A null in a table means "not measured", so every figure here is None where its columns hold
nothing, never 0.

Rates of an arm (:data:`Rate`) are compared block by block.
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
    """The losses of ``run``, of warm-up steps too; read when they are asked for, as a long run has a million."""

    run: RunData | None = None

    def by_step(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Steps with a finite loss, each once and ascending, and these losses."""
        steps, losses = self.recorded()
        finite = np.isfinite(losses)
        return steps[finite], losses[finite]

    def recorded(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The same with losses that are NaN or infinite: a run that diverged has not stopped training there."""
        table = None if self.run is None else self.run.step_columns(["step", "loss"])
        if table is None:
            return np.empty(0, np.int64), np.empty(0)
        known = table.drop_null()
        steps, losses = (known.column(name).to_numpy() for name in ("step", "loss"))
        steps, first = np.unique(steps, return_index=True)
        return steps, losses[first]


def at_common_steps(ours: StepLosses, theirs: StepLosses) -> tuple[float, float] | None:
    """Return the mean losses over the last LOSS_STEPS steps that both runs trained; None if there is none."""
    (our_steps, our_losses), (their_steps, their_losses) = ours.by_step(), theirs.by_step()
    _, here, there = np.intersect1d(our_steps, their_steps, assume_unique=True, return_indices=True)
    if not len(here):
        return None
    return float(our_losses[here[-LOSS_STEPS:]].mean()), float(their_losses[there[-LOSS_STEPS:]].mean())


Array = NDArray[np.float64]
DERIVED = "derived steps"


@dataclass(frozen=True, slots=True)  # a long run has a hundred thousand
class RepetitionTotals:
    """Totals over the measured steps of one repetition; token counts are None where the trainer did not report them."""

    steps: int
    wall_ns: float
    usual_ns: float  # with each rare long step counted as a typical one
    tokens: float | None
    trained_tokens: float | None


@dataclass(frozen=True)
class RunLedger:
    """One finished run with at least one measured step; ``*_ms`` are means per measured step, in milliseconds."""

    record: RunRecord
    repetitions: dict[int, RepetitionTotals]
    step_ms: Array  # (measured steps,)
    phase_ms: dict[str, float]  # phases that were measured; they sum to the mean step time
    exposed_ms: dict[str, float]  # stages that were measured
    hidden_ms: dict[str, float]
    work_ms: dict[str, float]  # all time of the stages, wherever it lay
    during_wait_ms: dict[str, float]  # of it, what ran while the step waited for that very batch
    parallel_ms: dict[str, float]  # what ran while the step waited for another batch
    between_steps_ms: dict[str, float]  # what ran between training steps
    unsplit: str | None  # why the waits were not split by stage, where exposed and hidden are empty for that
    contended_ms: float | None
    waited_otherwise_ms: tuple[float, ...]  # what data costs by other readings of when the device worked; see launches
    device_busy_ms: float | None  # None also where phases that were still being launched leave it open
    device_launch_bound_ms: float | None  # within launch-bound phases: working or waiting for launches
    device_open_ms: float | None  # the same within others
    launch_bound: dict[str, float]  # share of the measured steps in which a piece of the device's work was, by its name
    device_starved_ms: float | None
    device_slack_ms: float | None  # work still queued when the host began its fetch
    device_room_ms: float | None  # what fetching could have lasted longer for next to nothing, see ``bounds``
    starved_ms: dict[str, float]  # device idle time by what the host did; empty without an asynchronous device
    tokens: float | None  # positions, sum over the measured steps
    trained_tokens: float | None
    loss: float | None  # of its last measured steps; None where it is not finite, or was not measured
    other_cpu_cores: float | None  # cores that others took from this host, mean over the run
    loader_share: float = 0.0  # of the time of loader workers within measured steps, that in which they built batches
    diverged: bool = False  # the loss was NaN or infinite at any measured step, or rose far above its start
    used_leads: dict[int, UsedLead] = field(default_factory=dict)  # by repetition, of those of which it is known
    losses: StepLosses = field(default_factory=StepLosses)  # what is compared with another run's
    longest: Places = field(default_factory=lambda: np.zeros(0, dtype=np.int8))  # see :func:`longest_phases`
    left_out: LeftOut = field(default_factory=LeftOut)
    idle_workers: int = 0  # loader workers that made no batch
    # What a step of several ranks would be shorter by if none had any data work; None of one rank, or not known.
    data_costs_all_ms: float | None = None

    @property
    def mean_step_ms(self) -> float:
        return float(self.step_ms.mean())

    @property
    def ranks(self) -> int:
        """How many trained together; of several, every other figure here is one of rank 0."""
        return self.record.facts.ranks or 1

    @property
    def waited_ms(self) -> float | None:
        """Milliseconds that data work cost a step; None on an asynchronous device whose waits were not split."""
        if self.exposed_ms:
            return sum(self.exposed_ms.values())
        return None if self.record.facts.asynchronous else self.phase_ms.get("fetch")

    @property
    def waited_range_ms(self) -> tuple[float, float] | None:
        """The least and the most that data work may cost a step; None where no reading of the record differs."""
        if self.waited_ms is None or not self.waited_otherwise_ms:
            return None
        known = (self.waited_ms, *self.waited_otherwise_ms)
        return min(known), max(known)

    @property
    def bound_shares(self) -> BoundShares | None:
        """What says what limits the step; None without an asynchronous device, or where its waits were not split."""
        idle, room, wall = self.device_starved_ms, self.device_room_ms, self.mean_step_ms
        waited = self.waited_ms
        # A record whose replay is not the run lacks some of the device's work: what looks idle may be that.
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
        """What limits the step; None without an asynchronous device."""
        return None if (found := self.bound_shares) is None else found.bound

    @property
    def split_by_replay(self) -> bool:
        """True if its waits were split by stage, which took a replay."""
        facts = self.record.facts
        workers = lookup_number(self.record.config, "data.workers", facts.workers or 0)
        return bool(self.exposed_ms) and bool(workers or facts.asynchronous)

    @property
    def by_repetition(self) -> bool:
        """True if its repetitions alternated with those of the runs of the same session."""
        return self.record.interleave == "slices" and bool(self.record.session)


Blocks = Mapping[int, RunLedger]  # the finished runs of one arm, by block


def without_split(ledger: RunLedger) -> RunLedger:
    """Return ``ledger`` without its split of waits by stage, as the replay that split them is off."""
    return replace(ledger, exposed_ms={}, hidden_ms={}, waited_otherwise_ms=(), unsplit="replay is off")


class DerivedSteps(NamedTuple):
    """The steps table with its derived columns as the present rules have them; see :mod:`harness.explain.derived`."""

    table: pa.Table | None
    changed: bool
    unsplit: str | None = None
    otherwise: Array | None = None  # (readings, steps), see ``derived.Derived``


@once_per_run(DERIVED)
def derived_steps(run: RunData) -> DerivedSteps:
    """See :class:`DerivedSteps`; without a table there is none."""
    if not run.step_count or not run.has_spans:
        return DerivedSteps(run.steps, changed=False)
    try:
        recording = record(run)
    except InputError:
        recording = None
    work = device_work_of(run) if run.record.facts.asynchronous else None
    # The table has no name here: that of a long run is freed column by column.
    return DerivedSteps(*with_derived(cast("pa.Table", run.steps), spans_of(run), work, recording))


@once_per_run("ledger")
def measure(run: RunData) -> RunLedger | None:
    """The ledger of a finished run; None where it did not finish or left no measured step."""
    if run.record.status != "done" or (steps := derived_steps(run).table) is None:
        return None
    measured = np.not_equal(column(steps, "warmup"), 1) & (column(steps, "wall_ns") > 0)
    if not measured.any():
        return None

    def values(name: str) -> Array:
        return column(steps, name)[measured]

    def stages(kind: str) -> dict[str, float]:
        return _means(values, STAGES, f"{kind}_{{}}_ns")

    # 0 ms in a phase that nobody timed are no measured wait.
    fetched = run.record.facts.times_fetches or bool(np.nansum(values("fetch_ns")))
    wall = values("wall_ns")
    tokens, trained = values("tokens"), values("trained_tokens")
    if not np.nansum(tokens):  # no step holds nothing: 0 in all of them is a count that was not made
        tokens, trained = np.full_like(tokens, np.nan), np.where(trained == 0, np.nan, trained)
    losses = values("loss")[steps.column("loss").is_valid().to_numpy()[measured]]  # null: not measured; NaN: diverged
    exposed, hidden = stages("exposed"), stages("hidden")
    made = spans_of(run).makers if (workers := loader_workers(run)) and run.has_spans else np.zeros(0, dtype=np.int16)
    return RunLedger(
        record=run.record,
        repetitions=_repetitions(np.nan_to_num(values("turn")).astype(np.int64), wall, tokens, trained),
        step_ms=wall / 1e6,
        phase_ms=_means(values, PHASES if fetched else [phase for phase in PHASES if phase != "fetch"], "{}_ns"),
        exposed_ms=exposed if fetched else {},
        hidden_ms=hidden if fetched else {},
        # Tables from before there was a column for it have the sum.
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
        idle_workers=makers_of(made, len(made), workers).idle if len(made) else 0,
    )


def _left_out(run: RunData, steps: pa.Table, measured: NDArray[np.bool_]) -> LeftOut:
    """Return unmeasured steps between measured ones, without first steps of a repetition and marked ones."""
    facts = run.record.facts
    inside = ~measured & (column(steps, "wall_ns") > 0)
    first, last = np.flatnonzero(measured)[[0, -1]]
    inside[:first] = inside[last:] = False
    inside[1:] &= inside[:-1].copy()  # the first of a turn
    if facts.attached is not None:
        if facts.marked_steps is None:
            return LeftOut()
        inside &= ~np.isin(column(steps, "step"), facts.marked_steps)
    if not inside.any():
        return LeftOut()
    known = measured | inside

    def values(name: str) -> Array:
        return column(steps, name)[known]

    longest = longest_phases(PHASES, lambda phase: values(f"{phase}_ns"), inside[known])
    return LeftOut(column(steps, "wall_ns")[inside] / 1e6, longest)


def _otherwise_ms(otherwise: Array | None, measured: NDArray[np.bool_]) -> tuple[float, ...]:
    """Means over the measured steps among the first ones, by reading."""
    if otherwise is None or not otherwise.size or not (counted := measured[: otherwise.shape[1]]).any():
        return ()
    return tuple((otherwise[:, counted].mean(axis=1) / 1e6).tolist())


def _room_ms(run: RunData, steps: pa.Table, measured: NDArray[np.bool_]) -> float | None:
    """See ``RunLedger.device_room_ms``; None where nobody recorded what the device did, or when steps began."""
    if not run.record.facts.asynchronous or np.isnan(column(steps, "device_slack_ns")[measured]).all():
        return None
    spans = spans_of(run)
    if (waits := waits_of(steps, spans)) is None:
        return None
    found = room_ns(bounds(steps, measured), spans, waits, known_queue=bool(run.record.facts.emulated))
    return None if found is None else found / 1e6


def _loader_share(run: RunData, steps: pa.Table, measured: NDArray[np.bool_]) -> float:
    """Return the share of measured steps in which loader workers built batches; 0 without an asynchronous device."""
    workers = loader_workers(run)
    if not workers or not run.record.facts.asynchronous or not run.has_spans:
        return 0.0
    stages = stage_spans(spans_of(run))
    building = stages.stages != TRANSFER
    inside = clip(stages.starts[building], stages.ends[building], bounds(steps, measured))
    return float((inside.ends - inside.starts).sum() / (workers * column(steps, "wall_ns")[measured].sum()))


def _used_leads(run: RunData, steps: pa.Table) -> dict[int, UsedLead]:
    """See ``RunLedger.used_leads``; none where the host computes and makes the batches, or nobody recorded them."""
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
    """See ``RunLedger.launch_bound``; read from the spans only where the steps say that there is some."""
    if not np.nansum(column(steps, "device_launch_bound_ns")[measured]):
        return {}
    return launch_bound_shares(bounds(steps, measured), device_work_of(run), spans_of(run).names)


def _repetitions(
    repetition: NDArray[np.int64], wall: Array, tokens: Array, trained: Array
) -> dict[int, RepetitionTotals]:
    """Totals by repetition; a count that one of its steps lacks (NaN) is None for the whole repetition."""
    numbers, place, steps = np.unique(repetition, return_inverse=True, return_counts=True)
    columns = (wall, without_long(wall), tokens, trained)
    sums = [np.bincount(place, weights=one, minlength=len(numbers)).tolist() for one in columns]
    return {
        number: RepetitionTotals(count, total, usual, *(None if math.isnan(one) else one for one in counts))
        for number, count, total, usual, *counts in zip(numbers.tolist(), steps.tolist(), *sums, strict=True)
    }


def _diverged(losses: Array) -> bool:
    """True if ``losses``, of the measured steps in order, are not finite or end far above where they began."""
    if not np.isfinite(losses).all():
        return True
    some = min(LOSS_STEPS, len(losses) // 2)
    if not some:
        return False
    first, last = float(losses[:some].mean()), float(losses[-some:].mean())
    return last > DIVERGED_TIMES * first and last > first + DIVERGED_BY


def arm_lead(blocks: Blocks) -> LeadUse | None:
    """How much of the measured steps of an arm was made before; None where too few repetitions show it."""
    return lead_use(run.used_leads for run in blocks.values())


def mean_over(runs: Sequence[RunLedger], get: Callable[[RunLedger], float | None]) -> float | None:
    """Mean over all measured steps of ``runs``, given a mean per step of each; None where no run has it."""
    known = [(value, len(run.step_ms)) for run in runs if (value := get(run)) is not None]
    return sum(value * steps for value, steps in known) / sum(steps for _, steps in known) if known else None


def part_over(
    runs: Sequence[RunLedger], get: Callable[[RunLedger], float | None], known: Sequence[RunLedger] | None = None
) -> float | None:
    """Return the mean of a part of a step over all measured steps of ``runs``.

    ``known``: the runs that have it; others get the same share of their steps.
    """
    known = [run for run in known or runs if get(run) is not None]
    found = mean_over(known, get)
    if found is None or len(known) == len(runs):
        return found
    steps_ms = [mean_over(some, lambda run: run.mean_step_ms) or 0.0 for some in (known, runs)]
    return found / steps_ms[0] * steps_ms[1] if steps_ms[0] else found


def _mean_ms(nanoseconds: Array) -> float | None:
    known = nanoseconds[~np.isnan(nanoseconds)]
    return float(known.mean()) / 1e6 if known.size else None


def _busy_ms(nanoseconds: Array) -> float | None:
    """None where it is not known of every step: the steps that leave it open are not like the others."""
    return None if np.isnan(nanoseconds).any() else _mean_ms(nanoseconds)


def _means(values: Callable[[str], Array], names: Sequence[str], pattern: str) -> dict[str, float]:
    means = {name: _mean_ms(values(pattern.format(name))) for name in names}
    return {name: value for name, value in means.items() if value is not None}


def _sum(counts: Array) -> float | None:
    return None if np.isnan(counts).any() else float(counts.sum())


def _other_load(samples: pa.Table | None) -> float | None:
    """Cores that others took: other processes here, and others elsewhere for whom the hypervisor took them."""
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
# What a repetition did, and the time or steps it took for that.
Rate = Callable[[RepetitionTotals], tuple[float, float] | None]


def per_second(amount: float | None, repetition: RepetitionTotals) -> tuple[float, float] | None:
    """``amount`` of a repetition as a rate; None where it was not counted."""
    return None if amount is None else (amount, repetition.wall_ns / 1e9)


def trained_tokens_per_s(repetition: RepetitionTotals) -> tuple[float, float] | None:
    return per_second(repetition.trained_tokens, repetition)


def tokens_per_s(repetition: RepetitionTotals) -> tuple[float, float] | None:
    return per_second(repetition.tokens, repetition)


def steps_per_s(repetition: RepetitionTotals) -> tuple[float, float] | None:
    return per_second(repetition.steps, repetition)


# What "faster" means, best first: a trainer that does not count tokens is compared by what it does count.
MEASURES: tuple[tuple[str, Rate], ...] = (
    ("trained tokens/s", trained_tokens_per_s),
    ("tokens/s", tokens_per_s),
    ("steps/s", steps_per_s),
)


def speed(
    baseline: Blocks,
    candidate: Blocks,
    rate: Rate,
    confidence: float = CONFIDENCE,
    alike: Likeness | None = None,
) -> Estimate | None:
    """How many times as fast ``candidate`` is by ``rate``; None where a measured repetition does not have that rate."""
    logs = speed_logs(baseline, candidate, rate)
    return None if logs is None else from_blocks(logs, confidence, alike)


def speed_logs(baseline: Blocks, candidate: Blocks, rate: Rate) -> list[float] | None:
    """The logarithm of that in each block that has both, in their order."""
    base, other = rates_of(baseline, rate), rates_of(candidate, rate)
    if base is None or other is None:
        return None
    by_repetition = {block: alternated(baseline[block], candidate[block]) for block in set(base) & set(other)}
    return paired_logs(base, other, by_repetition)


def alternated(first: RunLedger, second: RunLedger) -> bool:
    """True if repetition k of both ran side by side in time."""
    return first.by_repetition and second.by_repetition and first.record.session == second.record.session


def rates_of(blocks: Blocks, rate: Rate) -> dict[int, dict[int, tuple[float, float]]] | None:
    """{block: {repetition: rate}}; None where any lacks it: a ratio never mixes repetitions with and without."""
    found: dict[int, dict[int, tuple[float, float]]] = {}
    for block, run in blocks.items():
        for repetition, totals in run.repetitions.items():
            value = rate(totals)
            if value is None:
                return None
            found.setdefault(block, {})[repetition] = value
    return found


def per_step_of(blocks: Blocks, name: Counted) -> float | None:
    """Positions or trained tokens per measured step; None where a run did not count them."""
    totals: list[float | None] = [getattr(run, name) for run in blocks.values()]
    if any(total is None for total in totals) or not totals:
        return None
    return sum(total or 0.0 for total in totals) / sum(len(run.step_ms) for run in blocks.values())
