"""Describes each step of the main thread as a sequence of events, which a replay can run with other durations.

    host      time on the host, outside of any wait (``name`` is the phase)
    fetch     requests the next batch
    launch    queues work on the device (``name`` is the kernel), which takes ``duration`` there
    sync      waits until the device has done the queued work (except the last ``back`` pieces), plus ``duration``

Steps with the same sequence form a class. A synchronous device has no launches: its work is time on the host. Work that
waited for its launches (``bounds``) takes the device time after the last one. Each :data:`Reading` has its program.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.explain.policy import CLOCK_TOLERANCE_NS

Array = NDArray[np.float64]
BOUNDARY = "boundary"  # phase of a wait of the harness
EventKind = Literal["host", "fetch", "launch", "sync"]
COPY = "read"  # name of the work that copies a step's values to the host
OTHER = "other"  # host time outside of every phase


class Phase(NamedTuple):
    """One recorded phase of the main thread; ``cpu_ns`` is None if it was not measured."""

    name: str
    start_ns: int
    end_ns: int
    cpu_ns: int | None


class Launch(NamedTuple):
    """Device work that the host queued in [start_ns, end_ns]."""

    name: str
    start_ns: int
    end_ns: int
    busy_ns: int  # time that the device worked on it
    done_ns: int  # time at which it was done
    waited: bool = False  # the device waited for launches: ``busy_ns`` covers the time after the last one
    blocked: bool = False  # launching only waited for the device


class Sync(NamedTuple):
    """A recorded blocking call of the host: it waits for the device."""

    start_ns: int
    end_ns: int
    full: bool  # ends when the queue has room
    late: bool = False  # waits at most until the copy of the previous step's values
    boundary: bool = False  # call of the harness where measured steps begin or end


@dataclass(frozen=True)
class Event:
    """One event in the program of a class of steps; arrays (steps of the class,) in ns, 0 where the kind has none."""

    kind: EventKind
    name: str
    phase: str
    back: int
    duration: Array  # time on the host or device; sync: time after the end of the awaited work
    cpu: Array  # host: CPU time of the main thread
    queueing: Array  # launch: minimum time from the start of queueing to the end on the device

    @cached_property
    def mean_cpu(self) -> float:
        return float(self.cpu.mean())

    def of_members(self, members: NDArray[np.int64]) -> Event:
        """Return the event with only these steps of its class; ``members``: their indices."""
        columns = (self.duration[members], self.cpu[members], self.queueing[members])
        return Event(self.kind, self.name, self.phase, self.back, *columns)


@dataclass(frozen=True)
class StepClass:
    """Steps of a run with the same sequence of events. ``steps`` (members,): their rows, in execution order."""

    events: tuple[Event, ...]
    steps: NDArray[np.int64]


Row = TypeVar("Row", Phase, Launch, Sync)


class _Moment(NamedTuple):
    kind: EventKind
    name: str
    phase: str
    back: int
    duration: float
    cpu: float = 0.0
    queueing: float = 0.0


def classes(
    bounds: Sequence[tuple[int, int]], phases: Sequence[Phase], launches: Sequence[Launch], syncs: Sequence[Sync]
) -> tuple[tuple[StepClass, ...], NDArray[np.int64]]:
    """Return the classes of steps with the same sequence of events, and the class of each step. Times in ns."""
    by_sequence: dict[tuple[tuple[str, str, str, int], ...], list[tuple[int, list[_Moment]]]] = {}
    for row, (start, end) in enumerate(bounds):
        moments = _program(
            start, end, _within(phases, start, end), _within(launches, start, end), _within(syncs, start, end), launches
        )
        by_sequence.setdefault(tuple(moment[:4] for moment in moments), []).append((row, moments))
    step_class = np.zeros(len(bounds), dtype=np.int64)
    step_classes = []
    for number, members in enumerate(by_sequence.values()):
        rows = np.array([row for row, _ in members], dtype=np.int64)
        step_class[rows] = number
        columns = zip(*(moments for _, moments in members), strict=True)
        step_classes.append(StepClass(tuple(_event(column) for column in columns), rows))
    return tuple(step_classes), step_class


def _event(column: Sequence[_Moment]) -> Event:
    first = column[0]
    durations = np.array([(m.duration, m.cpu, m.queueing) for m in column], dtype=np.float64).T
    return Event(first.kind, first.name, first.phase, first.back, *durations)


def _within(rows: Sequence[Row], start: int, end: int) -> Sequence[Row]:
    low = bisect_right(rows, start - 1, key=lambda row: row.start_ns)
    return rows[low : bisect_right(rows, end - 1, key=lambda row: row.start_ns, lo=low)]


def _program(
    start: int,
    end: int,
    phases: Sequence[Phase],
    launches: Sequence[Launch],
    syncs: Sequence[Sync],
    everything: Sequence[Launch],
) -> list[_Moment]:
    """Return a step's events in order; all ns outside of waits are host time. ``everything``: launches of the run."""
    moments: list[_Moment] = []
    open_phases: list[tuple[str, float]] = [(OTHER, 1.0)]
    cursor = start

    def advance(until: int) -> None:
        """Add host time from ``cursor`` to ``until`` to the last event if it has this phase, else as a new event."""
        nonlocal cursor
        name, share = open_phases[-1]
        spent = max(0, until - cursor)
        cursor = max(cursor, until)
        if moments and moments[-1].kind == "host" and moments[-1].phase == name:
            spent += int(moments.pop().duration)
        moments.append(_Moment("host", name, name, 0, spent, spent * share))

    for _, _, row, closes in sorted(_walk(phases, launches, syncs), key=lambda item: item[:2]):
        if isinstance(row, Phase) and closes:
            advance(row.end_ns)
            open_phases.pop()
            continue
        advance(row.start_ns)
        phase = open_phases[-1][0]
        if isinstance(row, Launch) and row.blocked:
            moments.append(_Moment("launch", row.name, phase, 0, row.busy_ns))
            moments.append(_Moment("sync", "sync", phase, 0, max(0, row.end_ns - max(row.start_ns, row.done_ns))))
            cursor = max(cursor, row.end_ns)
        elif isinstance(row, Launch):
            blocked = sum(s.end_ns - s.start_ns for s in syncs if row.start_ns <= s.start_ns and s.end_ns <= row.end_ns)
            # Work that waited for launches ends no earlier than the last launch plus the device time after it.
            until = row.done_ns if row.waited else row.end_ns
            queueing = max(0, until - row.start_ns - blocked)
            moments.append(_Moment("launch", row.name, phase, 0, row.busy_ns, queueing=queueing))
        elif isinstance(row, Sync):
            if not row.full:
                moments.append(_sync(row, BOUNDARY if row.boundary else phase, everything))
            cursor = max(cursor, row.end_ns)
        elif row.name == "fetch":
            moments.append(_Moment("fetch", "fetch", "fetch", 0, 0))
            cursor = max(cursor, row.end_ns)
        else:
            open_phases.append((row.name, _cpu_share(row, syncs)))
    advance(end)
    return moments


def _walk(
    phases: Sequence[Phase], launches: Sequence[Launch], syncs: Sequence[Sync]
) -> list[tuple[int, int, Phase | Launch | Sync, bool]]:
    """Return (time, order at equal times, row, closes) of all starts, and of all ends of phases but fetches.

    ``closes``: True for such an end. Of entries with equal times, the lowest order comes first."""
    walk: list[tuple[int, int, Phase | Launch | Sync, bool]] = []
    for phase in phases:
        walk.append((phase.start_ns, 1, phase, False))
        if phase.name != "fetch":
            # A phase ends before the next one begins at the same moment. A phase without duration ends after its own
            # start.
            walk.append((phase.end_ns, 0 if phase.end_ns > phase.start_ns else 1, phase, True))
    for launch in launches:
        # Work that a blocking call queues itself is queued before the call waits.
        inside = next((s.start_ns for s in syncs if s.start_ns <= launch.start_ns < s.end_ns), launch.start_ns)
        walk.append((inside, 2, launch, False))
    walk += [(sync.start_ns, 3, sync, False) for sync in syncs]
    return walk


def _sync(row: Sync, phase: str, launches: Sequence[Launch]) -> _Moment:
    """Return the sync event of a blocking call: which work it waited for, and how long it took to return after that."""
    queued = bisect_left(launches, row.end_ns, key=lambda launch: launch.start_ns)
    waited_for = queued
    while waited_for and launches[waited_for - 1].done_ns > row.end_ns + CLOCK_TOLERANCE_NS:
        waited_for -= 1
    late = launches[waited_for - 1].done_ns - row.end_ns if waited_for else 0
    if late > 0 and waited_for > 1 and row.end_ns - launches[waited_for - 2].done_ns < late:
        waited_for -= 1  # the previous work ended closer to the end of this call
    if row.late:  # If the call hardly blocked, work queued by this step may be done as well.
        copies = (place for place in range(queued - 1, -1, -1) if launches[place].name == COPY)
        waited_for = min(waited_for, next(islice(copies, 1, None), waited_for) + 1)
    done = launches[waited_for - 1].done_ns if waited_for else row.start_ns
    return _Moment("sync", "sync", phase, queued - waited_for, max(0, row.end_ns - max(row.start_ns, done)))


def _cpu_share(phase: Phase, syncs: Sequence[Sync]) -> float:
    """Return the phase's CPU time / its host time outside of waits, from 0 to 1; 1 if CPU time was not measured."""
    if phase.cpu_ns is None:
        return 1.0
    blocked = sum(s.end_ns - s.start_ns for s in syncs if phase.start_ns <= s.start_ns and s.end_ns <= phase.end_ns)
    return min(1.0, phase.cpu_ns / max(1, phase.end_ns - phase.start_ns - blocked))
