"""Computes with stretches of time: sorted, disjoint [start, end) pairs of int64 nanoseconds, as two columns.

Everything works on whole columns, so that a run of a million steps takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]
SPANS_AT_ONCE = 500_000  # bounds the memory of one sweep
NO_TIMES: Int = np.zeros(0, dtype=np.int64)


class Stretches(NamedTuple):
    """Stretches in order and apart from each other; ``starts`` and ``ends`` (stretches,)."""

    starts: Int
    ends: Int


class Pieces(NamedTuple):
    """Parts of other spans: ``owner`` (pieces,) is the index of the span that each [start, end) belongs to."""

    owner: Int
    starts: Int
    ends: Int


def union(starts: Int, ends: Int) -> Stretches:
    """The same time as stretches; empty spans go."""
    kept = ends > starts
    if not kept.all():
        starts, ends = starts[kept], ends[kept]
    if not starts.size:
        return Stretches(NO_TIMES, NO_TIMES)
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reached = np.maximum.accumulate(ends)
    first = np.append(True, starts[1:] > reached[:-1])
    return Stretches(starts[first], reached[np.append(first[1:], True)])


def intersection(first: Stretches, second: Stretches) -> Stretches:
    """The time in both."""
    return Stretches(*clip(*first, second)[1:])


def difference(first: Stretches, second: Stretches) -> Stretches:
    """The time in ``first`` and not in ``second``."""
    if not first.starts.size or not second.starts.size:
        return first
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    return intersection(first, Stretches(np.append(low, second.ends), np.append(second.starts, high)))


def clip(starts: Int, ends: Int, inside: Stretches) -> Pieces:
    """The parts of any spans [start, end) that lie ``inside``, span by span; the spans may overlap one another."""
    low = np.searchsorted(inside.ends, starts, side="right")
    high = np.maximum(np.searchsorted(inside.starts, ends, side="left"), low)
    owner, place = _expanded(low, high)
    since, until = np.maximum(starts[owner], inside.starts[place]), np.minimum(ends[owner], inside.ends[place])
    kept = until > since
    return Pieces(owner[kept], since[kept], until[kept])


def touches(starts: Int, ends: Int, inside: Stretches) -> NDArray[np.bool_]:
    """True if each span [start, end) has a moment ``inside``; one that is empty has none, but may count, (spans,)."""
    found: NDArray[np.bool_] = np.searchsorted(inside.starts, ends, side="left") > np.searchsorted(
        inside.ends, starts, side="right"
    )
    return found


def covered(starts: Int, ends: Int, inside: Stretches) -> Int:
    """How much of each span [start, end) lies ``inside``, (spans,)."""
    if not inside.starts.size:
        return np.zeros(len(starts), dtype=np.int64)
    before = np.append(0, np.cumsum(inside.ends - inside.starts))

    def up_to(moments: Int) -> Int:
        place = np.searchsorted(inside.starts, moments, side="right") - 1
        known = np.maximum(place, 0)
        within = np.clip(moments - inside.starts[known], 0, inside.ends[known] - inside.starts[known])
        total: Int = np.where(place >= 0, before[known] + within, 0)
        return total

    found = np.empty(len(starts), dtype=np.int64)
    for first in range(0, len(starts), SPANS_AT_ONCE):
        part = slice(first, first + SPANS_AT_ONCE)
        found[part] = np.maximum(0, up_to(ends[part]) - up_to(starts[part]))
    return found


def in_order(moments: Int) -> Int:
    """The same moments sorted, each once. Much faster than ``np.unique`` for a few columns that are in order."""
    found = np.sort(moments, kind="stable")
    return found[np.append(True, found[1:] != found[:-1])] if len(found) else found


def total(stretches: Stretches) -> int:
    """Their length together."""
    return int((stretches.ends - stretches.starts).sum())


def innermost(starts: Int, ends: Int) -> Pieces:
    """The spans without overlaps: each moment belongs to the span that started last, of equals the one given last.

    ::

        |---- a -----------|            |-- a --|          |-a-|
                |--- b ---|       ->            |--- b ---|
    """
    kept = np.flatnonzero(ends > starts)
    order = kept[np.argsort(starts[kept], kind="stable")]
    edges = in_order(np.concatenate([starts[order], ends[order]]))
    if not edges.size:
        return Pieces(NO_TIMES, NO_TIMES, NO_TIMES)
    owner = np.full(len(edges) - 1, -1, dtype=np.int64)
    spans, place = _expanded(np.searchsorted(edges, starts[order]), np.searchsorted(edges, ends[order]))
    owner[place] = order[spans]  # of an index that is assigned several times the last one stays
    owned = owner >= 0
    return Pieces(owner[owned], edges[:-1][owned], edges[1:][owned])


def _expanded(low: Int, high: Int) -> tuple[Int, Int]:
    """Every index from low[i] to before high[i], row after row: (i of each, the index itself)."""
    counts = high - low
    rows = np.repeat(np.arange(len(counts)), counts)
    skipped = np.repeat(low - np.append(0, np.cumsum(counts)[:-1]) if len(counts) else NO_TIMES, counts)
    return rows, np.arange(len(rows)) + skipped


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
