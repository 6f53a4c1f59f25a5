from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.compute.optimizer import GradientClipping

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
    assert found[0].grad is not None
    before = found[0].grad._version
    GradientClipping(found, limit)()
    assert found[0].grad._version - before == passes


def test_no_gradients_have_the_norm_zero() -> None:
    assert GradientClipping([torch.nn.Parameter(torch.zeros(3))], 1.0)().item() == 0
