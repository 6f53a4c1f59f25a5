"""Reads py-spy's trace of a window (its format chrometrace): stacks of all sampled threads, at CLOCK_MONOTONIC times.

The file is a list of begin (B) and end (E) events. They are written where a sample differs from the thread's last one:

    ts   pid tid ph name         sample at 20: pid 7, stack (main, work)
    20     7   0  B main                 at 31: pid 7, stack (main, rest)
    20     7   0  B work
    31     7   0  E work         ``tid`` is the pthread id, which a process shares with its forks. So the "last
    31     7   0  B rest         sample" may be another process's: the stack is one per tid, whatever the pid.

Events of one sample share ts, pid and tid, and follow one another. --subprocesses adds a root frame for each process
("process 7:..."), --threads one for the thread ("thread (7): MainThread", with its system id). Both are left out of the
stacks here.

The clocks are aligned by functions whose beginning and end are known on both sides. Function ``..._3`` is in the
sampled stacks exactly while it runs. So each of its two edges lies between two samples, which bounds the difference of
the clocks from both sides:

    CLOCK_MONOTONIC        start |==== mark 3 ====| end
    samples             .     .     x     x     x     .        x: with mark 3 in the stack
                           before  first      last  after
    offset = monotonic - other:  start - first <= offset <= start - before;  end - after <= offset <= end - last

One edge bounds the offset to about a sampling interval. Many edges at random phases bound it to a small part of one. A
sample that was read late gives a wrong interval, so the range that most edges agree on counts: Marzullo's algorithm, as
in NTP.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence, Set
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from harness.study.traces.kineto import open_trace
from trainer.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from harness.study.run_data import PySpyRecord

MARK = "harness_clock_mark_"
_NUMBER = re.compile(rf"{MARK}(\d+)\b")


class FittedClock(NamedTuple):
    """Offset of py-spy's clock, fitted by :func:`align`: CLOCK_MONOTONIC = py-spy's time + ``offset_ns``. Each sampled
    start or end of a clock mark (an edge) bounds the offset from both sides. ``agreeing`` of ``edges`` edges allow
    every offset within ``error_ns`` of it. 9 in 10 of all edges allow one within ``late_ns``: some samples are late.
    """

    offset_ns: int
    error_ns: int
    late_ns: int
    edges: int
    agreeing: int

    @property
    def doubt_ns(self) -> int:
        """Distance (ns) from the offset within which 9 in 10 edges of clock marks allow an offset. Times of single
        samples may be wrong by more.
        """
        return max(self.error_ns, self.late_ns)


def mark_number(frame: str) -> int | None:
    """Return the number of the clock mark (function whose start and end times are known) that ``frame`` shows, else
    None.
    """
    match = _NUMBER.match(frame)
    return int(match[1]) if match else None


def align(samples: Sequence[tuple[int, int | None]], marks: Sequence[tuple[int, int]]) -> FittedClock:
    """Fit the offset of the other clock from sorted ``samples``: (ns, number of the mark in the stack or None).

    ``marks[k]``: start and end of mark k, CLOCK_MONOTONIC. Raises InputError if no mark was sampled.
    """
    intervals = list(_edges(samples, marks))
    if not intervals:
        raise InputError("no clock mark was sampled, so its times are unknown")
    low, high, agreeing = most_agreed(intervals)
    offset = (low + high) // 2
    away = sorted(max(lowest - offset, offset - highest, 0) for lowest, highest in intervals)
    late = away[math.ceil(0.9 * len(away)) - 1]
    return FittedClock(offset, (high - low + 1) // 2, late, len(intervals), agreeing)


def most_agreed(intervals: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """Return (low, high, count): the range that the most closed ``intervals`` contain, and how many contain it. If
    several ranges are in equally many intervals, the lowest range.
    """
    edges = sorted([(low, 0) for low, _ in intervals] + [(high, 1) for _, high in intervals])
    depth = most = 0
    best = (0, 0)
    for (offset, closing), (next_offset, _) in zip(edges, [*edges[1:], (edges[-1][0], 1)], strict=True):
        depth += -1 if closing else 1
        if depth > most:
            most, best = depth, (offset, next_offset)
    return *best, most


def _edges(samples: Sequence[tuple[int, int | None]], marks: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    places_of_mark: dict[int, list[int]] = {}
    for place, (_, mark) in enumerate(samples):
        if mark is not None:
            places_of_mark.setdefault(mark, []).append(place)
    edges = []
    for mark, places in places_of_mark.items():
        if mark >= len(marks):
            raise InputError(f"clock mark {mark} was sampled, but only {len(marks)} are noted")
        start, end = marks[mark]
        first, last = places[0], places[-1]
        if first > 0:
            edges.append((start - samples[first][0], start - samples[first - 1][0]))
        if last + 1 < len(samples):
            edges.append((end - samples[last + 1][0], end - samples[last][0]))
    return edges


_PROCESS = re.compile(r"process \d+:")
_LIBRARY = re.compile(r".*/(?:site-packages|dist-packages|lib/python\d\.\d+)/")
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_THREAD = re.compile(r"thread \((0x[0-9A-Fa-f]+|\d+)\)(?:: (.*))?")
# (pid, pthread id) -> (system id, or the pthread id; name in Python)
Threads = dict[tuple[int, int], tuple[int, str]]
# The file is read as a whole and takes four times its size in memory. A trainer and two workers at 100 Hz write 5 MB/s.
MAX_TRACE_BYTES_READ = 512_000_000


class FrameArgs(TypedDict):
    """Source file and line of a stack frame, in py-spy's file."""

    filename: str
    line: int | None


class StackEvent(TypedDict):
    """Event of py-spy's file, checked only to be an object; :func:`decode` raises KeyError for a missing key."""

    ph: str
    ts: int
    pid: int
    tid: int
    name: str
    args: FrameArgs


class MemoryChange(NamedTuple):
    """Change of a thread's call stack (not of memory). ``stack``: from this sample on, outermost frame first; None at
    the end of the trace.
    """

    time_us: int  # since py-spy started
    pid: int
    tid: int
    stack: tuple[str, ...] | None


def read_events(source: Path | bytes) -> list[StackEvent]:
    """Return py-spy's events, gzipped or not. Raises InputError if they are truncated, too large or malformed."""
    try:
        with open_trace(source) as file:
            content = file.read()
        if len(content) > MAX_TRACE_BYTES_READ:
            raise InputError(f"{len(content) / 1e9:.1f} GB are too many to read: fewer seconds, or a lower rate_hz")
        events = json.loads(content)
    except FileNotFoundError as error:
        raise InputError("no such file") from error
    except InputError:
        raise
    except (OSError, EOFError, zlib.error, ValueError) as error:  # truncated, or never a trace
        raise InputError(f"not readable, perhaps cut short ({error})") from error
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise InputError("expected a list of events, as py-spy's chrometrace is")
    return events


def decode(events: Sequence[StackEvent], roots: Sequence[str]) -> tuple[list[MemoryChange], Threads]:
    """Return the changes of all threads' stacks in order of time, and {(pid, pthread id): (system id, name)}.

    ``roots``: folders that :func:`shorten` cuts off paths. Raises InputError if begin and end events do not match.
    """
    threads: Threads = {}
    open_frames: dict[int, list[tuple[str, str | None]]] = {}
    changes: list[MemoryChange] = []
    texts: dict[tuple[str, str, int | None], str | None] = {}
    key: tuple[int, int, int] | None = None

    def finish() -> None:
        if key is not None:
            time_us, pid, tid = key
            frames = open_frames[tid]
            stack = tuple(text for _, text in frames if text is not None) if frames else None
            changes.append(MemoryChange(time_us, pid, tid, stack))

    for event in events:
        if event["ph"] == "M":
            continue  # Newer versions of py-spy write thread names here. This module takes them from --threads.
        if key != (event_key := (event["ts"], event["pid"], event["tid"])):
            finish()
            key = event_key
        frames = open_frames.setdefault(event["tid"], [])
        if event["ph"] == "B":
            frame = event["name"], event["args"]["filename"], event["args"]["line"]
            if frame not in texts:
                texts[frame] = _text(*frame, roots)
            frames.append((event["name"], texts[frame]))
            if not frame[1] and (thread := _THREAD.fullmatch(event["name"])) is not None:
                threads[event["pid"], event["tid"]] = int(thread[1], 0), thread[2] or ""
        elif event["ph"] != "E" or not frames or frames.pop()[0] != event["name"]:
            raise InputError(f"event {event['ph']} of {event['name']!r} at {event['ts']} us does not fit its stack")
    finish()
    if any(open_frames.values()):
        raise InputError("ends with frames still open")
    return changes, threads


def _text(name: str, filename: str, line: int | None, roots: Sequence[str]) -> str | None:
    """Format a frame as ``function (file:line)``; None for a frame that names a process or thread."""
    if not filename:
        return None if _PROCESS.match(name) or _THREAD.fullmatch(name) else name
    short = shorten(filename, roots)
    if _ADDRESS.fullmatch(name):
        name = "unnamed"  # A native library without symbols: one function for all of its addresses.
    return f"{name} ({short}:{line})" if line else f"{name} ({short})"


def shorten(filename: str, roots: Sequence[str] = ()) -> str:
    """Return the part of a path below the first matching folder of ``roots``, else below the folder of Python's library
    or packages. For any other shared library (.so) only its name; for any other path the whole path.
    """
    for root in roots:
        if filename.startswith(root.rstrip("/") + "/"):
            return filename[len(root.rstrip("/")) + 1 :]
    short = _LIBRARY.sub("", filename)
    return Path(short).name if short.startswith("/") and ".so" in short else short


# The threads of one sample are written microseconds after one another. Reading the next sample alone takes longer.
_APART_US = 250
MOST_HZ = 1e6  # more than py-spy supports


def read_stacks(source: Path | bytes, facts: PySpyRecord, roles: Mapping[int, str]) -> pa.Table:
    """Return the stack samples of a window as a table, sorted by thread and time.

    ``source``: py-spy's trace (gzipped or not). ``facts``: how it was recorded. ``roles``: "main" or "loader-K" by
    process id. Columns:

    - time_ns: CLOCK_MONOTONIC;
    - duration_ns: time until the next sample;
    - pid, tid: ids of the system;
    - role: for the main thread of a process in ``roles`` its role, else "other";
    - stack: frames "function (file:line)", outermost first.

    The table's metadata have the accuracy of the times: :func:`clock_of`. Raises InputError if the source is no such
    trace, or if ``facts`` do not fit it.
    """
    import pyarrow as pa

    prefix = f"{source}: " if isinstance(source, Path) else "py-spy's trace: "
    try:
        start_ns, end_ns = _window(facts)
        changes, threads = decode(read_events(source), [str(root) for root in facts.roots])
        skipped = set(facts.metronome)
        rows = _samples(changes, skipped, held=facts.gil)
        main = {thread for thread, (number, name) in threads.items() if thread[0] == number or name == "MainThread"}
        clock = _clock([row for row, _ in rows if row.pid == facts.pid and (row.pid, row.tid) in main], facts)
    except InputError as error:
        raise InputError(f"{prefix}{error}") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InputError(f"{prefix}not a trace of py-spy ({type(error).__name__}: {error})") from error
    columns: dict[str, list[Any]] = {name: [] for name in ("time_ns", "duration_ns", "pid", "tid", "role", "stack")}
    for row, until_us in rows:
        time_ns = row.time_us * 1000 + clock.offset_ns
        if row.pid in skipped or not start_ns <= time_ns < end_ns:
            continue
        is_main = (row.pid, row.tid) in main
        role = roles.get(row.pid, "other") if is_main else "other"
        tid = row.pid if is_main else threads.get((row.pid, row.tid), (row.tid, ""))[0]
        cells = (time_ns, (until_us - row.time_us) * 1000, row.pid, tid, role, row.stack)
        for column, cell in zip(columns.values(), cells, strict=True):
            column.append(cell)
    if rows and not columns["time_ns"]:
        raise InputError(f"{prefix}none of its samples is within the window in probes.json, or its marks are wrong")
    kinds = [pa.int64(), pa.int64(), pa.int64(), pa.int64(), pa.string(), pa.list_(pa.string())]
    metadata = {name: str(value) for name, value in clock._asdict().items()}
    return pa.table(columns, schema=pa.schema(list(zip(columns, kinds, strict=True)), metadata))


def clock_of(samples: pa.Table) -> FittedClock:
    """Return the fitted clock, and so the accuracy of times, of a table that :func:`read_stacks` returned."""
    metadata = samples.schema.metadata
    return FittedClock(*(int(metadata[name.encode()]) for name in FittedClock._fields))


def _samples(changes: Sequence[MemoryChange], metronome: Set[int], *, held: bool) -> list[tuple[MemoryChange, int]]:
    """Return (stack, time in us until which it holds) for each thread and sample, grouped by thread, in order of time.

    ``metronome``: process ids, as in :func:`_begins`. A thread that did not change in a sample has the same stack
    again; with ``held`` (py-spy's --gil) it has no row.
    """
    end_us = changes[-1].time_us if changes else 0
    shown = [change for change in changes if change.stack is not None]  # The other changes mark the end of the trace.
    times: list[int] = []  # time when each sample began to be written
    by_thread: dict[tuple[int, int], list[tuple[int, MemoryChange]]] = {}
    for change, begins in zip(shown, _begins(shown, metronome), strict=True):
        if begins:
            times.append(change.time_us)
        by_thread.setdefault((change.pid, change.tid), []).append((len(times) - 1, change))
    rows: list[tuple[MemoryChange, int]] = []
    for samples in by_thread.values():
        thread_changes: list[MemoryChange] = []
        ends: list[int] = []
        for (number, change), (following, _) in zip(samples, [*samples[1:], (len(times), None)], strict=True):
            unchanged = [change._replace(time_us=time) for time in times[number + 1 : following]]
            thread_changes += [change] if held else [change, *unchanged]
            ends.append(times[number + 1] if number + 1 < len(times) else end_us)
        if not held:
            ends = [row.time_us for row in thread_changes[1:]] + [end_us]
        rows += [(row, max(end, row.time_us)) for row, end in zip(thread_changes, ends, strict=True)]
    return rows


def _begins(changes: Sequence[MemoryChange], metronome: Set[int]) -> list[bool]:
    """Return for each stack change True if it is the first one of its sample. ``metronome``: ids of processes whose
    threads change in every sample. If one of these threads changes again, the sample began after the longest gap since
    the metronome's last change. If ``metronome`` is empty: where a thread appears again, or after a gap over
    :data:`_APART_US`.
    """
    begins = [not place for place in range(len(changes))]
    waits = [0, *(after.time_us - before.time_us for before, after in pairwise(changes))]
    threads: set[tuple[int, int]] = set()
    last = 0
    for place, change in enumerate(changes):
        thread = change.pid, change.tid
        if metronome and change.pid in metronome:
            if thread in threads:
                begins[max(range(last + 1, place + 1), key=waits.__getitem__)] = True
                threads.clear()
            last = place
            threads.add(thread)
        elif not metronome:
            if thread in threads or waits[place] > _APART_US:
                begins[place] = True
                threads.clear()
            threads.add(thread)
    return begins


def _window(facts: PySpyRecord) -> tuple[int, int]:
    """Return start and end of the window (ns). Raises InputError if window, rate or clock marks are impossible."""
    start_ns, end_ns = facts.window
    if not 0 <= start_ns < end_ns < 1 << 63:
        raise InputError(f"its window in probes.json, from {start_ns} to {end_ns} ns, is impossible")
    if not 1 <= facts.rate_hz <= MOST_HZ:
        raise InputError(f"its rate_hz in probes.json is impossible: {facts.rate_hz}")
    marks = [(start, end) for start, end in facts.marks]
    times = [time for pair in sorted([*marks, (start_ns, end_ns)]) for time in pair]
    if marks != sorted(marks) or times != sorted(times):
        raise InputError("its clock marks in probes.json are out of order, or within its window")
    return start_ns, end_ns


def _clock(main: Sequence[MemoryChange], facts: PySpyRecord) -> FittedClock:
    observed = [
        (
            row.time_us * 1000,
            next((mark for frame in row.stack or () if (mark := mark_number(frame)) is not None), None),
        )
        for row in main
    ]
    return align(observed, [(start, end) for start, end in facts.marks])
