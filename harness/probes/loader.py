"""The recorder inside a loader worker: stage spans, shipped to the main process beside each batch."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from pathlib import Path
from time import monotonic_ns, thread_time_ns
from typing import Any

from harness.probes.steps import NEAR_NS
from trainer import telemetry
from trainer.telemetry import BatchTrace, Blocked, Kernel, RawSpan


class StageRecorder:
    """Implements ``trainer.telemetry.Recorder`` in one loader worker, for stages only."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._pid = os.getpid()
        self._tid = threading.get_native_id()
        self._starts: list[tuple[int, int]] = []
        self._spans: list[RawSpan] = []
        self._batches = 0
        self._read_ns = self._cpu_ns = 0

    def enter(self, name: str) -> None:
        now = monotonic_ns()
        if now - self._read_ns > NEAR_NS:
            self._cpu_ns, self._read_ns = thread_time_ns(), now
        self._starts.append((now, self._cpu_ns))

    def exit(self, name: str) -> None:
        self._cpu_ns = cpu_now = thread_time_ns()  # before the clock: see probes.steps
        self._read_ns = now = monotonic_ns()
        start, cpu = self._starts.pop()
        self._spans.append((name, start, now, cpu_now - cpu))

    def step(self, index: int) -> None:
        raise AssertionError("a loader worker has no steps")

    def received(self, trace: BatchTrace | None, tokens: int, trained_tokens: int, samples: int) -> None:
        raise AssertionError("a loader worker receives no batches")

    def loss(self, step: int, value: float) -> None:
        raise AssertionError("a loader worker has no loss")

    def device(self, kernel: Kernel) -> None:
        raise AssertionError("a loader worker has no device")

    def blocked(self, call: Blocked) -> None:
        raise AssertionError("a loader worker has no device")

    def take(self) -> BatchTrace:
        spans, self._spans = tuple(self._spans), []
        self._batches += 1
        return BatchTrace(self._pid, self._tid, self._role, self._batches - 1, spans)


def attach_in_worker(parent: int | None, probes: dict[str, Any], folder: Path, worker_id: int) -> None:
    """The loader's ``worker_init`` hook: what this worker is measured with, and its end when its parent ends.

    ``parent`` as in :func:`die_with_parent`, ``probes`` as by ``harness.launch.probing``, ``folder`` the run's own:
    bind them (functools.partial) before giving this to the loader.
    """
    die_with_parent(parent)
    if not probes["ledger"]:
        return
    if probes["py_spy"]:
        from harness.machine.ptrace import allow_tracing

        allow_tracing()
    profiler = probes["torch_profiler"]
    if profiler and profiler["workers"] and probes["windows"]:
        from harness.probes.torch_worker import attach_in_worker as profile_worker

        profile_worker(profiler, folder, worker_id)  # brings a recorder of its own
    else:
        telemetry.attach(StageRecorder(f"loader-{worker_id}"))


def die_with_parent(parent: int | None) -> None:
    """Ask Linux to kill this process when its parent ends: a stopped (SIGSTOP) child would otherwise stay for ever.

    ``parent`` is the process id that the parent had when it made this one: one that ended before it could be asked to
    take this process along is noticed by it, and this process ends here. None where another process made this one
    (a forkserver, which ends with its own parent).
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # linux/prctl.h
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
        if parent is not None and os.getppid() != parent:
            os._exit(1)
