"""Works through the steps of a run some at a time, which bounds the memory of it, in two threads.

numpy lets other threads run while it works on columns, so two cores serve one run, without a process to start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from harness.explain.intervals import Stretches

Result = TypeVar("Result")
STEPS_AT_ONCE = 10_000  # what one sweep over them needs stays in a core's cache
THREADS = 2
PARTS_AT_ONCE = 16  # whose results wait in memory


def in_parts(steps: Stretches, work: Callable[[Stretches], Result]) -> Iterator[Result]:
    """What ``work`` returns for each part of ``steps``, in their order. It may be called for two parts side by side."""
    firsts = range(0, len(steps.starts), STEPS_AT_ONCE)
    parts = [Stretches(*(column[first : first + STEPS_AT_ONCE] for column in steps)) for first in firsts]
    if len(parts) < THREADS:
        yield from map(work, parts)
        return
    with ThreadPoolExecutor(THREADS) as threads:
        for first in range(0, len(parts), PARTS_AT_ONCE):
            yield from threads.map(work, parts[first : first + PARTS_AT_ONCE])
