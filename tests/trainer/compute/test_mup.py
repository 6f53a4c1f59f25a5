"""Maximal update parametrization: the coordinate check, and the same training as by the paper's own multipliers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trainer.compute.build import build_compute
from trainer.compute.optimizer import learning_rate_factors, parameter_groups, weight_factors
from trainer.compute.torch_compute import TorchCompute
from trainer.config import TrainerConfig
from trainer.data.batch import Batch

VOCABULARY, LENGTH = 64, 16
WIDTHS = (64, 128, 256)


def built(model: dict[str, Any], **optimizer: Any) -> TorchCompute:
    given = {
        "model": {"preset": "gpt2-tiny", "layers": 2, "heads": 2, "vocab_size": VOCABULARY, **model},
        "data": {"sequence_length": LENGTH},
        "compute": {"device": "cpu", "threads": 1},
        "optimizer": {"learning_rate": 1e-2, "lr_warmup_steps": 0, "clip_norm": None, **optimizer},
    }
    compute = build_compute(TrainerConfig.model_validate(given), VOCABULARY)
    assert isinstance(compute, TorchCompute)
    return compute


def batch(seed: int = 0) -> Batch:
    ids = torch.randint(0, VOCABULARY, (8, LENGTH), generator=torch.Generator().manual_seed(seed))
    return Batch(ids, ids.clone(), torch.ones_like(ids), ids.numel(), ids.numel(), 8)


def trained(compute: TorchCompute, steps: int = 4) -> list[float]:
    losses = []
    for step in range(steps):
        loss = compute.forward(batch(step))
        compute.backward(loss)
        compute.clip_gradients()
        compute.optimizer_step()
        losses.append(loss.item())
    return losses


def coordinates(model: dict[str, Any], width: int) -> dict[str, float]:
    """How much four steps change the activations of each layer: mean absolute change of an entry."""
    compute = built({**model, "width": width})
    kept: dict[str, list[torch.Tensor]] = {}

    def keep(name: str) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            kept.setdefault(name, []).append(output[0] if isinstance(output, tuple) else output)

        return hook

    handles = [
        module.register_forward_hook(keep(name))
        for name, module in compute._model.named_modules()
        if name.endswith((".0", ".1", "mlp", "attn", "self_attn", "lm_head"))
    ]
    with torch.no_grad():
        compute._model(batch().input_ids)
    for one in handles:
        one.remove()
    before, kept = {name: found[0] for name, found in kept.items()}, {}
    trained(compute)
    for name, module in compute._model.named_modules():
        if name in before:
            module.register_forward_hook(keep(name))
    with torch.no_grad():
        compute._model(batch().input_ids)
    return {name: float((kept[name][0] - before[name]).abs().mean()) for name in before}


AT_NIGHT = (pytest.mark.slow, pytest.mark.nightly)
GPT2, LLAMA = {"preset": "gpt2-tiny"}, {"preset": "llama-tiny", "kv_heads": 2}
FAMILIES = (GPT2, pytest.param(LLAMA, marks=AT_NIGHT))


def growth(model: dict[str, Any]) -> dict[str, float]:
    """Slope of the logarithm of each layer's change against that of the width."""
    found = [coordinates(model, width) for width in WIDTHS]
    x = torch.tensor(WIDTHS).double().log()
    slopes = {}
    for name in found[0]:
        y = torch.tensor([one[name] for one in found]).double().log()
        slopes[name] = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    return slopes


@pytest.mark.parametrize("family", FAMILIES)
def test_coordinate_check(family: dict[str, Any]) -> None:
    """What training does to an activation grows with the width in the usual parametrization, and not under mup."""
    usual, mup = growth(family), growth({**family, "mup": {"base_width": 64}})
    blocks = [name for name in usual if name.endswith((".0", ".1"))]
    assert len(blocks) == 2
    assert all(usual[name] > 1 for name in blocks)  # measured: 2.2 to 2.5
    assert usual["lm_head"] > 0.4  # 0.6 to 0.8
    assert max(mup.values()) < 0.3  # at most 0.14
    assert abs(mup["lm_head"]) < 0.2  # -0.06 to -0.09: neither grows nor vanishes


@pytest.mark.parametrize("family", FAMILIES)
def test_at_the_base_width_it_is_the_usual_training_to_the_last_bit(family: dict[str, Any]) -> None:
    model = {**family, "width": 64}
    usual = trained(built(model))
    assert trained(built({**model, "mup": {"base_width": 64}})) == usual
    assert trained(built({**model, "mup": {"base_width": 32}})) != usual


@pytest.mark.parametrize(
    ("family", "base_heads"),
    [(GPT2, None), (LLAMA, 1), *(pytest.param(*one, marks=AT_NIGHT) for one in ((GPT2, 1), (LLAMA, None)))],
)
def test_it_trains_as_the_paper_s_multipliers_do(family: dict[str, Any], base_heads: int | None) -> None:
    """Table 8 as it stands: a factor behind the last norm, attention by 1 / d, and learning rates by kind of weight."""
    m, rate, decay = 4.0, 1e-3, 0.1
    model = {**family, "width": 128}
    ours = built({**model, "mup": {"base_width": 32, "base_heads": base_heads}}, learning_rate=rate, weight_decay=decay)
    theirs = built(model, learning_rate=rate)
    network, groups = theirs._model, []
    for name, one in network.named_parameters():
        hidden = one.dim() == 2 and not any(word in name for word in ("wte", "wpe", "embed", "lm_head"))
        if hidden:
            one.data /= math.sqrt(m)
        decayed = decay * (m if hidden else 1.0) if one.dim() == 2 else 0.0
        groups.append({"params": [one], "lr": rate / m if hidden else rate, "weight_decay": decayed})
    network.lm_head.register_forward_pre_hook(lambda _, inputs: (inputs[0] / m,))
    for module in network.modules():
        if hasattr(module, "scaling"):
            module.scaling = math.sqrt(32 / (base_heads or 2)) / 64  # heads are 64 wide
    theirs._optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    theirs._schedule = torch.optim.lr_scheduler.LambdaLR(theirs._optimizer, lambda _: 1.0)
    expected = trained(theirs, 8)
    assert trained(ours, 8) == pytest.approx(expected, rel=2e-4)
    assert trained(built(model, learning_rate=rate), 8) != pytest.approx(expected, rel=2e-4)


def test_weight_decay_is_the_same_at_every_width() -> None:
    compute = built({"width": 128, "mup": {"base_width": 32}}, weight_decay=0.1, learning_rate=1e-2)
    groups = compute._optimizer.param_groups
    assert groups[0]["lr"] == compute.learning_rate() == 1e-2
    assert {round(one["lr"] * one["weight_decay"], 12) for one in groups} == {0.0, 1e-3}
    names = {one: name for name, one in compute._model.named_parameters()}
    factors = weight_factors(compute._model, compute_mup(32))
    for group in groups:
        for one in group["params"]:
            assert group["lr"] == pytest.approx(1e-2 * factors[names[one]].rate)
            assert (group["weight_decay"] > 0) == (one.dim() >= 2)


def test_a_model_in_a_wrapper_has_the_same_groups() -> None:
    """DistributedDataParallel puts ``module.`` before each name."""
    compute = built({"width": 128, "mup": {"base_width": 32}})
    wrapped = torch.nn.Module()
    wrapped.module = compute._model
    config = TrainerConfig().optimizer
    rates = learning_rate_factors(compute._model, compute_mup(32))
    assert repr(parameter_groups(wrapped, config, rates)) == repr(parameter_groups(compute._model, config, rates))


def compute_mup(width: int) -> Any:
    config = TrainerConfig.model_validate({"model": {"mup": {"base_width": width}}})
    return config.model.mup


@pytest.mark.parametrize(("model", "message"), [
    ({"mup": {}}, "base_width"),
    ({"mup": {"base_width": 0}}, "greater than or equal to 1"),
    ({"mup": {"base_width": 64, "base_heads": 3}}, "64 is not a multiple of base_heads"),
    ({"preset": "distilbert", "mup": {"base_width": 64}}, "allowed: gpt2, llama"),
    ({"config": {"model_type": "gpt2"}, "mup": {"base_width": 64}}, "only for a preset"),
])  # fmt: skip
def test_what_it_cannot_be_is_refused(model: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainerConfig.model_validate({"model": model})
