"""Models of transformers by a config.json or by weights: what is built, and what cannot work in a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.refusals import refusal
from trainer.compute.build import build_compute
from trainer.config import ModelConfig, TrainerConfig
from trainer.devices.estimates import parameters
from trainer.errors import InputError
from trainer.model import build_model, resolve_shape, shape_of
from trainer.model_files import MASKED_ALONE, MASKED_OR_DECODER, build_from_files, model_files, objective_of

SIZES = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
CONTENTS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0},
    "llama": {**SIZES, "num_key_value_heads": 2},
    "distilbert": {"n_layers": 2, "dim": 32, "n_heads": 4, "hidden_dim": 48},
    "qwen2": {**SIZES, "num_key_value_heads": 2},
    "gpt_neox": SIZES,
    "bert": SIZES,
    "roberta": SIZES,
}
TIED = {"model_type": "llama", **CONTENTS["llama"], "tie_word_embeddings": True}  # no formula has this


def model_of(kind: str, **more: Any) -> ModelConfig:
    content = {"model_type": kind, "vocab_size": 96, **CONTENTS[kind]}
    return ModelConfig.model_validate({"config": content | more})


def trainer(model: dict[str, Any]) -> TrainerConfig:
    return TrainerConfig.model_validate(
        {"model": model, "data": {"sequence_length": 16}, "compute": {"device": "cpu", "threads": 1}}
    )


@pytest.mark.parametrize("kind", CONTENTS)
def test_a_model_has_the_dimensions_and_parameters_that_arithmetic_says(kind: str) -> None:
    config = model_of(kind)
    files, shape = model_files(config), shape_of(config, 96, 16)
    assert files is not None
    model = build_from_files(files, config)
    assert parameters(shape) == sum(one.numel() for one in model.parameters())
    assert (shape.layers, shape.width, shape.heads, shape.vocab_size, shape.family) == (2, 32, 4, 96, kind)
    assert objective_of(config) == ("masked" if "bert" in kind else "causal")


@pytest.mark.parametrize("family", ["gpt2", "llama", "distilbert"])
def test_by_keys_alone_the_shape_is_that_of_the_preset_it_was_saved_from(family: str, tmp_path: Path) -> None:
    asked = ModelConfig.model_validate({"family": family, "layers": 2, "width": 32, "heads": 4, "vocab_size": 96})
    shape = resolve_shape(asked, 96, 16)
    build_model(shape).config.save_pretrained(tmp_path)  # type: ignore[operator, union-attr]
    assert shape_of(ModelConfig(config=str(tmp_path)), 96, 16) == shape
    assert shape_of(ModelConfig(config=str(tmp_path / "config.json")), 96, 16) == shape


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "bert"])
def test_weights_are_in_the_precision_that_the_run_asks_for(kind: str, key: str) -> None:
    """A published config.json says bfloat16, of its saved weights; the run says fp32 where it does not say more."""
    model = {"config": {"model_type": kind, "vocab_size": 96, **CONTENTS[kind], key: "bfloat16"}}
    compute = build_compute(trainer(model), 96)
    found = {one.dtype for one in compute._model.parameters()}  # type: ignore[attr-defined]
    assert found == {torch.float32}


def test_what_no_formula_counts_is_counted_on_the_model() -> None:
    config = ModelConfig.model_validate({"config": {**TIED, "vocab_size": 96}})
    files, shape = model_files(config), shape_of(config, 96, 16)
    assert files is not None
    assert shape.counted.lookups == 0
    assert parameters(shape) == sum(one.numel() for one in build_from_files(files, config).parameters())


@pytest.mark.parametrize("content", [
    {"model_type": "mamba", "num_hidden_layers": 1, "hidden_size": 16, "vocab_size": 96},
    {"model_type": "mixtral", **SIZES, "num_key_value_heads": 2, "num_local_experts": 2, "vocab_size": 96},
    {"model_type": "albert", **SIZES, "embedding_size": 16, "vocab_size": 96},
])  # fmt: skip
def test_of_states_experts_and_shared_layers_nobody_knows_the_cost(content: dict[str, Any]) -> None:
    asked = {"config": content}
    assert shape_of(ModelConfig.model_validate(asked), 96, 16) is None
    emulated = {"model": asked, "compute": {"device": {"emulated": "gh200"}, "precision": "bf16"}}
    with pytest.raises(InputError, match="an emulated device takes its times from a model's dimensions"):
        build_compute(TrainerConfig.model_validate(emulated), 96)


def test_the_vocabulary_of_a_config_may_be_replaced() -> None:
    config = ModelConfig.model_validate({"config": {"model_type": "gpt2", **CONTENTS["gpt2"]}, "vocab_size": 128})
    shape = shape_of(config, 96, 16)
    assert shape.vocab_size == 128


def test_it_goes_on_from_pretrained_weights(tmp_path: Path) -> None:
    files = model_files(model_of("qwen2"))
    assert files is not None
    torch.manual_seed(5)
    saved = build_from_files(files, model_of("qwen2"))
    saved.save_pretrained(tmp_path)  # type: ignore[operator]
    compute = build_compute(trainer({"pretrained": str(tmp_path)}), 96)
    loaded = dict(compute._model.named_parameters())  # type: ignore[attr-defined]
    assert all(torch.equal(one, loaded[name]) for name, one in saved.named_parameters())
    found = model_files(ModelConfig(pretrained=str(tmp_path)))
    before = found.fingerprint
    with torch.no_grad():
        next(saved.parameters()).add_(1)
    saved.save_pretrained(tmp_path)  # type: ignore[operator]
    assert found.fingerprint != before  # the same name, other weights


def test_weights_that_are_missing_are_not_drawn_at_random(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    BertModel(BertConfig(vocab_size=96, **SIZES)).save_pretrained(tmp_path)  # without the head
    with pytest.raises(InputError, match=r"its files lack \d+ weights of a BertForMaskedLM \(cls\."):
        build_compute(trainer({"pretrained": str(tmp_path)}), 96)


def write(folder: Path, content: object, weights: bool = False) -> str:
    (folder / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    if weights:
        (folder / "model.safetensors").write_bytes(b"none")
    return str(folder)


@pytest.mark.parametrize(("content", "line"), [
    ("{", "model.config: {}: config.json is not readable JSON"),
    ([], "model.config: {}: no model_type in it"),
    ({"vocab_size": 3}, "model.config: {}: no model_type in it"),
    ({"model_type": "nope"}, "model.config: {}: transformers cannot build this model: Unrecognized model identif"),
    pytest.param(
        *({"model_type": "t5"}, "model.config: {}: transformers cannot build this model: Unrecognized configuration"),
        marks=(pytest.mark.slow, pytest.mark.nightly),
    ),
    ({"model_type": "llama", "auto_map": {"AutoModel": "evil.Model"}}, "model.config: {} names code of its own"),
    ({"model_type": "gpt2", "n_layer": 0}, "model.config: {}: n_layer: 0; allowed: a whole number of at least 1"),
    ({"model_type": "gpt2", "n_layer": "two"}, "model.config: {}: n_layer: 'two'; allowed: a whole number"),
    ({"model_type": "gpt2", "vocab_size": 90}, "model.config: {} has 90 token ids, fewer than the tokenizer (96)"),
    ({"model_type": "gpt2", "n_positions": 8}, "data.sequence_length: 16, but model.config: {} has 8 positions"),
    ({"model_type": "bert", **SIZES, "num_hidden_layers": 10**9}, "model.config: {}: num_hidden_layers: 1000000000;"),
    ({"model_type": "bert", **SIZES, "hidden_size": 33}, "model.config: {}: transformers cannot build this model"),
])  # fmt: skip
def test_a_config_that_cannot_work_is_one_line(tmp_path: Path, content: object, line: str) -> None:
    folder = write(tmp_path, content)
    assert refusal(build_compute, trainer({"config": folder}), 96).startswith(line.format(folder))


@pytest.mark.parametrize(("key", "line"), [
    ("config", "model.config: no file {}/config.json"),
    ("pretrained", "model.pretrained: no file {}/config.json"),
])  # fmt: skip
def test_a_folder_without_a_config_is_one_line(tmp_path: Path, key: str, line: str) -> None:
    assert refusal(model_files, ModelConfig.model_validate({key: str(tmp_path)})).startswith(line.format(tmp_path))


def test_pickled_and_broken_weights_are_one_line(tmp_path: Path) -> None:
    content = {"model_type": "gpt2", **CONTENTS["gpt2"]}
    folder = write(tmp_path, content)
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(InputError, match=r"holds no weights \(\*.safetensors; other formats are not loaded\)$"):
        model_files(ModelConfig(pretrained=folder))
    write(tmp_path, content, weights=True)
    with pytest.raises(InputError, match=r"^model.pretrained: [^\n]*: transformers cannot build this model: [^\n]*$"):
        build_compute(trainer({"pretrained": folder}), 96)


@pytest.mark.parametrize(("model", "line"), [
    ({"preset": "gpt2-tiny", "config": "x"}, "preset and config given; give exactly one of"),
    ({"config": "x", "pretrained": "y"}, "config and pretrained given"),
    ({"preset": None}, "none given"),
    ({"preset": "llama-tiny", "factory": "a:b"}, "preset and factory given"),
    ({"config": "x", "layers": 2}, "config defines the model; layers are only for a preset"),
    ({"pretrained": "x", "vocab_size": 20}, "pretrained weights have the vocabulary of their config.json"),
])  # fmt: skip
def test_exactly_one_way_to_a_model(model: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        ModelConfig.model_validate(model)


def test_what_a_study_recorded_of_a_factory_still_opens() -> None:
    recorded = ModelConfig.model_validate({"factory": "a:b"}).model_dump()
    assert recorded["preset"] == "gpt2-tiny"
    assert ModelConfig.model_validate(recorded).factory == "a:b"
    files = ModelConfig.model_validate({"config": "x"})
    assert ModelConfig.model_validate(files.model_dump()) == files


@pytest.mark.parametrize(("model", "line"), [
    ({"preset": "gpt2-tiny", "objective": "masked"}, "model.objective: masked, but gpt2 is a causal model"),
    ({"preset": "distilbert", "objective": "causal"}, "model.objective: causal, but distilbert is a masked model"),
    ({"config": {"model_type": "llama"}, "objective": "masked"}, "but a llama is a causal model (llama)"),
    ({"config": {"model_type": "bert"}, "objective": "causal"}, "or is_decoder: true in its config"),
    ({"config": {"model_type": "distilbert"}, "objective": "causal"}, "is a masked model (distilbert); allowed: m"),
])  # fmt: skip
def test_an_objective_that_the_model_cannot_have(model: dict[str, Any], line: str) -> None:
    assert line in refusal(objective_of, ModelConfig.model_validate(model))


def test_a_decoder_is_causal() -> None:
    assert objective_of(model_of("bert", is_decoder=True)) == "causal"
    assert objective_of(ModelConfig.model_validate({"factory": "a:b", "objective": "masked"})) == "masked"


def test_the_lists_of_masked_models_are_those_of_transformers() -> None:
    from transformers.models.auto import modeling_auto

    causal = set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    masked = set(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    assert set(MASKED_ALONE) == masked - causal
    assert set(MASKED_OR_DECODER) == masked & causal
