"""The step ledger's collector: phases of the main thread, stages of every batch, one row per step.

Always on, so it must cost next to nothing: a clock read and a few list operations per span. It computes no
share; what a wait was spent on is worked out afterwards (``analysis.exposure``) from what is recorded here.
"""

from __future__ import annotations

import os
import threading
from time import monotonic_ns, thread_time_ns
from typing import NamedTuple

from harness.probes.run_queue import RunQueue
from harness.results import PHASES
from trainer.telemetry import STAGES, BatchTrace, Blocked, Kernel, StageSpan

_STAGES = frozenset(STAGES)


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
        self.steps: list[StepRow] = []
        self.phases: list[PhaseSpan] = []
        self.received_batches: list[Received] = []
        self.losses: dict[int, float] = {}
        self._run_queue = run_queue
        self._pid = os.getpid()
        self._tid = threading.get_native_id()
        self.kernels: list[Kernel] = []
        self.blocking: list[Blocked] = []
        self._stack: list[list[int]] = []  # per open phase: [start_ns, time of phases nested in it, CPU time so far]
        self._stage_starts: list[tuple[int, int]] = []
        self._stages: list[StageSpan] = []
        self._inline_batches = 0
        self._last_fetch = (0, 0)
        self._open: tuple[int, int, bool, int, int | None] | None = None
        self._phase_ns = dict.fromkeys(PHASES, 0)

    def enter(self, name: str) -> None:
        if name in _STAGES:
            self._stage_starts.append((monotonic_ns(), thread_time_ns()))
        else:
            self._stack.append([monotonic_ns(), 0, thread_time_ns()])

    def exit(self, name: str) -> None:
        # A real system call, unlike the clock, so a busy machine may take the core away here: still within the span.
        cpu_now = thread_time_ns()
        now = monotonic_ns()
        if name in _STAGES:
            start, cpu = self._stage_starts.pop()
            self._stages.append(StageSpan(name, start, now, cpu_now - cpu))
            return
        start, nested, cpu = self._stack.pop()
        self._phase_ns[name] += now - start - nested
        if self._stack:
            self._stack[-1][1] += now - start  # exclusive: what is nested is not counted twice
        if name == "fetch":
            self._last_fetch = (start, now)
        self.phases.append(PhaseSpan(name, start, now, len(self.received_batches) - (name != "fetch"), cpu_now - cpu))

    def step(self, index: int) -> None:
        now = monotonic_ns()
        delay = self._run_queue.delay_ns() if self._run_queue is not None else None
        self._close(now, delay)
        self._open = (index, self.turn, self.warmup, now, delay)

    def pause(self) -> None:
        """Close the open step: the loop stands still until the next :meth:`step`."""
        self._close(monotonic_ns(), self._run_queue.delay_ns() if self._run_queue is not None else None)

    def _close(self, now: int, delay: int | None) -> None:
        if self._open is None:
            return
        index, turn, warmup, start, delay_before = self._open
        self._open = None
        phase_ns = self._phase_ns
        wall = now - start
        phase_ns["other"] = 0
        phase_ns["other"] = wall - sum(phase_ns.values())
        contended = None if delay is None or delay_before is None else min(max(delay - delay_before, 0), wall)
        self.steps.append(StepRow(index, turn, warmup, start, wall, tuple(phase_ns.values()), contended))
        self._phase_ns = dict.fromkeys(PHASES, 0)

    def received(self, trace: BatchTrace | None, tokens: int, trained_tokens: int, samples: int) -> None:
        self.received_batches.append(
            Received(
                len(self.steps), len(self.received_batches), *self._last_fetch, trace, tokens, trained_tokens, samples
            )
        )

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
