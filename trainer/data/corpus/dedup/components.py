"""Which documents hang together, which one of each such group is kept, and because of what the others are removed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.data.corpus.dedup.sketches import Integers

KEPT_RULE = "of each group the longest document (most characters) is kept; of several as long, the first"


@dataclass(frozen=True)
class Removals:
    """Removed documents in the corpus' order, the one that is kept of their group, and their most similar neighbour.

    A neighbour is a document that verification found similar enough; of several as similar, the first.
    """

    removed: Integers
    kept: Integers
    neighbours: Integers
    similarities: NDArray[np.float64]  # to the neighbour

    def between(self, first: int, end: int) -> Removals:
        """Those of documents from ``first`` to the one before ``end``."""
        low, high = np.searchsorted(self.removed, [first, end])
        return Removals(
            self.removed[low:high], self.kept[low:high], self.neighbours[low:high], self.similarities[low:high]
        )


def components(left: Integers, right: Integers) -> tuple[Integers, Integers]:
    """(document, the first document of its group) for all that are in an edge, sorted by document (union-find)."""
    nodes = np.unique(np.concatenate([left, right]))
    parent = list(range(len(nodes)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    ends = np.searchsorted(nodes, left).tolist(), np.searchsorted(nodes, right).tolist()
    for one, other in zip(*ends, strict=True):
        one, other = root(one), root(other)
        if one != other:
            parent[max(one, other)] = min(one, other)
    return nodes, nodes[[root(node) for node in range(len(nodes))]]


def removals(left: Integers, right: Integers, similarities: NDArray[np.float64], characters: Integers) -> Removals:
    """Decide by the rule :data:`KEPT_RULE`. ``characters``: of every document of the corpus."""
    nodes, groups = components(left, right)
    order = np.lexsort((nodes, -characters[nodes], groups))
    first = np.ones(len(order), np.bool_)
    first[1:] = groups[order][1:] != groups[order][:-1]
    kept_of = nodes[order][first]  # by group, in order
    kept = kept_of[np.searchsorted(groups[order][first], groups)]
    gone = nodes != kept
    ends, others = np.concatenate([left, right]), np.concatenate([right, left])
    both = np.concatenate([similarities, similarities])
    order = np.lexsort((others, -both, ends))
    best = np.ones(len(order), np.bool_)
    best[1:] = ends[order][1:] != ends[order][:-1]
    neighbours, values = others[order][best], both[order][best]  # by node, as every node is an end
    return Removals(nodes[gone], kept[gone], neighbours[gone], values[gone])
