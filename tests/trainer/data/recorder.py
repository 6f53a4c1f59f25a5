"""A small recorder of stage spans, as a harness would attach one; importable by loader workers."""

from __future__ import annotations

import os
import threading
import time

from trainer import telemetry
from trainer.telemetry import BatchTrace, Recorder, StageSpan


class StageRecorder(Recorder):
    """Keeps the stage spans of one process until they are taken."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._batch = 0
        self._open: list[tuple[str, int]] = []
        self._spans: list[StageSpan] = []

    def enter(self, name: str) -> None:
        self._open.append((name, time.monotonic_ns()))

    def exit(self, name: str) -> None:
        opened, start_ns = self._open.pop()
        assert opened == name
        self._spans.append(StageSpan(name, start_ns, time.monotonic_ns()))

    def take(self) -> BatchTrace:
        trace = BatchTrace(os.getpid(), threading.get_native_id(), self._role, self._batch, tuple(self._spans))
        self._batch += 1
        self._spans.clear()
        return trace


def attach_in_worker(worker: int) -> None:
    """The ``worker_init`` of the tests."""
    telemetry.attach(StageRecorder(f"loader-{worker}"))
