"""Analyses what torch.profiler recorded of one run: operators, kernels and memory of the profiled steps.

Memory: for a device the allocator's total after each event; for a CPU the sum of sizes allocated since the window's
start, without shared memory (batches of loader workers).

Self time of an operator: without the operators and runtime calls directly inside it on its thread. Device time: the
kernels that it launched, wherever and whenever they ran:

    host     |------ aten::linear ------------|        linear: self 3, device 0
                |- aten::addmm ----|                   addmm:  self 4, device 9
                    |launch|                           launch: self 2
    device                      |----- gemm -----|
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.study.run_data import TorchProfilerRecord
from harness.study.traces.kineto import CPU, DEVICE_TYPES, DEVICE_WORK, PHASE, RUNTIME_CALLS, STAGE, STEP, is_cut

if TYPE_CHECKING:
    import pyarrow as pa

Integers = NDArray[np.int64]


def enclosing(start: Integers, end: Integers, thread: Integers) -> tuple[Integers, Integers]:
    """Return for each event the index of the event around it on its thread (-1: none), and its end in nanoseconds.

    An event that outlasts the one around it is cut. Of events that start together the longest is the outer one, then
    the earlier in order. An event without duration is inside nothing and around nothing.

        thread 1   |--- a ---------------|  |-- d --|      a -1, b a, c b, d -1
                     |- b -------|
                       |- c -|
    """
    parents = np.full(len(start), -1, dtype=np.int64)
    ends = end.copy()
    solid = np.flatnonzero(end > start)
    if not solid.size:
        return parents, ends
    # Put threads one after the other on a common axis, so that one pass does for all of them.
    _, rank = np.unique(thread[solid], return_inverse=True)
    first = start[solid].min()
    offset = rank * (end[solid].max() - first + 1) - first
    order = np.lexsort((-end[solid], start[solid] + offset))
    index, shift = solid[order], offset[order]
    begins, stops = start[index] + shift, end[index] + shift
    while True:
        around = _innermost(begins, stops)
        limit = np.where(around >= 0, stops[around], stops)
        # Cut each event to the one around it that is still open. Repeat until no event outlasts its parent.
        late = (stops > limit) & (limit > begins)
        if not late.any():
            break
        stops = np.where(late, limit, stops)
    inside = around >= 0
    parents[index[inside]] = index[around[inside]]
    ends[index] = stops - shift
    return parents, ends


def _innermost(begins: Integers, stops: Integers) -> Integers:
    """Return for each event the index of the event around it, or -1. Events are in order of start.

    Around an event is the last earlier one that began with one open (begun, not ended) event fewer."""
    depth = np.arange(len(begins)) - np.searchsorted(np.sort(stops), begins, side="right")  # number of open events
    around = np.full(len(begins), -1, dtype=np.int64)
    by_depth = np.argsort(depth, kind="stable")  # stable: events of one depth stay in order
    levels = np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1)
    for outer, inner in pairwise(levels):
        around[inner] = outer[np.searchsorted(outer, inner) - 1]
    return around


def self_times(start: Integers, end: Integers, thread: Integers) -> tuple[Integers, Integers]:
    """Return each event's self time in ns, without the events directly inside, and the event around it (-1: none)."""
    parents, ends = enclosing(start, end, thread)
    lasted = ends - start
    inside = parents >= 0
    nested = np.bincount(parents[inside], weights=lasted[inside], minlength=len(start))  # exact below 2^53 ns
    return lasted - nested.astype(np.int64), parents


def together(*columns: Integers) -> Integers:
    """Return one number per distinct combination of the columns' values, counted from 0."""
    codes = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, ranks = np.unique(column, return_inverse=True)
        _, codes = np.unique(codes * max(len(values), 1) + ranks, return_inverse=True)
    return codes


# Host events by torch's categories. Python frames (with stack: true) are left out. They would take the self time around
# every operator, and py-spy samples Python.
KINDS = {"cpu_op": "operator", "user_annotation": "mark", **dict.fromkeys(RUNTIME_CALLS, "runtime call")}
_IDS = ("correlation", "external_id")


@dataclass(frozen=True)
class Operator:
    """Calls of one operator in one process, host time in ms.

    ``calls`` and ``total_ms`` leave out calls directly inside a call of the same operator."""

    name: str
    kind: str  # a value of KINDS
    calls: int
    self_ms: float
    total_ms: float  # including everything inside
    device_ms: float | None  # time of the kernels that it launched itself; None without a device


@dataclass(frozen=True)
class KernelUse:
    """All executions of one kernel or copy on the device; times in ms."""

    name: str
    calls: int
    total_ms: float
    launched_by: str  # operator that launched most of its time; "" if unknown


@dataclass(frozen=True)
class RoleOperators:
    """Operators of one process of the profile: main or loader-K."""

    role: str
    span_ms: float  # base of shares: the profiled steps, or for a worker from its first to its last event
    operators: tuple[Operator, ...]  # longest self time first


@dataclass(frozen=True)
class ProfiledOperators:
    roles: tuple[RoleOperators, ...]  # main first
    kernels: tuple[KernelUse, ...]  # longest time first
    device_ms: float | None  # summed over kernels and copies; None without a device


@dataclass(frozen=True)
class Events:
    """All events of a profile as numpy columns, one row per event; times in ns.

    ``category``, ``name`` and ``role`` are indices into ``categories``, ``names`` and ``roles``."""

    category: Integers
    categories: list[str]
    name: Integers
    names: list[str]
    role: Integers
    roles: list[str]
    thread: Integers
    start: Integers
    end: Integers
    correlation: Integers  # -1: null, also in ``external``
    external: Integers

    def of(self, categories: tuple[str, ...]) -> Integers:
        """Return the row numbers of the events of these categories."""
        codes = [code for code, word in enumerate(self.categories) if word in categories]
        return np.flatnonzero(np.isin(self.category, codes))


class LaunchedWork(NamedTuple):
    """Kernels and copies of a profile, all (works,) in nanoseconds."""

    launched: Integers  # start of the launch; -1: unknown
    starts: Integers
    ends: Integers


def profiled_operators(profiles: Sequence[pa.Table], profiled_ns: int) -> ProfiledOperators:
    """Return the operators and kernels in ``profiles``. ``profiled_ns``: time of the profiled steps; 0: unknown."""
    events = read_events(profiles)
    host, device = events.of(tuple(KINDS)), events.of(DEVICE_WORK)
    lasted = events.end - events.start
    self_ns, parents = self_times(events.start[host], events.end[host], events.thread[host])
    launchers = _launchers(events, host, device, parents)
    on_device = np.bincount(launchers[launchers >= 0], lasted[device][launchers >= 0], minlength=len(host))
    roles = []
    for code in sorted(np.unique(events.role[host]), key=lambda code: _main_first(events.roles[code])):
        name = events.roles[code]
        members = np.flatnonzero(events.role[host] == code)
        rows = host[members]
        extent = int(events.end[rows].max() - events.start[rows].min())
        again = (parents[members] >= 0) & (events.name[rows] == events.name[host[parents[members]]])
        operators = _operators(events, rows, again, self_ns[members], on_device[members] if device.size else None)
        span_ns = profiled_ns if name == "main" and profiled_ns else extent
        roles.append(RoleOperators(name, span_ns / 1e6, operators))
    total_ms = float(lasted[device].sum()) / 1e6 if device.size else None
    return ProfiledOperators(tuple(roles), _kernels(events, host, device, launchers), total_ms)


def read_events(profiles: Sequence[pa.Table]) -> Events:
    """Return all events of ``profiles``, with one number per thread. Ids are made unique across profiles."""
    import pyarrow as pa

    table = pa.concat_tables(profiles).unify_dictionaries()

    def texts(name: str) -> tuple[Integers, list[str]]:
        column = table.column(name).combine_chunks()
        return column.indices.to_numpy().astype(np.int64), column.dictionary.to_pylist()

    def numbers(name: str) -> Integers:
        values: Integers = table.column(name).fill_null(-1).to_numpy()
        return values

    file = np.repeat(np.arange(len(profiles)), [len(profile) for profile in profiles]) << 40
    correlation, external = (np.where((ids := numbers(name)) < 0, -1, ids + file) for name in _IDS)
    start = numbers("start_ns")
    thread = together(numbers("pid"), numbers("tid"))
    category, categories = texts("category")
    name, names = texts("name")
    role, roles = texts("role")
    end = start + numbers("duration_ns")
    return Events(category, categories, name, names, role, roles, thread, start, end, correlation, external)


def _launchers(events: Events, host: Integers, device: Integers, parents: Integers) -> Integers:
    """Return the position in ``host`` of the operator that launched each event of ``device``; -1 if unknown. Found by
    the operator's id, else by the runtime call with the same correlation id. ``parents``: position of the event around
    each host event."""
    operators = events.of(("cpu_op",))
    place = np.full(len(events.start), -1, dtype=np.int64)
    place[host] = np.arange(len(host))
    launcher = _match(events.external[device], events.external[operators], place[operators])
    calls = events.of(RUNTIME_CALLS)
    call = _match(events.correlation[device], events.correlation[calls], place[calls])
    around = np.where(call >= 0, parents[call], -1) if len(parents) else call
    return np.where(launcher >= 0, launcher, around)


def launched_work(events: Events) -> LaunchedWork:
    """Return the kernels and copies of a profile, in order of start, with their launches. The pause between two pieces
    is no wait if the second was launched before the first ended: it then starts at that end."""
    device = events.of(DEVICE_WORK)
    device = device[np.argsort(events.start[device], kind="stable")]
    calls = events.of(RUNTIME_CALLS)
    calls = calls[np.argsort(events.start[calls], kind="stable")]  # The first of several calls with one id counts.
    wanted, keys = events.correlation[device], events.correlation[calls]
    launched, reached = (_match(wanted, keys, moments[calls]) for moments in (events.start, events.end))
    starts, ends = events.start[device], events.end[device]
    before = np.append(starts[:1], np.maximum.accumulate(ends)[:-1])
    queued = (launched >= 0) & (reached <= before)
    return LaunchedWork(launched, np.where(queued, np.minimum(starts, before), starts), ends)


def _match(wanted: Integers, keys: Integers, values: Integers) -> Integers:
    """Return for each of ``wanted`` the element of ``values`` with the equal key.

    -1 if no key is equal, or the wanted number is negative.
    """
    if not keys.size:
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    position = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    index = order[position]
    return np.where((wanted >= 0) & (keys[index] == wanted), values[index], -1)


def _operators(
    events: Events, rows: Integers, again: NDArray[np.bool_], own: Integers, on_device: Integers | None
) -> tuple[Operator, ...]:
    step_names = [code for code, name in enumerate(events.names) if name.startswith(STEP)]
    names = np.where(np.isin(events.name[rows], step_names), -1, events.name[rows])  # every step has another name
    group = together(names, events.category[rows])
    _, sample = np.unique(group, return_index=True)  # one row of each group
    calls = np.bincount(group, weights=~again)
    lasted = np.where(again, 0, events.end[rows] - events.start[rows])
    own_ms, total_ms = (np.bincount(group, weights=values) / 1e6 for values in (own, lasted))
    device_ms = None if on_device is None else np.bincount(group, weights=on_device) / 1e6
    operators = [
        Operator(
            name="step" if name < 0 else events.names[name],
            kind=KINDS[events.categories[category]],
            calls=int(calls[code]),
            self_ms=float(own_ms[code]),
            total_ms=float(total_ms[code]),
            device_ms=None if device_ms is None else float(device_ms[code]),
        )
        for code, (name, category) in enumerate(zip(names[sample], events.category[rows[sample]], strict=True))
    ]
    return tuple(sorted(operators, key=lambda operator: (-operator.self_ms, operator.name)))


def _kernels(events: Events, host: Integers, device: Integers, launchers: Integers) -> tuple[KernelUse, ...]:
    lasted = (events.end - events.start)[device]
    names, group = np.unique(events.name[device], return_inverse=True)
    launcher = np.where(launchers >= 0, events.name[host][launchers] if len(host) else -1, -1)
    pair = together(group, launcher)
    _, sample = np.unique(pair, return_index=True)
    spent = np.bincount(pair, weights=lasted)
    # The operator with the longest time comes last, so that it stays.
    most = {int(group[row]): int(launcher[row]) for row in sample[np.argsort(spent, kind="stable")]}
    calls, total = np.bincount(group), np.bincount(group, weights=lasted)
    kernels = [
        KernelUse(
            events.names[name],
            int(calls[code]),
            float(total[code]) / 1e6,
            "" if most[code] < 0 else events.names[most[code]],
        )
        for code, name in enumerate(names)
    ]
    return tuple(sorted(kernels, key=lambda kernel: (-kernel.total_ms, kernel.name)))


def _main_first(role: str) -> tuple[bool, int, str]:
    return role != "main", len(role), role


@dataclass(frozen=True)
class MemoryTimeline:
    """Allocated memory in bytes of one process on one device over time; times in ns (CLOCK_MONOTONIC)."""

    role: str
    device: str  # for example "CPU" or "CUDA 0"
    time_ns: Integers
    allocated_bytes: Integers  # total after the event at that time
    steps_ns: tuple[tuple[int, int, int], ...]  # (step, start, end) of each profiled step
    peak_bytes: int
    peak_ns: int
    peak_step: int | None  # None outside the profiled steps, and for a worker
    peak_phase: str | None  # phase or stage during which the peak occurred


def memory_timelines(profiles: Sequence[pa.Table], windows: Sequence[Sequence[int]] = ()) -> list[MemoryTimeline]:
    """Return a timeline per process and device with memory events: main first, devices before the CPU.

    ``windows``: [start_ns, end_ns, first step, last step] of each profiled window."""
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
    timelines = []
    for code in range(group.max() + 1):
        rows = np.flatnonzero(group == code)
        rows = rows[np.argsort(time[rows], kind="stable")]
        name = roles.dictionary[int(role[rows[0]])].as_py()
        steps, spans = _marks(table, name, windows)
        device = DEVICE_TYPES.get(int(kind[rows[0]]), f"device type {kind[rows[0]]}")
        device = device if device == CPU else f"{device} {number[rows[0]]}"
        allocated = _sums(size[rows], file[rows]) if device == CPU else total[rows]
        timelines.append(_timeline(name, device, time[rows], allocated, steps, spans))
    return sorted(
        timelines, key=lambda line: (line.role != "main", len(line.role), line.role, line.device == CPU, line.device)
    )


def _sums(size: Integers, file: Integers) -> Integers:
    """Return inclusive running sums of ``size`` (bytes), separately for each file.

    ``file``: number of each row's profile."""
    sums = np.cumsum(size)
    _, first, place = np.unique(file, return_index=True, return_inverse=True)
    before: Integers = (sums[first] - size[first])[place]
    return sums - before


Steps = tuple[tuple[int, int, int], ...]
Spans = list[tuple[int, int, str]]


def _timeline(role: str, device: str, time: Integers, total: Integers, steps: Steps, spans: Spans) -> MemoryTimeline:
    peak = int(np.argmax(total))
    peak_ns = int(time[peak])
    step = next((step for step, start, end in steps if start <= peak_ns < end), None)
    around = [(start, name) for start, end, name in spans if start <= peak_ns < end]
    phase = max(around)[1] if around else None
    return MemoryTimeline(role, device, time, total, steps, int(total[peak]), peak_ns, step, phase)


def _marks(table: pa.Table, role: str, windows: Sequence[Sequence[int]]) -> tuple[Steps, Spans]:
    """Return one process's profiled steps (none for a worker), and its phases and stages, from marks in its profile."""
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
        # torch numbers the profiler's steps from its own start. They have the same order as our steps.
        inside = [
            (start, stop) for start, stop, name in rows if name.startswith(STEP) and begin <= stop and start < end
        ]
        steps += [(first + place, *span) for place, span in enumerate(inside[: last - first + 1])]
    spans = [
        (start, end, name.removeprefix(PHASE).removeprefix(STAGE))
        for start, end, name in rows
        if name.startswith((PHASE, STAGE))
    ]
    return tuple(steps), spans


Window = tuple[int, int, int, int]  # start_ns, end_ns (CLOCK_MONOTONIC), first step, last step


@dataclass(frozen=True)
class CutProfile:
    """A profile that is incomplete or belongs to no window, so it is not analysed."""

    steps: int  # number of steps that it has marks of


@dataclass(frozen=True)
class LostProfile:
    """Profiled steps (``first`` to ``last``) without a complete profile."""

    first: int
    last: int


@dataclass(frozen=True)
class TorchProfile:
    """Analysis of a run under torch.profiler, which slows steps: its times only compare with each other."""

    arm: str
    windows: tuple[Window, ...]  # windows with whole profiles
    operators: ProfiledOperators
    memory: tuple[MemoryTimeline, ...]
    flops: dict[str, float]  # floating point operations by operator, over all windows; empty if not requested
    problems: tuple[str, ...]  # problems of recording and reading, one line each
    gaps: tuple[CutProfile | LostProfile, ...] = ()
    # Device time of the kernels and copies launched within the windows. Other device work in the windows belongs to the
    # steps before, because the host runs ahead. None without a device.
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
    flops = {} if gaps else dict(facts.flops)  # They cover all windows, so they are too many for the remaining ones.
    launched_ms = _launched_ms(full, windows) if operators.device_ms is not None else None
    return TorchProfile(arm, tuple(windows), operators, memory, flops, tuple(problems), tuple(gaps), launched_ms)


def _launched_ms(full: Sequence[pa.Table], windows: Sequence[Window]) -> float | None:
    """Return the device time in ms of the work launched within ``windows``; None if no launch is known."""
    work = launched_work(read_events(full))
    inside = np.zeros(len(work.launched), dtype=np.bool_)
    for since, until, _, _ in windows:
        inside |= (work.launched >= since) & (work.launched < until)
    return float((work.ends - work.starts)[inside].sum()) / 1e6 if inside.any() else None


def whole_profiles(
    profiles: Sequence[pa.Table], windows: Sequence[Window]
) -> tuple[list[pa.Table], list[Window], list[CutProfile | LostProfile]]:
    """Return the complete profiles, the windows they belong to, and the gaps: cut profiles, windows without a profile.

    A profile is complete if it has a mark of each step of its window. Profiles of loader workers are always kept.
    Without ``windows`` all are kept."""
    import pyarrow.compute as pc

    if not windows:
        return list(profiles), [], []
    kept: list[pa.Table] = []
    matched: set[int] = set()
    gaps: list[CutProfile | LostProfile] = []
    ends = [end for _, end, _, _ in windows]
    for profile in profiles:
        if "main" not in pc.unique(profile["role"]).to_pylist():
            kept.append(profile)  # a worker records through all windows
            continue
        of_main = pc.equal(profile["role"], "main")
        marks = profile.filter(pc.and_(of_main, pc.starts_with(profile["name"].cast("string"), STEP)))
        starts = marks["start_ns"].to_pylist()
        places = {bisect_right(ends, start) for start in starts}
        place = places.pop() if len(places) == 1 else len(windows)
        if place < len(windows) and len(starts) == windows[place][3] - windows[place][2] + 1 and not is_cut(profile):
            kept.append(profile)
            matched.add(place)
        else:
            gaps.append(CutProfile(len(starts)))
    missing = [window for place, window in enumerate(windows) if place not in matched]
    gaps += [LostProfile(first, last) for *_, first, last in missing]
    return kept, [window for place, window in enumerate(windows) if place in matched], gaps
