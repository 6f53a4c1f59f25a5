"""Create the rows of the step ledger from its recorder's events: one row per step, phase and batch.

An event is a tuple that begins with its kind, with times in CLOCK_MONOTONIC nanoseconds:

    ENTER, name, time, CPU time of the thread (None: same as the last one)
    EXIT, name, time, CPU time[, CPU time of other threads since its ENTER]
    STEP, time, run-queue reading, number, repetition, warmup   a step begins, and the one before ends
    PAUSE, time, run-queue reading                              the loop pauses until the next STEP
    RECEIVED, trace, tokens, trained tokens, samples            the batch of the last fetch
    TAKEN, number                                               the stages since the last one were batch NUMBER, inline
    UNPACKED, arrival, end of unpacking, waited    the batch of the open fetch; waited: True if the main thread waited
                                                   for its message, which arrived at that moment
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.probes.ledger.threads import SchedstatReading, most_delayed_ns
from harness.study.contract import PHASES
from trainer.telemetry import STAGES, BatchTrace, RawSpan

ENTER, EXIT, STEP, PAUSE, RECEIVED, TAKEN = range(6)
UNPACKED = 11  # the numbers between are used by the agent only (harness.attach.agent)
MAIN = "main"  # role of a trace made inline
_STAGES = frozenset(STAGES)


class PhaseSpan(NamedTuple):
    """One phase of the main thread, in ns. ``batch``: number of the batch fetched in or last before it; -1 if none."""

    name: str
    start_ns: int
    end_ns: int
    batch: int
    cpu_ns: int  # CPU time of the main thread


class ArrivedBatch(NamedTuple):
    """Times in ns at which a batch arrived and was unpacked. ``waited``: True if the main thread waited for it."""

    arrived_ns: int
    unpacked_ns: int
    waited: bool


class Received(NamedTuple):
    """One batch received on the main thread: end of the wait (ns), trace of its making, tokens and samples."""

    step_row: int  # index into Rows.steps of the same portion
    batch: int  # order of receipt, from 0
    wait_end_ns: int
    trace: BatchTrace | None
    tokens: int | None  # None if unknown, like the next two fields
    trained_tokens: int | None
    samples: int | None
    unpacked: ArrivedBatch | None = None


class StepRow(NamedTuple):
    """One finished step of the ledger, in ns. ``phases_ns``: time of each of PHASES, in a nested phase only there, so
    that they sum to exactly ``wall_ns``. ``contended_ns``: that the most delayed thread was ready but had no core;
    None: unknown.
    """

    step: int
    repetition: int
    warmup: bool
    start_ns: int
    wall_ns: int
    phases_ns: tuple[int, ...]
    contended_ns: int | None


@dataclass(frozen=True)
class Rows:
    """Finished steps, phases in order of their end, and batches in order of receipt, numbered from ``first_batch``."""

    steps: list[StepRow] = field(default_factory=list)
    phases: list[PhaseSpan] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    first_batch: int = 0


@dataclass
class _Open:
    """Phase or stage that has begun but not ended. ``nested_ns``: time of the ended phases inside it."""

    name: str
    start_ns: int
    cpu_ns: int
    nested_ns: int = 0


class _Step(NamedTuple):
    start_ns: int
    reading: SchedstatReading
    number: int
    repetition: int
    warmup: bool


class RowMaker:
    """Converter from events, in portions, to rows. A phase or stage whose start was not recorded is skipped."""

    def __init__(self) -> None:
        self.rows = Rows()
        self._notes: dict[int, Callable[..., None]] = {
            ENTER: self._enter, EXIT: self._exit, STEP: self._begin, PAUSE: self._end,
            RECEIVED: self._received, TAKEN: self._taken, UNPACKED: self._unpacked,
        }  # fmt: skip
        self._phases: list[_Open] = []
        self._stages: list[_Open] = []
        self._cpu_ns = 0  # last CPU time
        self._step: _Step | None = None
        self._spent_ns: dict[str, int] = defaultdict(int)  # time in the open step, by phase
        self._fetched_ns = 0  # end of the last fetch
        self._unpacking: ArrivedBatch | None = None  # batch of the open or last fetch
        self._spans: list[RawSpan] = []  # stages since the last inline batch
        self._inline: dict[int, tuple[RawSpan, ...]] = {}

    def add(self, events: Iterable[tuple[Any, ...]]) -> None:
        """Convert ``events``, which follow those of earlier calls, and add their rows to :attr:`rows`."""
        for kind, *values in events:
            self._notes[kind](*values)

    def take(self) -> Rows:
        """Return the rows so far and drop them here. Batch numbers continue. Call it only between steps."""
        rows, self.rows = self.rows, Rows(first_batch=self.rows.first_batch + len(self.rows.received))
        return rows

    def _enter(self, name: str, now: int, cpu_ns: int | None) -> None:
        if cpu_ns is not None:
            self._cpu_ns = cpu_ns
        if name == "fetch":
            self._unpacking = None
        (self._stages if name in _STAGES else self._phases).append(_Open(name, now, self._cpu_ns))

    def _exit(self, name: str, now: int, cpu_ns: int, others_ns: int = 0) -> None:
        self._cpu_ns = cpu_ns
        stack = self._stages if name in _STAGES else self._phases
        if not stack:
            return
        span = stack.pop()
        wall = now - span.start_ns
        if stack is self._stages:
            self._spans.append((name, span.start_ns, now, cpu_ns - span.cpu_ns + others_ns))
            return
        if self._phases:
            self._phases[-1].nested_ns += wall  # exclusive time: nested time is not counted twice
        self._spent_ns[name] += wall - span.nested_ns
        batch = self.rows.first_batch + len(self.rows.received) - (name != "fetch")
        self.rows.phases.append(PhaseSpan(name, span.start_ns, now, batch, cpu_ns - span.cpu_ns))
        if name == "fetch":
            self._fetched_ns = now

    def _begin(self, now: int, reading: SchedstatReading, number: int, repetition: int, warmup: bool) -> None:
        self._end(now, reading)
        self._step = _Step(now, reading, number, repetition, warmup)

    def _end(self, now: int, reading: SchedstatReading) -> None:
        step, spent = self._step, self._spent_ns
        self._step, self._spent_ns = None, defaultdict(int)
        if step is None:
            return
        wall = now - step.start_ns
        spent["other"] = wall - sum(spent.values())
        delay = most_delayed_ns(step.reading, reading)
        self.rows.steps.append(
            StepRow(
                step.number, step.repetition, step.warmup, step.start_ns, wall,
                tuple(spent.get(name, 0) for name in PHASES),
                None if delay is None else min(delay, wall),
            )
        )  # fmt: skip

    def _received(
        self, trace: BatchTrace | None, tokens: int | None, trained_tokens: int | None, samples: int | None
    ) -> None:
        if trace is not None and trace.role == MAIN:
            trace = trace._replace(spans=self._inline.pop(trace.batch, trace.spans))
        received = self.rows.received
        row = len(self.rows.steps)
        number = self.rows.first_batch + len(received)
        counts = (tokens, trained_tokens, samples)
        received.append(Received(row, number, self._fetched_ns, trace, *counts, self._unpacking))
        self._unpacking = None

    def _taken(self, number: int) -> None:
        self._inline[number], self._spans = tuple(self._spans), []

    def _unpacked(self, arrived_ns: int, unpacked_ns: int, waited: bool) -> None:
        self._unpacking = ArrivedBatch(arrived_ns, unpacked_ns, waited)


class BatchMoments(NamedTuple):
    """Times of one batch in ns (CLOCK_MONOTONIC). ``began``, ``ready``: start and end of its making; None: unknown.

    ``taken``, ``received``: start and end of its fetch. ``awaited``: True if the worker sent it after the fetch began.
    """

    began: int | None
    ready: int | None
    received: int
    taken: int
    awaited: bool


class RecentBatches(NamedTuple):
    """The last batches in order of receipt, and the pauses among them, latest first: (end, start of steps) in ns."""

    batches: Sequence[BatchMoments]
    pauses: Sequence[tuple[int, int]]


def recent_batches(events: Sequence[tuple[Any, ...]], count: int) -> RecentBatches:
    """Return the last ``count`` received batches (or all) and the pauses among them, from a recorder's ``events``."""
    batches: list[BatchMoments] = []
    pauses: dict[int, int] = {}  # keyed by the time the loop resumed; of two ends of one step, the first counts
    resumed_ns: int | None = None
    trace: BatchTrace | None = None
    ended_ns, arrived_ns = 0, -1
    for event in reversed(events):
        kind = event[0]
        if kind == RECEIVED:
            trace, arrived_ns = event[1], -1
        elif kind == UNPACKED and event[3]:
            arrived_ns = event[1]
        elif kind == EXIT and event[1] == "fetch":
            ended_ns = event[2]
        elif kind == ENTER and event[1] == "fetch":
            spans = () if trace is None else trace.spans
            began, ready = (
                min((span[1] for span in spans), default=None),
                max((span[2] for span in spans), default=None),
            )
            batches.append(BatchMoments(began, ready, ended_ns, event[2], arrived_ns >= event[2]))
            if len(batches) == count:
                break
        elif kind == STEP:
            resumed_ns = event[1]
        elif kind == PAUSE and resumed_ns is not None:
            pauses[resumed_ns] = event[1]
    return RecentBatches(batches[::-1], [(since, until) for until, since in pauses.items()])
