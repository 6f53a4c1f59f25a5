"""Finds pairs of near-duplicates within buckets, groups documents by them, and decides which document is kept.

Each document is compared with the :data:`BEFORE` documents before it in the bucket, in the corpus' order. So the number
of pairs grows with the number of documents, and all engines find the same pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.corpus.dedup.shingles import Hashes
from trainer.data.corpus.dedup.sketches import Integers, Sets

Edges = tuple[Integers, Integers, NDArray[np.float64]]  # left and right documents, and their similarities
KEPT_RULE = "the longest document of each group (most characters) is kept; if several are as long, the first"


@dataclass(frozen=True)
class Removals:
    """Removed documents in the corpus' order, each with its group's kept document and most similar neighbour."""

    removed: Integers
    kept: Integers
    neighbours: Integers
    similarities: NDArray[np.float64]  # to the neighbour

    def between(self, first: int, end: int) -> Removals:
        """Return the removals of documents ``first`` to ``end`` - 1."""
        low, high = np.searchsorted(self.removed, [first, end])
        return Removals(
            self.removed[low:high], self.kept[low:high], self.neighbours[low:high], self.similarities[low:high]
        )


def first_of_runs(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the rows that differ in any column from the row before. It is True for the first row."""
    first = np.ones(len(columns[0]), np.bool_)
    first[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return first


def components(left: Integers, right: Integers) -> tuple[Integers, Integers]:
    """Return all documents that have an edge, sorted, and for each the first of its connected component."""
    nodes = np.unique(np.concatenate([left, right]))
    parent = list(range(len(nodes)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    ends = np.searchsorted(nodes, left).tolist(), np.searchsorted(nodes, right).tolist()
    for low, high in zip(*ends, strict=True):
        low, high = root(low), root(high)
        if low != high:
            parent[max(low, high)] = min(low, high)
    return nodes, nodes[[root(node) for node in range(len(nodes))]]


def removals(left: Integers, right: Integers, similarities: NDArray[np.float64], characters: Integers) -> Removals:
    """Choose the kept document of each group by :data:`KEPT_RULE`; ``characters``: length of every document."""
    nodes, groups = components(left, right)
    order = np.lexsort((nodes, -characters[nodes], groups))
    first = first_of_runs(groups[order])
    kept = nodes[order][first][np.searchsorted(groups[order][first], groups)]
    is_removed = nodes != kept
    ends, opposite = np.concatenate([left, right]), np.concatenate([right, left])
    doubled = np.concatenate([similarities, similarities])
    order = np.lexsort((opposite, -doubled, ends))
    best = first_of_runs(ends[order])  # one per node, because every node is an end
    neighbours, values = opposite[order][best], doubled[order][best]
    return Removals(nodes[is_removed], kept[is_removed], neighbours[is_removed], values[is_removed])


BEFORE = 64
# Takes the place of a pair's right document. The left one then has more than BEFORE documents before it in its bucket.
CROWDED = -1


def bucket_pairs(batches: Iterable[tuple[Hashes, Integers]]) -> Iterator[tuple[Integers, Integers]]:
    """Yield pairs (left < right), perhaps repeated, of sorted ``batches``; one not compared with all has CROWDED."""
    held_keys, held_rows = np.empty(0, np.uint64), np.empty(0, np.int64)
    for keys, rows in batches:
        held_count = len(held_keys)
        keys, rows = np.concatenate([held_keys, keys]), np.concatenate([held_rows, rows])
        left, right = [], []
        for distance in range(1, BEFORE + 2):
            start = max(held_count, distance)  # Pairs within the held rows came with the batch before.
            places = start + np.flatnonzero(keys[start:] == keys[start - distance : len(keys) - distance])
            if not len(places):  # Without equal keys at this distance there are none at larger ones.
                break
            crowded = distance > BEFORE
            left.append(rows[places] if crowded else rows[places - distance])
            right.append(np.full(len(places), CROWDED) if crowded else rows[places])
        if left:
            yield np.concatenate(left), np.concatenate(right)
        held_keys, held_rows = keys[-BEFORE - 1 :], rows[-BEFORE - 1 :]


def distinct_pairs(left: Integers, right: Integers) -> tuple[Integers, Integers]:
    """Return each pair once, sorted by left and then right."""
    order = np.lexsort((right, left))
    left, right = left[order], right[order]
    first = first_of_runs(left, right)
    return left[first], right[first]


def similarities(sets: Sets, left: Integers, right: Integers, threshold: float = 0.0) -> NDArray[np.float64]:
    """Return the Jaccard similarity of each pair of rows; 0 for a pair whose sizes rule the threshold out."""
    values = np.zeros(len(left))
    previous, shingles = -1, np.empty(0, np.uint64)
    for place, (first, second) in enumerate(zip(left.tolist(), right.tolist(), strict=True)):
        if first != previous:
            previous, shingles = first, sets.of(first)
        values[place] = jaccard(shingles, sets.of(second), threshold)
    return values


def jaccard(left: Hashes, right: Hashes, threshold: float = 0.0) -> float:
    """Return the Jaccard similarity of two sorted sets; 0 if their sizes rule the threshold out, or both are empty."""
    smaller, larger = sorted((len(left), len(right)))
    if smaller == 0 or smaller / larger < threshold:  # threshold * larger might be rounded up.
        return 0.0
    merged = np.concatenate([left, right])
    merged.sort(kind="stable")  # Merges two sorted runs.
    shared = int(np.count_nonzero(merged[1:] == merged[:-1]))
    return shared / (len(merged) - shared)
