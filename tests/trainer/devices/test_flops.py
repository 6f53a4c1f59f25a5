"""FLOPs per token against torch's own counter, and by each convention.

torch.utils.flop_counter counts the matrix products that a model really does: two per multiply-add, forward and
backward. Of attention it counts the full square where the products are matrix products (the math kernel, chosen here),
also under a causal mask. It knows no norm, no bias and no activation. The CPU's flash kernel it does not know at all
(torch 2.13): with that it counts no attention.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from trainer.config import ModelConfig
from trainer.devices.estimates import flops_per_token, lookups, parameters
from trainer.model import build_model, resolve_shape, shape_of
from trainer.model_files import build_from_files, model_files

LENGTH, ROWS = 48, 2
SIZES = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
GIVEN: dict[str, dict[str, Any]] = {
    "gpt2": {"preset": "gpt2-tiny", "layers": 2, "width": 64, "vocab_size": 96},
    "llama": {"preset": "llama-tiny", "layers": 2, "width": 64, "vocab_size": 96},
    "distilbert": {"preset": "distilbert", "layers": 2, "width": 60, "vocab_size": 96},
    "qwen2": {"config": {"model_type": "qwen2", **SIZES, "num_key_value_heads": 2, "vocab_size": 96}},
    "bert": {"config": {"model_type": "bert", **SIZES, "vocab_size": 96, "attention_probs_dropout_prob": 0}},
}


@pytest.mark.parametrize("name", GIVEN)
def test_palm_counts_what_torch_counts_and_norms_and_biases_besides(name: str) -> None:
    config = ModelConfig.model_validate(GIVEN[name])
    shape, files = shape_of(config, 96, LENGTH), model_files(config)
    assert shape is not None
    model = build_model(shape) if files is None else build_from_files(files, config)
    ids = torch.randint(0, 96, (ROWS, LENGTH))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(input_ids=ids, labels=ids).loss.backward()
    in_no_product = sum(one.numel() for one in model.parameters() if one.dim() == 1)  # norms and biases
    counted = counter.get_total_flops() / (ROWS * LENGTH) + 6 * in_no_product
    assert counted == flops_per_token(shape, LENGTH)


def test_each_convention_by_hand() -> None:
    shape = resolve_shape(ModelConfig(preset="gpt2-small"), 50257, 1024)
    attention = 12 * 12 * 12 * 64 * 1024  # 12 x layers x heads x head width x sequence
    palm = 6 * (124_439_808 - 1024 * 768) + attention
    assert flops_per_token(shape, 1024) == flops_per_token(shape, 1024, "palm") == palm
    assert flops_per_token(shape, 1024, "causal-half") == palm - attention / 2
    # Radford et al.'s smallest model without token and position embeddings: 85 million.
    body = 124_439_808 - (50257 + 1024) * 768
    assert flops_per_token(shape, 1024, "non-embedding") == 6 * body == 6 * 85_056_000


def test_the_lookups_of_each_family() -> None:
    for name, config in GIVEN.items():
        shape = shape_of(ModelConfig.model_validate(config), 96, LENGTH)
        assert shape is not None
        untied = {"llama": 96 * 64, "qwen2": 96 * 32}
        learned = {"gpt2": LENGTH * 64, "distilbert": LENGTH * 60, "bert": (512 + 2) * 32}  # and two segments
        assert lookups(shape) == (untied | learned)[name] < parameters(shape)
