"""Runs a job in a process with a time limit, and ends everything that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from harness.machine.processes import with_variable

VARIABLE = "HARNESS_LEASE_JOB"  # processes of one job are known by it, also those in another session
ROOT = Path(__file__).parents[3]
_GRACE_S = 5.0  # for SIGINT: a job's own ``harness run`` reports its finished blocks


def environment() -> dict[str, str]:
    """Return the environment of a process. Where torch is installed without bytecode, bytecode is kept elsewhere.

    Else every process compiles the sources of torch and transformers again: 7 s of its CPU time.
    """
    found = dict(os.environ)
    specs = [find_spec(name) for name in ("torch", "transformers")]
    if any(one is not None and one.cached is not None and not Path(one.cached).exists() for one in specs):
        found.pop("PYTHONDONTWRITEBYTECODE", None)
        found.setdefault("PYTHONPYCACHEPREFIX", str(Path(tempfile.gettempdir(), "harness-bytecode")))
    return found


def run_limited(words: Sequence[str], log: Path, limit_s: float) -> int | None:
    """Run ``python WORDS``, its output into ``log``. Return its exit code; None if the limit ended it."""
    mark = uuid.uuid4().hex
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env={**environment(), VARIABLE: mark, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                pass
            return None
        finally:
            _end(process, mark)


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kill the process and all that carry its mark: what they hold of the card's memory is free for the next job."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    until = time.monotonic() + _GRACE_S
    while (left := [pid for pid in with_variable(VARIABLE, mark) if pid != os.getpid()]) and time.monotonic() < until:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)
