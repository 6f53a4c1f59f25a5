"""Sample a command with py-spy from the launcher's side, once the command asks for it (``agent/profiling.py``).

py-spy samples, and suspends, all processes of the command. The one that asked spins clock marks around the window.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import monotonic, monotonic_ns

from harness.probes.profilers.py_spy import TRACE, PySpySettings, options
from harness.probes.profilers.spy_process import SpyFailed, SpyRecording
from harness.study.run_data import ProbesRecord, PySpyRecord, read_facts
from trainer.errors import InputError
from trainer.files import write_bytes, write_text

# Files beside the frames: the command asks; py-spy samples; the command has marked the window's end; py-spy has ended.
ASKED, READY, DONE, OVER = (f"py-spy.{word}" for word in ("asked", "ready", "done", "over"))
RECORD = "py-spy.json"  # a probes.json: how the TRACE beside it was recorded, or why it was not
POLL_S = 0.05
LATE_S = 60  # seconds allowed for the steps at both ends of the window, which may be long


def sample_when_asked(process: subprocess.Popen[bytes], raw: Path, seconds: int) -> None:
    """Sample the command with py-spy into ``raw`` once it asks, until its window ends; record samples or error."""
    while not (raw / ASKED).exists():
        if process.poll() is not None:
            return
        time.sleep(POLL_S)
    output = raw / "py-spy.trace.json"
    try:
        probes = ProbesRecord(py_spy=_record(process, raw, seconds, output))
        write_bytes(raw / TRACE, gzip.compress(output.read_bytes(), 6))
    except (SpyFailed, OSError) as error:
        probes = ProbesRecord((str(error) if isinstance(error, SpyFailed) else f"py-spy: {error}",), failed=("py_spy",))
    finally:
        with suppress(OSError):
            (raw / OVER).touch()
        with suppress(OSError):
            output.unlink(missing_ok=True)
    with suppress(OSError):
        write_text(raw / RECORD, json.dumps(asdict(probes)))


def _record(process: subprocess.Popen[bytes], raw: Path, seconds: int, output: Path) -> PySpyRecord:
    """Sample into ``output`` until the window or program ends, ``seconds`` + LATE_S at most. Raises SpyFailed."""
    settings = PySpySettings(seconds=seconds)
    recording = SpyRecording(options(settings, "chrometrace"), output, metronome=True)
    try:
        (raw / READY).touch()
        until = monotonic() + seconds + LATE_S
        while not (raw / DONE).exists() and process.poll() is None and monotonic() < until:
            time.sleep(POLL_S)
        end_ns = monotonic_ns()
    finally:
        recording.end()
    return PySpyRecord(
        **asdict(settings),
        # Samples of the launcher and of the metronome only serve as time marks.
        metronome=(*recording.metronome_pids, os.getpid()),
        started=(recording.started_ns, recording.ready_ns),
        window=(recording.ready_ns, end_ns),
        samples=recording.samples,
        errors=recording.errors,
    )


def sampled(raw: Path) -> ProbesRecord | None:
    """Return how py-spy's window in ``raw`` was recorded, or its problem; None if it was never asked for."""
    try:
        return read_facts(raw / RECORD) if (raw / RECORD).exists() else None
    except InputError as error:
        return ProbesRecord((f"py-spy: {error}",), failed=("py_spy",))
