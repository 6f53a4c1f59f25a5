"""Reads the cost of every batch, for its builder and its receiver, from the loader's spans and the host's waits.

The main thread requests batch i + workers x prefetch (fewer ahead if workers have no items, ``lead_use.Makers``) when
it receives batch i. Batches are delivered in order (torch/utils/data/dataloader.py, _process_data):

    request b                                                    received b
        |--wake--|--read--|--tokenize--|--pack--|--after--| (free for its next batch)
                                                |----hand-over----|

    fetch    ends at max(its start + receive, end of the last stage + hand-over); then a sampler may run (draw)
    unpack   one pipe serves all workers: a batch that arrives before its turn is unpacked within another batch's
             fetch, and its own is shorter by that time

Newer recordings show when each batch had arrived in the main process and was unpacked. Older ones show the cost of
receiving only for batches that were ready, else the whole hand-over:

    worker       |--last stage--|
    main thread         |...waits..........|--unpack--|-hand out-|      waited for: hand-over = send + receive
                                |---send---|------receive--------|
                                           |--unpack--|-hand out-|      ready: the fetch is the cost of receiving
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain.lead_use import Makers, round_robin
from harness.explain.policy import HANDOVERS_SEEN_MIN, MOSTLY_CPU_SHARE, READY_HANDOVERS, RECEIVED_SHARE
from harness.explain.spans import BUILT, Int

Array = NDArray[np.float64]


class Transport(NamedTuple):
    """Way of handing batches from worker to main process, with default costs for recordings that do not show them."""

    tensor_ms: float  # hand-over cost of each tensor, whatever its size
    after_ms: float  # time until a worker that sent a batch begins its next one
    own_connections: bool  # each worker has its own connection, so no batch is received before its turn


# Most of the cost is per tensor: the main thread gets a file descriptor from the worker and maps it. Measured on this
# project's machine.
DATALOADER = Transport(tensor_ms=0.9, after_ms=0.2, own_connections=False)
# A short message names the slot of shared memory that has been filled. These values are the ring's design targets. In a
# measurement, receiving a ready batch took less than a tenth of a DataLoader's time (0.285 and 3.08 ms in a slow hour;
# python -m tests.benchmarks.batches --hand-over).
RING = Transport(tensor_ms=0.04, after_ms=0.05, own_connections=True)


@dataclass(frozen=True)
class Seen:
    """Recorded times of every batch: stages of its builder, main thread's wait; (batches,), CLOCK_MONOTONIC ns."""

    first: Array  # start of its first stage
    last: Array  # end of its last stage
    known: NDArray[np.bool_]  # both times are known, and the builder was not suspended in between
    wait_start: Array
    wait_end: Array
    measured: NDArray[np.bool_]  # received in a measured step
    pauses: Sequence[tuple[int, int]]  # (start, end) of each suspension of the run
    arrived: Array  # arrival of its message in the main thread, in this or an earlier fetch; NaN if not recorded
    unpacked: Array  # end of its unpacking
    awaited: NDArray[np.bool_]  # the main thread waited for this message; False: it had arrived earlier
    drawn: Array = field(default_factory=lambda: np.zeros(1))  # ns in which a sampler ran at the end of the wait

    @property
    def handed_over(self) -> Array:
        """Time (ns) at which the main thread had each batch: end of its wait, minus the time (``drawn``) in which a
        sampler of data then chose items of a later batch in that thread."""
        moments: Array = self.wait_end - self.drawn
        return moments


@dataclass(frozen=True)
class AssumedCost:
    """Cost per batch that the recording does not show. ``ms``: median of the values assumed for it."""

    part: Literal["receive", "hand-over"]
    ms: float


def handed_over(
    seen: Seen, makers: Makers, prefetch: int, tensors: int, declared_ns: float, transport: Transport = DATALOADER
) -> tuple[dict[str, Array], tuple[AssumedCost, ...]]:
    """Return {name: ns of each batch} of what handing over costs, and the costs that had to be assumed.

    Names are fields of :class:`RecordedBatches`: after, wake, handover, most_handover, receive, unpack. An unobserved
    cost is that of the nearest earlier batch that shows it, so no value is NaN. ``tensors``: number per batch.
    ``prefetch``: batches per worker.
    ``declared_ns``: time that the configuration makes a worker wait after the last stage.
    """
    ahead = makers.in_flight(prefetch)
    after, wake, most_after, most_wake = _around(seen, makers.before(), ahead)
    if arrivals_recorded(seen):
        parts, assumed = _observed(seen, declared_ns)
    else:
        parts, assumed = _estimated(seen, ahead, tensors * transport.tensor_ms * 1e6, declared_ns)
    # The observed wait caps the value of each batch, so the assumed cost can exceed all of them. Report their median.
    counted = seen.measured if seen.measured.any() else np.ones(len(seen.measured), dtype=np.bool_)
    by_part = {"receive": parts["receive"], "hand-over": parts["handover"]}
    assumed = tuple(replace(cost, ms=float(np.median(by_part[cost.part][counted])) / 1e6) for cost in assumed)
    return {
        "after": _filled(after, seen.measured, transport.after_ms * 1e6 + declared_ns, most_after),
        "wake": _filled(wake, seen.measured, 0.0, most_wake),
        **parts,
    }, assumed


def arrivals_recorded(seen: Seen) -> bool:
    """Return True if the recording shows when batches of measured steps had arrived in the main process."""
    return bool(np.count_nonzero(seen.measured & ~np.isnan(seen.arrived)) >= HANDOVERS_SEEN_MIN)


def _observed(seen: Seen, declared_ns: float) -> tuple[dict[str, Array], tuple[AssumedCost, ...]]:
    """Return what :func:`handed_over` does, from recorded arrivals. The hand-over is exact for a batch that the main
    thread waited for. For others it is estimated, up to the bound that the arrival shows."""
    unpack = _unpacked(seen)
    in_fetch = seen.arrived >= seen.wait_start
    receive = unpack + np.maximum(0.0, seen.handed_over - np.where(in_fetch, seen.unpacked, seen.wait_start))
    latency = np.where(seen.known, np.maximum(0.0, seen.arrived - seen.last), np.inf)
    seen_at = seen.awaited & seen.known & ~crosses(seen.last, seen.arrived, seen.pauses)
    send = np.where(seen_at, latency, np.nan)
    typical = float(np.median(receive[seen.measured & ~np.isnan(receive)]))
    assumed = AssumedCost("hand-over", (declared_ns + typical / RECEIVED_SHARE) / 1e6)
    receive = _filled(receive, seen.measured, typical, np.full_like(receive, np.inf))
    unpack = np.minimum(_filled(unpack, seen.measured, typical, receive), receive)
    latency[np.isnan(latency)] = np.inf
    handover = receive + _filled(send, seen.measured, assumed.ms * 1e6 - typical, latency)
    unrecorded = ~seen.known & (seen.last == 0)  # costs its wait, as in :func:`_estimated`
    return {
        "handover": np.where(unrecorded, 0.0, handover),
        "most_handover": np.where(unrecorded, 0.0, np.maximum(handover, receive + latency)),
        "receive": np.where(unrecorded, seen.handed_over - seen.wait_start, receive),
        "unpack": np.where(unrecorded, 0.0, unpack),
    }, (assumed,) if _unknown(np.where(unrecorded, 0.0, send), seen.measured) else ()


def _unpacked(seen: Seen) -> Array:
    """Return the ns of unpacking each batch, one at a time; NaN if not recorded. It begins at the arrival of a batch
    that the main thread waited for. For other batches it begins at the start of the fetch, or when the batch before is
    unpacked, but not after the recorded arrival."""
    unpack = np.full_like(seen.arrived, np.nan)
    numbers = np.flatnonzero(~np.isnan(seen.arrived))
    numbers = numbers[np.argsort(seen.arrived[numbers], kind="stable")]
    arrived, unpacked = seen.arrived[numbers], seen.unpacked[numbers]
    fetch = np.maximum(np.searchsorted(seen.wait_start, arrived, side="right") - 1, 0)
    begun = np.maximum(seen.wait_start[fetch], np.append(-np.inf, unpacked[:-1]))
    began = np.where(seen.awaited[numbers], arrived, np.minimum(begun, arrived))
    unpack[numbers] = np.maximum(0.0, unpacked - began)
    return unpack


def _estimated(
    seen: Seen, ahead: int, default: float, declared_ns: float
) -> tuple[dict[str, Array], tuple[AssumedCost, ...]]:
    """Return what :func:`handed_over` does, from waits alone. ``ahead``: number of batches in flight.

    ``default``: ns to assume for a hand-over if none was observed."""
    waited = seen.handed_over - seen.wait_start
    latency = np.maximum(0.0, seen.handed_over - seen.last)
    # The first batches are excluded because the workers had only just started.
    asked_early = seen.known & (seen.wait_start <= seen.last) & (np.arange(len(waited)) >= ahead)
    handing_ns = _typical(latency, asked_early & seen.measured)
    ready = seen.known & (seen.last + READY_HANDOVERS * (handing_ns or default + declared_ns) <= seen.wait_start)
    receiving_ns = _typical(waited, ready & seen.measured)
    # If only one of the two costs was observed, the other one is estimated from it.
    default_receive = RECEIVED_SHARE * (default if handing_ns is None else max(0.0, handing_ns - declared_ns))
    default_handover = declared_ns + (default if receiving_ns is None else receiving_ns / RECEIVED_SHARE)
    # The batch was built shortly before its fetch began. Its wait is taken as hand-over or as receiving, whichever has
    # the more similar typical cost.
    between = seen.known & ~ready & (seen.wait_start > seen.last)
    short = _unlike(waited, receiving_ns or default_receive) < _unlike(latency, handing_ns or default_handover)
    unrecorded = ~seen.known & (seen.last == 0)  # no record (a replayed batch, say): assume ready
    handover = np.where(asked_early | (between & ~short), latency, np.where(unrecorded, 0.0, np.nan))
    receive = np.where(ready | unrecorded | (between & short), waited, np.nan)
    assumed = []
    if _unknown(receive, seen.measured):
        assumed.append(AssumedCost("receive", default_receive / 1e6))
    elif receiving_ns is None and not unrecorded.any():  # no batch was certainly ready: a guess
        assumed.append(AssumedCost("receive", float(np.nanmedian(receive)) / 1e6))
    if _unknown(handover, seen.measured):
        assumed.append(AssumedCost("hand-over", default_handover / 1e6))
    most = np.where(seen.known, latency, np.inf)
    handover = _filled(handover, seen.measured, default_handover, most)
    return {
        "handover": handover,
        "most_handover": np.where(unrecorded, 0.0, np.maximum(handover, most)),
        "receive": _filled(receive, seen.measured, default_receive, waited),
        "unpack": np.zeros(len(waited)),
    }, tuple(assumed)


def crosses(starts: Array, ends: Array, pauses: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Return True for each interval during which the run was suspended. ``pauses`` are sorted and disjoint."""
    if not pauses:
        return np.zeros(len(starts), dtype=np.bool_)
    since, until = np.array(pauses, dtype=np.float64).T
    first_not_over = np.searchsorted(until, starts, side="right")
    following = np.append(since, np.inf)[first_not_over]
    suspended: NDArray[np.bool_] = following < ends
    return suspended


def nearest(known: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return for each position the index of the last known value at or before it, or of the first known value after it.

    ``known``: True for positions with a known value. If there is none, each position has its own index."""
    if not known.any():
        return np.arange(len(known))
    positions = np.maximum.accumulate(np.where(known, np.arange(len(known)), -1))
    return np.where(positions < 0, int(np.argmax(known)), positions)


def _around(seen: Seen, before: Int, ahead: int) -> tuple[Array, Array, Array, Array]:
    """Return (after, wake, upper bound of after, upper bound of wake) in ns by batch; NaN: unknown.

    ``after``: time from a batch's last stage until its worker can begin another batch. ``wake``: time from a request to
    the first stage of an idle worker. An infinite bound is none. ``before``: index of the worker's previous batch, or
    -1. ``ahead``: number of batches in flight. Two batches of a worker show ``after`` if the second was requested
    before the first was done, else ``wake``.
    """
    count = len(seen.first)
    after, wake = np.full(count, np.nan), np.full(count, np.nan)
    most_after, most_wake = np.full(count, np.inf), np.full(count, np.inf)
    later = np.flatnonzero(before >= 0)
    earlier = before[later]
    request = np.where(later >= ahead, seen.wait_end[np.maximum(later - ahead, 0)], -np.inf)
    free = seen.last[earlier]
    kept = seen.known[later] & seen.known[earlier]
    kept &= ~crosses(np.maximum(free, request), seen.first[later], seen.pauses)
    later, earlier, request, free = later[kept], earlier[kept], request[kept], free[kept]
    most_after[earlier] = np.maximum(0.0, seen.first[later] - free)
    most_wake[later] = np.maximum(0.0, seen.first[later] - request)
    waited = request <= free
    after[earlier[waited]] = most_after[earlier[waited]]
    wake[later[~waited]] = most_wake[later[~waited]]
    return after, wake, most_after, most_wake


def _typical(values: Array, chosen: NDArray[np.bool_]) -> float | None:
    return float(np.median(values[chosen])) if np.count_nonzero(chosen) >= HANDOVERS_SEEN_MIN else None


def _unlike(values: Array, typical: float) -> Array:
    """Return how far each of ``values`` is from ``typical``, as an absolute logarithm of their ratio."""
    distance: Array = np.abs(np.log(np.maximum(values, 1.0) / max(typical, 1.0)))
    return distance


def _unknown(values: Array, measured: NDArray[np.bool_]) -> bool:
    """True if fewer than HANDOVERS_SEEN_MIN values of measured steps are known: _filled() uses its default."""
    return bool(np.count_nonzero(~np.isnan(values) & measured) < HANDOVERS_SEEN_MIN)


def _filled(values: Array, measured: NDArray[np.bool_], default: float, most: Array) -> Array:
    """Return ``values`` with each NaN replaced by the nearest value of a measured step, or by ``most`` if that is less.

    ``default`` replaces NaN if fewer than HANDOVERS_SEEN_MIN values of measured steps are known."""
    observed = ~np.isnan(values)
    lenders = observed & measured
    lent = (
        values[nearest(lenders)] if np.count_nonzero(lenders) >= HANDOVERS_SEEN_MIN else np.full_like(values, default)
    )
    return np.where(observed, values, np.minimum(lent, most))


class StageRow(NamedTuple):
    """One recorded stage of one batch; ``cpu_ns`` is None if it was not measured."""

    name: str
    start_ns: int
    end_ns: int
    cpu_ns: int | None


class Unpacking(NamedTuple):
    """Times of a batch's message in the main thread: its arrival, and the end of its unpacking."""

    arrived_ns: int
    unpacked_ns: int
    awaited: bool  # the main thread waited for the message


class FetchWait(NamedTuple):
    """One wait of the main thread for its next batch."""

    start_ns: int
    end_ns: int
    measured: bool  # the step counts: it is no warm-up step


@dataclass(frozen=True)
class RecordedBatches:
    """Costs of all batches of a run in ns, (batches,) in order of receipt, estimated where not observed."""

    stage: Mapping[str, Array]  # read, tokenize, pack
    cpu: Mapping[str, Array]  # CPU time of the builder's thread in each stage, at most the stage's time
    inner: Array  # time between the stages of a batch
    after: Array  # time from the last stage until the worker can begin another batch
    wake: Array  # time from a request to the first stage of an idle worker
    handover: Array  # time from the last stage until received, if it was waited for; inline: 0
    most_handover: Array  # longest hand-over that the recording allows; infinite if it shows no limit
    draw: Array  # time until a sampler in the main thread chose items for a worker; inline it is part of read
    receive: Array  # fetch time of a batch that was ready; inline: fetch time that no stage covers
    unpack: Array  # part of ``receive`` that may run in an earlier fetch, which waits for another worker
    usable: NDArray[np.bool_]  # received in a measured step, and its builder was not suspended
    ends_ns: Array  # end of the last stage, CLOCK_MONOTONIC; NaN if not recorded
    began_ns: float  # start of the first batch; infinite if not recorded
    worked_ns: tuple[float | None, ...]  # mean progress of the builders by pause; None if unknown
    assumed: tuple[AssumedCost, ...] = ()  # costs that were never observed
    makers: Makers = field(default_factory=lambda: round_robin(0, 0))  # worker that made each batch; empty if inline

    def __len__(self) -> int:
        return len(self.inner)


def batches(
    fetches: Sequence[FetchWait],
    stages: Mapping[int, Sequence[StageRow]],
    pauses: Sequence[tuple[int, int]],
    makers: Makers,
    prefetch: int,
    tensors: int,
    declared_transfer_ms: float,
    unpackings: Mapping[int, Unpacking] = MappingProxyType({}),
    transport: Transport = DATALOADER,
    drawn: Array | None = None,
) -> RecordedBatches:
    """Reconstruct the costs of each batch (ns) from fetch waits and ``stages`` by batch number.

    ``makers``: worker of each batch. ``prefetch``: batches in flight per worker. ``tensors``: number per batch.
    ``pauses``: (start_ns, end_ns) of each suspension of the loop. ``transport``: default hand-over costs.
    ``declared_transfer_ms``: cost that the configuration adds to each hand-over.
    ``drawn``: sampler time (ns) in each fetch; None: not recorded.
    """
    count = len(fetches)
    rows = [[row for row in stages.get(number, ()) if row.name in BUILT] for number in range(count)]
    first = np.array([min((row.start_ns for row in group), default=0) for group in rows], dtype=np.float64)
    last = np.array([max((row.end_ns for row in group), default=0) for group in rows], dtype=np.float64)
    recorded = np.array([bool(group) for group in rows])
    stage = {name: _sums(rows, name, _wall_ns) for name in BUILT}
    cpu_of = {name: np.minimum(_sums(rows, name, _cpu_ns), stage[name]) for name in BUILT}
    wait_start = np.array([fetch.start_ns for fetch in fetches], dtype=np.float64)
    wait_end = np.array([fetch.end_ns for fetch in fetches], dtype=np.float64)
    built = stage["read"] + stage["tokenize"] + stage["pack"]
    clean = ~(recorded & crosses(first, last, pauses))
    measured = np.array([fetch.measured for fetch in fetches])
    drawn = np.zeros(count) if drawn is None or not makers.workers else np.minimum(drawn, wait_end - wait_start)
    if makers.workers:
        arrived, unpacked, awaited = _columns(unpackings, count)
        waits = (wait_start, wait_end, measured, pauses)
        observed = Seen(first, last, recorded & clean, *waits, arrived, unpacked, awaited == 1, drawn)
        parts, assumed = handed_over(observed, makers, prefetch, tensors, declared_transfer_ms * 1e6, transport)
        if transport.own_connections:
            parts["unpack"] = np.zeros(count)
        inner = np.maximum(0, np.where(recorded, last - first, 0) - built)
    else:
        inner = nothing = np.zeros(count)
        parts = dict.fromkeys(("after", "wake", "handover", "most_handover", "unpack"), nothing)
        parts["receive"], assumed = np.maximum(0, wait_end - wait_start - built), ()
    source = nearest(clean)
    has_cpu = clean | np.array([all(row.cpu_ns is not None for row in group) for group in rows])
    usable = next(mask for mask in (measured & clean, clean, np.ones(count, dtype=np.bool_)) if mask.any())
    mended = {name: _mended(stage[name], cpu_of[name], clean, has_cpu, source) for name in BUILT}
    needed = sum(mended.values(), inner[source])
    return RecordedBatches(
        stage=mended,
        cpu={name: np.where(has_cpu, cpu, cpu[source]) for name, cpu in cpu_of.items()},
        inner=inner[source],
        draw=drawn,
        usable=usable,
        ends_ns=np.where(recorded, last, np.nan),
        began_ns=float(first[recorded].min()) if recorded.any() else np.inf,
        worked_ns=tuple(_worked(first, last, needed, pause) for pause in pauses),
        assumed=assumed,
        makers=makers,
        **parts,
    )


def _columns(unpackings: Mapping[int, Unpacking], count: int) -> Array:
    """Return arrival, end of unpacking (ns) and ``awaited`` (0, 1) of ``count`` batches, (3, batches); NaN: unknown."""
    columns = np.full((3, count), np.nan)
    for number, unpacking in unpackings.items():
        if 0 <= number < count:
            columns[:, number] = unpacking
    return columns


def _mended(
    wall: Array, cpu: Array, clean: NDArray[np.bool_], has_cpu: NDArray[np.bool_], source: NDArray[np.int64]
) -> Array:
    """Return the ns of one stage by batch, corrected for batches whose builder was suspended (not ``clean``). A stage
    that mostly computes gets the batch's CPU time / the stage's usual share of CPU time. Other stages, or batches
    without CPU time, get the duration of the nearest clean batch (``source``)."""
    share = cpu[clean].sum() / wall[clean].sum() if wall[clean].sum() else 0.0
    if share < MOSTLY_CPU_SHARE:
        return wall[source]
    return np.where(clean, wall, np.where(has_cpu, cpu / share, wall[source]))


def _worked(first: Array, last: Array, needed: Array, pause: tuple[int, int]) -> float | None:
    """Return the mean ns of work that builders did during a suspension; None if no batch shows it. Batches count that
    began before the end of ``pause`` (start, end) and ended after it: the ns needed minus the time outside of the
    pause. ``first``, ``last``: start and end of each batch. ``needed``: ns to make each."""
    since, until = pause
    progress_ns = [
        min(max(0.0, needed[b] - max(0.0, since - first[b]) - (last[b] - until)), float(until - since))
        for b in np.flatnonzero((first < until) & (last > until))
    ]
    return float(np.mean(progress_ns)) if progress_ns else None


def _wall_ns(row: StageRow) -> int:
    return row.end_ns - row.start_ns


def _cpu_ns(row: StageRow) -> int:
    return _wall_ns(row) if row.cpu_ns is None else row.cpu_ns


def _sums(rows: Sequence[Sequence[StageRow]], name: str, value: Callable[[StageRow], int]) -> Array:
    return np.array([sum(value(row) for row in group if row.name == name) for group in rows], dtype=np.float64)
