"""Profile a program that ``harness exec`` records while it runs: ask its agent (``agent/on_demand.py``), and wait."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from harness.attach.agent.events import PROFILE_ASKED, PROFILE_DONE, PROFILE_OVER, PROFILE_READY, SUFFIX
from harness.attach.frames import is_worker
from harness.attach.live import RecordedProgram
from harness.machine.files import ROOT
from harness.probes.profilers.py_spy import TRACE, PySpySettings, options
from harness.probes.profilers.spy_process import SpyFailed, SpyRecording
from harness.probes.profilers.torch_session import keep
from harness.study.traces.kineto import file_name
from trainer.errors import InputError
from trainer.files import write_bytes

ANSWER_LOOK_S = 0.1
LOCK = "profile.lock"


class NotProfiled(Exception):  # noqa: N818 - an outcome, reported once
    """The program was not profiled; the message is one line with the reason."""


class Traced(NamedTuple):
    """A trace of torch.profiler, the number of its steps, and True if it was cut at the largest size of a trace."""

    path: Path
    steps: int
    cut: bool


def process_of(program: RecordedProgram, target: str | None) -> int:
    """Return the process to profile: ``target`` if that id records steps, else the first one. Raises InputError."""
    workers = {int(path.name.partition("-")[0]): is_worker(path) for path in program.raw.glob(f"*{SUFFIX}")}
    pids = [pid for pid in program.pids if workers.get(pid) is False]
    if not pids:
        raise InputError(f"profile: {program.raw.parent}: no process of this program has recorded a step")
    asked = int(target) if target is not None and target.isdecimal() else None
    if asked is not None and workers.get(asked):
        raise InputError(f"profile: process {asked} is a loader worker, which takes no steps: give {pids[0]}")
    return asked if asked in pids else pids[0]


def profile_torch(program: RecordedProgram, pid: int, steps: int, folder: Path, limit_s: float) -> Traced:
    """Record ``steps`` steps of ``pid`` with torch.profiler into ``folder``. Raises NotProfiled (or ``limit_s``)."""
    request = _ask(program, pid, {"steps": steps, "limit_s": limit_s})
    answer = _answer(program, pid, request, PROFILE_DONE, limit_s)
    recorded = program.raw / Path(str(answer["trace"])).name
    trace = folder / file_name("main")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        cut = keep(recorded, trace)
    except OSError:
        if program.raw.is_dir():
            raise
        raise FileNotFoundError(recorded) from None  # removed with the record of a program that has ended
    finally:
        recorded.unlink(missing_ok=True)
    return Traced(trace, int(answer["steps"]), cut)


def profile_stacks(
    program: RecordedProgram, pid: int, seconds: float, folder: Path, limit_s: float
) -> tuple[Path, float]:
    """Sample process ``pid`` and its children for ``seconds``, or until it ends; return (trace, seconds sampled).

    Raises NotProfiled as :func:`profile_torch` does.
    """
    request = _ask(program, pid, {"seconds": seconds, "limit_s": limit_s})
    _answer(program, pid, request, PROFILE_READY, limit_s)
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / "py-spy.trace.json"
    try:
        recording = SpyRecording(options(PySpySettings(seconds=seconds), "chrometrace"), output, pid=pid)
        try:
            begun_s = time.monotonic()
            while (sampled_s := time.monotonic() - begun_s) < seconds and (ROOT / "proc" / str(pid)).exists():
                time.sleep(min(ANSWER_LOOK_S, seconds))
        finally:
            recording.end()
        write_bytes(folder / TRACE, gzip.compress(output.read_bytes(), 6))
    except SpyFailed as error:
        raise NotProfiled(str(error)) from error
    finally:
        output.unlink(missing_ok=True)
        with suppress(OSError):  # The program may have ended, and its record been removed.
            _file(program, pid, PROFILE_OVER).touch()
    with suppress(NotProfiled, OSError):
        _answer(program, pid, request, PROFILE_DONE, limit_s)
    return folder / TRACE, sampled_s


@contextmanager
def alone(program: RecordedProgram, pid: int) -> Iterator[None]:
    """Let no other ``harness profile`` ask process ``pid``. Raises NotProfiled if one does, or the record is gone."""
    try:
        with open(_file(program, pid, LOCK), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                yield
            finally:
                _file(program, pid, PROFILE_ASKED).unlink(missing_ok=True)
    except BlockingIOError as error:
        raise NotProfiled(f"process {pid}: another harness profile waits for it") from error
    except FileNotFoundError as error:
        if program.raw.is_dir():
            raise
        raise NotProfiled(f"process {pid} ended before it was profiled") from error


def _ask(program: RecordedProgram, pid: int, request: dict[str, float]) -> str:
    """Send ``request`` to process ``pid``; return the id that its answers have."""
    for old in (PROFILE_READY, PROFILE_OVER, PROFILE_DONE):
        _file(program, pid, old).unlink(missing_ok=True)
    number = f"{os.getpid()}-{time.monotonic_ns()}"
    asked = _file(program, pid, PROFILE_ASKED)  # by a rename, but not write_text: it would make a removed folder anew
    partial = asked.with_name(f"{asked.name}.tmp")
    partial.write_text(json.dumps({"id": number, **request}))
    partial.replace(asked)
    return number


def _answer(program: RecordedProgram, pid: int, request: str, what: str, limit_s: float) -> dict[str, Any]:
    """Return the content of the file ``what`` with the id ``request``. Raises NotProfiled if the process refuses it."""
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        for name in {what, PROFILE_DONE}:
            if (file := _file(program, pid, name)).exists():
                answer: dict[str, Any] = json.loads(file.read_text())
                file.unlink()
                if answer.get("id") != request:  # the answer to an earlier command, which had given up
                    continue
                if "error" in answer:
                    raise NotProfiled(f"process {pid}: {answer['error']}")
                return answer
        if not (ROOT / "proc" / str(pid)).exists() or not program.raw.is_dir():
            raise NotProfiled(f"process {pid} ended before it was profiled")
        time.sleep(ANSWER_LOOK_S)
    raise NotProfiled(f"process {pid} did not answer within {limit_s:g} s: no step ended, or its steps are longer")


def _file(program: RecordedProgram, pid: int, what: str) -> Path:
    return program.raw / f"{pid}.{what}"
