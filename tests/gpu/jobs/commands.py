"""Runs the harness's commands within a job's time, and keeps one failure from ending a job."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.gpu.lease.place import Place
from tests.gpu.lease.processes import run_limited

GRACE_S = 8.0  # seconds between a command's time limit and its end
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


def harness(*words: str, log: Path, seconds: float) -> int | None:
    """Run one command for at most ``seconds``; its exit status, None where it was ended. Failures are printed."""
    status = run_limited(["-m", "harness", *words], log, max(1.0, seconds - GRACE_S))
    if status != 0:
        ended = f"ended after {seconds:.0f} s" if status is None else f"exit status {status}"
        print(f"harness {words[0]}: {ended}\n{log.read_text(errors='replace')[-TAIL:]}", flush=True)
    return status
