"""Computes with sets of time intervals: sorted, disjoint [start, end) pairs of integers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Stretch = tuple[int, int]


def union(stretches: Iterable[Stretch]) -> list[Stretch]:
    """The same time as sorted, disjoint stretches; empty ones go."""
    merged: list[Stretch] = []
    for start, end in sorted(stretches):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def intersection(first: list[Stretch], second: list[Stretch]) -> list[Stretch]:
    """The time in both; each sorted and disjoint, and so is the result."""
    found: list[Stretch] = []
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            found.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return found


def clip(stretches: list[Stretch], start: int, end: int) -> list[Stretch]:
    """What of the sorted, disjoint ``stretches`` lies in [start, end), found by bisection."""
    low = bisect_right(stretches, start, key=lambda one: one[1])
    high = bisect_left(stretches, end, lo=low, key=lambda one: one[0])
    found = [(max(a, start), min(b, end)) for a, b in stretches[low:high]]
    return [(a, b) for a, b in found if a < b]


def difference(first: list[Stretch], second: list[Stretch]) -> list[Stretch]:
    """The time in ``first`` and not in ``second``; each sorted and disjoint, and so is the result."""
    found: list[Stretch] = []
    j = 0
    for start, end in first:
        while j < len(second) and second[j][1] <= start:
            j += 1
        k, clock = j, start
        while k < len(second) and second[k][0] < end:
            if second[k][0] > clock:
                found.append((clock, second[k][0]))
            clock = max(clock, second[k][1])
            k += 1
        if clock < end:
            found.append((clock, end))
    return found


def total(stretches: Iterable[Stretch]) -> int:
    """Their length together."""
    return sum(end - start for start, end in stretches)
