"""Aligns another program's clock to CLOCK_MONOTONIC by functions whose beginning and end are known on both sides.

While function ``..._3`` runs, and only then, it is in the sampled stacks. So each of its two edges lies between two
samples, which bounds the difference of the clocks from both sides:

    CLOCK_MONOTONIC        start |==== mark 3 ====| end
    samples             .     .     x     x     x     .        x: with mark 3 in the stack
                           before  first      last  after
    offset = monotonic - other:  start - first <= offset <= start - before;  end - after <= offset <= end - last

One edge bounds the offset to about a sampling interval; many edges at random phases bound it to a small part of one. A
sample that was read late gives a wrong interval, so the range that most edges agree on counts: Marzullo's algorithm, as
in NTP.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from trainer.errors import InputError

MARK = "harness_clock_mark_"
_NUMBER = re.compile(rf"{MARK}(\d+)\b")


class FittedClock(NamedTuple):
    """CLOCK_MONOTONIC = the other clock + ``offset_ns``.

    ``agreeing`` of ``edges`` are consistent with every offset within ``error_ns`` of it. The other edges were seen by
    late samples: 9 edges in 10 are at most ``late_ns`` away from ``offset_ns``, and so are about 9 in 10 samples.
    """

    offset_ns: int
    error_ns: int
    late_ns: int
    edges: int
    agreeing: int

    @property
    def doubt_ns(self) -> int:
        """How far 9 edges in 10 are from the offset. Single samples can be later than that."""
        return max(self.error_ns, self.late_ns)


def mark_number(frame: str) -> int | None:
    """Return the number of the clock mark that a frame is; None where it is none."""
    found = _NUMBER.match(frame)
    return int(found[1]) if found else None


def align(samples: Sequence[tuple[int, int | None]], marks: Sequence[tuple[int, int]]) -> FittedClock:
    """Fit the other clock's offset from samples (its time in ns, mark in the stack or None), in order of time.

    ``marks[k]`` is when mark k began and ended, CLOCK_MONOTONIC. Raises InputError where no mark was sampled.
    """
    intervals = list(_edges(samples, marks))
    if not intervals:
        raise InputError("no clock mark was sampled, so its times are unknown")
    low, high, agreeing = most_agreed(intervals)
    offset = (low + high) // 2
    away = sorted(max(lowest - offset, offset - highest, 0) for lowest, highest in intervals)
    late = away[math.ceil(0.9 * len(away)) - 1]
    return FittedClock(offset, (high - low + 1) // 2, late, len(intervals), agreeing)


def most_agreed(intervals: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """Find the range that most closed intervals have in common (the first of equals), and count those intervals."""
    edges = sorted([(low, 0) for low, _ in intervals] + [(high, 1) for _, high in intervals])
    depth = most = 0
    best = (0, 0)
    for (at, closing), (until, _) in zip(edges, [*edges[1:], (edges[-1][0], 1)], strict=True):
        depth += -1 if closing else 1
        if depth > most:
            most, best = depth, (at, until)
    return *best, most


def _edges(samples: Sequence[tuple[int, int | None]], marks: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    seen: dict[int, list[int]] = {}
    for place, (_, mark) in enumerate(samples):
        if mark is not None:
            seen.setdefault(mark, []).append(place)
    found = []
    for mark, places in seen.items():
        if mark >= len(marks):
            raise InputError(f"clock mark {mark} was sampled, but only {len(marks)} are noted")
        start, end = marks[mark]
        first, last = places[0], places[-1]
        if first > 0:
            found.append((start - samples[first][0], start - samples[first - 1][0]))
        if last + 1 < len(samples):
            found.append((end - samples[last + 1][0], end - samples[last][0]))
    return found
