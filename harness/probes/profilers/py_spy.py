"""Sample the stacks of this process and its children with py-spy (github.com/benfred/py-spy).

It suspends a process for each reading, so sampled steps are not measured. It writes one format at a time, so it runs
twice: for chrometrace, the only format with times, and for the flame graph.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic_ns
from types import FunctionType
from typing import TYPE_CHECKING, Self

from harness.machine.tracing import allow_tracing
from harness.probes.probe import Probe, ProbeReport, ProbeSettings
from harness.probes.profilers.spy_process import SpyFailed, SpyRecording
from harness.probes.sampler.sampler import process_roles
from harness.study.run_data import PySpyRecord
from harness.study.traces.py_spy import MARK, read_stacks
from trainer.errors import InputError
from trainer.files import write_bytes
from trainer.json_types import Json, JsonObject
from trainer.telemetry import Recorder

if TYPE_CHECKING:
    import pyarrow as pa


_SWITCHES = ("native", "gil", "nonblocking")  # switches of py-spy, each "--name" on its command line
MARKS = 6  # marks at each end of the window: both edges of a mark narrow down py-spy's clock
MARK_PERIODS = 3.0  # mark length in sampling periods; py-spy draws random intervals, so 5 % of such marks stay unseen
GAP_PERIODS = 2.0  # sampling periods between marks
TRACE, SPEEDSCOPE, FLAME_GRAPH = "stacks.trace.json.gz", "stacks.speedscope.json", "stacks.svg"
# A process's command line, up to the sample count in a box's title, or to the cut of its label.
_PROCESS = re.compile(r"process (\d+):[^<]*?(?= \([\d,]+ samples|<)")
_TITLE = re.compile(r'(<text id="title"[^>]*>)[^<]*')  # py-spy's title is its own command line


@dataclass(frozen=True)
class PySpySettings(ProbeSettings):
    """Settings of the probe py-spy: the scenario's ``probes.py_spy`` (``harness.scenario.model``)."""

    rate_hz: int = 100
    seconds: float = 5
    native: bool = False
    gil: bool = False
    nonblocking: bool = False


class PySpy(Probe):
    """Probe that samples stacks of this process and its children into ``folder``. Its errors become ``problems``."""

    settings_type = PySpySettings

    def __init__(self, settings: PySpySettings, folder: Path) -> None:
        self.problems: list[str] = []
        self._failed = False
        self._folder = folder
        self._record: PySpyRecord | None = None
        self._calibrated: tuple[SpyRecording, tempfile.TemporaryDirectory[str]] | None = None
        if settings.native and settings.nonblocking:
            settings = replace(settings, nonblocking=False)
            self.problems.append("py-spy: nonblocking left out: native stacks need the process to be suspended")
        self._settings = settings

    @classmethod
    def attach(cls, settings: PySpySettings, folder: Path) -> Self:
        allow_tracing()
        return cls(settings, folder)

    @classmethod
    def attach_in_worker(cls, settings: PySpySettings, folder: Path, worker_id: int, *, windows: bool) -> None:  # noqa: ARG003
        allow_tracing()

    def run_window(self, next_step: Callable[[], int], recorder: Recorder) -> None:
        """Take steps under py-spy for the declared seconds, for trace and speedscope, then for the flame graph."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._failures_reported(), tempfile.TemporaryDirectory(dir=self._folder, prefix=".py-spy") as scratch:
            self._trace(next_step, Path(scratch) / "trace.json")
            self._flame_graph(next_step, Path(scratch) / "stacks.svg")

    def begin_repetition(self) -> None:
        """Start py-spy and sample until :meth:`end_repetition`, only to measure its cost."""
        if self._failed:
            return
        with self._failures_reported():
            scratch = tempfile.TemporaryDirectory(prefix="py-spy")
            try:
                output = Path(scratch.name) / "trace.json"
                recording = SpyRecording(options(self._settings, "chrometrace"), output, metronome=True)
                self._calibrated = recording, scratch
            except BaseException:
                scratch.cleanup()
                raise

    def end_repetition(self) -> None:
        """Stop sampling, and discard the samples."""
        if self._calibrated is None:
            return
        recording, scratch = self._calibrated
        self._calibrated = None
        with scratch, self._failures_reported():
            recording.end()

    @property
    def failed(self) -> bool:
        """True if py-spy could not sample; ``problems`` contains the reason."""
        return self._failed

    def facts(self) -> dict[str, Json]:
        """Return the entry "py_spy" of probes.json; {} if nothing was recorded."""
        return {} if self._record is None else asdict(self._record)

    def report(self) -> ProbeReport:
        return ProbeReport(tuple(self.problems), self.facts(), self._failed)

    def _trace(self, next_step: Callable[[], int], output: Path) -> None:
        recording = SpyRecording(options(self._settings, "chrometrace"), output, metronome=True)
        with _ended(recording):
            marks = list(_spin_marks(0, self._settings.rate_hz))
            recording.check()
            start_ns, steps = monotonic_ns(), self._take(next_step)
            end_ns = monotonic_ns()
            marks += _spin_marks(MARKS, self._settings.rate_hz)
        raw = output.read_bytes()
        record = PySpyRecord(
            **asdict(self._settings),
            pid=os.getpid(),
            metronome=tuple(recording.metronome_pids),
            started=(recording.started_ns, recording.ready_ns),
            marks=tuple(marks),
            window=(start_ns, end_ns),
            steps=steps,
            samples=recording.samples,
            errors=recording.errors,
            roots=tuple(_import_roots()),
        )
        write_bytes(self._folder / TRACE, gzip.compress(raw, 6))
        self._record = record
        try:
            file = speedscope(read_stacks(raw, record, process_roles()))
        except InputError as error:
            raise SpyFailed(str(error)) from error
        write_bytes(self._folder / SPEEDSCOPE, json.dumps(file).encode())

    def _flame_graph(self, next_step: Callable[[], int], output: Path) -> None:
        recording = SpyRecording(options(self._settings, "flamegraph"), output)
        with _ended(recording):
            self._take(next_step)
        title = f"Threads that run, {self._settings.rate_hz} samples a second for {self._settings.seconds:g} s (py-spy)"
        write_bytes(self._folder / FLAME_GRAPH, _renamed(output.read_text(), title, process_roles()).encode())

    def _take(self, next_step: Callable[[], int]) -> int:
        """Take steps until the declared seconds have passed, at least one. Return how many."""
        end_ns, steps = monotonic_ns() + int(self._settings.seconds * 1e9), 0
        while monotonic_ns() < end_ns or not steps:
            next_step()
            steps += 1
        return steps

    @contextmanager
    def _failures_reported(self) -> Iterator[None]:
        """Turn a SpyFailed into a problem of the probe. Other errors are the run's own, and propagate."""
        try:
            yield
        except SpyFailed as error:
            self._failed = True
            self.problems.append(str(error))


def options(settings: PySpySettings, form: str) -> list[str]:
    """Return command-line options of ``py-spy record`` for the format ``form`` ("chrometrace" or "flamegraph")."""
    arguments = ["--format", form, "--rate", str(settings.rate_hz)]
    switches = {name: getattr(settings, name) for name in _SWITCHES}
    arguments += [f"--{name}" for name, on in switches.items() if on]
    # Without waiting threads, a trace would extend a thread's last stack over its wait.
    return arguments + ["--idle", "--threads"] * (form == "chrometrace")


@contextmanager
def _ended(recording: SpyRecording) -> Iterator[None]:
    """End the recording when the context is left. An error in the context takes precedence over one at the end."""
    try:
        yield
    except BaseException:
        with suppress(SpyFailed):
            recording.end()
        raise
    recording.end()


def _spin_marks(first: int, rate_hz: int) -> Iterator[tuple[int, int]]:
    """Run :data:`MARKS` busy loops, by which py-spy's samples are placed in time. Yield (start, end) of each in ns
    (CLOCK_MONOTONIC).

    Each loop is a function named ``MARK`` and a number, counted from ``first``, and lasts :data:`MARK_PERIODS` periods
    of ``rate_hz``, the rate of py-spy's samples.
    """
    for number in range(first, first + MARKS):
        _spin_until(monotonic_ns() + int(GAP_PERIODS / rate_hz * 1e9))
        name = f"{MARK}{number}"
        code = _spin_until.__code__.replace(co_name=name, co_qualname=name)
        mark = FunctionType(code, globals(), name)  # the name identifies the mark in the stacks
        start_ns = monotonic_ns()
        mark(start_ns + int(MARK_PERIODS / rate_hz * 1e9))
        yield start_ns, monotonic_ns()


def _spin_until(end_ns: int) -> None:
    while monotonic_ns() < end_ns:
        pass


def _import_roots() -> list[str]:
    """Return the folders of imports, longest first. File names in the stacks are relative to them."""
    roots = {Path(entry).absolute() for entry in sys.path}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and "." not in name:  # an editable install need not be on sys.path
            roots.add(Path(file).absolute().parents[1 if hasattr(module, "__path__") else 0])
    return sorted(map(str, roots), key=len, reverse=True)


def _renamed(svg: str, title: str, roles: dict[int, str]) -> str:
    """Return the flame graph with a new title and processes named by role (``roles``: by process id)."""
    named = _PROCESS.sub(lambda match: f"{roles.get(int(match[1]), 'process')} {match[1]}", svg)
    return _TITLE.sub(lambda match: match[1] + title, named, count=1)


_FRAME = re.compile(r"(.*) \((.*?)(?::(\d+))?\)")
_ORDER = ("main", "loader-")


def speedscope(samples: pa.Table) -> JsonObject:
    """Return a speedscope file for a table of ``read_stacks``, in ns. A sample's weight is the time to the next one."""
    frames: dict[str, int] = {}
    threads: dict[tuple[int, int, str], list[tuple[int, int, list[int]]]] = {}
    for row in samples.to_pylist():
        stack = [frames.setdefault(frame, len(frames)) for frame in row["stack"]]
        thread = row["pid"], row["tid"], row["role"]
        threads.setdefault(thread, []).append((row["time_ns"], row["duration_ns"], stack))
    origin_ns = min((spans[0][0] for spans in threads.values()), default=0)
    profiles: list[Json] = []
    for (pid, tid, role), spans in sorted(threads.items(), key=lambda item: _place(*item[0])):
        weights = [duration for _, duration, _ in spans]
        start = spans[0][0] - origin_ns
        profiles.append(
            {
                "type": "sampled",
                "name": f"{role} {pid}" if role != "other" else f"process {pid}, thread {tid}",
                "unit": "nanoseconds",
                "startValue": start,
                "endValue": start + sum(weights),
                "samples": [stack for _, _, stack in spans],
                "weights": weights,
            }
        )
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": "stacks",
        "exporter": "llm-training-harness",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(text) for text in frames]},
        "profiles": profiles,
    }


def _place(pid: int, tid: int, role: str) -> tuple[int, str, int, int]:
    matches = [place for place, start in enumerate(_ORDER) if role.startswith(start)]
    return matches[0] if matches else len(_ORDER), role, pid, tid


def _frame(text: str) -> dict[str, Json]:
    match = _FRAME.fullmatch(text)
    if match is None:
        return {"name": text}
    frame: dict[str, Json] = {"name": match[1], "file": match[2]}
    return frame if match[3] is None else {**frame, "line": int(match[3])}
