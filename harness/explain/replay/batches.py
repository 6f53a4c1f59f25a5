"""Reads the cost of every batch, for its builder and its receiver, from the loader's spans and the host's waits.

A DataLoader worker builds its batches one after the other; the request for batch i + workers x prefetch (fewer where
some workers have no items, see ``harness.explain.makers``) leaves when the main thread receives batch i, and batches
are delivered in order (torch/utils/data/dataloader.py, _process_data):

    request b                                                    received b
        |--wake--|--read--|--tokenize--|--pack--|--after--| (free for its next batch)
                                                |----hand-over----|

The main thread's fetch ends at max(its start + receive, end of the last stage + hand-over), and then a sampler chooses
the items of the next request (draw). Batches of several workers
come through one pipe: those that came before the one whose turn it is are unpacked within the same fetch (``unpack``),
and their own fetches then last that much less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain.makers import Makers, round_robin
from harness.explain.policy import MOSTLY_CPU_SHARE
from harness.explain.replay.handover import (
    DATALOADER,
    AssumedCost,
    Seen,
    Transport,
    arrivals_recorded,
    crosses,
    handed_over,
    nearest,
)

Array = NDArray[np.float64]
BUILT = ("read", "tokenize", "pack")  # stages that leave spans, in the order they run


class StageRow(NamedTuple):
    """One stage span of one batch; ``cpu_ns`` None where it was not measured."""

    name: str
    start_ns: int
    end_ns: int
    cpu_ns: int | None


class Unpacking(NamedTuple):
    """When the main thread had the message of a batch, and when it had unpacked it.

    ``awaited``: it waited for the message, which came just then; else that had come earlier.
    """

    arrived_ns: int
    unpacked_ns: int
    awaited: bool


class FetchWait(NamedTuple):
    """One wait of the main thread for its next batch; ``measured``: in a step that counts."""

    start_ns: int
    end_ns: int
    measured: bool


@dataclass(frozen=True)
class RecordedBatches:
    """Durations in ns, all of shape (batches,), in order of receipt; what was not observed is imputed by a median."""

    stage: Mapping[str, Array]  # read, tokenize, pack
    cpu: Mapping[str, Array]  # CPU time of the builder's thread in each, at most the stage itself
    inner: Array  # between the stages of a batch
    after: Array  # after the last stage, before the worker could begin another batch
    wake: Array  # from a request to the first stage of an idle worker
    handover: Array  # from the last stage until received, where it was waited for; inline: 0
    most_handover: Array  # the longest that the recording allows for it; infinite where it tells nothing
    draw: Array  # until a sampler had chosen items in the main thread, for a loader worker; inline it is part of read
    receive: Array  # fetch of a batch that lay ready; inline: what no stage covers of the fetch
    unpack: Array  # the part of it that an earlier fetch may do, while it waits for another worker's batch
    usable: NDArray[np.bool_]  # in a measured step, and built without being stopped in between
    ends_ns: Array  # when the last stage ended, CLOCK_MONOTONIC; NaN where not recorded
    began_ns: float  # when the first batch was begun; infinite where not recorded
    worked_ns: tuple[float | None, ...]  # by pause: how far each builder got meanwhile; None where that does not show
    assumed: tuple[AssumedCost, ...] = ()  # costs that were never observed
    arrivals: bool = False  # whether it was recorded when batches had arrived and were unpacked
    makers: Makers = field(default_factory=lambda: round_robin(0, 0))  # worker that made each batch; none if inline

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
    """Reconstruct the loader from its ``stages`` by batch number; ``pauses``: when the loop was suspended.

    ``makers``: of as many batches as there are ``fetches``. ``unpackings``: by the number of the batch, where recorded.
    ``drawn``: time of a sampler within each fetch, in ns; None: none was recorded.
    """
    count = len(fetches)
    rows = [[row for row in stages.get(number, ()) if row.name in BUILT] for number in range(count)]
    first = np.array([min((row.start_ns for row in group), default=0) for group in rows], dtype=np.float64)
    last = np.array([max((row.end_ns for row in group), default=0) for group in rows], dtype=np.float64)
    known = np.array([bool(group) for group in rows])
    stage = {name: _sums(rows, name, _wall_ns) for name in BUILT}
    cpu_of = {name: np.minimum(_sums(rows, name, _cpu_ns), stage[name]) for name in BUILT}
    wait_start = np.array([fetch.start_ns for fetch in fetches], dtype=np.float64)
    wait_end = np.array([fetch.end_ns for fetch in fetches], dtype=np.float64)
    built = stage["read"] + stage["tokenize"] + stage["pack"]
    clean = ~(known & crosses(first, last, pauses))
    measured = np.array([fetch.measured for fetch in fetches])
    arrivals = False
    drawn = np.zeros(count) if drawn is None or not makers.workers else np.minimum(drawn, wait_end - wait_start)
    if makers.workers:
        arrived, unpacked, awaited = _columns(unpackings, count)
        waits = (wait_start, wait_end, measured, pauses)
        seen = Seen(first, last, known & clean, *waits, arrived, unpacked, awaited == 1, drawn)
        parts, assumed = handed_over(seen, makers, prefetch, tensors, declared_transfer_ms * 1e6, transport)
        arrivals = arrivals_recorded(seen)
        if transport.own_connections:
            parts["unpack"] = np.zeros(count)
        inner = np.maximum(0, np.where(known, last - first, 0) - built)
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
        ends_ns=np.where(known, last, np.nan),
        began_ns=float(first[known].min()) if known.any() else np.inf,
        worked_ns=tuple(_worked(first, last, needed, pause) for pause in pauses),
        assumed=assumed,
        arrivals=arrivals,
        makers=makers,
        **parts,
    )


def _columns(unpackings: Mapping[int, Unpacking], count: int) -> Array:
    """The unpacking of each of ``count`` batches, (3, batches); NaN where that is not known."""
    found = np.full((3, count), np.nan)
    for number, one in unpackings.items():
        if 0 <= number < count:
            found[:, number] = one
    return found


def _mended(
    wall: Array, cpu: Array, clean: NDArray[np.bool_], has_cpu: NDArray[np.bool_], source: NDArray[np.int64]
) -> Array:
    """Replace durations of batches whose builder was suspended half way, by CPU time where a stage mostly computes.

    A stage that mostly sleeps, or whose CPU time was not recorded (not ``has_cpu``), takes the duration of the nearest
    batch before it that was not suspended.
    """
    share = cpu[clean].sum() / wall[clean].sum() if wall[clean].sum() else 0.0
    if share < MOSTLY_CPU_SHARE:
        return wall[source]
    return np.where(clean, wall, np.where(has_cpu, cpu / share, wall[source]))


def _worked(first: Array, last: Array, needed: Array, pause: tuple[int, int]) -> float | None:
    """How much work the builders did during ``pause``: what their batches needed, less the time before and after it.

    A run is suspended (SIGSTOP) a moment after its loop pauses, and resumed a moment before the loop continues. A sleep
    ends while its process is suspended. Batches that were unfinished at the end of the pause show this work.
    """
    since, until = pause
    found = [
        min(max(0.0, needed[b] - max(0.0, since - first[b]) - (last[b] - until)), float(until - since))
        for b in np.flatnonzero((first < until) & (last > until))
    ]
    return float(np.mean(found)) if found else None


def _wall_ns(row: StageRow) -> int:
    return row.end_ns - row.start_ns


def _cpu_ns(row: StageRow) -> int:
    return _wall_ns(row) if row.cpu_ns is None else row.cpu_ns


def _sums(rows: Sequence[Sequence[StageRow]], name: str, value: Callable[[StageRow], int]) -> Array:
    return np.array([sum(value(row) for row in group if row.name == name) for group in rows], dtype=np.float64)
