"""Estimates the cost of handing a batch from a worker to the main thread, as far as the recording shows it.

Newer recordings show for every batch when it had arrived in the main process and when it was unpacked there. So they
show what receiving it costs, which is the main thread's own work, also where the fetch began long before the batch was
built. Older ones show that only of batches that lay ready, and the whole hand-over only of those that were waited for.

    worker       |--last stage--|
    main thread         |...waits..........|--unpack--|-hand out-|      waited for: hand-over = send + receive
                                |---send---|------receive--------|
                                           |--unpack--|-hand out-|      lay ready: the fetch is what receiving costs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain.intervals import Int
from harness.explain.makers import Makers
from harness.explain.policy import HANDOVERS_SEEN_MIN, READY_HANDOVERS, RECEIVED_SHARE

Array = NDArray[np.float64]


class Transport(NamedTuple):
    """How workers hand batches over, and what that is taken to cost where a recording does not show it."""

    tensor_ms: float  # of a hand-over for each tensor, whatever its size
    after_ms: float  # until a worker that sent a batch begins its next one
    own_connections: bool  # no batch is received before its turn, as each worker has a connection of its own


# The main thread gets each tensor's file descriptor from the worker and maps it: most of the cost is there. Measured on
# this project's machine.
DATALOADER = Transport(tensor_ms=0.9, after_ms=0.2, own_connections=False)
# A short message says which slot of memory, that both sides have from the start, has been filled. These are what was
# asked of the ring. Measured is that a batch that lies ready takes less than a tenth of what it takes from
# a DataLoader (0.285 and 3.08 ms in a slow hour; python -m tests.benchmarks.batches --hand-over).
RING = Transport(tensor_ms=0.04, after_ms=0.05, own_connections=True)


@dataclass(frozen=True)
class Seen:
    """Of every batch, (batches,), CLOCK_MONOTONIC ns: its builder's stages, and the main thread's wait for it."""

    first: Array  # start of its first stage
    last: Array  # end of its last stage
    known: NDArray[np.bool_]  # both of them, and the builder was not stopped in between
    wait_start: Array
    wait_end: Array
    measured: NDArray[np.bool_]  # received in a step that counts
    pauses: Sequence[tuple[int, int]]  # when the run was suspended
    arrived: Array  # when the main thread had its message, in this fetch or an earlier one; NaN where not recorded
    unpacked: Array  # when it had unpacked it
    awaited: NDArray[np.bool_]  # it waited for the message, which came just then; else that had come earlier
    drawn: Array = field(default_factory=lambda: np.zeros(1))  # ns at the end of the wait in which a sampler ran

    @property
    def handed_over(self) -> Array:
        """When the main thread had each batch: a sampler then chooses items for the next request."""
        moments: Array = self.wait_end - self.drawn
        return moments


@dataclass(frozen=True)
class AssumedCost:
    """A cost per batch that the recording does not show, and the milliseconds that are taken for it (their median)."""

    part: Literal["receive", "hand-over"]
    ms: float


def handed_over(
    seen: Seen, makers: Makers, prefetch: int, tensors: int, declared_ns: float, transport: Transport = DATALOADER
) -> tuple[dict[str, Array], tuple[AssumedCost, ...]]:
    """Estimate after, wake, handover, its bound, receive and unpack (see ``batches``) of every batch, and list what was
    assumed.

    A cost that was not observed for a batch is copied from the nearest earlier batch with it, so no value is NaN.
    ``tensors``: per batch. ``declared_ns``: a cost that the configuration adds in the worker, after the last stage.
    """
    ahead = makers.in_flight(prefetch)
    after, wake, most_after, most_wake = _around(seen, makers.before(), ahead)
    if arrivals_recorded(seen):
        parts, assumed = _observed(seen, declared_ns)
    else:
        parts, assumed = _estimated(seen, ahead, tensors * transport.tensor_ms * 1e6, declared_ns)
    # What was waited bounds what is taken for a batch, so the figure that was assumed may be more than any of them.
    counted = seen.measured if seen.measured.any() else np.ones(len(seen.measured), dtype=np.bool_)
    taken = {"receive": parts["receive"], "hand-over": parts["handover"]}
    assumed = tuple(replace(cost, ms=float(np.median(taken[cost.part][counted])) / 1e6) for cost in assumed)
    return {
        "after": _filled(after, seen.measured, transport.after_ms * 1e6 + declared_ns, most_after),
        "wake": _filled(wake, seen.measured, 0.0, most_wake),
        **parts,
    }, assumed


def arrivals_recorded(seen: Seen) -> bool:
    """Whether the recording shows when batches of measured steps had arrived in the main process."""
    return bool(np.count_nonzero(seen.measured & ~np.isnan(seen.arrived)) >= HANDOVERS_SEEN_MIN)


def _observed(seen: Seen, declared_ns: float) -> tuple[dict[str, Array], tuple[AssumedCost, ...]]:
    """Hand-over, receive and unpack where arrivals were recorded.

    The moment of an arrival is known where the main thread waited for it. Of a message that lay in the pipe it is only
    known that it came earlier.
    """
    unpack = _unpacked(seen)
    own = seen.arrived >= seen.wait_start
    receive = unpack + np.maximum(0.0, seen.handed_over - np.where(own, seen.unpacked, seen.wait_start))
    latency = np.where(seen.known, np.maximum(0.0, seen.arrived - seen.last), np.inf)
    seen_at = seen.awaited & seen.known & ~crosses(seen.last, seen.arrived, seen.pauses)
    send = np.where(seen_at, latency, np.nan)
    typical = float(np.median(receive[seen.measured & ~np.isnan(receive)]))
    assumed = AssumedCost("hand-over", (declared_ns + typical / RECEIVED_SHARE) / 1e6)
    receive = _filled(receive, seen.measured, typical, np.full_like(receive, np.inf))
    unpack = np.minimum(_filled(unpack, seen.measured, typical, receive), receive)
    latency[np.isnan(latency)] = np.inf
    handover = receive + _filled(send, seen.measured, assumed.ms * 1e6 - typical, latency)
    unrecorded = ~seen.known & (seen.last == 0)  # as below: the wait for it is what it costs
    return {
        "handover": np.where(unrecorded, 0.0, handover),
        "most_handover": np.where(unrecorded, 0.0, np.maximum(handover, receive + latency)),
        "receive": np.where(unrecorded, seen.handed_over - seen.wait_start, receive),
        "unpack": np.where(unrecorded, 0.0, unpack),
    }, (assumed,) if _unknown(np.where(unrecorded, 0.0, send), seen.measured) else ()


def _unpacked(seen: Seen) -> Array:
    """How long the main thread unpacked each batch; NaN where that was not recorded.

    It reads messages one after the other, some in one fetch. Reading one that lay there begins with the fetch, or when
    the one before is unpacked.
    """
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
    """The same where no arrival was recorded, from the waits; ``default``: what the hand-over is taken to cost."""
    waited = seen.handed_over - seen.wait_start
    latency = np.maximum(0.0, seen.handed_over - seen.last)
    # Of the first ones the workers had only just started.
    asked_early = seen.known & (seen.wait_start <= seen.last) & (np.arange(len(waited)) >= ahead)
    handing_ns = _typical(latency, asked_early & seen.measured)
    ready = seen.known & (seen.last + READY_HANDOVERS * (handing_ns or default + declared_ns) <= seen.wait_start)
    receiving_ns = _typical(waited, ready & seen.measured)
    # Where only one of the two was observed, the other is estimated from it.
    default_receive = RECEIVED_SHARE * (default if handing_ns is None else max(0.0, handing_ns - declared_ns))
    default_handover = declared_ns + (default if receiving_ns is None else receiving_ns / RECEIVED_SHARE)
    # Built before it was asked for, but only just: either the hand-over or the receiving came last. Whichever would be
    # closer to the typical one.
    between = seen.known & ~ready & (seen.wait_start > seen.last)
    short = _unlike(waited, receiving_ns or default_receive) < _unlike(latency, handing_ns or default_handover)
    unrecorded = ~seen.known & (seen.last == 0)  # its building was not recorded (replayed, say): ready when asked for
    handover = np.where(asked_early | (between & ~short), latency, np.where(unrecorded, 0.0, np.nan))
    receive = np.where(ready | unrecorded | (between & short), waited, np.nan)
    assumed = []
    if _unknown(receive, seen.measured):
        assumed.append(AssumedCost("receive", default_receive / 1e6))
    elif receiving_ns is None and not unrecorded.any():  # none lay ready for sure: that this was receiving is a guess
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
    """Whether the run was suspended at any moment between each start and its end; ``pauses`` are in order, disjoint."""
    if not pauses:
        return np.zeros(len(starts), dtype=np.bool_)
    since, until = np.array(pauses, dtype=np.float64).T
    first_not_over = np.searchsorted(until, starts, side="right")
    following = np.append(since, np.inf)[first_not_over]
    found: NDArray[np.bool_] = following < ends
    return found


def nearest(known: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The index of the nearest known value at or before each position; of the first known one where there is none."""
    if not known.any():
        return np.arange(len(known))
    positions = np.maximum.accumulate(np.where(known, np.arange(len(known)), -1))
    return np.where(positions < 0, int(np.argmax(known)), positions)


def _around(seen: Seen, before: Int, ahead: int) -> tuple[Array, Array, Array, Array]:
    """Measure the time between two batches of one worker: (after, wake, the upper bounds of both); NaN is unknown.

    A worker whose next batch was already requested shows ``after``; one that waited for a request shows ``wake``.
    ``before``: by batch, the one that its worker made before, or -1. ``ahead``: batches that are on their way.
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
    """How far ``values`` are from ``typical``, as a ratio either way."""
    distance: Array = np.abs(np.log(np.maximum(values, 1.0) / max(typical, 1.0)))
    return distance


def _unknown(values: Array, measured: NDArray[np.bool_]) -> bool:
    """Whether :func:`_filled` takes the default: too few are known of measured steps, whatever warmup showed."""
    return bool(np.count_nonzero(~np.isnan(values) & measured) < HANDOVERS_SEEN_MIN)


def _filled(values: Array, measured: NDArray[np.bool_], default: float, most: Array) -> Array:
    """Replace NaN by the nearest known value of a measured step, or by the default where too few are known.

    A replacement never exceeds ``most``, the time until the next recorded event.
    """
    known = ~np.isnan(values)
    lenders = known & measured
    lent = (
        values[nearest(lenders)] if np.count_nonzero(lenders) >= HANDOVERS_SEEN_MIN else np.full_like(values, default)
    )
    return np.where(known, values, np.minimum(lent, most))
