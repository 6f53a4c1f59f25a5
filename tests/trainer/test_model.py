from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from trainer.compute.torch_compute import TorchCompute
from trainer.config import PRESETS, ModelConfig, TrainerConfig
from trainer.data.batch import Batch
from trainer.devices.estimates import flops_per_token, parameters
from trainer.errors import InputError
from trainer.model import build_model, resolve_shape


@pytest.mark.parametrize("preset", ["gpt2-tiny", "llama-tiny"])
def test_parameter_count_is_the_models_own(preset: str) -> None:
    shape = resolve_shape(ModelConfig(preset=preset), tokenizer_vocab_size=1000, sequence_length=64)
    model = build_model(shape)
    assert parameters(shape) == sum(p.numel() for p in model.parameters())
    assert shape.vocab_size == 1024  # rounded up to a multiple of 64


@examples(15)
@given(
    family=st.sampled_from(["gpt2", "llama"]),
    layers=st.integers(1, 3),
    heads=st.sampled_from([1, 2, 4]),
    groups=st.sampled_from([1, 2]),
    head_dim=st.sampled_from([2, 4, 8]),
    vocab_size=st.integers(5, 300),
)
def test_parameter_count_for_any_shape(
    family: str, layers: int, heads: int, groups: int, head_dim: int, vocab_size: int
) -> None:
    kv_heads = heads if family == "gpt2" or heads % groups else heads // groups
    config = ModelConfig.model_validate(
        {
            "family": family,
            "layers": layers,
            "width": heads * head_dim,
            "heads": heads,
            "kv_heads": kv_heads,
            "vocab_size": vocab_size,
        }
    )
    shape = resolve_shape(config, tokenizer_vocab_size=5, sequence_length=16)
    assert parameters(shape) == sum(p.numel() for p in build_model(shape).parameters())


def test_published_sizes() -> None:
    gpt2 = resolve_shape(ModelConfig(preset="gpt2-small"), 50257, 1024)
    assert parameters(gpt2) == 124_439_808  # Radford et al. 2019, as transformers counts it
    llama = resolve_shape(ModelConfig(preset="llama-8b"), 131072, 2048)
    # The founding study: 316.23 TFLOP/s at 6544.40 tokens/s.
    assert flops_per_token(llama, 2048) == pytest.approx(316.23e12 / 6544.40, rel=1e-3)


def test_every_preset_resolves() -> None:
    for preset in PRESETS:
        assert resolve_shape(ModelConfig.model_validate({"preset": preset}), 300, 128).layers >= 4


@pytest.mark.parametrize(("config", "line"), [
    ({"width": 130}, "model.width: 130 is not a multiple of model.heads (4)"),
    ({"preset": "llama-tiny", "kv_heads": 3}, "model.kv_heads: 3 does not divide model.heads (4)"),
    ({"kv_heads": 2}, "model.kv_heads: gpt2 has as many key-value heads"),
    ({"vocab_size": 999}, "model.vocab_size: 999 is smaller than the tokenizer's vocabulary"),
    ({"preset": "llama-tiny", "width": 36, "heads": 4}, "rotary embeddings need an even head size"),
])  # fmt: skip
def test_wrong_shapes_are_refused_in_one_line(config: dict[str, object], line: str) -> None:
    with pytest.raises(InputError, match=r"^[^\n]*$") as caught:
        resolve_shape(ModelConfig.model_validate(config), tokenizer_vocab_size=1000, sequence_length=64)
    assert line in str(caught.value)


@pytest.mark.parametrize("preset", ["gpt2-tiny", "llama-tiny"])
def test_no_loss_or_gradient_depends_on_the_mask_of_padding_that_follows_the_text(preset: str) -> None:
    """So the trainer gives its models none. The padding is random here: what stands in it must not matter either."""
    shape = resolve_shape(ModelConfig(preset=preset, layers=2), tokenizer_vocab_size=300, sequence_length=16)
    torch.manual_seed(0)
    model = build_model(shape)
    ids = torch.randint(0, 300, (3, 16))
    mask = torch.tensor([[1] * kept + [0] * (16 - kept) for kept in (16, 9, 2)])
    labels = torch.where(mask == 1, ids, -100)
    found = []
    for shown in (mask, None):
        model.zero_grad()
        loss = model(input_ids=ids, attention_mask=shown, labels=labels).loss
        loss.backward()
        gradients = torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])
        found.append((loss.detach(), gradients))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


def test_the_trainer_gives_its_model_no_mask() -> None:
    config = TrainerConfig.model_validate({"compute": {"device": "cpu"}})
    compute = TorchCompute(config, model := NoMask(), torch.device("cpu"))
    ids = torch.zeros((1, 4), dtype=torch.int64)
    compute.forward(Batch(ids, ids, torch.ones_like(ids), tokens=4, trained_tokens=3, samples=1))
    assert model.given == {"input_ids", "labels"}


class NoMask(torch.nn.Linear):
    """A model that only says what it was called with."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.given: set[str] = set()

    def forward(self, **given: torch.Tensor) -> SimpleNamespace:
        self.given = set(given)
        return SimpleNamespace(loss=self.weight.sum())
