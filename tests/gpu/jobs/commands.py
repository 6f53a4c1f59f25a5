"""Runs the harness's commands as processes that end in time, and keeps one failure from ending a job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.commands import ROOT
from tests.gpu.lease.place import Place

GRACE_S = 5.0  # from the interrupt, upon which a study keeps what it has, to the kill
TAIL = 3000  # characters of the output of a command that failed
MESSAGE = 300  # characters of an error


@contextmanager
def failing_alone(place: Place, what: str) -> Iterator[None]:
    """Add a figure that says why ``what`` failed, where it does, and go on: a card, a driver or a tool may fail."""
    try:
        yield
    except Exception as error:
        traceback.print_exc()
        place.add(f"{what}: failed", repr(error)[:MESSAGE])


def harness(*words: str, seconds: float) -> int | None:
    """Run one command for at most ``seconds``; its exit status, None where it was ended. Failures are printed."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness", *words],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status = _status(process, seconds)
        if status != 0:
            output.seek(0)
            said = output.read().decode(errors="replace")[-TAIL:]
            ended = f"ended after {seconds:.0f} s" if status is None else f"exit status {status}"
            print(f"harness {words[0]}: {ended}\n{said}", flush=True)
        return status


def _status(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Exit status of ``process``; None where it was interrupted, or killed, as its time was up."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(max(1.0, seconds - GRACE_S))
    for end in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, end)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
            return None
    return None
