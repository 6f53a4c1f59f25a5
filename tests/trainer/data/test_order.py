"""Shards are disjoint and complete in every epoch, and the order depends on the seed alone."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.order import ComputedSampler, Permutation, ShardedSampler, shard_of


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


def test_an_order_differs_by_epoch_and_seed_if_shuffled_and_ends_after_one_epoch_if_asked_to() -> None:
    first, second = epochs(ShardedSampler(50, 0, True), 50, 2, 50)
    assert first not in (second, *epochs(ShardedSampler(50, 1, True), 50, 1, 50))
    assert epochs(ShardedSampler(5, 0, False), 5, 2, 2) == [[0, 1, 2, 3, 4]] * 2
    for order in (ShardedSampler(5, 0, False, endless=False), ComputedSampler(5, 0, endless=False)):
        assert sorted([*order.take(3).tolist(), *order.take(3).tolist()]) == [0, 1, 2, 3, 4]
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


@given(st.integers(1, 3000), st.integers(0, 2**62), st.integers(0, 5))
def test_every_number_comes_once(size: int, seed: int, epoch: int) -> None:
    order = Permutation(size, (seed, epoch))
    whole = order(np.arange(size))
    assert sorted(whole.tolist()) == list(range(size))
    some = np.array([size - 1, 0, size // 2])
    assert order(some).tolist() == whole[some].tolist()  # any place by itself


def test_a_huge_order_takes_no_memory() -> None:
    size = 2**45 + 12345
    order = Permutation(size, (1, 2))
    places = np.arange(size - 5000, size)
    found = order(places)
    assert len(set(found.tolist())) == 5000
    assert found.min() >= 0
    assert found.max() < size
    assert found.std() > 0.25 * size  # uniform: 0.289


@pytest.mark.parametrize("size", [1000, 4096, 5000])
def test_orders_look_drawn(size: int) -> None:
    """Neighbours, numbers and places, two epochs, two seeds: correlations within 5 standard errors of none."""
    orders = [Permutation(size, key)(np.arange(size)) for key in ((0, 0), (0, 1), (1, 0))]
    pairs = [(orders[0], np.arange(size)), (orders[0][1:], orders[0][:-1]), *((orders[0], one) for one in orders[1:])]
    for left, right in pairs:
        assert abs(np.corrcoef(left, right)[0, 1]) < 5 / np.sqrt(size)
    quarter = np.bincount(orders[0][: size // 4] * 8 // size, minlength=8)
    assert abs(quarter - size / 32).max() < 5 * np.sqrt(size / 32)


@given(st.integers(4, 90), st.integers(1, 4), st.integers(0, 5), st.integers(1, 30), st.booleans())
def test_computed_shards_are_disjoint_and_complete(
    size: int, workers: int, seed: int, chunk: int, of_rows: bool
) -> None:
    rows = np.arange(size) * 3 + 1 if of_rows else None
    samplers = [ComputedSampler(size, seed, worker, workers, rows=rows) for worker in range(workers)]
    epochs: list[list[int]] = [[], [], []]
    for epoch in range(3):
        for sampler in samplers:
            taken = 0
            while taken < sampler.documents_per_epoch:
                found = sampler.take(chunk)
                assert 0 < len(found) <= chunk
                taken += len(found)
                epochs[epoch] += found.tolist()
            assert taken == sampler.documents_per_epoch
        assert sampler.epoch == epoch
    numbers = list(range(size)) if rows is None else rows.tolist()
    assert [sorted(epoch) for epoch in epochs] == [numbers] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


@given(st.integers(1, 50), st.integers(0, 170))
def test_seeking(size: int, place: int) -> None:
    whole, sought = ComputedSampler(size, 3), ComputedSampler(size, 3)
    before: list[int] = []
    while len(before) < place + 9:
        before += whole.take(4).tolist()
    sought.seek(place)
    after: list[int] = []
    while len(after) < 9:
        after += sought.take(2).tolist()
    assert after[:9] == before[place : place + 9]
