"""Rows that training gets again: by content, and where a corpus serves them, within an epoch."""

from __future__ import annotations

import torch

from trainer.compute.build import build_compute
from trainer.compute.emulated import RepeatedRows
from trainer.config import TrainerConfig
from trainer.data.batch import Batch
from trainer.data.position import Position


def batch(number: int, position: Position | None = None, rows: int = 4) -> Batch:
    ids = torch.randint(0, 50_000, (rows, 32), generator=torch.Generator().manual_seed(number))
    return Batch(ids, ids, None, ids.numel(), ids.numel(), rows, position=position)


def counts(batches: list[Batch], *, by_epoch: bool = False) -> tuple[int, ...]:
    rows = RepeatedRows(by_epoch=by_epoch)
    for one in batches:
        rows.add(one)
    return rows.counts


def test_a_batch_that_comes_four_times_is_new_once() -> None:
    assert counts([batch(number) for number in range(8)]) == (0,) * 6
    assert counts([batch(number // 4) for number in range(8)]) == (0, 0, 0, 4, 12, 24)


def test_rows_count_one_by_one_whatever_batch_they_come_in() -> None:
    whole = torch.cat([batch(number).input_ids for number in (0, 1)])
    other = Batch(whole[torch.randperm(8)], whole, None, whole.numel(), whole.numel(), 8)
    assert counts([batch(0), batch(1), other])[-1] == 8


def test_a_corpus_serves_each_document_again_in_the_next_epoch() -> None:
    """8 documents, 4 a batch: the last batch of an epoch belongs to it."""
    batches = [batch(number % 2, Position(0, 4 * (number + 1), 0, number + 1, per_epoch=8)) for number in range(4)]
    assert counts(batches, by_epoch=True) == (0,) * 5
    assert counts(batches)[-1] == 8


def test_only_a_device_without_losses_counts_them() -> None:
    counted = []
    for device in ({"emulated": "gh200", "matmul_efficiency": 0.5}, "cpu"):
        config = TrainerConfig.model_validate(
            {"compute": {"device": device, "inject": {"forward_ms": 0.01}}, "model": {"layers": 1, "width": 32}}
        )
        compute = build_compute(config, tokenizer_vocab_size=1000)
        compute.begin_step(0)
        for _ in range(2):
            compute.to_device(batch(0))
        counted.append(compute.repeated_rows())
    assert counted == [(0, 0, 0, 4), None]
