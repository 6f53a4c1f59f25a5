"""Reads py-spy's trace of a window: the stacks of all sampled threads, at CLOCK_MONOTONIC times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harness.study.traces.chrometrace import MemoryChange, decode, read_events
from harness.study.traces.clock_marks import FittedClock, align, mark_number
from trainer.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

# The threads of one sample are written microseconds after one another; reading the next sample alone takes longer.
_APART_US = 250
MOST_HZ = 1e6  # more than py-spy can


class StackRecording(Protocol):
    """How a trace was recorded; ``harness.study.probes_json.PySpyRecord`` is one."""

    @property
    def rate_hz(self) -> float: ...

    @property
    def gil(self) -> bool: ...

    @property
    def pid(self) -> int: ...

    @property
    def metronome(self) -> Sequence[int]: ...

    @property
    def marks(self) -> Sequence[tuple[int, int]]: ...

    @property
    def window(self) -> tuple[int, int]: ...

    @property
    def roots(self) -> Sequence[str]: ...


def read_stacks(source: Path | bytes, facts: StackRecording, roles: Mapping[int, str]) -> pa.Table:
    """Read the samples of a window, by thread and in order of time.

    ``source`` is a trace (gzipped or not), ``facts`` how it was recorded, ``roles`` names processes by
    id: "main", "loader-K". Columns: time_ns (CLOCK_MONOTONIC), duration_ns (until the next sample), pid, tid (the
    system's), role (of the main thread of a process in ``roles``, else "other"), stack (frames "function (file:line)",
    outermost first). The metadata hold how exact the times are: :func:`clock_of`. Raises InputError where the source is
    no such trace, or where ``facts`` do not fit it.
    """
    import pyarrow as pa

    where = f"{source}: " if isinstance(source, Path) else "py-spy's trace: "
    try:
        start_ns, end_ns = _window(facts)
        changes, threads = decode(read_events(source), [str(root) for root in facts.roots])
        skipped = set(facts.metronome)
        rows = _samples(changes, skipped, held=facts.gil)
        main = {thread for thread, (number, name) in threads.items() if thread[0] == number or name == "MainThread"}
        clock = _clock([row for row, _ in rows if row.pid == facts.pid and (row.pid, row.tid) in main], facts)
    except InputError as error:
        raise InputError(f"{where}{error}") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InputError(f"{where}not a trace of py-spy ({type(error).__name__}: {error})") from error
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
        raise InputError(f"{where}none of its samples is within the window in probes.json, or its marks are wrong")
    kinds = [pa.int64(), pa.int64(), pa.int64(), pa.int64(), pa.string(), pa.list_(pa.string())]
    metadata = {name: str(value) for name, value in clock._asdict().items()}
    return pa.table(columns, schema=pa.schema(list(zip(columns, kinds, strict=True)), metadata))


def clock_of(samples: pa.Table) -> FittedClock:
    """Return how exact the times of :func:`read_stacks`' table are."""
    metadata = samples.schema.metadata
    return FittedClock(*(int(metadata[name.encode()]) for name in FittedClock._fields))


def _samples(changes: Sequence[MemoryChange], metronome: Set[int], *, held: bool) -> list[tuple[MemoryChange, int]]:
    """Return one row per thread and sample, with the time of the thread's next sample; by thread, in order of time.

    A sample is written where any thread changed; the other threads keep their stacks. Under --gil (``held``) a thread
    without a change may not have held the lock, so it gets no row.
    """
    end_us = changes[-1].time_us if changes else 0
    shown = [change for change in changes if change.stack is not None]  # the others mark the end of the trace
    times: list[int] = []  # when each sample began to be written
    by_thread: dict[tuple[int, int], list[tuple[int, MemoryChange]]] = {}
    for change, begins in zip(shown, _begins(shown, metronome), strict=True):
        if begins:
            times.append(change.time_us)
        by_thread.setdefault((change.pid, change.tid), []).append((len(times) - 1, change))
    rows: list[tuple[MemoryChange, int]] = []
    for found in by_thread.values():
        own: list[MemoryChange] = []
        ends: list[int] = []
        for (number, change), (following, _) in zip(found, [*found[1:], (len(times), None)], strict=True):
            unchanged = [change._replace(time_us=time) for time in times[number + 1 : following]]
            own += [change] if held else [change, *unchanged]
            ends.append(times[number + 1] if number + 1 < len(times) else end_us)
        if not held:
            ends = [row.time_us for row in own[1:]] + [end_us]
        rows += [(row, max(end, row.time_us)) for row, end in zip(own, ends, strict=True)]
    return rows


def _begins(changes: Sequence[MemoryChange], metronome: Set[int]) -> list[bool]:
    """Decide for each change whether it is the first of its sample.

    The metronome's processes appear once in every sample. Between two of their changes the next sample begins where the
    gap between changes is longest. Without a metronome a sample begins where a thread appears again, or after a gap.
    """
    begins = [not place for place in range(len(changes))]
    waits = [0, *(after.time_us - before.time_us for before, after in pairwise(changes))]
    met: set[tuple[int, int]] = set()
    last = 0
    for place, change in enumerate(changes):
        thread = change.pid, change.tid
        if metronome and change.pid in metronome:
            if thread in met:
                begins[max(range(last + 1, place + 1), key=waits.__getitem__)] = True
                met.clear()
            last = place
            met.add(thread)
        elif not metronome:
            if thread in met or waits[place] > _APART_US:
                begins[place] = True
                met.clear()
            met.add(thread)
    return begins


def _window(facts: StackRecording) -> tuple[int, int]:
    """The window, after a check of what else a clock is set by: what is out of order puts samples anywhere."""
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


def _clock(main: Sequence[MemoryChange], facts: StackRecording) -> FittedClock:
    seen = [
        (
            row.time_us * 1000,
            next((mark for frame in row.stack or () if (mark := mark_number(frame)) is not None), None),
        )
        for row in main
    ]
    return align(seen, [(start, end) for start, end in facts.marks])
