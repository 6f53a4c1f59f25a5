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

from trainer.compute.modes import keep_layer_inputs_alone
from trainer.config import ModelConfig, TrainerConfig
from trainer.devices.estimates import flops_per_token, footprint, is_tied, lookups, parameters
from trainer.model import Shape, build_model, resolve_shape, shape_of
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


LAYERS = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 192}
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"preset": "gpt2-tiny", "width": 64, "vocab_size": 512},
    "llama": {"preset": "llama-tiny", "width": 64, "vocab_size": 512},
    "distilbert": {"preset": "distilbert", "layers": 4, "width": 64, "heads": 4, "vocab_size": 512},
    "qwen2": {"config": {"model_type": "qwen2", **LAYERS, "num_key_value_heads": 2, "vocab_size": 512}},
}


def asked(name: str, checkpointing: bool) -> tuple[TrainerConfig, Shape]:
    model = MODELS[name] | {"activation_checkpointing": checkpointing}
    config = TrainerConfig.model_validate({"model": model, "data": {"batch_size": 4, "sequence_length": 64}})
    shape = shape_of(config.model, 512, 64)
    assert shape is not None
    return config, shape


def build(config: TrainerConfig, shape: Shape) -> Any:
    files = model_files(config.model)
    return build_model(shape) if files is None else build_from_files(files, config.model)


def saved_bytes(model: Any, vocab_size: int, length: int = 64) -> int:
    """Of every storage that the forward pass of a batch of 4 x 64 keeps for the backward pass, weights left out."""
    weights = {one.untyped_storage().data_ptr() for one in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    ids = torch.randint(0, vocab_size, (4, length))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(input_ids=ids, labels=ids)
    return sum(one.untyped_storage().nbytes() for place, one in kept.items() if place not in weights)


@pytest.mark.parametrize("name", MODELS)
def test_what_autograd_saves_lies_within_the_range(name: str) -> None:
    config, shape = asked(name, checkpointing=False)
    found = saved_bytes(build(config, shape).train(), shape.vocab_size)
    activations = footprint(config, shape).activations
    assert activations.low_bytes <= found <= activations.high_bytes


def test_eager_attention_keeps_a_square_of_the_sequence_for_each_head() -> None:
    """The other way of attention keeps none: by its range a batch would be said to fit that does not."""
    model = {"preset": "gpt2-tiny", "width": 64, "heads": 16, "layers": 2, "vocab_size": 128}
    ranges = []
    for attention in ("sdpa", "eager"):
        config = TrainerConfig.model_validate(
            {"model": model | {"attention": attention}, "data": {"batch_size": 4, "sequence_length": 256}}
        )
        shape = shape_of(config.model, 128, 256)
        assert shape is not None
        ranges.append(footprint(config, shape).activations)
    built: Any = build_model(shape, attention="eager").train()
    found = saved_bytes(built, 128, 256)
    assert ranges[0].high_bytes < found <= ranges[1].high_bytes
    assert ranges[0].low_bytes == ranges[1].low_bytes <= found


@pytest.mark.parametrize("name", MODELS)
def test_with_checkpointing_the_layers_keep_their_inputs_alone(name: str) -> None:
    config, shape = asked(name, checkpointing=True)
    model = build(config, shape).train()
    plain = saved_bytes(model, shape.vocab_size)
    keep_layer_inputs_alone(model)
    found = saved_bytes(model, shape.vocab_size)
    activations = footprint(config, shape).activations
    inputs = 4 * 64 * shape.layers * shape.width * 4
    assert inputs <= found < plain
    assert found <= activations.high_bytes


@pytest.mark.parametrize("name", MODELS)
def test_a_tied_embedding_is_one(name: str) -> None:
    config, shape = asked(name, checkpointing=False)
    model = build(config, shape)
    assert is_tied(shape) == (model.get_output_embeddings().weight is model.get_input_embeddings().weight)
    assert footprint(config, shape).parameters == parameters(shape)
