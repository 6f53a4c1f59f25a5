"""Chooses the next documents: a seeded permutation per epoch, strided over the workers, endless or for one epoch.

Several ranks share one order: worker w of rank r is shard r x workers + w of ranks x workers (:func:`shard_of`). A
batch number k of all ranks together, each built by worker k modulo workers, then has the very documents of batch k of
one process with as many workers and ranks x batch_size rows (padded rows; packed ones hold other cuts of them). So the
number of ranks changes no document's place in the order, and no document is lost or comes twice in an epoch. Where the
documents cannot be divided equally, a shard with one less begins its next epoch earlier.
Where some documents are held out for evaluation, the order is one of the others.

The order is the same for every data path, so that two paths see the same documents in the same order. A
:class:`ComputedSampler` gives another order, which takes no memory however many documents (or windows) there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trainer.data.permutation import Permutation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def shard_of(worker: int, workers: int, rank: int, ranks: int) -> tuple[int, int]:
    """The shard of worker ``worker`` of ``workers`` in rank ``rank`` of ``ranks``, and how many shards there are."""
    return rank * workers + worker, ranks * workers


def dealt_to(worker: int, workers: int, rank: int, ranks: int) -> tuple[int, int]:
    """Of one global order: the first batch of that worker, and how many there are until its next one.

    At step k rank r receives batch k x ranks + r, whichever of its workers made it.
    """
    return worker * ranks + rank, ranks * workers


class IndexSampler(Protocol):
    """Yields the indices of one shard, epoch after epoch. ``epoch``: that of the next index, unless it is used up."""

    epoch: int
    shuffled: bool

    def take(self, count: int) -> NDArray[np.int64]:
        """The next indices of one epoch, 1 to ``count`` of them; none at the end of an order that has one."""

    @property
    def documents_per_epoch(self) -> int:
        """How many the shard has in each epoch."""

    def seek(self, place: int) -> None:
        """Go to ``place`` of the endless sequence, counted from 0."""


class ShardedSampler:
    """Yields the document indices of one shard: worker w of n takes every n-th of each epoch, from the w-th on."""

    def __init__(
        self,
        documents: int,
        seed: int,
        shuffle: bool,
        worker: int = 0,
        workers: int = 1,
        endless: bool = True,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        """``rows``: the indices of the documents; None: 0 to ``documents`` - 1."""
        assert 0 <= worker < workers <= documents, (worker, workers, documents)
        self._rows = rows
        self._documents, self._seed, self.shuffled = documents, seed, shuffle
        self._worker, self._workers, self._endless = worker, workers, endless
        self.epoch = 0  # the epoch that the next index belongs to, unless it is used up
        self._shard = self._make_shard(0)
        self._position = 0

    def take(self, count: int) -> NDArray[np.int64]:
        """Return the next indices, at least 1 and at most ``count``. One call never crosses the end of an epoch.

        An empty array means the end; an endless sampler never returns one.
        """
        if self._position == len(self._shard) and self._endless:
            self.epoch += 1
            self._shard = self._make_shard(self.epoch)
            self._position = 0
        taken = self._shard[self._position : self._position + count]
        self._position += len(taken)
        return taken

    @property
    def documents_per_epoch(self) -> int:
        """How many documents this shard has in each epoch."""
        return len(self._shard)

    def seek(self, place: int) -> None:
        """Go to document ``place`` of the endless sequence of this shard's documents, counted from 0."""
        epoch, self._position = divmod(place, len(self._shard))
        if epoch != self.epoch:
            self.epoch = epoch
            self._shard = self._make_shard(epoch)

    def _make_shard(self, epoch: int) -> NDArray[np.int64]:
        import numpy as np

        if self.shuffled:
            order = np.random.default_rng([self._seed, epoch]).permutation(self._documents)
        else:
            order = np.arange(self._documents)
        shard = order[self._worker :: self._workers]
        return shard if self._rows is None else self._rows[shard]


_ORDERS_AT_ONCE = 1024  # indices computed together: one at a time takes 100 us, of as many as these each 0.3 us


class ComputedSampler:
    """Yields the same shards of another seeded order, each index computed when it is asked for."""

    shuffled = True

    def __init__(
        self,
        documents: int,
        seed: int,
        worker: int = 0,
        workers: int = 1,
        endless: bool = True,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        """``rows``: the indices of the documents; None: 0 to ``documents`` - 1."""
        assert 0 <= worker < workers <= documents, (worker, workers, documents)
        self._documents, self._seed, self._rows = documents, seed, rows
        self._worker, self._workers, self._endless = worker, workers, endless
        self.epoch = self._position = self._computed_from = 0
        self._order = Permutation(documents, (seed, 0))
        self._computed = self._compute(_ORDERS_AT_ONCE)

    @property
    def documents_per_epoch(self) -> int:
        return (self._documents - self._worker + self._workers - 1) // self._workers

    def take(self, count: int) -> NDArray[np.int64]:
        if self._position == self.documents_per_epoch and self._endless:
            self._begin(self.epoch + 1)
        at = self._position - self._computed_from
        if not 0 <= at < len(self._computed):
            self._computed, self._computed_from, at = self._compute(max(count, _ORDERS_AT_ONCE)), self._position, 0
        taken = self._computed[at : at + count]
        self._position += len(taken)
        return taken

    def seek(self, place: int) -> None:
        epoch, position = divmod(place, self.documents_per_epoch)
        if epoch != self.epoch:
            self._begin(epoch)
        self._position = position

    def _compute(self, count: int) -> NDArray[np.int64]:
        """The next indices of this epoch."""
        import numpy as np

        last = min(self._position + count, self.documents_per_epoch)
        found = self._order(self._worker + np.arange(self._position, last) * self._workers)
        return found if self._rows is None else self._rows[found]

    def _begin(self, epoch: int) -> None:
        import numpy as np

        self.epoch, self._position = epoch, 0
        self._order = Permutation(self._documents, (self._seed, epoch))
        self._computed, self._computed_from = np.empty(0, dtype=np.int64), 0
