"""What a run that was out of memory is told: sizes that fit by the arithmetic, and the next one that does not."""

from __future__ import annotations

import re
from typing import Any

import pytest

from trainer.config import TrainerConfig
from trainer.devices.footprint import Footprint, footprint
from trainer.devices.what_fits import GIB, what_fits
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
    assert text.startswith("by the arithmetic batch_size 64 takes ")
    assert "and 24.0 GiB is there" in text
    assert "optimizer.accumulation" in text


def test_where_nothing_fits_it_says_so() -> None:
    asked = config(1)
    shape = resolve_shape(asked.model, 50257, 1024)
    text = what_fits(asked, shape, GIB)
    assert "no batch_size fits as it is; no batch_size fits with model.activation_checkpointing true" in text
    assert "optimizer.accumulation" not in text  # no batch is smaller
    assert "may fit" in what_fits(asked, shape, (need(asked).peak.low_bytes + need(asked).peak.high_bytes) // 2)


def test_what_is_switched_on_already_is_not_named() -> None:
    asked = config(8, "pure-bf16", activation_checkpointing=True)
    text = what_fits(asked, resolve_shape(asked.model, 50257, 1024), 24 * GIB)
    assert "with " not in text


@pytest.mark.parametrize("precision", ["fp32", "bf16", "pure-bf16"])
def test_checkpointing_keeps_less_and_the_range_stays_one(precision: str) -> None:
    before = need(config(8, precision)).activations
    after = need(config(8, precision, activation_checkpointing=True)).activations
    assert after.low_bytes < after.high_bytes
    assert after.low_bytes < before.low_bytes
    assert after.high_bytes < before.high_bytes
