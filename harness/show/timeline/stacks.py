"""Puts py-spy's samples on the timeline: the stacks of each thread as nested slices.

A slice does not measure one call. It begins and ends with a sample, and several calls between two samples look like
one. Frames at the root of every sample of a thread (the interpreter's start, our own frames) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from harness.show.timeline.model import Process, Slice

if TYPE_CHECKING:
    import pyarrow as pa

CATEGORY = "sample"
GAP_NS = 1_000_000  # py-spy reads threads one after the other: samples of one moment lie within this
Stack = tuple[int, int, list[str]]  # start and end in nanoseconds, frames from the outermost on
_LINE = re.compile(r":\d+\)$")
_COLUMNS = ("pid", "tid", "role", "name", "start_ns", "duration_ns")


def slices(samples: pa.Table, ranges: Sequence[tuple[int, int]]) -> pa.Table:
    """Build slices of ``samples`` (``traces.py_spy.read_stacks``) within ``ranges``: a row per uninterrupted frame."""
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
    """Remove the root frames that all stacks share, except for the innermost of them."""
    frames = [[_LINE.sub(")", frame) for frame in stack] for _, _, stack in stacks]
    levels = zip(*frames, strict=False)  # as deep as the shallowest stack
    shared = sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, levels))
    for (since, until, _), kept in zip(stacks, frames, strict=True):
        yield since, until, kept[max(shared - 1, 0) :]


def _merged(stacks: Iterable[Stack]) -> list[tuple[str, int, int]]:
    """Return (function (file), start, end) of every frame while it stays at one depth of consecutive stacks."""
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
    """Put the rows (of :func:`slices`) into ``processes`` by role; ``roles`` are known roles by process id."""
    for pid, tid, role, name, start, duration in zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True):
        place = roles.get(pid, f"process {pid}") if role == "other" else role
        process = processes.setdefault(place, Process(f"{run}: {place}"))
        thread = process.thread("py-spy, main thread" if role != "other" else f"py-spy, thread {tid}")
        thread.slices.append(Slice(name, start, start + duration, CATEGORY))
