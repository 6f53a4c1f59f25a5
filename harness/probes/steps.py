"""The step ledger's collector: phases of the main thread, stages of every batch, one row per step.

Always on, so it must cost next to nothing: it reads clocks and counters and appends plain tuples. Rows and their sums
are made when the run is over; what a wait was spent on is worked out by ``analysis.exposure``.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from itertools import pairwise
from time import monotonic_ns, thread_time_ns
from typing import NamedTuple

from harness.probes.run_queue import Reading, RunQueue, most_delayed_ns
from harness.results import PHASES
from trainer.telemetry import STAGES, BatchTrace, Blocked, Kernel, RawSpan

_STAGES = frozenset(STAGES)
# The CPU time of a thread is a system call, the clock is not: a span that begins so soon after the last reading takes
# that one. Spans follow one another closely, so that is most; the error is at most this.
NEAR_NS = 20_000


class PhaseSpan(NamedTuple):
    """One phase on the main thread; ``batch`` is the number of the batch it worked on, -1 before the first."""

    name: str
    start_ns: int
    end_ns: int
    batch: int
    cpu_ns: int  # of the main thread


class Received(NamedTuple):
    """One batch as the main thread got it: the wait for it and what its loader told."""

    step_row: int  # index into StepRecorder.steps
    batch: int  # order of receipt, from 0
    wait_start_ns: int
    wait_end_ns: int
    trace: BatchTrace | None
    tokens: int
    trained_tokens: int
    samples: int


class StepRow(NamedTuple):
    """One step. ``phases_ns`` in the order of results.PHASES, summing to ``wall_ns`` exactly."""

    step: int
    turn: int
    warmup: bool
    start_ns: int
    wall_ns: int
    phases_ns: tuple[int, ...]
    contended_ns: int | None


class StepRecorder:
    """Implements ``trainer.telemetry.Recorder`` in the trainer's main process.

    ``turn`` and ``warmup`` are set by whoever drives the loop; they are stamped on each step as it begins.
    """

    def __init__(self, run_queue: RunQueue | None = None) -> None:
        self.turn = 0
        self.warmup = True
        self.losses: dict[int, float] = {}
        self.kernels: list[Kernel] = []
        self.blocking: list[Blocked] = []
        self._run_queue = run_queue
        self._pid = os.getpid()
        self._tid = threading.get_native_id()
        # Where a step begins (its number, turn, warmup, time, reading), or the loop stands still (None for the number).
        self._boundaries: list[tuple[int | None, int, bool, int, Reading]] = []
        # name, start, end, batch, CPU time, time without the phases nested in it, boundaries before it
        self._phases: list[tuple[str, int, int, int, int, int, int]] = []
        # boundaries before it, start and end of the wait for it, trace, tokens, trained tokens, samples
        self._received: list[tuple[int, int, int, BatchTrace | None, int, int, int]] = []
        self._stack: list[list[int]] = []  # per open phase: [start_ns, time of phases nested in it, CPU time so far]
        self._stage_starts: list[tuple[int, int]] = []
        self._stages: list[RawSpan] = []
        self._inline_batches = 0
        self._last_fetch = (0, 0)
        self._read_ns = self._cpu_ns = 0  # the last reading of the CPU time

    @property
    def steps(self) -> list[StepRow]:
        """Every finished step."""
        spent: dict[tuple[int, str], int] = defaultdict(int)
        for name, _, _, _, _, own_ns, boundaries in self._phases:
            spent[boundaries, name] += own_ns
        found = []
        for place, (begun, ended) in enumerate(pairwise(self._boundaries), start=1):
            index, turn, warmup, start, reading = begun
            if index is None:
                continue
            wall = ended[3] - start
            phases = {name: spent.get((place, name), 0) for name in PHASES}
            phases["other"] = wall - sum(phases.values())
            delay = most_delayed_ns(reading, ended[4])
            contended = None if delay is None else min(delay, wall)
            found.append(StepRow(index, turn, warmup, start, wall, tuple(phases.values()), contended))
        return found

    @property
    def phases(self) -> list[PhaseSpan]:
        """Every phase so far, in the order they ended."""
        return [PhaseSpan._make(phase[:5]) for phase in self._phases]

    @property
    def received_batches(self) -> list[Received]:
        """Every batch so far; those of a step that is not finished have a row beyond the last one."""
        rows, count = [0], 0
        for index, *_ in self._boundaries:
            rows.append(count)
            count += index is not None
        return [Received(rows[one[0]], batch, *one[1:]) for batch, one in enumerate(self._received)]

    def enter(self, name: str) -> None:
        now = monotonic_ns()
        if now - self._read_ns > NEAR_NS:
            self._cpu_ns, self._read_ns = thread_time_ns(), now
        if name in _STAGES:
            self._stage_starts.append((now, self._cpu_ns))
        else:
            self._stack.append([now, 0, self._cpu_ns])

    def exit(self, name: str) -> None:
        # A real system call, unlike the clock, so a busy machine may take the core away here: still within the span.
        self._cpu_ns = cpu_now = thread_time_ns()
        self._read_ns = now = monotonic_ns()
        if name in _STAGES:
            start, cpu = self._stage_starts.pop()
            self._stages.append((name, start, now, cpu_now - cpu))
            return
        start, nested, cpu = self._stack.pop()
        wall = now - start
        if self._stack:
            self._stack[-1][1] += wall  # exclusive: what is nested is not counted twice
        batch = len(self._received)
        if name == "fetch":
            self._last_fetch = (start, now)
        else:
            batch -= 1
        self._phases.append((name, start, now, batch, cpu_now - cpu, wall - nested, len(self._boundaries)))

    def step(self, index: int) -> None:
        now = monotonic_ns()
        reading = self._run_queue.read() if self._run_queue is not None else ()
        self._boundaries.append((index, self.turn, self.warmup, now, reading))

    def pause(self) -> None:
        """Close the open step: the loop stands still until the next :meth:`step`."""
        now = monotonic_ns()
        reading = self._run_queue.read() if self._run_queue is not None else ()
        self._boundaries.append((None, self.turn, self.warmup, now, reading))

    def received(self, trace: BatchTrace | None, tokens: int, trained_tokens: int, samples: int) -> None:
        start, end = self._last_fetch
        self._received.append((len(self._boundaries), start, end, trace, tokens, trained_tokens, samples))

    def loss(self, step: int, value: float) -> None:
        self.losses[step] = value

    def device(self, kernel: Kernel) -> None:
        self.kernels.append(kernel)

    def blocked(self, call: Blocked) -> None:
        self.blocking.append(call)

    def take(self) -> BatchTrace:
        """The stage spans recorded inline since the last call, as the trace of one batch."""
        spans, self._stages = tuple(self._stages), []
        self._inline_batches += 1
        return BatchTrace(self._pid, self._tid, "main", self._inline_batches - 1, spans)
