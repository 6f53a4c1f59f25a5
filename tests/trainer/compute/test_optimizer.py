"""Learning-rate schedules, against those of transformers, and the rate that a run records."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers.optimization import (
    get_cosine_with_min_lr_schedule_with_warmup,
    get_linear_schedule_with_warmup,
    get_wsd_schedule,
)

from trainer.compute.optimizer import GradientClipping, rate_factor
from trainer.config import TrainerConfig

WARMUP, TOTAL = 5, 40


def ours(**optimizer: Any) -> list[float]:
    config = TrainerConfig.model_validate(
        {"optimizer": {"lr_warmup_steps": WARMUP, **optimizer}, "steps": TOTAL - 3, "warmup_steps": 3}
    )
    return [rate_factor(config)(step) for step in range(TOTAL + 5)]


def theirs(make: Any, **arguments: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make(optimizer, num_warmup_steps=WARMUP, num_training_steps=TOTAL, **arguments)
    rates = []
    for _ in range(TOTAL + 5):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return rates


def test_the_default_is_warmup_then_constant() -> None:
    assert ours() == [0.2, 0.4, 0.6, 0.8, *[1.0] * TOTAL, 1.0]


@pytest.mark.parametrize(("optimizer", "reference"), [
    ({"schedule": "linear"}, lambda: theirs(get_linear_schedule_with_warmup)),
    ({"schedule": "cosine", "final_fraction": 0.1}, lambda: theirs(get_cosine_with_min_lr_schedule_with_warmup,
     min_lr_rate=0.1)),
    ({"schedule": "wsd", "final_fraction": 0.1, "decay_fraction": 0.25}, lambda: theirs(get_wsd_schedule,
     num_decay_steps=10, decay_type="linear", min_lr_ratio=0.1)),
])  # fmt: skip
def test_after_the_warmup_it_is_that_of_transformers(optimizer: dict[str, Any], reference: Any) -> None:
    """Up to the last step: theirs of a cosine rises again beyond it."""
    found = ours(**optimizer)
    assert found[WARMUP:TOTAL] == pytest.approx(reference()[WARMUP:TOTAL])
    assert found[:WARMUP] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert found[TOTAL:] == [pytest.approx(optimizer.get("final_fraction", 0.0))] * 5
    assert all(after <= before + 1e-12 for before, after in pairwise(found[WARMUP:]))


def test_a_warmup_longer_than_the_schedule_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"lr_warmup_steps: 5 of a cosine schedule of 4 steps; allowed: fewer"):
        ours(schedule="cosine", schedule_steps=4)
    assert ours(schedule_steps=4)[-1] == 1.0  # a constant rate has no end


def test_a_training_that_goes_on_from_a_seed_has_the_rates_of_its_steps() -> None:
    """LambdaLR counts the steps that are trained here; the schedule those of the whole training."""
    whole = {"optimizer": {"lr_warmup_steps": WARMUP, "schedule": "cosine"}, "steps": TOTAL}
    config = TrainerConfig.model_validate({**whole, "resume": {"llmc": "model_00000023.bin", "step": 23}})
    rates = [rate_factor(TrainerConfig.model_validate(whole))(step) for step in range(TOTAL + 9)]
    assert [rate_factor(config)(step) for step in range(TOTAL + 9 - 23)] == rates[23:]


SIZES = (1, 17, 300)


def parameters(scale: float, seed: int) -> list[torch.nn.Parameter]:
    """Some with a gradient, one without."""
    drawn = torch.Generator().manual_seed(seed)
    found = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
    for one in found:
        one.grad = torch.randn(one.shape, generator=drawn) * scale
    return [*found, torch.nn.Parameter(torch.zeros(3))]


def bits(found: list[torch.nn.Parameter]) -> list[list[int]]:
    return [one.grad.view(torch.int32).tolist() for one in found if one.grad is not None]


@given(
    scale=st.sampled_from([0.0, 1e-30, 1e-3, 0.05, 0.056, 1.0, 1e20, math.inf, math.nan]),
    limit=st.sampled_from([None, 1e-3, 1.0, 5.0]),
    seed=st.integers(0, 50),
)
def test_gradients_and_norm_are_those_of_torch_bit_by_bit(scale: float, limit: float | None, seed: int) -> None:
    ours, torchs = parameters(scale, seed), parameters(scale, seed)
    norm = GradientClipping(ours, limit)()
    expected = torch.nn.utils.clip_grad_norm_(torchs, math.inf if limit is None else limit)
    assert norm.view(torch.int32).item() == expected.view(torch.int32).item()
    assert bits(ours) == bits(torchs)


@pytest.mark.parametrize(("limit", "passes"), [(None, 0), (1e6, 0), (1e-6, 1)])
def test_only_gradients_that_are_clipped_are_written(limit: float | None, passes: int) -> None:
    found = parameters(1.0, 0)
    before = found[0].grad._version
    GradientClipping(found, limit)()
    assert found[0].grad._version - before == passes
