"""What a run that was out of memory is told: sizes that fit by the arithmetic, and the next one that does not."""

from __future__ import annotations

import re
from typing import Any

import pytest

from harness.launch.out_of_memory import GIB, what_fits
from trainer.config import TrainerConfig
from trainer.devices.estimates import ByteRange, Footprint, footprint
from trainer.model import resolve_shape


def config(batch_size: int, precision: str = "fp32", **model: Any) -> TrainerConfig:
    return TrainerConfig.model_validate(
        {
            "model": {"preset": "gpt2-small"} | model,
            "data": {"batch_size": batch_size, "sequence_length": 1024},
            "compute": {"precision": precision},
        }
    )


def need(asked: TrainerConfig) -> Footprint:
    return footprint(asked, resolve_shape(asked.model, 50257, 1024))


def test_the_sizes_it_names_fit_and_the_next_ones_do_not() -> None:
    asked, memory_bytes = config(64), 24 * GIB
    text = what_fits(asked, resolve_shape(asked.model, 50257, 1024), memory_bytes)
    plain, checkpointed, halved = (int(one) for one in re.findall(r"data.batch_size (\d+) fits", text))
    assert 1 < plain < checkpointed <= halved
    ways: list[tuple[int, dict[str, Any]]] = [
        (plain, {}),
        (checkpointed, {"activation_checkpointing": True}),
        (halved, {"activation_checkpointing": True, "precision": "pure-bf16"}),
    ]
    for size, change in ways:
        assert (
            need(config(size, **change)).peak.high_bytes
            <= memory_bytes
            < need(config(size + 1, **change)).peak.high_bytes
        )
    assert text.startswith("by estimate batch_size 64 needs ")
    assert "and 24.0 GiB is available" in text
    assert "optimizer.accumulation" in text


def test_where_nothing_fits_it_says_so() -> None:
    asked = config(1)
    shape = resolve_shape(asked.model, 50257, 1024)
    text = what_fits(asked, shape, GIB)
    assert "no batch_size fits unchanged; no batch_size fits with model.activation_checkpointing true" in text
    assert "optimizer.accumulation" not in text  # no batch is smaller
    assert "may fit" in what_fits(asked, shape, (need(asked).peak.low_bytes + need(asked).peak.high_bytes) // 2)


def test_a_size_that_was_out_of_memory_is_not_called_one_that_fits() -> None:
    """By the high end it fits, and it did not: the arithmetic is wrong here, and so is any size that it names."""
    asked = config(8)
    text = what_fits(asked, resolve_shape(asked.model, 50257, 1024), 2 * need(asked).peak.high_bytes)
    assert text.endswith("memory outside of the estimate took the rest, so the batch size that fits is unknown")
    assert "batch_size 8 needs" in text
    assert not re.search(r"batch_size \d+ fits", text)


def test_what_the_process_holds_beside_is_not_there_for_a_batch() -> None:
    asked, beside = config(64), ByteRange(GIB // 2, 6 * GIB)
    shape = resolve_shape(asked.model, 50257, 1024)
    (size, *_) = (
        int(one) for one in re.findall(r"data.batch_size (\d+) fits", what_fits(asked, shape, 24 * GIB, beside))
    )
    assert need(config(size)).peak.high_bytes + 6 * GIB <= 24 * GIB < need(config(size + 1)).peak.high_bytes + 6 * GIB


def test_ranks_that_share_the_weights_need_not_hold_them_whole() -> None:
    """Two ranks of fsdp keep half of weights and moments each: less than the whole is no proof that nothing fits."""
    alone = need(config(1))
    asked = TrainerConfig.model_validate(
        config(1).model_dump() | {"launch": {"torchrun": {"nproc": 2}, "parallel": "fsdp"}}
    )
    shared = need(asked)
    assert shared.lasting_bytes == alone.lasting_bytes // 2
    assert shared.peak.low_bytes < alone.peak.low_bytes
    assert shared.peak.high_bytes == alone.peak.high_bytes
    ddp = TrainerConfig.model_validate(
        config(1).model_dump() | {"launch": {"torchrun": {"nproc": 2}, "parallel": "ddp"}}
    )
    assert need(ddp) == alone


@pytest.mark.parametrize("precision", ["fp32", "bf16", "pure-bf16"])
def test_checkpointing_keeps_less_and_the_range_stays_one(precision: str) -> None:
    before = need(config(8, precision)).activations
    after = need(config(8, precision, activation_checkpointing=True)).activations
    assert after.low_bytes < after.high_bytes
    assert after.low_bytes < before.low_bytes
    assert after.high_bytes < before.high_bytes
