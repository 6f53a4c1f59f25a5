"""Something else that runs: in a module of its own, which the process that is started for it can import."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def busy() -> Iterator[None]:
    """A process beside everything that keeps a core busy half of the time. It must live to the end."""
    process = multiprocessing.get_context("spawn").Process(target=_burn, daemon=True)
    process.start()
    try:
        yield
        assert process.is_alive(), f"the load ended with {process.exitcode}: nothing was measured beside it"
    finally:
        process.kill()
        process.join()


def _burn() -> None:
    while True:
        until_s = time.monotonic() + 0.05
        while time.monotonic() < until_s:
            pass
        time.sleep(0.05)
