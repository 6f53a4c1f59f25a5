"""Shards are disjoint and complete in every epoch, and the order depends on the seed alone."""

from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.order import ShardedSampler, shard_of


def epochs(order: ShardedSampler, share: int, count: int, chunk: int) -> list[list[int]]:
    found = []
    for _ in range(count):
        epoch: list[int] = []
        while len(epoch) < share:
            epoch.extend(order.take(chunk).tolist())
        assert len(epoch) == share  # a read never reaches over the end of an epoch
        found.append(epoch)
    return found


@given(st.integers(4, 80), st.integers(1, 4), st.booleans(), st.integers(0, 5), st.integers(1, 30))
def test_shards_are_disjoint_and_complete(documents: int, workers: int, shuffle: bool, seed: int, chunk: int) -> None:
    shares = [len(range(worker, documents, workers)) for worker in range(workers)]
    orders = [ShardedSampler(documents, seed, shuffle, worker, workers) for worker in range(workers)]
    by_worker = [epochs(order, share, 3, chunk) for order, share in zip(orders, shares, strict=True)]
    for epoch in range(3):
        assert sorted(chain.from_iterable(found[epoch] for found in by_worker)) == list(range(documents))
    whole = epochs(ShardedSampler(documents, seed, shuffle), documents, 3, chunk)
    for worker, found in enumerate(by_worker):
        assert found == [epoch[worker::workers] for epoch in whole]


def test_epochs_and_seeds_differ_when_shuffled() -> None:
    first, second = epochs(ShardedSampler(50, 0, True), 50, 2, 50)
    (other,) = epochs(ShardedSampler(50, 1, True), 50, 1, 50)
    assert first != second
    assert first != other


def test_without_shuffling_every_epoch_runs_in_order() -> None:
    assert epochs(ShardedSampler(5, 0, False), 5, 2, 2) == [[0, 1, 2, 3, 4]] * 2


def test_an_order_for_one_epoch_ends() -> None:
    order = ShardedSampler(5, 0, False, endless=False)
    assert np.concatenate([order.take(3), order.take(3)]).tolist() == [0, 1, 2, 3, 4]
    assert len(order.take(3)) == 0


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(0, 5))
def test_the_batches_of_all_ranks_are_those_of_one_process(ranks: int, workers: int, rows: int, seed: int) -> None:
    """Batch k of all ranks together has the documents of batch k of one process with ranks x rows a batch."""
    documents = ranks * workers * rows * 3
    alone = [ShardedSampler(documents, seed, True, *shard_of(worker, workers, 0, 1)) for worker in range(workers)]
    together = [
        [ShardedSampler(documents, seed, True, *shard_of(worker, workers, rank, ranks)) for worker in range(workers)]
        for rank in range(ranks)
    ]
    seen = []
    for batch in range(3 * workers):
        worker = batch % workers
        found = [index for rank in together for index in rank[worker].take(rows).tolist()]
        assert sorted(found) == sorted(alone[worker].take(ranks * rows).tolist())
        seen += found
    assert sorted(seen) == list(range(documents))
