"""Record stages inside a loader worker. Each batch carries its spans to the main process."""

from __future__ import annotations

import os
import threading
from time import monotonic_ns, thread_time_ns

from harness.probes.ledger import other_threads
from harness.probes.ledger.steps import NEAR_NS
from trainer.telemetry import BatchTrace, Blocked, Kernel, RawSpan, Validation


class StageRecorder:
    """Recorder (``trainer.telemetry.Recorder``) in one loader worker.

    It records the stages of batches and nothing else.
    ``role``: such as "loader-0". The loader passes the result of :meth:`take` on with each batch.
    """

    def __init__(self, role: str) -> None:
        self._role = role
        self._pid = os.getpid()
        self._tid = threading.get_native_id()
        self._starts: list[tuple[int, int]] = []
        self._spans: list[RawSpan] = []
        self._batches = 0
        self._read_ns = self._cpu_ns = self._others_ns = 0

    def enter(self, name: str) -> None:
        if name in other_threads.STAGES:
            self._others_ns = other_threads.cpu_ns()
        now = monotonic_ns()
        if now - self._read_ns > NEAR_NS:
            self._cpu_ns, self._read_ns = thread_time_ns(), now
        self._starts.append((now, self._cpu_ns))

    def exit(self, name: str) -> None:
        self._cpu_ns = cpu_now = thread_time_ns()  # before the clock: see probes.ledger.steps
        self._read_ns = now = monotonic_ns()
        start, cpu = self._starts.pop()
        others_ns = other_threads.since_ns(self._others_ns) if name in other_threads.STAGES else 0
        self._spans.append((name, start, now, cpu_now - cpu + others_ns))

    def step(self, index: int) -> None:
        raise AssertionError("a loader worker has no steps")

    def received(self, trace: BatchTrace | None, tokens: int, trained_tokens: int, samples: int) -> None:
        raise AssertionError("a loader worker receives no batches")

    def loss(self, step: int, value: float) -> None:
        raise AssertionError("a loader worker has no loss")

    def learning_rate(self, step: int, value: float) -> None:
        raise AssertionError("a loader worker has no optimizer")

    def pause(self) -> None:
        raise AssertionError("a loader worker has no steps")

    def validated(self, validation: Validation) -> None:
        raise AssertionError("a loader worker has no model")

    def device(self, kernel: Kernel) -> None:
        raise AssertionError("a loader worker has no device")

    def blocked(self, call: Blocked) -> None:
        raise AssertionError("a loader worker has no device")

    def exchanged(self, name: str, start_ns: int, end_ns: int) -> None:
        raise AssertionError("a loader worker exchanges nothing")

    def unpacked(self, arrived_ns: int, unpacked_ns: int, waited: bool) -> None:
        raise AssertionError("a loader worker receives no batches")

    def take(self) -> BatchTrace:
        spans, self._spans = tuple(self._spans), []
        self._batches += 1
        return BatchTrace(self._pid, self._tid, self._role, self._batches - 1, spans)
