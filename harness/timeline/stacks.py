"""What py-spy saw, on the timeline: the stacks of each thread as nested slices, each as long as samples show it.

A slice is no measurement of one call: it begins and ends with a sample, and calls between two samples look like one.
Frames that every sample of a thread begins with (the interpreter's start, our own) say nothing and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from harness.timeline.model import Process, Slice

if TYPE_CHECKING:
    import pyarrow as pa

CATEGORY = "sample"
GAP_NS = 1_000_000  # threads are read one after the other: samples of one moment lie within this
Stack = tuple[int, int, list[str]]  # start and end in nanoseconds, frames from the outermost on
_LINE = re.compile(r":\d+\)$")
_COLUMNS = ("pid", "tid", "role", "name", "start_ns", "duration_ns")


def slices(samples: pa.Table, ranges: Sequence[tuple[int, int]]) -> pa.Table:
    """Slices of ``samples`` (``traces.py_spy.read_stacks``) within ``ranges``: a row for each frame that stayed."""
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
    columns = {name: [row[place] for row in rows] for place, name in enumerate(_COLUMNS)}
    return pa.table(columns, schema=pa.schema(list(zip(_COLUMNS, kinds, strict=True))))


def _without_roots(stacks: Sequence[Stack]) -> Iterator[Stack]:
    """The stacks without the frames that all of them begin with, but for the innermost of these."""
    frames = [[_LINE.sub(")", frame) for frame in stack] for _, _, stack in stacks]
    levels = zip(*frames, strict=False)  # as deep as the shallowest stack
    shared = sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, levels))
    for (since, until, _), kept in zip(stacks, frames, strict=True):
        yield since, until, kept[max(shared - 1, 0) :]


def _merged(stacks: Iterable[Stack]) -> list[tuple[str, int, int]]:
    """(function (file), start, end) of every frame for as long as it stays in one place of consecutive stacks."""
    found: list[tuple[str, int, int]] = []
    around: list[tuple[str, int]] = []
    last_ns = 0
    for since, until, frames in stacks:
        same = 0
        if since - last_ns <= GAP_NS:
            while same < min(len(frames), len(around)) and frames[same] == around[same][0]:
                same += 1
        end = last_ns if since - last_ns > GAP_NS else since
        found += [(name, start, end) for name, start in around[same:]]
        around = around[:same] + [(name, since) for name in frames[same:]]
        last_ns = max(until, since)
    found += [(name, start, last_ns) for name, start in around]
    return [one for one in found if one[2] > one[1]]


def add_stacks(table: pa.Table, run: str, processes: dict[str, Process], roles: Mapping[int, str]) -> None:
    """Put the rows (of :func:`slices`) into the ``processes`` by role; ``roles``: by process id, where known."""
    for pid, tid, role, name, start, duration in zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True):
        place = roles.get(pid, f"process {pid}") if role == "other" else role
        process = processes.setdefault(place, Process(f"{run}: {place}"))
        thread = process.thread("py-spy, main thread" if role != "other" else f"py-spy, thread {tid}")
        thread.slices.append(Slice(name, start, start + duration, CATEGORY))
