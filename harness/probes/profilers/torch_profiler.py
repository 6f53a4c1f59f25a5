"""Run torch.profiler for a window of steps, in the main process and in its loader workers.

It slows the recorded steps, so a profiled run measures nothing else. ``harness.study.traces.kineto`` names and reads
the files.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from multiprocessing.util import Finalize
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Self

from harness.probes.probe import Probe, ProbeReport
from harness.probes.profilers.torch_session import (
    MAX_TRACE_BYTES,
    TorchProfilerSettings,
    TorchSpans,
    describe,
    export,
    make_profiler,
    realtime_minus_monotonic,
)
from harness.study.run_data import TorchProfilerRecord
from harness.study.traces.kineto import CUT, file_name, files, header
from trainer import telemetry
from trainer.errors import InputError
from trainer.json_types import Json

if TYPE_CHECKING:
    from torch.profiler import profile

    from trainer.telemetry import Recorder

OVER = ".torch_profile.over"  # file in the run's folder once the main process's last window is over
FAILED = ".failed"  # suffix of an empty file that replaces a worker's profile if it could not be written
_FAILURES = f".torch_profile.*{FAILED}"
_CLOCK_SET_NS = 50_000  # nanoseconds: the realtime clock was set in between, and the files' times are off by this much
# The DataLoader kills a worker 5 s after the order to end: its profile must be written by then.
WORKER_EVENTS = 50_000
WORKER_BATCHES = 2_000
_FIRST_OF_ALL = 100  # exit priority above that of the worker's queues


class TorchProfiler(Probe):
    """Probe torch.profiler in the main process. Create it before the loader's workers; keep it until they end."""

    settings_type = TorchProfilerSettings

    def __init__(self, settings: TorchProfilerSettings, folder: Path) -> None:
        self._problems: list[str] = []
        self._settings = settings
        self._folder = folder
        self._window = 0
        self._windows: list[tuple[int, int, int, int]] = []
        self._flops: Counter[str] = Counter()
        self._offsets: list[tuple[int, int]] = []
        self._running: profile | None = None  # profiler of the current repetition
        profiles = [path for path, _ in files(folder)]
        for path in [*profiles, *folder.glob(_FAILURES)]:  # files of an earlier attempt at the same run
            path.unlink()
        (folder / OVER).unlink(missing_ok=True)

    @classmethod
    def attach(cls, settings: TorchProfilerSettings, folder: Path) -> Self:
        return cls(settings, folder)

    @classmethod
    def attach_in_worker(cls, settings: TorchProfilerSettings, folder: Path, worker_id: int, *, windows: bool) -> None:
        if settings.workers and windows:
            profile_worker(settings, folder, worker_id)

    def run_window(self, next_step: Callable[[], int], recorder: Recorder) -> None:
        """Take the steps of the whole schedule, and write a file per window. ``next_step()`` takes one step."""
        from torch.profiler import schedule

        schedule_ = self._settings
        self._offsets.append(realtime_minus_monotonic())
        self._folder.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Profiler won't be using warmup")  # the user's choice
            for _ in range(schedule_.repeat):
                for _ in range(schedule_.wait):  # a profiler for all windows would mark these steps at 12 us each
                    next_step()
                profiler = make_profiler(
                    self._settings,
                    schedule=schedule(wait=0, warmup=schedule_.warmup, active=schedule_.active, repeat=1),
                    on_trace_ready=self._write,
                )
                with profiler:
                    for _ in range(schedule_.warmup):
                        next_step()
                        profiler.step()
                    self._record(profiler, next_step, recorder)
        self._offsets.append(realtime_minus_monotonic())
        (self._folder / OVER).touch()  # the workers check it at their next batch

    def _record(self, profiler: profile, next_step: Callable[[], int], recorder: Recorder) -> None:
        """Take the active steps of one window, and write its file."""
        self._window += 1
        telemetry.attach(TorchSpans(recorder))
        start_ns, steps = monotonic_ns(), []
        try:
            for place in range(self._settings.active):
                steps.append(next_step())
                if place + 1 < self._settings.active:
                    profiler.step()
        finally:
            telemetry.attach(recorder)
        self._windows.append((start_ns, monotonic_ns(), steps[0], steps[-1]))
        recorder.pause()
        describe(profiler, [self._offsets[0][0], realtime_minus_monotonic()[0]])
        profiler.step()

    def _write(self, profiler: profile) -> None:
        number = self._window
        if self._settings.flops:  # missing in the file: torch only sums them
            self._flops.update({average.key: average.flops for average in profiler.key_averages() if average.flops})
        try:
            cut = export(profiler, self._folder / file_name("main", number))
        except OSError as error:
            self._add_problem(f"torch_profiler: window {number} could not be written ({error.strerror or error})")
            return
        if cut:
            self._add_problem(
                f"torch_profiler: window {number} was cut at {MAX_TRACE_BYTES / 1e6:.0f} MB, so it is not in the "
                "operator table; profile fewer steps (probes.torch_profiler.active)"
            )

    def begin_repetition(self) -> None:
        """Start a profiler and record until :meth:`end_repetition`, only to measure the cost of recording."""
        self._running = make_profiler(self._settings)
        self._running.start()

    def end_repetition(self) -> None:
        """Stop recording, and discard the profile."""
        if self._running is not None:
            self._running.stop()
            self._running = None

    @property
    def problems(self) -> list[str]:
        """Problems so far, one line each. Those of the workers are complete once the workers have ended."""
        for path, role in files(self._folder):
            if role != "main":
                try:
                    cut = header(path).get(CUT)
                except InputError as error:
                    cut = str(error)
                self._add_problem(f"torch_profiler: the profile of {role} is incomplete: {cut}" if cut else None)
        for leftover in sorted(self._folder.glob(".torch_profile.*.tmp")):
            leftover.unlink()
            role = leftover.name.split(".")[2]
            if role.startswith("loader-"):  # failures in the main process are already reported
                self._add_problem(f"torch_profiler: {role} was ended before its profile was written")
        for mark in sorted(self._folder.glob(_FAILURES)):
            mark.unlink()
            role = mark.name.split(".")[2]
            self._add_problem(
                f"torch_profiler: the profile of {role} could not be written; the run's log has the reason"
            )
        offsets = [offset for offset, _ in self._offsets]
        if offsets and max(offsets) - min(offsets) > _CLOCK_SET_NS:
            off_us = (max(offsets) - min(offsets)) / 1e3
            self._add_problem(
                f"torch_profiler: the realtime clock was set meanwhile: times are off by up to {off_us:.0f} us"
            )
        return self._problems

    def facts(self) -> dict[str, Json]:
        """Return the entry of probes.json. Call it once the workers have ended: it deletes :data:`OVER`."""
        (self._folder / OVER).unlink(missing_ok=True)
        record = TorchProfilerRecord(
            windows=tuple(self._windows),
            realtime_minus_monotonic_ns=tuple(offset for offset, _ in self._offsets),
            clock_error_ns=max((error for _, error in self._offsets), default=0),
            workers=tuple(role for _, role in files(self._folder) if role != "main"),
            flops=dict(self._flops),
        )
        return asdict(record)

    def report(self) -> ProbeReport:
        return ProbeReport(tuple(self.problems), self.facts())

    def _add_problem(self, problem: str | None) -> None:
        if problem is not None and problem not in self._problems:
            self._problems.append(problem)


class WorkerProfile:
    """Profile of a loader worker until the main process's windows are over, or after about ``most_events`` events."""

    def __init__(self, settings: TorchProfilerSettings, folder: Path, worker_id: int, most_events: int) -> None:
        from harness.probes.ledger.recorders import StageRecorder

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
            self._end(f"only its first {self._batches} batches were recorded")

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
    """Profile this loader worker until its end or that of the windows. Call it before any batch."""
    WorkerProfile(settings, folder, worker_id, most_events)
