"""Run torch.profiler inside a loader worker, which a profiler in the main process cannot see."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING

from harness.probes.profilers.clocks import realtime_minus_monotonic
from harness.probes.profilers.torch_session import TorchProfilerSettings, describe, export, make_profiler
from harness.probes.profilers.torch_spans import TorchSpans
from harness.study.traces.kineto import file_name
from trainer import telemetry

if TYPE_CHECKING:
    from torch.profiler import profile

OVER = ".torch_profile.over"  # file in the run's folder once the main process's last window is over
FAILED = ".failed"  # suffix of an empty file that replaces a worker's profile if it could not be written
# The DataLoader kills a worker 5 s after the order to end: its profile must be written by then.
WORKER_EVENTS = 50_000
WORKER_BATCHES = 2_000
_FIRST_OF_ALL = 100  # exit priority above that of the worker's queues


class WorkerProfile:
    """Profile of one loader worker, from its start until the main process's windows are over.

    It writes itself to a file.
    ``most_events``: after about so many events, the profile is ended early.
    """

    def __init__(self, settings: TorchProfilerSettings, folder: Path, worker_id: int, most_events: int) -> None:
        from harness.probes.ledger.stages import StageRecorder

        role = f"loader-{worker_id}"
        self._folder, self._path = folder, folder / file_name(role)
        # No Python frames: each batch has thousands. py-spy shows them.
        self._settings = replace(settings, stack=False)
        self._recorder = StageRecorder(role)
        self._offset = realtime_minus_monotonic()[0]
        self._most_events, self._most_batches, self._batches = most_events, WORKER_BATCHES, 0
        self._profiler: profile | None = self._start()
        telemetry.attach(TorchSpans(self._recorder, self._batch_built))
        # Worker processes end with os._exit, which runs no atexit handlers but does run finalizers.
        Finalize(None, self._end, exitpriority=_FIRST_OF_ALL)

    def _start(self) -> profile:
        profiler = make_profiler(self._settings, device=False)
        profiler.start()
        return profiler

    def _batch_built(self) -> None:
        if self._profiler is None:
            return
        self._batches += 1
        if (self._folder / OVER).exists():
            self._end()
        elif self._batches == 1:
            # The number of events in the first batch decides how many batches can be kept.
            self._profiler.stop()
            events = len(self._profiler.events() or ())  # type: ignore[no-untyped-call]
            self._most_batches = min(WORKER_BATCHES, 1 + max(1, self._most_events // max(1, events)))
            self._profiler = self._start()
        elif self._batches >= self._most_batches:
            self._end(f"it has its first {self._batches} batches only: those of later steps are not in it")

    def _end(self, cut: str | None = None) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        telemetry.attach(self._recorder)
        describe(profiler, [self._offset, realtime_minus_monotonic()[0]], cut)
        profiler.stop()
        try:
            export(profiler, self._path)
        except OSError as error:  # a full disk must not end the training
            print(f"torch_profiler: {self._path.name} could not be written: {error}", flush=True)
            with suppress(OSError):
                self._path.with_name(f".{self._path.name}{FAILED}").touch()


def profile_worker(
    settings: TorchProfilerSettings, folder: Path, worker_id: int, most_events: int = WORKER_EVENTS
) -> None:
    """Start to profile this loader worker, with its stages.

    Call it before any batch: it replaces the worker's recorder.
    The profile is written to ``folder`` once the windows of the ``TorchProfiler`` there are over, or when the worker
    ends.
    """
    WorkerProfile(settings, folder, worker_id, most_events)
