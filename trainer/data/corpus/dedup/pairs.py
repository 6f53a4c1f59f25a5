"""Which documents are compared, and how similar they are: pairs within a bucket, and their exact Jaccard similarity.

A bucket is the documents with an equal band. Each of them is compared with the :data:`BEFORE` documents before it in
the bucket, in the corpus' order: with all of them, unless it is a large one. So the number of pairs grows with that of
documents, and any engine finds the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from trainer.data.corpus.dedup.shingles import Hashes
from trainer.data.corpus.dedup.sketches import Integers, Sets

BEFORE = 64
CROWDED = -1  # in place of a pair's right document: the left one has more than BEFORE documents before it in a bucket


def bucket_pairs(batches: Iterable[tuple[Hashes, Integers]]) -> Iterator[tuple[Integers, Integers]]:
    """(left, right) with left < right, of (keys, rows) that come sorted by key and then row, each row once for a key.

    A pair may come several times. A document that was not compared with all before it is given as a pair with
    :data:`CROWDED`.
    """
    held_keys, held_rows = np.empty(0, np.uint64), np.empty(0, np.int64)
    for keys, rows in batches:
        held = len(held_keys)
        keys, rows = np.concatenate([held_keys, keys]), np.concatenate([held_rows, rows])
        left, right = [], []
        for distance in range(1, BEFORE + 2):
            start = max(held, distance)  # a pair within what was held was given before
            places = start + np.flatnonzero(keys[start:] == keys[start - distance : len(keys) - distance])
            if not len(places):  # whoever has none so near has none farther away
                break
            crowded = distance > BEFORE
            left.append(rows[places] if crowded else rows[places - distance])
            right.append(np.full(len(places), CROWDED) if crowded else rows[places])
        if left:
            yield np.concatenate(left), np.concatenate(right)
        held_keys, held_rows = keys[-BEFORE - 1 :], rows[-BEFORE - 1 :]


def distinct_pairs(left: Integers, right: Integers) -> tuple[Integers, Integers]:
    """Each pair once, sorted by left and then right."""
    order = np.lexsort((right, left))
    left, right = left[order], right[order]
    first = np.ones(len(left), np.bool_)
    first[1:] = (left[1:] != left[:-1]) | (right[1:] != right[:-1])
    return left[first], right[first]


def similarities(sets: Sets, left: Integers, right: Integers, threshold: float = 0.0) -> NDArray[np.float64]:
    """The Jaccard similarity of each pair of documents; 0 for one that cannot reach the threshold."""
    found = np.zeros(len(left))
    before, mine = -1, np.empty(0, np.uint64)
    for place, (one, other) in enumerate(zip(left.tolist(), right.tolist(), strict=True)):
        if one != before:
            before, mine = one, sets.of(one)
        found[place] = jaccard(mine, sets.of(other), threshold)
    return found


def jaccard(one: Hashes, other: Hashes, threshold: float = 0.0) -> float:
    """Shared shingles over all shingles of two sets that are sorted; 0 where their sizes rule the threshold out.

    Two empty sets have none in common: 0.
    """
    fewer, more = sorted((len(one), len(other)))
    if fewer == 0 or fewer / more < threshold:  # threshold * more may be rounded up
        return 0.0
    joined = np.concatenate([one, other])
    joined.sort(kind="stable")  # merges two sorted runs
    shared = int(np.count_nonzero(joined[1:] == joined[:-1]))
    return shared / (len(joined) - shared)
