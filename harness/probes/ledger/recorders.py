"""Record the step ledger: phases of the main thread, and the stages of every batch.

It is always on, so it must cost next to nothing: it reads clocks and counters, and appends them to one list, which
``probes.ledger.rows`` converts after the run. The bare recorder measures the ledger's own cost.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from time import monotonic_ns, thread_time_ns
from typing import Any

from harness.probes.ledger import threads
from harness.probes.ledger.rows import (
    ENTER,
    EXIT,
    MAIN,
    PAUSE,
    RECEIVED,
    STEP,
    TAKEN,
    UNPACKED,
    RecentBatches,
    RowMaker,
    Rows,
    StepRow,
    recent_batches,
)
from harness.probes.ledger.threads import RunQueue
from harness.probes.probe import RunProbes
from trainer import telemetry
from trainer.lifetime import die_with_parent
from trainer.telemetry import BatchTrace, Blocked, Kernel, RawSpan, Recorder, Validation

# Nanoseconds within which a span reuses the last reading of the CPU time, which is a system call (the clock is not).
# Spans follow one another closely, so most spans do. The error is at most this value.
NEAR_NS = 20_000


class _MainRecorder(Recorder):
    """Base class of recorders in the training process. Set ``repetition`` and ``warmup`` before a step begins."""

    def __init__(self) -> None:
        self.repetition = 0
        self.warmup = True
        self.losses: dict[int, float] = {}
        self.learning_rates: dict[int, float] = {}
        self.validations: list[Validation] = []

    def loss(self, step: int, value: float) -> None:
        self.losses[step] = value

    def learning_rate(self, step: int, value: float) -> None:
        self.learning_rates[step] = value

    def validated(self, validation: Validation) -> None:
        self.validations.append(validation)


class StepRecorder(_MainRecorder):
    """Recorder of the ledger (phases, stages and waits of each step) in the training process."""

    def __init__(self, run_queue: RunQueue | None = None) -> None:
        super().__init__()
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
        """Return rows since the last :meth:`take_rows`, and keep them. Call it only while no step is measured."""
        events, self._events = self._events, []
        self._maker.add(events)
        return self._maker.rows

    def take_rows(self) -> Rows:
        """Return rows since the last call, and drop them. Call it only while no step is open."""
        self.rows()
        return self._maker.take()

    def take_device(self) -> tuple[list[Kernel], list[Blocked]]:
        """Return (device kernels, host calls that waited for them) since the last call, and drop them here."""
        kernels, blocking = self.kernels, self.blocking
        self.kernels, self.blocking = [], []
        return kernels, blocking

    def take_exchanges(self) -> list[tuple[str, int, int]]:
        """Return the exchanges with other ranks since the last call as (name, start, end) in ns, and drop them."""
        exchanges, self.exchanges = self.exchanges, []
        return exchanges

    def add(self, events: Iterable[tuple[Any, ...]]) -> None:
        """Add events, in order of time, that an attached program recorded (form: see ``probes.ledger.rows``)."""
        self._events.extend(events)

    @property
    def pending_events(self) -> int:
        """Number of events not yet converted to rows; each takes about 150 bytes."""
        return len(self._events)

    def recent(self, batches: int) -> RecentBatches:
        """Return the times of the last ``batches`` batches, without converting events. Call it only between steps."""
        return recent_batches(self._events, batches)

    def enter(self, name: str) -> None:
        if name in threads.STAGES:
            self._others_ns = threads.other_cpu_ns()
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
        if name in threads.STAGES:
            self._events.append((EXIT, name, now, cpu_ns, threads.other_cpu_since_ns(self._others_ns)))
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

    def device(self, kernel: Kernel) -> None:
        self.kernels.append(kernel)

    def blocked(self, call: Blocked) -> None:
        self.blocking.append(call)

    def exchanged(self, name: str, start_ns: int, end_ns: int) -> None:
        self.exchanges.append((name, start_ns, end_ns))

    def unpacked(self, arrived_ns: int, unpacked_ns: int, waited: bool) -> None:
        self._events.append((UNPACKED, arrived_ns, unpacked_ns, waited))

    def take(self) -> BatchTrace:
        """Return the trace of a batch that this process has just made: its number. Its stages come with the rows."""
        number = self._inline_batches
        self._inline_batches = number + 1
        self._events.append((TAKEN, number))
        return BatchTrace(self._pid, self._tid, MAIN, number, ())


class StageRecorder(Recorder):
    """Recorder of the stages of batches in one loader worker. ``role``: such as "loader-0"."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._pid = os.getpid()
        self._tid = threading.get_native_id()
        self._starts: list[tuple[int, int]] = []
        self._spans: list[RawSpan] = []
        self._batches = 0
        self._read_ns = self._cpu_ns = self._others_ns = 0

    def enter(self, name: str) -> None:
        if name in threads.STAGES:
            self._others_ns = threads.other_cpu_ns()
        now = monotonic_ns()
        if now - self._read_ns > NEAR_NS:
            self._cpu_ns, self._read_ns = thread_time_ns(), now
        self._starts.append((now, self._cpu_ns))

    def exit(self, name: str) -> None:
        self._cpu_ns = cpu_now = thread_time_ns()  # before the clock: see StepRecorder
        self._read_ns = now = monotonic_ns()
        start, cpu = self._starts.pop()
        others_ns = threads.other_cpu_since_ns(self._others_ns) if name in threads.STAGES else 0
        self._spans.append((name, start, now, cpu_now - cpu + others_ns))

    def take(self) -> BatchTrace:
        spans, self._spans = tuple(self._spans), []
        self._batches += 1
        return BatchTrace(self._pid, self._tid, self._role, self._batches - 1, spans)


class BareRecorder(_MainRecorder):
    """Recorder that reads one clock per step, no phases and no stages, to measure the ledger's cost."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[StepRow] = []
        self.counts: list[tuple[int, int, int]] = []  # tokens, trained tokens and samples of each step
        self._open: tuple[int, int, bool, int] | None = None
        self._counted = [0, 0, 0]

    def step(self, index: int) -> None:
        now = monotonic_ns()
        self._close(now)
        self._open = (index, self.repetition, self.warmup, now)

    def pause(self) -> None:
        """Close the open step. Time until the next :meth:`step` belongs to no step."""
        self._close(monotonic_ns())

    def _close(self, now: int) -> None:
        if self._open is not None:
            index, repetition, warmup, start = self._open
            self.steps.append(StepRow(index, repetition, warmup, start, now - start, (), None))
            self.counts.append((self._counted[0], self._counted[1], self._counted[2]))
        self._open, self._counted = None, [0, 0, 0]

    def rows(self) -> Rows:
        return Rows(self.steps)

    def received(self, trace: BatchTrace | None, tokens: int, trained_tokens: int, samples: int) -> None:
        self._counted = [sum(pair) for pair in zip(self._counted, (tokens, trained_tokens, samples), strict=True)]


def attach_in_worker(parent: int | None, probes: RunProbes, folder: Path, worker_id: int) -> None:
    """Attach the run's ledger and probes in this loader worker, which ends with the training process ``parent``."""
    die_with_parent(parent)
    if not probes.ledger:
        return
    telemetry.attach(StageRecorder(f"loader-{worker_id}"))
    for kind, settings in probes.chosen():
        kind.load().attach_in_worker(settings, folder, worker_id, windows=probes.windows)
