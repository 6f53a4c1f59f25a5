"""Builds allocated bytes over time from a profile's memory events, per process and device, and finds the peak.

For a device the profiler records the allocator's total after each allocation and release. For a CPU it records only
what is allocated in the window, and its totals leave out shared memory (batches of loader workers): the sizes are then
summed up from the window's start, and earlier allocations do not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.explain.probes.nesting import Integers, together
from harness.study.traces.names import CPU, DEVICE_TYPES, PHASE, STAGE, STEP

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class MemoryTimeline:
    """One process's memory on one device. Times in CLOCK_MONOTONIC nanoseconds."""

    role: str
    device: str  # CPU, CUDA 0
    time_ns: Integers
    allocated_bytes: Integers  # after the event at that time
    steps_ns: tuple[tuple[int, int, int], ...]  # (step, start, end), of those profiled
    peak_bytes: int
    peak_ns: int
    peak_step: int | None  # None outside the profiled steps, and in a worker
    peak_phase: str | None  # phase or stage that was under way


def memory_timelines(profiles: Sequence[pa.Table], windows: Sequence[Sequence[int]] = ()) -> list[MemoryTimeline]:
    """One timeline per process and device with memory events: main first, devices before the CPU.

    ``profiles``: the files of one run as :func:`harness.study.traces.kineto.read_profile` gives them. ``windows``:
    of the profiled steps, [start_ns, end_ns, first step, last step] each.
    """
    import pyarrow as pa

    table = pa.concat_tables(profiles).unify_dictionaries()
    with_bytes = table.column("bytes").is_valid().to_numpy()
    if not with_bytes.any():
        return []
    events = table.filter(pa.array(with_bytes))
    file = np.repeat(np.arange(len(profiles)), [len(profile) for profile in profiles])[with_bytes]
    roles = events.column("role").combine_chunks()
    kind, number, time, size, total = (
        events.column(name).fill_null(-1).to_numpy()
        for name in ("device_type", "device_id", "start_ns", "bytes", "total_allocated_bytes")
    )
    role = roles.indices.to_numpy()
    group = together(role, kind, number)
    found = []
    for code in range(group.max() + 1):
        rows = np.flatnonzero(group == code)
        rows = rows[np.argsort(time[rows], kind="stable")]
        name = roles.dictionary[int(role[rows[0]])].as_py()
        steps, spans = _marks(table, name, windows)
        device = _device_name(int(kind[rows[0]]), int(number[rows[0]]))
        allocated = _sums(size[rows], file[rows]) if device == CPU else total[rows]
        found.append(_timeline(name, device, time[rows], allocated, steps, spans))
    return sorted(found, key=lambda one: (one.role != "main", len(one.role), one.role, one.device == CPU, one.device))


def _sums(size: Integers, file: Integers) -> Integers:
    """Running sums of ``size``, each file's from 0."""
    sums = np.cumsum(size)
    _, first, place = np.unique(file, return_index=True, return_inverse=True)
    before: Integers = (sums[first] - size[first])[place]
    return sums - before


Steps = tuple[tuple[int, int, int], ...]
Spans = list[tuple[int, int, str]]


def _timeline(role: str, device: str, time: Integers, total: Integers, steps: Steps, spans: Spans) -> MemoryTimeline:
    at = int(np.argmax(total))
    peak_ns = int(time[at])
    step = next((step for step, start, end in steps if start <= peak_ns < end), None)
    around = [(start, name) for start, end, name in spans if start <= peak_ns < end]
    phase = max(around)[1] if around else None
    return MemoryTimeline(role, device, time, total, steps, int(total[at]), peak_ns, step, phase)


def _marks(table: pa.Table, role: str, windows: Sequence[Sequence[int]]) -> tuple[Steps, Spans]:
    """The profiled steps and the phases and stages of one process, from the marks in its profile."""
    import pyarrow.compute as pc

    marks = table.filter(
        pc.and_(pc.equal(table.column("category"), "user_annotation"), pc.equal(table.column("role"), role))
    )
    rows = sorted(
        (start, start + duration, name)
        for start, duration, name in zip(
            *(marks.column(name).to_pylist() for name in ("start_ns", "duration_ns", "name")), strict=True
        )
    )
    steps = []
    for begin, end, first, last in windows if role == "main" else ():
        # torch counts the profiler's steps from its own start; in order they are ours.
        inside = [
            (start, stop) for start, stop, name in rows if name.startswith(STEP) and begin <= stop and start < end
        ]
        steps += [(first + place, *one) for place, one in enumerate(inside[: last - first + 1])]
    spans = [
        (start, end, name.removeprefix(PHASE).removeprefix(STAGE))
        for start, end, name in rows
        if name.startswith((PHASE, STAGE))
    ]
    return tuple(steps), spans


def _device_name(kind: int, number: int) -> str:
    name = DEVICE_TYPES.get(kind, f"device type {kind}")
    return name if name == CPU else f"{name} {number}"
