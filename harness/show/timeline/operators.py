"""Puts profiles on the timeline: torch.profiler's operators, kernels and memory, and py-spy's samples.

They have rows beside the ledger's: events of two clocks that differ by a microsecond would not nest. A slice of samples
may cover several calls. Frames at the root of every sample of a thread (the interpreter's start) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.explain.probes.torch_profile import memory_timelines
from harness.show.policy import SAMPLE_GAP_NS
from harness.show.timeline.model import FILE, Arrow, Counter, Process, Slice
from harness.study.traces.kineto import DEVICE_WORK, RUNTIME_CALLS

if TYPE_CHECKING:
    import pyarrow as pa

ON_HOST = ("cpu_op", "user_annotation", *RUNTIME_CALLS, "python_function")
ANNOTATIONS = "gpu_user_annotation"  # spans of kernels: they overlap, so they have a row beside the stream's
SHOWN = (*ON_HOST, *DEVICE_WORK, ANNOTATIONS)


def shown(table: pa.Table) -> pa.Table:
    """Return the rows that are shown as slices: those of a category in :data:`SHOWN` with a duration above 0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    listed = pc.is_in(table["category"].cast(pa.string()), value_set=pa.array(SHOWN))
    return table.filter(pc.and_(listed, pc.greater(table["duration_ns"], 0)))


def ranked(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return durations (ns; a launch has its longest kernel's) and numbers of events of the rows of :func:`shown`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ranks = table["duration_ns"].to_numpy().copy()
    costs = np.ones(len(table), dtype=np.int64)
    texts = table["category"].cast(pa.string())
    calls = table["correlation"].fill_null(0).to_numpy().astype(np.int64)
    launches, started = (
        pc.is_in(texts, value_set=pa.array(list(kinds))).to_numpy(zero_copy_only=False) & (calls != 0)
        for kinds in (RUNTIME_CALLS, DEVICE_WORK)
    )
    if FILE in table.column_names:  # each profile counts its calls from the start
        calls += table[FILE].to_numpy() * (calls.max(initial=0) + 1)
    call_ids, group = np.unique(calls[started], return_inverse=True)
    longest = np.zeros(len(call_ids) + 1, dtype=ranks.dtype)  # the last entry is for launches that started nothing
    np.maximum.at(longest, group, ranks[started])
    index = np.searchsorted(call_ids, calls[launches])
    is_there = np.append(call_ids, 0)[index] == calls[launches]
    ranks[launches] = np.maximum(ranks[launches], longest[np.where(is_there, index, len(call_ids))])
    costs[started & np.isin(calls, calls[launches])] += 2
    return ranks, costs


def has_kernels(table: pa.Table) -> bool:
    """Return True if any row ran on a separate device, such as a GPU."""
    return "device" in table["role"].unique().to_pylist()


def overlapping(table: pa.Table, ranges: Iterable[tuple[int, int]]) -> pa.Table:
    """Return the rows of ``table`` (columns start_ns and duration_ns) that overlap any of ``ranges``."""
    import pyarrow as pa

    starts = table["start_ns"].to_numpy()
    ends = starts + table["duration_ns"].fill_null(0).to_numpy()
    in_range = np.zeros(len(table), dtype=bool)
    for since, until in ranges:
        in_range |= (ends > since) & (starts < until)
    return table.filter(pa.array(in_range))


def add_operators(
    table: pa.Table, run: str, processes: Mapping[str, Process], main_threads: Mapping[str, int]
) -> list[Arrow]:
    """Add the rows of :func:`shown` to ``processes`` by role; return the arrows from launches to kernels."""
    columns = ("role", "category", "name", "tid", "start_ns", "duration_ns", "device_id", "input_shapes")
    launched: set[tuple[int | None, int]] = set()
    kernels: list[tuple[int | None, int]] = []
    threads: dict[tuple[Any, ...], list[Slice]] = {}
    calls = zip(_values(table, FILE), _values(table, "correlation"), strict=True)
    rows = zip(*(_values(table, name) for name in columns), calls, strict=True)
    for role, category, name, tid, start, duration, device, shapes, call in rows:
        key: tuple[Any, ...] | None = None
        if not call[1]:
            pass
        elif category in RUNTIME_CALLS and call not in launched:
            key = (run, "launch", call)
            launched.add(call)
        elif category in DEVICE_WORK:
            key = (run, "kernel", len(kernels))
            kernels.append(call)
        args = {"shapes": shapes} if shapes else None
        track = (role, category == ANNOTATIONS, device if category not in ON_HOST else None, tid)
        threads.setdefault(track, []).append(Slice(name, start, start + duration, category, args, key))
    for track in sorted(
        threads, key=lambda entry: (str(entry[0]), entry[3] != main_threads.get(entry[0]), *map(str, entry[1:]))
    ):
        role, annotations, device, tid = track
        if role not in processes:
            continue
        title = f"torch, thread {tid}" if device is None else f"torch, device {device} stream {tid}"
        if device is None and tid == main_threads.get(role):
            title = "torch, main thread"
        processes[role].thread(f"{title}, annotations" if annotations else title).slices += threads[track]
    return [
        Arrow("launch", (run, "launch", call), (run, "kernel", index), "start")
        for index, call in enumerate(kernels)
        if call in launched
    ]


def memory(profiles: Sequence[pa.Table], ranges: Sequence[tuple[int, int]]) -> list[tuple[str, Counter]]:
    """Return (role, counter of the bytes that torch allocated on a device), with points in ``ranges`` (ns) only."""
    counters = []
    for timeline in memory_timelines(profiles):
        series = {
            time: float(total)
            for time, total in zip(timeline.time_ns.tolist(), timeline.allocated_bytes.tolist(), strict=True)
            if any(since <= time < until for since, until in ranges)
        }
        if series:
            counters.append(
                (timeline.role, Counter(f"torch memory {timeline.device}", "bytes", sorted(series.items())))
            )
    return counters


def _values(table: pa.Table, name: str) -> list[Any]:
    """Return a column as Python objects (faster than ``to_pylist``), all None if it is missing."""
    import pyarrow as pa

    column = table[name] if name in table.column_names else pa.nulls(len(table))
    if column.null_count == len(table):
        return [None] * len(table)
    if column.null_count == 0 and pa.types.is_integer(column.type):
        numbers: list[Any] = column.to_numpy().tolist()
        return numbers
    if column.null_count == 0 and pa.types.is_dictionary(column.type):
        decoded: list[Any] = []
        for chunk in column.chunks:
            texts = chunk.dictionary.to_pylist()
            decoded += [texts[index] for index in chunk.indices.to_numpy().tolist()]
        return decoded
    values: list[Any] = column.to_pylist()
    return values


SAMPLE = "sample"
Stack = tuple[int, int, list[str]]  # start and end in nanoseconds, frames from the outermost on
_LINE = re.compile(r":\d+\)$")
_SAMPLE_COLUMNS = ("pid", "tid", "role", "name", "start_ns", "duration_ns")


def sample_slices(samples: pa.Table, ranges: Sequence[tuple[int, int]]) -> pa.Table:
    """Return slices of ``samples`` in ``ranges``: one per frame while consecutive samples of a thread contain it."""
    import pyarrow as pa

    by_thread: dict[tuple[int, int, str], list[Stack]] = {}
    names = ("pid", "tid", "role", "time_ns", "duration_ns", "stack")
    for pid, tid, role, since, duration, stack in zip(*(samples[name].to_pylist() for name in names), strict=True):
        if any(since < until and since + duration > begin for begin, until in ranges):
            by_thread.setdefault((pid, tid, role), []).append((since, since + duration, stack))
    rows: list[tuple[Any, ...]] = []
    for thread, stacks in sorted(by_thread.items()):
        rows += [(*thread, name, start, end - start) for name, start, end in _merged(_without_roots(sorted(stacks)))]
    kinds = (pa.int64(), pa.int64(), pa.string(), pa.string(), pa.int64(), pa.int64())
    columns = {name: [row[index] for row in rows] for index, name in enumerate(_SAMPLE_COLUMNS)}
    return pa.table(columns, schema=pa.schema(list(zip(_SAMPLE_COLUMNS, kinds, strict=True))))


def _without_roots(stacks: Sequence[Stack]) -> Iterator[Stack]:
    """Yield the stacks without the outermost frames that all of them share. The innermost of these frames is kept."""
    frames = [[_LINE.sub(")", frame) for frame in stack] for _, _, stack in stacks]
    levels = zip(*frames, strict=False)  # zip() ends at the shallowest stack
    shared = sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, levels))
    for (since, until, _), frames_kept in zip(stacks, frames, strict=True):
        yield since, until, frames_kept[max(shared - 1, 0) :]


def _merged(stacks: Iterable[Stack]) -> list[tuple[str, int, int]]:
    """Return (function (file), start_ns, end_ns) of each frame while consecutive stacks contain it at one depth."""
    pieces: list[tuple[str, int, int]] = []
    open_frames: list[tuple[str, int]] = []
    last_ns = 0
    for since, until, frames in stacks:
        depth = 0
        if since - last_ns <= SAMPLE_GAP_NS:
            while depth < min(len(frames), len(open_frames)) and frames[depth] == open_frames[depth][0]:
                depth += 1
        end = last_ns if since - last_ns > SAMPLE_GAP_NS else since
        pieces += [(name, start, end) for name, start in open_frames[depth:]]
        open_frames = open_frames[:depth] + [(name, since) for name in frames[depth:]]
        last_ns = max(until, since)
    pieces += [(name, start, last_ns) for name, start in open_frames]
    return [piece for piece in pieces if piece[2] > piece[1]]


def add_stacks(table: pa.Table, run: str, processes: dict[str, Process], roles: Mapping[int, str]) -> None:
    """Add the rows of :func:`sample_slices` by role; role "other" goes to the process ``roles[process id]``."""
    for pid, tid, role, name, start, duration in zip(
        *(table[name].to_pylist() for name in _SAMPLE_COLUMNS), strict=True
    ):
        owner = roles.get(pid, f"process {pid}") if role == "other" else role
        process = processes.setdefault(owner, Process(f"{run}: {owner}"))
        thread = process.thread("py-spy, main thread" if role != "other" else f"py-spy, thread {tid}")
        thread.slices.append(Slice(name, start, start + duration, SAMPLE))
