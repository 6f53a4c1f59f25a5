"""Analyses what torch.profiler recorded of one run: operators, kernels and memory of the profiled steps.

For a device the profiler records the allocator's total after each allocation and release. For a CPU it records only
what is allocated in the window, without shared memory (batches of loader workers): the sizes are then summed up from
the window's start, and earlier allocations do not show.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.explain.probes.operators import (
    Integers,
    ProfiledOperators,
    launched_work,
    profiled_operators,
    read_events,
    together,
)
from harness.study.run_data import TorchProfilerRecord
from harness.study.traces.kineto import CPU, DEVICE_TYPES, PHASE, STAGE, STEP, is_cut

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
    """Return one timeline per process and device with memory events: main first, devices before the CPU.

    ``windows``: of the profiled steps, [start_ns, end_ns, first step, last step] each.
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
        device = DEVICE_TYPES.get(int(kind[rows[0]]), f"device type {kind[rows[0]]}")
        device = device if device == CPU else f"{device} {number[rows[0]]}"
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


Window = tuple[int, int, int, int]  # start_ns, end_ns (CLOCK_MONOTONIC), first step, last step


@dataclass(frozen=True)
class CutProfile:
    """A profile that is not whole, or belongs to no window: left out."""

    steps: int  # that it has marks of


@dataclass(frozen=True)
class LostProfile:
    """Steps that were profiled, with no whole profile of them."""

    first: int
    last: int


@dataclass(frozen=True)
class TorchProfile:
    """One profiled run. Its steps ran under the profiler, so their times compare with each other and nothing else."""

    arm: str
    windows: tuple[Window, ...]  # those whose profiles are whole
    operators: ProfiledOperators
    memory: tuple[MemoryTimeline, ...]
    flops: dict[str, float]  # floating point operations by operator, over all windows; empty where not asked for
    problems: tuple[str, ...]  # of recording and reading, a line each
    gaps: tuple[CutProfile | LostProfile, ...] = ()
    # The device was at kernels and copies that were launched within the windows, over all of these. Others are of the
    # steps before them, whose host ran ahead. None without a device.
    launched_ms: float | None = None

    @property
    def steps(self) -> int:
        return sum(last - first + 1 for _, _, first, last in self.windows)


def torch_profile(
    arm: str, profiles: Sequence[pa.Table], facts: TorchProfilerRecord, problems: Sequence[str] = ()
) -> TorchProfile | None:
    """Return the analysis of a run's profiles; None if nothing was recorded and nothing went wrong."""
    full, windows, gaps = whole_profiles([profile for profile in profiles if len(profile)], facts.windows)
    if not full and not problems and not gaps:
        return None
    profiled_ns = sum(end - start for start, end, _, _ in windows)
    operators = profiled_operators(full, profiled_ns) if full else ProfiledOperators((), (), None)
    memory = tuple(memory_timelines(full, windows)) if full else ()
    flops = {} if gaps else dict(facts.flops)  # of all windows: too many for those that are left
    launched_ms = _launched_ms(full, windows) if operators.device_ms is not None else None
    return TorchProfile(arm, tuple(windows), operators, memory, flops, tuple(problems), tuple(gaps), launched_ms)


def _launched_ms(full: Sequence[pa.Table], windows: Sequence[Window]) -> float | None:
    """Sum up what was launched within ``windows``; None where no launch of it is known."""
    work = launched_work(read_events(full))
    inside = np.zeros(len(work.launched), dtype=np.bool_)
    for since, until, _, _ in windows:
        inside |= (work.launched >= since) & (work.launched < until)
    return float((work.ends - work.starts)[inside].sum()) / 1e6 if inside.any() else None


def whole_profiles(
    profiles: Sequence[pa.Table], windows: Sequence[Window]
) -> tuple[list[pa.Table], list[Window], list[CutProfile | LostProfile]]:
    """Return the profiles and windows that belong together, and a record of each that lacks the other.

    A window's profile has one mark per step and was not cut. Without recorded windows all profiles count.
    """
    import pyarrow.compute as pc

    if not windows:
        return list(profiles), [], []
    kept: list[pa.Table] = []
    found: set[int] = set()
    gaps: list[CutProfile | LostProfile] = []
    ends = [end for _, end, _, _ in windows]
    for profile in profiles:
        if "main" not in pc.unique(profile["role"]).to_pylist():
            kept.append(profile)  # of a worker, which records through all windows
            continue
        of_main = pc.equal(profile["role"], "main")
        marks = profile.filter(pc.and_(of_main, pc.starts_with(profile["name"].cast("string"), STEP)))
        starts = marks["start_ns"].to_pylist()
        places = {bisect_right(ends, start) for start in starts}
        place = places.pop() if len(places) == 1 else len(windows)
        if place < len(windows) and len(starts) == windows[place][3] - windows[place][2] + 1 and not is_cut(profile):
            kept.append(profile)
            found.add(place)
        else:
            gaps.append(CutProfile(len(starts)))
    missing = [window for place, window in enumerate(windows) if place not in found]
    gaps += [LostProfile(first, last) for *_, first, last in missing]
    return kept, [window for place, window in enumerate(windows) if place in found], gaps
