"""Learning-rate schedules, against those of transformers, and the rate that a run records."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers.optimization import (
    get_cosine_with_min_lr_schedule_with_warmup,
    get_linear_schedule_with_warmup,
    get_wsd_schedule,
)

from trainer.compute.optimizer import rate_factor
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
