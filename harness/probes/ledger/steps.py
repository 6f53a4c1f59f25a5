"""Record the step ledger in the main process: phases of the main thread, stages of every batch, one row per step.

The ledger is always on, so it must cost next to nothing. On a busy machine, its code and data are evicted from the
caches between calls. So it touches little of both: it reads clocks and counters, and appends them to one list.
``probes.ledger.rows`` converts them to rows after the run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from time import monotonic_ns, thread_time_ns
from typing import Any

from harness.probes.ledger import other_threads
from harness.probes.ledger.recent import RecentBatches, recent_batches
from harness.probes.ledger.rows import ENTER, EXIT, MAIN, PAUSE, RECEIVED, STEP, TAKEN, UNPACKED, RowMaker, Rows
from harness.probes.ledger.run_queue import RunQueue
from trainer.telemetry import BatchTrace, Blocked, Kernel, Validation

# Nanoseconds within which a span reuses the last reading of the CPU time, which is a system call (the clock is not).
# Spans follow one another closely, so most spans do. The error is at most this value.
NEAR_NS = 20_000


class StepRecorder:
    """Recorder (``trainer.telemetry.Recorder``) of the step ledger in the trainer's main process.

    The driver of the loop sets ``repetition`` and ``warmup``; each step takes their values when it begins.
    """

    def __init__(self, run_queue: RunQueue | None = None) -> None:
        self.repetition = 0
        self.warmup = True
        self.losses: dict[int, float] = {}
        self.learning_rates: dict[int, float] = {}
        self.validations: list[Validation] = []
        self.kernels: list[Kernel] = []
        self.blocking: list[Blocked] = []
        self.exchanges: list[tuple[str, int, int]] = []  # exchanges between ranks: name, start, end
        self._run_queue = run_queue
        self._pid = os.getpid()
        self._tid = threading.get_native_id()
        self._events: list[tuple[Any, ...]] = []  # see probes.ledger.rows
        self._maker = RowMaker()
        self._inline_batches = 0
        self._read_ns = 0  # time of the last reading of the CPU time
        self._others_ns = 0  # CPU time of other threads at the start of a stage that may use them

    def rows(self) -> Rows:
        """Return rows of all steps, phases and batches since the last :meth:`take_rows`, and keep them.

        Call it only while no step is measured.
        """
        events, self._events = self._events, []
        self._maker.add(events)
        return self._maker.rows

    def take_rows(self) -> Rows:
        """Return rows of all steps, phases and batches since the last call, and drop them.

        Call it only while no step is open.
        """
        self.rows()
        return self._maker.take()

    def take_device(self) -> tuple[list[Kernel], list[Blocked]]:
        """Return (kernels of the device, host calls that waited for it) recorded since the last call.

        Drop them here.
        """
        kernels, blocking = self.kernels, self.blocking
        self.kernels, self.blocking = [], []
        return kernels, blocking

    def take_exchanges(self) -> list[tuple[str, int, int]]:
        """Return the exchanges with other ranks since the last call as (name, start, end) in ns, and drop them."""
        exchanges, self.exchanges = self.exchanges, []
        return exchanges

    def add(self, events: Iterable[tuple[Any, ...]]) -> None:
        """Add events in the form of ``probes.ledger.rows`` that the agent recorded in another process, in order."""
        self._events.extend(events)

    @property
    def pending_events(self) -> int:
        """Number of events not yet converted to rows; each takes about 150 bytes."""
        return len(self._events)

    def recent(self, batches: int) -> RecentBatches:
        """Return the times of the last ``batches`` batches, from the events not yet converted to rows.

        The events are kept.
        Call it only while no step is measured.
        """
        return recent_batches(self._events, batches)

    def enter(self, name: str) -> None:
        if name in other_threads.STAGES:
            self._others_ns = other_threads.cpu_ns()
        now = monotonic_ns()
        if now - self._read_ns > NEAR_NS:
            self._read_ns = now
            self._events.append((ENTER, name, now, thread_time_ns()))
        else:
            self._events.append((ENTER, name, now, None))

    def exit(self, name: str) -> None:
        # A system call, unlike the clock: a busy machine may take the core away here, which still counts in the span.
        cpu_ns = thread_time_ns()
        self._read_ns = now = monotonic_ns()
        if name in other_threads.STAGES:
            self._events.append((EXIT, name, now, cpu_ns, other_threads.since_ns(self._others_ns)))
        else:
            self._events.append((EXIT, name, now, cpu_ns))

    def step(self, index: int) -> None:
        now = monotonic_ns()
        reading = self._run_queue.read() if self._run_queue is not None else ()
        self._events.append((STEP, now, reading, index, self.repetition, self.warmup))

    def pause(self) -> None:
        """Close the open step. Time until the next :meth:`step` belongs to no step."""
        now = monotonic_ns()
        self._events.append((PAUSE, now, self._run_queue.read() if self._run_queue is not None else ()))

    def received(self, trace: BatchTrace | None, tokens: int, trained_tokens: int, samples: int) -> None:
        self._events.append((RECEIVED, trace, tokens, trained_tokens, samples))

    def loss(self, step: int, value: float) -> None:
        self.losses[step] = value

    def learning_rate(self, step: int, value: float) -> None:
        self.learning_rates[step] = value

    def validated(self, validation: Validation) -> None:
        self.validations.append(validation)

    def device(self, kernel: Kernel) -> None:
        self.kernels.append(kernel)

    def blocked(self, call: Blocked) -> None:
        self.blocking.append(call)

    def exchanged(self, name: str, start_ns: int, end_ns: int) -> None:
        self.exchanges.append((name, start_ns, end_ns))

    def unpacked(self, arrived_ns: int, unpacked_ns: int, waited: bool) -> None:
        self._events.append((UNPACKED, arrived_ns, unpacked_ns, waited))

    def take(self) -> BatchTrace:
        """Return the trace of a batch that the main process has just made, with its number and no spans.

        When rows are made, they add the stages since the last call.
        """
        number = self._inline_batches
        self._inline_batches = number + 1
        self._events.append((TAKEN, number))
        return BatchTrace(self._pid, self._tid, MAIN, number, ())
