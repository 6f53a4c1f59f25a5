"""What it costs to get a batch from a worker to the main thread, as far as the recording shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# Where no hand-over was seen: it takes so long per tensor whatever its size, nearly all of it in the main thread, which
# gets each tensor's file descriptor from the worker and maps it; so a batch that lies ready costs as much to receive.
DEFAULT_TENSOR_MS = 0.9
# A batch whose last stage ended at least so many typical hand-overs before it was asked for lay ready.
_READY_HANDOVERS = 2.0
_FEW = 3  # fewer observations than this say nothing about what is typical


@dataclass(frozen=True)
class Seen:
    """Of every batch, (batches,), CLOCK_MONOTONIC ns: its builder's stages, and the main thread's wait for it."""

    first: Array  # start of its first stage
    last: Array  # end of its last stage
    known: NDArray[np.bool_]  # both of them, and the builder was not stopped in between
    wait_start: Array
    wait_end: Array
    measured: NDArray[np.bool_]  # received in a step that counts
    pauses: Sequence[tuple[int, int]]  # when the run stood still


def handed_over(seen: Seen, workers: int, prefetch: int, tensors: int) -> tuple[dict[str, Array], tuple[str, ...]]:
    """after, wake, handover and receive (see ``batches``) of batches of ``tensors``, and what had to be assumed.

    What was not observed of a batch is taken from the nearest one before it of which it was; no value is NaN.
    """
    after, wake, most_after, most_wake = _around(seen, workers, prefetch)
    default = tensors * DEFAULT_TENSOR_MS * 1e6
    waited = seen.wait_end - seen.wait_start
    latency = np.maximum(0.0, seen.wait_end - seen.last)
    # Of the first ones the workers had only just started.
    asked_early = seen.known & (seen.wait_start <= seen.last) & (np.arange(len(waited)) >= workers * prefetch)
    typical = _typical(latency, asked_early & seen.measured, default)
    ready = seen.known & (seen.last + _READY_HANDOVERS * typical <= seen.wait_start)
    # Built before it was asked for, but only just: what came last, the hand-over or the receiving, was seen.
    between = seen.known & ~ready & (seen.wait_start > seen.last)
    short = waited <= _typical(waited, ready & seen.measured, default)
    untold = ~seen.known & (seen.last == 0)  # nobody told when it was built (replayed, say): ready when asked for
    handover = np.where(asked_early | (between & ~short), latency, np.where(untold, 0.0, np.nan))
    receive = np.where(ready | untold | (between & short), waited, np.nan)
    assumed = []
    for values, text in (
        (receive, "no batch lay ready: receiving one is taken to cost"),
        (handover, "no batch was waited for: its hand-over is taken to last"),
    ):
        if np.count_nonzero(~np.isnan(values)) < _FEW:
            assumed.append(f"{text} {default / 1e6:.1f} ms")
    return {
        "after": _filled(after, seen.measured, 0.0, most_after),
        "wake": _filled(wake, seen.measured, 0.0, most_wake),
        "handover": _filled(handover, seen.measured, default, np.where(seen.known, latency, np.inf)),
        "receive": _filled(receive, seen.measured, default, waited),
    }, tuple(assumed)


def crosses(start: float, end: float, pauses: Sequence[tuple[int, int]]) -> bool:
    """Whether the run stood still at any moment from ``start`` to ``end``."""
    return any(start < pause_end and end > pause_start for pause_start, pause_end in pauses)


def nearest(known: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each position itself where ``known``, else the nearest one before it that is, else the first that is."""
    if not known.any():
        return np.arange(len(known))
    positions = np.maximum.accumulate(np.where(known, np.arange(len(known)), -1))
    return np.where(positions < 0, int(np.argmax(known)), positions)


def _around(seen: Seen, workers: int, prefetch: int) -> tuple[Array, Array, Array, Array]:
    """What passed between two batches of one worker, NaN where it does not show, and the most it can have been.

    ``after`` the earlier one shows if the later had been asked for by then; ``wake`` of the later one, if it had not.
    """
    count, ahead = len(seen.first), workers * prefetch
    after, wake = np.full(count, np.nan), np.full(count, np.nan)
    most_after, most_wake = np.full(count, np.inf), np.full(count, np.inf)
    for b in range(workers, count):
        previous = b - workers
        if not (seen.known[b] and seen.known[previous]):
            continue
        request = seen.wait_end[b - ahead] if b >= ahead else -np.inf
        free = seen.last[previous]
        if crosses(max(free, request), seen.first[b], seen.pauses):
            continue
        most_after[previous] = max(0.0, seen.first[b] - free)
        most_wake[b] = max(0.0, seen.first[b] - request)
        if request <= free:
            after[previous] = most_after[previous]
        else:
            wake[b] = most_wake[b]
    return after, wake, most_after, most_wake


def _typical(values: Array, chosen: NDArray[np.bool_], default: float) -> float:
    return float(np.median(values[chosen])) if np.count_nonzero(chosen) >= _FEW else default


def _filled(values: Array, measured: NDArray[np.bool_], default: float, most: Array) -> Array:
    """``values`` without NaN: from the nearest known one of a measured step, or the default where too few are known.

    What is filled in never exceeds ``most``: the next thing happened that soon.
    """
    known = ~np.isnan(values)
    lenders = known & measured
    lent = values[nearest(lenders)] if np.count_nonzero(lenders) >= _FEW else np.full_like(values, default)
    return np.where(known, values, np.minimum(lent, most))
