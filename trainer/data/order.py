"""Chooses the next documents: a seeded permutation per epoch, strided over the workers, endless or for one epoch.

Several ranks share one order: worker w of rank r is shard r x workers + w of ranks x workers (:func:`shard_of`). Batch
k of all ranks together is built by worker k modulo workers of each. It therefore has the documents of batch k of one
process with as many workers and ranks x batch_size rows (for padded rows; packed rows are cut elsewhere). The number of
ranks changes no document's place in the order, and an epoch loses or repeats no document. If the shards cannot be
equal, a shard with one document less begins its next epoch earlier. Documents held out for evaluation are not in the
order.

Every data path has the same order, so two paths see the same documents in the same order. :class:`ComputedSampler` has
a different one, which takes no memory for any number of documents (or windows).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer.errors import InputError

Indices = NDArray[np.int64]
ROUNDS = 6
_STREAM = 0x6F72646572  # keeps these draws apart from other draws of the same seed
# Epochs in a row without a token before a pipeline gives up. One is not enough: a small shard may draw only empty
# documents in one shuffled epoch and real ones in the next.
EMPTY_EPOCHS = 16
_ORDERS_AT_ONCE = 1024  # indices computed together: each then takes 0.3 us; alone it takes 100 us


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return hashes by splitmix64's finalizer (Steele, Lea and Flood 2014; Stafford's variant 13), a bijection."""
    hashes = values ^ (values >> np.uint64(30))
    hashes *= np.uint64(0xBF58476D1CE4E5B9)
    hashes ^= hashes >> np.uint64(27)
    hashes *= np.uint64(0x94D049BB133111EB)
    hashes ^= hashes >> np.uint64(31)
    return hashes


def shard_of(worker: int, workers: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return the number of the shard of a rank's worker, and the number of shards."""
    return rank * workers + worker, ranks * workers


def dealt_to(worker: int, workers: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return (offset, stride) of a worker's batches in one order: at step k rank r gets batch k x ranks + r."""
    return worker * ranks + rank, ranks * workers


class IndexSampler:
    """Yields a shard's indices, epoch (from 0) after epoch. ``shuffled``: False if documents keep their order."""

    epoch: int
    shuffled: bool

    def __init__(
        self,
        documents: int,
        seed: int,
        worker: int = 0,
        workers: int = 1,
        endless: bool = True,
        rows: Indices | None = None,
    ) -> None:
        """Set up a shard of ``documents`` documents. ``endless``: or one epoch. ``rows``: indices; None: 0, 1, ..."""
        assert 0 <= worker < workers <= documents, (worker, workers, documents)
        self._documents, self._seed, self._rows = documents, seed, rows
        self._worker, self._workers, self._endless = worker, workers, endless
        self._position = 0
        self._begin(0)

    @property
    def documents_per_epoch(self) -> int:
        """Number of documents of this shard in each epoch."""
        return (self._documents - self._worker + self._workers - 1) // self._workers

    def take(self, count: int) -> Indices:
        """Return the next indices of this epoch: 1 to ``count`` of them; an empty array only at the end."""
        if self._position == self.documents_per_epoch and self._endless:
            self._begin(self.epoch + 1)
            self._position = 0
        taken = self._next(count)
        self._position += len(taken)
        return taken

    def seek(self, place: int) -> None:
        """Continue at ``place`` of the shard's endless sequence, counted from 0."""
        epoch, self._position = divmod(place, self.documents_per_epoch)
        if epoch != self.epoch:
            self._begin(epoch)

    def _begin(self, epoch: int) -> None:
        """Compute the order of ``epoch``."""
        self.epoch = epoch

    def _next(self, count: int) -> Indices:
        """Return at most ``count`` indices of this epoch, from the current position on."""
        raise NotImplementedError


class EmptyEpochs:
    """Detects an order that gives no document with a token for :data:`EMPTY_EPOCHS` epochs."""

    def __init__(self, order: IndexSampler) -> None:
        self._order, self._since = order, order.epoch

    def check(self, filled: int) -> None:
        """Record how many documents just taken have a token. Raises InputError after EMPTY_EPOCHS epochs of none."""
        if filled:
            self._since = self._order.epoch
        elif self._order.epoch - self._since > EMPTY_EPOCHS:
            raise InputError(
                "data.corpus: no document with a token in "
                f"{EMPTY_EPOCHS} epochs of this worker's share; use fewer data.workers or another corpus"
            )


class ShardedSampler(IndexSampler):
    """Yields the document indices of one shard: worker w of n takes every n-th of each epoch, from the w-th on."""

    def __init__(
        self,
        documents: int,
        seed: int,
        shuffle: bool,
        worker: int = 0,
        workers: int = 1,
        endless: bool = True,
        rows: Indices | None = None,
    ) -> None:
        self.shuffled = shuffle
        super().__init__(documents, seed, worker, workers, endless, rows)

    def _begin(self, epoch: int) -> None:
        super()._begin(epoch)
        if self.shuffled:
            order = np.random.default_rng([self._seed, epoch]).permutation(self._documents)
        else:
            order = np.arange(self._documents)
        shard = order[self._worker :: self._workers]
        self._indices = shard if self._rows is None else self._rows[shard]

    def _next(self, count: int) -> Indices:
        return self._indices[self._position : self._position + count]


class ComputedSampler(IndexSampler):
    """Yields a shard's indices in a seeded order that is computed when needed, without memory per document."""

    shuffled = True

    def _begin(self, epoch: int) -> None:
        super()._begin(epoch)
        self._order = Permutation(self._documents, (self._seed, epoch))
        self._computed, self._computed_from = np.empty(0, dtype=np.int64), 0

    def _next(self, count: int) -> Indices:
        offset = self._position - self._computed_from
        if not 0 <= offset < len(self._computed):
            self._computed, self._computed_from, offset = self._compute(max(count, _ORDERS_AT_ONCE)), self._position, 0
        return self._computed[offset : offset + count]

    def _compute(self, count: int) -> Indices:
        """Return the next ``count`` indices of this epoch, fewer at its end."""
        last = min(self._position + count, self.documents_per_epoch)
        indices = self._order(self._worker + np.arange(self._position, last) * self._workers)
        return indices if self._rows is None else self._rows[indices]


class Permutation:
    """Permutation of the numbers below ``size``, chosen by ``key`` (a seed and an epoch), without an array of them.

    A Feistel network over the next power of four is a permutation for any round function (Luby and Rackoff 1988, "How
    to construct pseudorandom permutations from pseudorandom functions"). A result of at least ``size`` is sent through
    it again until it falls below (Black and Rogaway 2002, "Ciphers with arbitrary finite domains", section 4: cycle
    walking). ``size`` is more than a quarter of the domain, so a place takes fewer than four passes on average.
    """

    def __init__(self, size: int, key: tuple[int, ...]) -> None:
        assert size >= 1
        self._size = np.uint64(size)
        half = max(1, -(-(size - 1).bit_length() // 2))
        self._half, self._low = np.uint64(half), np.uint64(2**half - 1)
        self._keys = np.random.SeedSequence([_STREAM, *key]).generate_state(ROUNDS, np.uint64)

    def __call__(self, places: Indices) -> Indices:
        """Return the numbers at ``places`` (0 to size - 1) of the permutation."""
        numbers = self._pass(places.astype(np.uint64))
        while len(outside := np.flatnonzero(numbers >= self._size)):
            numbers[outside] = self._pass(numbers[outside])
        return numbers.astype(np.int64)

    def _pass(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self._half, values & self._low
        for key in self._keys:
            left, right = right, left ^ (mixed(right + key) & self._low)
        joined: NDArray[np.uint64] = (left << self._half) | right
        return joined
