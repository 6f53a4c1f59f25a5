from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.trainer.refusals import refusal
from trainer.config import ModelConfig
from trainer.devices.estimates import flops_per_token, parameters
from trainer.model import build_model, resolve_shape


@examples(15)
@given(
    family=st.sampled_from(["gpt2", "llama"]),
    layers=st.integers(1, 3),
    heads=st.sampled_from([1, 2, 4]),
    groups=st.sampled_from([1, 2]),
    head_dim=st.sampled_from([2, 4, 8]),
    vocab_size=st.integers(5, 300),
)
def test_parameter_count_for_any_shape(family, layers, heads, groups, head_dim, vocab_size) -> None:
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
    assert resolve_shape(ModelConfig(preset="gpt2-tiny"), 1000, 64).vocab_size == 1024  # a multiple of 64
    llama = resolve_shape(ModelConfig(preset="llama-8b"), 131072, 2048)
    # The founding study: 316.23 TFLOP/s at 6544.40 tokens/s.
    assert flops_per_token(llama, 2048) == pytest.approx(316.23e12 / 6544.40, rel=1e-3)


@pytest.mark.parametrize(("config", "line"), [
    ({"width": 130}, "model.width: 130 is not a multiple of model.heads (4)"),
    ({"preset": "llama-tiny", "kv_heads": 3}, "model.kv_heads: 3 does not divide model.heads (4)"),
    ({"kv_heads": 2}, "model.kv_heads: gpt2 has as many key-value heads"),
    ({"vocab_size": 999}, "model.vocab_size: 999 is smaller than the tokenizer's vocabulary"),
    ({"preset": "llama-tiny", "width": 36, "heads": 4}, "rotary embeddings need an even head size"),
])  # fmt: skip
def test_wrong_shapes_are_refused_in_one_line(config: dict[str, object], line: str) -> None:
    said = refusal(resolve_shape, ModelConfig.model_validate(config), tokenizer_vocab_size=1000, sequence_length=64)
    assert line in said
