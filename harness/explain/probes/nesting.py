"""Nests the events of each thread in time: finds the parent of each event, and its time outside its children."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def enclosing(start: Integers, end: Integers, thread: Integers) -> tuple[Integers, Integers]:
    """For each event the index of the one around it on its thread (-1: none), and its end, in nanoseconds.

    An event that outlasts the one around it is taken to end with it, so that what comes out nests strictly: that end
    is what is returned. Of events with the same start the longer one is the outer one, of equal ones the earlier in
    order. An event without duration is inside nothing and around nothing.

        thread 1   |--- a ---------------|  |-- d --|      a -1, b a, c b, d -1
                     |- b -------|
                       |- c -|
    """
    parents = np.full(len(start), -1, dtype=np.int64)
    ends = end.copy()
    solid = np.flatnonzero(end > start)
    if not solid.size:
        return parents, ends
    # Threads one after the other on a common axis: then one pass does for all of them.
    _, rank = np.unique(thread[solid], return_inverse=True)
    first = start[solid].min()
    offset = rank * (end[solid].max() - first + 1) - first
    order = np.lexsort((-end[solid], start[solid] + offset))
    index, shift = solid[order], offset[order]
    begins, stops = start[index] + shift, end[index] + shift
    while True:
        around = _innermost(begins, stops)
        limit = np.where(around >= 0, stops[around], stops)
        # Cut each event to the one around it that is still open. Repeat until no event outlasts its parent.
        late = (stops > limit) & (limit > begins)
        if not late.any():
            break
        stops = np.where(late, limit, stops)
    inside = around >= 0
    parents[index[inside]] = index[around[inside]]
    ends[index] = stops - shift
    return parents, ends


def _innermost(begins: Integers, stops: Integers) -> Integers:
    """Per event, in order of their starts: the position of the last one before it that is one level further out."""
    depth = np.arange(len(begins)) - np.searchsorted(np.sort(stops), begins, side="right")  # how many are open
    around = np.full(len(begins), -1, dtype=np.int64)
    by_depth = np.argsort(depth, kind="stable")  # of one depth, still in order
    levels = np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1)
    for outer, inner in pairwise(levels):
        around[inner] = outer[np.searchsorted(outer, inner) - 1]
    return around


def self_times(start: Integers, end: Integers, thread: Integers) -> tuple[Integers, Integers]:
    """Nanoseconds that each event spent outside the events directly inside it; and the parents of :func:`enclosing`.

    Over one thread these sum to the time covered by its outermost events.
    """
    parents, ends = enclosing(start, end, thread)
    lasted = ends - start
    inside = parents >= 0
    nested = np.bincount(parents[inside], weights=lasted[inside], minlength=len(start))  # exact below 2^53 ns
    return lasted - nested.astype(np.int64), parents


def together(*columns: Integers) -> Integers:
    """One number per distinct combination of values, from 0."""
    codes = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, ranks = np.unique(column, return_inverse=True)
        _, codes = np.unique(codes * max(len(values), 1) + ranks, return_inverse=True)
    return codes
