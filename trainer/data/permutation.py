"""Permutes the numbers below n without an array of them: any place of the order is computed, at once and by itself.

A Feistel network over the next power of four is a permutation whatever its round function is (Luby and Rackoff 1988,
"How to construct pseudorandom permutations from pseudorandom functions"). What falls outside of n is sent through
it again until it falls inside, which leaves a permutation of the numbers below n (Black and Rogaway 2002, "Ciphers
with arbitrary finite domains", section 4: cycle walking). n is more than a quarter of the domain, so a place takes
fewer than four passes in the mean.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6
# Multipliers and shifts of splitmix64's finalizer (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
# generators"; the constants are Stafford's variant 13).
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_STREAM = 0x6F72646572  # keeps these draws apart from others of the same seed


class Permutation:
    """One order of the numbers below ``size``, chosen by ``key`` (a seed and an epoch, say)."""

    def __init__(self, size: int, key: tuple[int, ...]) -> None:
        assert size >= 1
        self._size = np.uint64(size)
        half = max(1, -(-(size - 1).bit_length() // 2))
        self._half, self._low = np.uint64(half), np.uint64(2**half - 1)
        self._keys = np.random.SeedSequence([_STREAM, *key]).generate_state(ROUNDS, np.uint64)

    def __call__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers at ``places`` of the order, each from 0 to size - 1."""
        found = self._once(places.astype(np.uint64))
        while len(outside := np.flatnonzero(found >= self._size)):
            found[outside] = self._once(found[outside])
        return found.astype(np.int64)

    def _once(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self._half, values & self._low
        for key in self._keys:
            left, right = right, left ^ (_mixed(right + key) & self._low)
        joined: NDArray[np.uint64] = (left << self._half) | right
        return joined


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed
