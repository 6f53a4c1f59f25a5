"""Resolves model shapes (without torch, for the families with formulas) and builds the presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainer.config import DIMENSIONS, PRESET_VOCABULARY, PRESETS, ModelConfig
from trainer.errors import InputError
from trainer.json_types import Json
from trainer.model_files import ModelFiles, count, model_files

if TYPE_CHECKING:
    import torch

FAMILIES = (
    "gpt2",
    "llama",
    "distilbert",
)  # families whose parameters a formula counts (see trainer/devices/estimates.py)


@dataclass(frozen=True)
class Counted:
    """Parameter counts of a model for which no formula is known, counted on the built model."""

    parameters: int
    lookups: int
    """Parameters of embeddings that are only looked up, without a matrix product. A tied output projection does not
    count.
    """


@dataclass(frozen=True)
class Shape:
    """All dimensions of a model. ``family``: of FAMILIES, or another; ``counted``: parameters without a formula."""

    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn_width: int
    vocab_size: int
    positions: int
    head_width: int | None = None
    """Width of one attention head; None: width / heads."""
    counted: Counted | None = None

    @property
    def attention_width(self) -> int:
        """Width of all attention heads of a layer together."""
        return self.heads * (self.head_width or self.width // self.heads)


def shape_of(config: ModelConfig, tokenizer_vocab_size: int, sequence_length: int) -> Shape | None:
    """Return the configured shape; None if unknown before it is built. Raises InputError if ids or length differ."""
    if config.factory is not None:
        return None
    if (files := model_files(config)) is None:
        return resolve_shape(config, tokenizer_vocab_size, sequence_length)
    shape = _shape_of_files(files)
    if shape is None:
        if (counts := count(files, config)) is None:
            return None
        shape = counted_shape(files.model_type, **counts)
    if tokenizer_vocab_size > shape.vocab_size:
        raise InputError(
            f"{files.title} has {shape.vocab_size} token ids, fewer than the tokenizer ({tokenizer_vocab_size}); "
            "give its own tokenizer" + (", or model.vocab_size" if config.pretrained is None else "")
        )
    if sequence_length > shape.positions:
        raise InputError(
            f"data.sequence_length: {sequence_length}, but {files.title} has {shape.positions} positions; allowed: "
            f"at most {shape.positions}"
        )
    return shape


def counted_shape(family: str, *, parameters: int, lookups: int, **dimensions: int) -> Shape:
    """Return the shape of a counted model. ``lookups``: as in :class:`Counted`; ``dimensions``: other fields."""
    shape = Shape(family, **dimensions)  # type: ignore[arg-type]
    return replace(shape, counted=Counted(parameters, lookups))


# Keys of the dimensions in a config.json, the library's general name last, and defaults.
_NAMES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "gpt2": {"layers": ("n_layer",), "width": ("n_embd",), "heads": ("n_head",), "ffn_width": ("n_inner",),
             "positions": ("n_positions",)},
    "llama": {"layers": (), "width": (), "heads": (), "ffn_width": ("intermediate_size",), "positions": ()},
    "distilbert": {"layers": ("n_layers",), "width": ("dim",), "heads": ("n_heads",), "ffn_width": ("hidden_dim",),
                   "positions": ()},
}  # fmt: skip
_GENERAL = {
    "layers": "num_hidden_layers", "width": "hidden_size", "heads": "num_attention_heads",
    "positions": "max_position_embeddings",
}  # fmt: skip
_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "gpt2": {"layers": 12, "width": 768, "heads": 12, "positions": 1024, "vocab_size": 50257},
    "llama": {"layers": 32, "width": 4096, "heads": 32, "ffn_width": 11008, "positions": 2048, "vocab_size": 32000},
    "distilbert": {"layers": 6, "width": 768, "heads": 12, "ffn_width": 3072, "positions": 512, "vocab_size": 30522},
}
# Classes of transformers by family: configuration and model; and settings of a preset.
_NO_ENDS = {"bos_token_id": None, "eos_token_id": None}
_BUILT: Mapping[str, tuple[tuple[str, str], Mapping[str, object]]] = {
    "gpt2": (
        ("GPT2Config", "GPT2LMHeadModel"),
        {**dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0), "use_cache": False, **_NO_ENDS},
    ),
    "llama": (("LlamaConfig", "LlamaForCausalLM"), {"attention_dropout": 0.0, "use_cache": False, **_NO_ENDS}),
    "distilbert": (
        ("DistilBertConfig", "DistilBertForMaskedLM"),
        {"dropout": 0.0, "attention_dropout": 0.0, "pad_token_id": None},
    ),
}
# Assumptions of the formulas by family: key of a config.json -> its default, to which the formulas apply.
_ASSUMED: Mapping[str, Mapping[str, Json]] = {
    "gpt2": {"tie_word_embeddings": True, "add_cross_attention": False},
    "llama": {"tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False},
    "distilbert": {"tie_word_embeddings": True},
}


def _shape_of_files(files: ModelFiles) -> Shape | None:
    """Return the shape by config.json alone. None if no formula gives the parameters of its family or settings."""
    family, content = files.model_type, files.content
    if family not in FAMILIES or any(content.get(key, default) != default for key, default in _ASSUMED[family].items()):
        return None
    dimensions: dict[str, int] = {}
    for dimension, names in _NAMES[family].items():
        keys = [*names, *([_GENERAL[dimension]] if dimension in _GENERAL else [])]
        value = next((content[key] for key in keys if content.get(key) is not None), None)
        dimensions[dimension] = _whole(files, keys[0], _DEFAULTS[family].get(dimension) if value is None else value)
    dimensions["vocab_size"] = _whole(files, "vocab_size", content.get("vocab_size", _DEFAULTS[family]["vocab_size"]))
    if not dimensions["ffn_width"]:
        dimensions["ffn_width"] = 4 * dimensions["width"]
    kv_heads = content.get("num_key_value_heads") if family == "llama" else None
    dimensions["kv_heads"] = dimensions["heads"] if kv_heads is None else _whole(files, "num_key_value_heads", kv_heads)
    head_width = content.get("head_dim") if family == "llama" else None
    if head_width is not None and head_width != dimensions["width"] // dimensions["heads"]:
        return None
    return Shape(family=family, **dimensions)  # type: ignore[arg-type]


def _whole(files: ModelFiles, key: str, value: Json) -> int:
    if value is None and key == "n_inner":
        return 0  # gpt2's notation for four times the width
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{files.title}: {key}: {value!r}; allowed: a whole number of at least 1")
    return value


def resolve_shape(config: ModelConfig, tokenizer_vocab_size: int, sequence_length: int) -> Shape:
    """Return the shape of a preset's model. Raises InputError if dimensions or tokenizer do not fit."""
    assert config.preset is not None
    dimensions = dict(PRESETS[config.preset])
    # A preset without a vocabulary uses the tokenizer's, rounded up to a multiple of 64, which suits matrix units.
    dimensions["vocab_size"] = PRESET_VOCABULARY.get(config.preset, -(-tokenizer_vocab_size // 64) * 64)
    for key in (*DIMENSIONS, "vocab_size"):
        value = getattr(config, key)
        if value is not None:
            dimensions[key] = value
    if config.heads is not None and config.kv_heads is None:
        dimensions["kv_heads"] = config.heads  # heads without kv_heads means ordinary multi-head attention
    if config.width is not None and config.ffn_width is None:
        dimensions["ffn_width"] = 4 * config.width
    shape = Shape(**dimensions, positions=sequence_length)  # type: ignore[arg-type]
    if shape.width % shape.heads:
        raise InputError(f"model.width: {shape.width} is not a multiple of model.heads ({shape.heads})")
    if shape.family == "llama" and (shape.width // shape.heads) % 2:
        raise InputError(
            f"model.width: {shape.width} / model.heads {shape.heads} is odd; rotary embeddings need an even head size"
        )
    if shape.heads % shape.kv_heads:
        raise InputError(f"model.kv_heads: {shape.kv_heads} does not divide model.heads ({shape.heads})")
    if shape.family != "llama" and shape.kv_heads != shape.heads:
        raise InputError(
            f"model.kv_heads: {shape.family} has as many key-value heads as heads ({shape.heads}), not {shape.kv_heads}"
        )
    if tokenizer_vocab_size > shape.vocab_size:
        raise InputError(
            f"model.vocab_size: {shape.vocab_size} is smaller than the tokenizer's vocabulary; "
            f"allowed: at least {tokenizer_vocab_size}"
        )
    return shape


def build_model(shape: Shape, attention: str | None = None) -> torch.nn.Module:
    """Return a preset's model, random and without dropout. ``attention``: transformers' name; None: default."""
    import transformers

    (config_class, model_class), fixed = _BUILT[shape.family]
    keys = {dimension: names[0] if names else _GENERAL[dimension] for dimension, names in _NAMES[shape.family].items()}
    if shape.family == "llama":
        keys["kv_heads"] = "num_key_value_heads"
    dimensions = {key: getattr(shape, dimension) for dimension, key in keys.items()}
    chosen = {} if attention is None else {"attn_implementation": attention}
    config = getattr(transformers, config_class)(vocab_size=shape.vocab_size, **dimensions, **fixed, **chosen)
    model: torch.nn.Module = getattr(transformers, model_class)(config)
    if shape.family == "gpt2":
        # transformers cannot infer it from the class name and would warn.
        model.loss_type = "ForCausalLM"  # type: ignore[assignment]
    return model
