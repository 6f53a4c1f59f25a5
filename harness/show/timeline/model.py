"""Models a timeline independently of file formats: processes, threads, slices, counters and arrows.

All times are nanoseconds of CLOCK_MONOTONIC. Two rules of Perfetto's importer shape this file. It silently drops slices
of a thread that overlap without nesting, so ``nested`` clips them. It binds an arrow to the slice of its thread that
started last, even if that slice has ended, so ``Resolved.place`` looks for a moment at which the right slice is the
last.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from trainer.errors import visible
from trainer.json_types import JsonObject

Edge = Literal["start", "end"]


class Slice(NamedTuple):
    """One activity on one thread, from ``start_ns`` to ``end_ns``."""

    name: str
    start_ns: int
    end_ns: int
    category: str
    args: JsonObject | None = None
    key: Hashable = None  # identifies the slice for arrows; unique within the trace


@dataclass
class Thread:
    """One row of slices: a thread, a stream of a device, or a probe's view of one of these."""

    name: str
    slices: list[Slice] = field(default_factory=list)


@dataclass
class Counter:
    """A value that holds from each of its ``points`` (t_ns, value) until the next."""

    name: str
    unit: str
    points: list[tuple[int, float]] = field(default_factory=list)


@dataclass
class Process:
    """Rows that are shown together, threads in the order of the list. Viewers that sort by index keep that order."""

    name: str
    threads: list[Thread] = field(default_factory=list)
    counters: list[Counter] = field(default_factory=list)

    def thread(self, name: str) -> Thread:
        """Return the thread of that name. It is created at the first call."""
        for thread in self.threads:
            if thread.name == name:
                return thread
        self.threads.append(Thread(name))
        return self.threads[-1]


class Arrow(NamedTuple):
    """An arrow between two slices, by their keys: from that ``edge`` of the sender to the start of the receiver.

    The receiver must not start before the sender does: Perfetto would reverse such an arrow.
    """

    name: str
    sender: Hashable
    receiver: Hashable
    edge: Edge


@dataclass(frozen=True)
class ShownRun:
    """A run of the timeline: which of its steps are shown, and its real process."""

    arm: str
    block: int
    pid: int
    steps: int
    first_step: int | None
    realtime_minus_monotonic_ns: int
    clock_error_ns: Mapping[str, int]  # of each probe that has a clock of its own


@dataclass(frozen=True)
class TimelineFacts:
    """The metadata of a timeline's file."""

    scenario: str = ""
    clock: str = ""  # which it is, in words
    runs: tuple[ShownRun, ...] = ()
    cut: tuple[str, ...] = ()  # what is not shown, a sentence each


@dataclass
class Trace:
    """The whole timeline. ``facts`` go into its metadata."""

    processes: list[Process] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    facts: TimelineFacts = field(default_factory=TimelineFacts)


class Nested(NamedTuple):
    """A slice as it is shown, and the start of the first slice inside it (None: there is none)."""

    slice: Slice
    first_child_ns: int | None


class CounterPoint(NamedTuple):
    """A moment on a thread."""

    pid: int
    tid: int
    t_ns: int


class Bound(NamedTuple):
    """An arrow with its two ends. ``arrow`` names its slices by key."""

    arrow: Arrow
    sender: CounterPoint
    receiver: CounterPoint


@dataclass(frozen=True)
class TimelineRow:
    """A thread with its ids and its slices as they are shown: nested, in order, parents before children."""

    pid: int
    tid: int
    name: str
    slices: list[Nested]


@dataclass(frozen=True)
class Resolved:
    """A trace with all ids assigned, and without anything that an importer would refuse."""

    base_ns: int  # the earliest moment: time 0 of the file
    processes: list[tuple[int, Process]]
    rows: list[TimelineRow]
    arrows: list[Bound]
    facts: TimelineFacts

    @property
    def events(self) -> int:
        """Count the events of the trace in Chrome's format."""
        slices = sum(len(row.slices) for row in self.rows)
        points = sum(len(counter.points) for _, process in self.processes for counter in process.counters)
        return slices + points + 2 * (len(self.arrows) + len(self.processes) + len(self.rows))


def resolve(trace: Trace) -> Resolved:
    """Number processes and threads, nest the slices and bind the arrows. Arrows without both ends are left out.

    The first thread of a process has the process's number, as on Linux. Numbers are unique and ascend in the order of
    the lists: importers without a sort index order threads by number.
    """
    number = 1
    processes, rows, places = [], [], {}
    starts = [point[0] for process in trace.processes for counter in process.counters for point in counter.points[:1]]
    for process in trace.processes:
        pid = number
        counters = [replace(one, name=visible(one.name), unit=visible(one.unit)) for one in process.counters]
        processes.append((pid, replace(process, name=visible(process.name), counters=counters)))
        for thread in process.threads:
            row = TimelineRow(pid, number, visible(thread.name), nested(map(_shown, thread.slices)))
            rows.append(row)
            starts += [row.slices[0].slice.start_ns] if row.slices else []
            places.update({one.slice.key: (row, one) for one in row.slices if one.slice.key is not None})
            number += 1
        number = max(number, pid + 1)
    arrows = []
    for arrow in trace.arrows:
        if arrow.sender not in places or arrow.receiver not in places:
            continue
        sender, receiver = _place(*places[arrow.sender], arrow.edge), _place(*places[arrow.receiver], "start")
        if sender is not None and receiver is not None and sender.t_ns <= receiver.t_ns:
            arrows.append(Bound(arrow, sender, receiver))
    return Resolved(min(starts, default=0), processes, rows, arrows, trace.facts)


def _shown(one: Slice) -> Slice:
    """The slice with names that show as themselves, whatever a profile's file holds."""
    args = one.args
    if args is not None and not all(not isinstance(value, str) or value.isprintable() for value in args.values()):
        args = {key: visible(value) if isinstance(value, str) else value for key, value in args.items()}
        one = one._replace(args=args)
    if one.name.isprintable() and one.category.isprintable():
        return one
    return one._replace(name=visible(one.name), category=visible(one.category))


def _place(row: TimelineRow, one: Nested, edge: Edge) -> CounterPoint | None:
    """Find a moment at which ``one`` is the slice of its thread that started last; None where there is none."""
    since, until = one.slice.start_ns, one.slice.end_ns
    if one.first_child_ns is None:
        return CounterPoint(row.pid, row.tid, since if edge == "start" else until - 1)  # the end itself is outside
    return CounterPoint(row.pid, row.tid, since) if one.first_child_ns > since else None


def nested(slices: Iterable[Slice]) -> list[Nested]:
    """Order the slices of one thread, clip each to the slice around it, and leave out empty ones."""
    result: list[Slice] = []
    first_child: list[int | None] = []
    around: list[int] = []
    for one in sorted(slices, key=lambda one: (one.start_ns, -one.end_ns)):
        while around and result[around[-1]].end_ns <= one.start_ns:
            around.pop()
        end = min(one.end_ns, result[around[-1]].end_ns) if around else one.end_ns
        if end <= one.start_ns:
            continue
        if around and first_child[around[-1]] is None:
            first_child[around[-1]] = one.start_ns
        around.append(len(result))
        result.append(one if end == one.end_ns else one._replace(end_ns=end))
        first_child.append(None)
    return [Nested(*pair) for pair in zip(result, first_child, strict=True)]
