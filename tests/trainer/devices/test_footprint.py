"""The arithmetic of memory against what autograd really saves for the backward pass: no process, no allocator."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainer.compute.modes import keep_layer_inputs_alone
from trainer.config import TrainerConfig
from trainer.devices.estimates import footprint, is_tied, parameters
from trainer.model import Shape, build_model, shape_of
from trainer.model_files import build_from_files, model_files

SIZES = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 192}
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"preset": "gpt2-tiny", "width": 64, "vocab_size": 512},
    "llama": {"preset": "llama-tiny", "width": 64, "vocab_size": 512},
    "distilbert": {"preset": "distilbert", "layers": 4, "width": 64, "heads": 4, "vocab_size": 512},
    "qwen2": {"config": {"model_type": "qwen2", **SIZES, "num_key_value_heads": 2, "vocab_size": 512}},
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
            {"model": model | {"attention": attention}, "data": {"batch_size": 4, "sequence_length": 768}}
        )
        shape = shape_of(config.model, 128, 768)
        assert shape is not None
        ranges.append(footprint(config, shape).activations)
    built: Any = build_model(shape, attention="eager").train()
    found = saved_bytes(built, 128, 768)
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
