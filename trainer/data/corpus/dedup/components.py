"""Groups documents by pairs of near-duplicates, and decides which document of each group is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.corpus.dedup.sketches import Integers

KEPT_RULE = "of each group the longest document (most characters) is kept; of several as long, the first"


@dataclass(frozen=True)
class Removals:
    """Removed documents in the corpus' order, each with the kept document of its group and its nearest neighbour.

    The nearest neighbour is the most similar document among the verified pairs; of equally similar ones, the first.
    """

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
    """Return all documents that have an edge, sorted, and for each the first document of its group.

    Groups are connected components (union-find).
    """
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
    """Choose the kept document of each group by :data:`KEPT_RULE` and return the removals.

    ``left``, ``right``, ``similarities``: the pairs of near-duplicates. ``characters``: length of every document of the
    corpus.
    """
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
