"""Determines which worker made each batch, how long batches were ready before use, and how much of that steps used up.

A DataLoader's workers take turns in each epoch; one without items left is passed over. A batch's lead is the time from
its completion to the start of its fetch; 0 if the loop waited for it. A worker makes a batch in P, and the loop takes
one of each worker in C. While C < P and there is lead, no step waits, and each worker's lead falls by P - C per batch:

    worker:  |--- batch b ---|--- batch b + W ---|            ready(b + W) = ready(b) + P + idle
    loop:                     |..lead..|b ...... |lead|b + W  taken(b + W) = taken(b) + C
                                                              lead(b + W)  = lead(b) + C - P - idle

Steps are faster than is sustainable by the lead that they use up (without the idle time of workers at a full queue).
A host that gets further ahead of its asynchronous device uses up lead in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain import policy
from harness.explain.spans import (
    BUILT,
    NO_WORKER,
    NOT_MEASURED,
    Int,
    RunSpans,
    Stretches,
    bounds,
    covered,
    integers,
    spans_of,
)
from harness.explain.statistics import reach_of_mean
from harness.explain.waits import BatchWaits
from harness.study.contract import AWAITED
from harness.study.run_data import RunData

if TYPE_CHECKING:
    import pyarrow as pa

Array = NDArray[np.float64]


class Makers(NamedTuple):
    """Worker that made each batch of a run."""

    worker: Int  # number of each batch's worker, in order of receipt, (batches,)
    workers: int  # number of workers of the loader; 0 if batches are made inline

    @property
    def is_round_robin(self) -> bool:
        """True if all workers made batches in turn. Also True without workers or batches."""
        if not self.workers or not len(self.worker):
            return True
        return np.array_equal(self.worker, (self.worker[0] + np.arange(len(self.worker))) % self.workers)

    @property
    def idle(self) -> int:
        """Number of workers that made no batch; 0 without workers or with too few batches to tell."""
        if not self.workers or len(self.worker) < policy.WORKER_ROUNDS_MIN * self.workers:
            return 0
        return self.workers - len(np.unique(self.worker))

    @property
    def busy(self) -> int:
        """Number of workers that made batches."""
        return self.workers - self.idle

    @property
    def unequal(self) -> bool:
        """True if one worker made far more batches than an equal share. False with too few batches to tell."""
        if not self.workers or len(self.worker) < policy.WORKER_ROUNDS_MIN * self.workers:
            return False
        return bool(np.bincount(self.worker).max() * self.workers > policy.UNEQUAL_WORKER_FACTOR * len(self.worker))

    def in_flight(self, prefetch: int) -> int:
        """Return how many batches are requested but not received: ``prefetch`` of a worker, 1 of one without items."""
        return self.workers * prefetch - self.idle * (prefetch - 1)

    def before(self) -> Int:
        """Return the index of the same worker's previous batch for each batch; -1 for the first batch of a worker."""
        order = np.argsort(self.worker, kind="stable")
        previous = np.full(len(order), -1)
        same_worker = self.worker[order[1:]] == self.worker[order[:-1]]
        previous[order[1:][same_worker]] = order[:-1][same_worker]
        return previous


def round_robin(count: int, workers: int) -> Makers:
    """Return the makers of ``count`` batches that ``workers`` workers make in turn, starting with worker 0."""
    return Makers(np.arange(count) % max(1, workers), workers)


def makers_of(recorded: NDArray[np.int16], count: int, workers: int) -> Makers:
    """Return the makers of ``count`` batches from the ``recorded`` worker numbers; unrecorded ones take turns."""
    worker = np.full(count, NO_WORKER, dtype=np.int64)
    worker[: len(recorded)] = recorded[:count]
    worker[worker >= workers] = NO_WORKER
    anchors = np.flatnonzero(worker != NO_WORKER)
    places = np.arange(count)
    if not len(anchors):
        return round_robin(count, workers)
    nearest = anchors[np.maximum(0, np.searchsorted(anchors, places, side="right") - 1)]
    return Makers((worker[nearest] + places - nearest) % workers, workers)


class MadeBatches(NamedTuple):
    """Times at which consecutive batches were made and used; ns, (batches,), NaN if unknown."""

    began: Array
    ready: Array
    received: Array
    taken: Array  # when the loop, or its device, began to use the batch
    awaited: NDArray[np.bool_]  # True if not ready before its fetch began


class Leads(NamedTuple):
    """Lead (how long it lay ready before use) of each batch, and its worker's idle time before it; ns, (batches,)."""

    lead: Array
    idle: Array
    between: float = 0.0  # median ns of a busy worker from the end of one batch to the start of the next


def leads_of(made: MadeBatches, workers: int, prefetch: int, makers: Makers | None = None) -> Leads:
    """Return how long each batch was ready before use. ``prefetch``: per worker. ``makers`` None: workers in turn."""
    lead = np.where(made.awaited, 0.0, np.maximum(0.0, made.taken - made.ready))
    count = len(lead)
    makers = makers or round_robin(count, workers)
    before, ahead = makers.before(), makers.in_flight(prefetch)
    later = np.flatnonzero(before >= 0)
    gap, requested = np.zeros(count), np.full(count, -np.inf)
    gap[later] = made.began[later] - made.ready[before[later]]
    requested[ahead:] = made.received[: max(0, count - ahead)]
    busy = np.zeros(count, dtype=np.bool_)
    busy[later] = requested[later] < made.ready[before[later]]
    measured = busy & np.isfinite(gap)
    making = made.ready - made.began
    between = float(np.median(gap[measured])) if measured.any() else 0.0
    most = policy.WORKER_HELD_SHARE * float(np.nanmedian(making)) if np.isfinite(making).any() else 0.0
    idle = np.maximum(0.0, gap - between)
    idle[busy & (idle <= most)] = 0.0
    return Leads(np.where(np.isnan(made.ready), np.nan, lead), idle, between)


def used_up_ns(leads: Leads, workers: int) -> float | None:
    """Return the lead (how long batches lie ready before use) that steps used up, in ns per worker; None if unknown.

    ``workers``: number that made batches. The last batch of each worker is assumed to use up as much as the others, but
    at most its own lead."""
    lead, idle = leads.lead, leads.idle
    if not 0 < workers < len(lead) or not np.isfinite(lead).all():
        return None
    drop = float((lead[:-workers] - lead[workers:]).mean())
    used = min(drop, max(0.0, drop - float(idle[workers:].mean())))
    observed = used * (len(lead) - workers) / workers
    return observed + min(used, float(lead[-workers:].mean()))


def falls_by(leads: Leads, taken: Array, workers: int, stood: NDArray[np.bool_] | None = None) -> float:
    """Return by what fraction the last batches came faster than workers can sustain; at least 0. ``taken``: time (ns)
    when each batch was used. ``stood``: True for batches made during a suspension, which do not count. Infinite if all
    of them were; 0 if too few batches are known."""
    if workers < 1 or len(leads.lead) < 2 * workers:
        return 0.0
    count = min(max(workers, policy.LEAD_BATCHES_MIN), len(leads.lead) - workers)
    lead, idle = leads.lead[-count - workers :], leads.idle[-count:]
    length = float((taken[-count:] - taken[-count - workers : -workers]).mean())
    if not np.isfinite(lead).all() or length <= 0:
        return 0.0
    counted = np.ones(count, dtype=np.bool_) if stood is None else ~stood[-count:]
    if not counted.any():
        return math.inf
    return max(0.0, float((lead[:-workers] - lead[workers:] - idle)[counted].mean())) / length


def pace_ns(made: MadeBatches, leads: Leads, busy: int, pauses: Stretches) -> float:
    """Return the mean ns from one batch to the next that ``busy`` workers together can sustain; NaN if unknown.

    ``pauses``: suspensions of the run, which do not count as time of the workers."""
    timed = np.isfinite(made.ready - made.began)
    if not timed.any():
        return math.nan
    began, ready = made.began[timed].astype(np.int64), made.ready[timed].astype(np.int64)
    making = ready - began - covered(began, ready, pauses)
    return (float(making.mean()) + leads.between) / busy


class UsedLead(NamedTuple):
    """Lead (how long batches lay ready before use) that the measured steps of one repetition used up, in ns."""

    used_ns: float  # lead per worker that was used up
    wall_ns: float  # time of these steps
    ahead_ns: float = 0.0  # growth of the host's lead over its device
    pace_ns: float = math.nan  # workers' time for as many batches at the mean pace of the run; NaN: unknown


@dataclass(frozen=True)
class LeadUse:
    """Share of step time saved by using up ready batches: steps were then faster than the loader can sustain.

    ``ci_low`` to ``ci_high``: its 95 % interval."""

    share: float
    ci_low: float
    ci_high: float
    n: int  # repetitions
    by_host: bool = False  # mostly because the host got further ahead of its device

    @property
    def is_worth_saying(self) -> bool:
        """True if the share is above LEAD_SHARE_MIN and its interval above 0, so that a report mentions it."""
        return self.share > policy.LEAD_SHARE_MIN and self.ci_low > 0


def used_leads(
    steps: pa.Table, spans: RunSpans, waits: BatchWaits, workers: int, prefetch: int, *, asynchronous: bool
) -> dict[int, UsedLead]:
    """Return {repetition: lead that its steps used up}, in ns, up to the repetition's first pause. Lead: how long
    batches lay ready before use. Repetitions with unknown leads are left out. ``workers``: 0 if batches are made
    inline. ``prefetch``: batches per worker. Empty if an asynchronous device was not recorded."""
    if asynchronous and not len(spans.kernels):
        return {}
    makers = makers_of(spans.makers, len(waits.rows), workers)
    starts, ends = bounds(steps)
    leads, pace = None, math.nan
    if workers:
        made = _made(spans, waits, on_device=asynchronous)
        leads = leads_of(made, workers, prefetch, makers)
        later = np.flatnonzero(starts[1:] > ends[:-1])
        pace = pace_ns(made, leads, makers.busy, Stretches(ends[later], starts[later + 1]))
    at_start, at_end = (_ahead_ns(spans, moments) for moments in (starts, ends))
    measured = integers(steps, "warmup", null=1) == 0
    repetitions = integers(steps, "turn")
    by_repetition: dict[int, UsedLead] = {}
    rows = np.flatnonzero(measured)
    if not len(rows):
        return by_repetition
    # A stretch continues while rows and time are consecutive and the repetition is the same.
    breaks = (np.diff(rows) > 1) | (np.diff(repetitions[rows]) != 0) | (starts[rows[1:]] > ends[rows[:-1]])
    by_row = np.argsort(waits.rows, kind="stable")
    rows_of = waits.rows[by_row]
    for stretch in np.split(rows, np.flatnonzero(breaks) + 1):
        repetition = int(repetitions[stretch[0]])
        if repetition in by_repetition:
            continue
        first, last = stretch[0], stretch[-1]
        batches = by_row[np.searchsorted(rows_of, first) : np.searchsorted(rows_of, last, side="right")]
        used = 0.0 if leads is None else used_up_ns(Leads(leads.lead[batches], leads.idle[batches]), makers.busy)
        if used is not None:
            wall, ahead = float(ends[last] - starts[first]), float(at_end[last] - at_start[first])
            by_repetition[repetition] = UsedLead(used, wall, ahead, pace * len(batches))
    return by_repetition


def lead_use(runs: Iterable[Mapping[int, UsedLead]]) -> LeadUse | None:
    """Return the share of step time that an arm saved by using up lead; None below MIN_BLOCKS repetitions.

    The share is at most what the workers' mean pace (time per batch) explains. ``runs``: used leads by repetition."""
    repetitions = [repetition for run in runs for repetition in run.values()]
    if len(repetitions) < policy.MIN_BLOCKS:
        return None
    wall_ns = float(np.mean([repetition.wall_ns for repetition in repetitions]))
    ahead = np.array([repetition.ahead_ns for repetition in repetitions]) / wall_ns
    shares = np.array([repetition.used_ns for repetition in repetitions]) / wall_ns + ahead
    mean, reach = float(shares.mean()), reach_of_mean(shares.tolist())
    pace_ns = float(np.mean([repetition.pace_ns for repetition in repetitions]))
    most = pace_ns / wall_ns - 1 + max(0.0, float(ahead.mean()))
    most = math.inf if math.isnan(most) else max(0.0, most)
    by_host = bool(ahead.mean() > mean / 2)
    return LeadUse(min(mean, most), min(mean - reach, most), mean + reach, len(repetitions), by_host)


def _ahead_ns(spans: RunSpans, moments: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how many ns the device had still to work at each moment on the work queued by then, (moments,)."""
    done = np.concatenate([[-np.inf], np.maximum.accumulate(spans.kernels.ends.astype(np.float64))])
    # Launches without recorded work (the run was cut short) are ignored.
    queued = np.minimum(np.searchsorted(spans.launches.starts, moments, side="left"), len(spans.kernels.ends))
    ahead: NDArray[np.float64] = np.maximum(0.0, done[queued] - moments)
    return ahead


def _made(spans: RunSpans, waits: BatchWaits, *, on_device: bool) -> MadeBatches:
    count = len(waits.rows)
    chosen = np.isin(spans.stages.names, [spans.code(name) for name in BUILT if name in spans.names])
    stages = spans.stages.where(chosen & (spans.stages.batches >= 0) & (spans.stages.batches < count))
    began, ready = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(began, stages.batches, stages.starts)
    np.maximum.at(ready, stages.batches, stages.ends)
    unknown = np.isinf(ready)
    began[unknown], ready[unknown] = np.nan, np.nan
    taken, awaited = waits.starts.astype(np.float64), np.zeros(count, dtype=np.bool_)
    if on_device:
        taken = np.full(count, np.inf)
        kernels = spans.kernels.where((spans.kernels.batches >= 0) & (spans.kernels.batches < count))
        np.minimum.at(taken, kernels.batches, kernels.starts)
        unknown |= np.isinf(taken)
        ready[unknown] = np.nan
    else:
        unpackings = spans.of(spans.unpackings, AWAITED)
        unpackings = unpackings.where((unpackings.batches >= 0) & (unpackings.batches < count))
        awaited[unpackings.batches] = unpackings.starts >= waits.starts[unpackings.batches]
    return MadeBatches(began, ready, waits.ends.astype(np.float64), taken, awaited)


@dataclass(frozen=True)
class SlowWorker:
    """A loader worker, the same in all blocks, that takes longer for a batch than the others; median times."""

    number: int
    ms: float
    others_ms: float

    @property
    def factor(self) -> float | None:
        """Time of this worker / time of the others; None if the others' time is 0."""
        return self.ms / self.others_ms if self.others_ms > 0 else None


@dataclass(frozen=True)
class LongReads:
    """Few batches at equal intervals that take most of all read time, because each opens a file or a shard."""

    batches: float  # median number of batches from one to the next
    ms: float  # median


@dataclass(frozen=True)
class Loading:
    """Findings about how batches were made, over all blocks, by :func:`loading_of`. None or empty: not found."""

    slow_worker: SlowWorker | None = None
    long_reads: LongReads | None = None
    on_core: Mapping[str, float] = field(default_factory=dict)  # by stage: CPU time / time of its process


class MadeBy(NamedTuple):
    """Batches of one block: the worker that made each, and how many ms it took."""

    workers: NDArray[np.signedinteger]  # number of the worker that made each batch
    ms: Array  # time to make each batch


def slow_worker(blocks: Iterable[MadeBy]) -> SlowWorker | None:
    """Return the worker that is slower than the others in all ``blocks``, beyond chance (rank sums).

    None if there is no such worker."""
    made_by = list(blocks)
    medians = [
        {int(number): float(np.median(made.ms[made.workers == number])) for number in np.unique(made.workers)}
        for made in made_by
    ]
    numbers = set(medians[0]).intersection(*medians) if medians else set()
    if len(numbers) < 2 or any(len(block) < 2 for block in medians):
        return None
    typical_ms = {number: float(np.median([block[number] for block in medians])) for number in numbers}
    slow, fast = (choose(numbers, key=lambda number: typical_ms[number]) for choose in (max, min))
    excess = variance = batches = 0.0  # of the rank sum, over all blocks
    for made in made_by:
        slow_ms, fast_ms = (made.ms[made.workers == number] for number in (slow, fast))
        excess += float(np.sign(slow_ms[:, None] - fast_ms[None, :]).sum()) / 2
        variance += len(slow_ms) * len(fast_ms) * (len(slow_ms) + len(fast_ms) + 1) / 12
        batches += len(slow_ms)
    pairs = len(numbers) * (len(numbers) - 1)
    is_chance = excess < NormalDist().inv_cdf(1 - (1 - policy.CONFIDENCE) / pairs) * math.sqrt(variance)
    always = all(block[slow] > block[fast] for block in medians)
    if is_chance or not always or batches < policy.SLOW_WORKER_BATCHES_MIN:
        return None
    others_ms = float(np.median([np.median(made.ms[made.workers != slow]) for made in made_by]))
    # If only one worker is fast, the others are not slow.
    if typical_ms[slow] < policy.SLOW_WORKER_FACTOR * max(typical_ms[fast], others_ms):
        return None
    return SlowWorker(slow, typical_ms[slow], others_ms)


def long_reads(ms: Array) -> LongReads | None:
    """Return the reads in ``ms`` (by batch) that are few, take most of the time, and are evenly spaced, or None."""
    if not len(ms) or not ms.any():
        return None
    chosen = (ms > policy.LONG_READ_FACTOR * np.median(ms)) & (ms > ms.max() / policy.LONG_READ_FACTOR)
    count = int(chosen.sum())
    is_few = policy.LONG_READS_MIN <= count <= policy.LONG_READS_SHARE_MAX * len(ms)
    if not is_few or ms[chosen].sum() < policy.LONG_READS_TIME_MIN * ms.sum():
        return None
    gaps = np.diff(np.flatnonzero(chosen))
    low, middle, high = np.percentile(gaps, (25, 50, 75))
    if high - low > policy.LONG_READS_SPREAD_MAX * middle:
        return None
    return LongReads(float(middle), float(np.median(ms[chosen])))


def loading_of(runs: Sequence[RunData]) -> Loading:
    """Return how the batches of ``runs`` were made: slow worker, long reads, each stage's share of time on a core."""
    blocks = [spans_of(run) for run in runs if run.has_spans]
    blocks = [spans for spans in blocks if len(spans.stages)]
    on_core = {stage: share for stage in BUILT if (share := _on_core(blocks, stage)) is not None}
    reads = [_ms_by_batch(spans, ("read",)) for spans in blocks]
    makers = [_made_by(spans) for spans in blocks]
    return Loading(
        slow_worker=slow_worker([made for made in makers if len(made.ms)]),
        long_reads=long_reads(np.concatenate(reads)) if reads else None,
        on_core=on_core,
    )


def _on_core(blocks: Sequence[RunSpans], stage: str) -> float | None:
    """Return the share (0 to 1) of the time of ``stage`` in which its process had a core; None if not recorded."""
    stage_spans = [spans.of(spans.stages, stage) for spans in blocks]
    wall_ns = sum(float((spans.ends - spans.starts).sum()) for spans in stage_spans)
    if not wall_ns or any((spans.cpu_ns == NOT_MEASURED).any() for spans in stage_spans):
        return None
    return sum(float(spans.cpu_ns.sum()) for spans in stage_spans) / wall_ns


def _ms_by_batch(spans: RunSpans, stages: Sequence[str]) -> Array:
    """Return the total ms of ``stages`` for each batch that has any of them, in order of batch number."""
    chosen = np.isin(spans.stages.names, [spans.code(stage) for stage in stages]) & (spans.stages.batches >= 0)
    _, batches = np.unique(spans.stages.batches[chosen], return_inverse=True)
    ms: Array = np.bincount(batches, (spans.stages.ends - spans.stages.starts)[chosen] / 1e6).astype(np.float64)
    return ms


def _made_by(spans: RunSpans) -> MadeBy:
    """Return the batches that loader workers made, with worker and time; without those of the main thread."""
    chosen = np.isin(spans.stages.names, [spans.code(stage) for stage in BUILT])
    chosen &= (spans.stages.batches >= 0) & (spans.stages.batches < len(spans.makers))
    numbers = np.unique(spans.stages.batches[chosen])
    workers, ms = spans.makers[numbers], _ms_by_batch(spans, BUILT)[: len(numbers)]
    by_worker = workers != NO_WORKER
    return MadeBy(workers[by_worker], ms[by_worker])
