"""Resolves model shapes (without torch) and builds the models from transformers configs with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trainer.config import PRESET_VOCABULARY, PRESETS, ModelConfig
from trainer.errors import InputError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Shape:
    """Every dimension of a model, resolved. ``positions`` is the longest sequence it takes."""

    family: Literal["gpt2", "llama"]
    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn_width: int
    vocab_size: int
    positions: int


def resolve_shape(config: ModelConfig, tokenizer_vocab_size: int, sequence_length: int) -> Shape:
    """Resolve the shape that ``config`` asks for. Raises InputError where dimensions or tokenizer do not fit."""
    dimensions = dict(PRESETS[config.preset])
    # A preset without a vocabulary takes the tokenizer's, rounded up to a multiple of 64 (matrix units like it).
    dimensions["vocab_size"] = PRESET_VOCABULARY.get(config.preset, -(-tokenizer_vocab_size // 64) * 64)
    for key in ("family", "layers", "width", "heads", "kv_heads", "ffn_width", "vocab_size"):
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
    if shape.family == "gpt2" and shape.kv_heads != shape.heads:
        raise InputError(
            f"model.kv_heads: gpt2 has as many key-value heads as heads ({shape.heads}), not {shape.kv_heads}"
        )
    if tokenizer_vocab_size > shape.vocab_size:
        raise InputError(
            f"model.vocab_size: {shape.vocab_size} is smaller than the tokenizer's vocabulary; "
            f"allowed: at least {tokenizer_vocab_size}"
        )
    return shape


def build_model(shape: Shape) -> torch.nn.Module:
    """Build a causal language model with random weights. Dropout is 0, so that runs differ only as declared."""
    if shape.family == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=shape.vocab_size,
                n_positions=shape.positions,
                n_embd=shape.width,
                n_layer=shape.layers,
                n_head=shape.heads,
                n_inner=shape.ffn_width,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                use_cache=False,
                bos_token_id=None,
                eos_token_id=None,
            )
        )
        model.loss_type = "ForCausalLM"  # transformers cannot tell it from the class name and would warn
        return model  # type: ignore[no-any-return]
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(  # type: ignore[no-any-return]
        LlamaConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.width,
            intermediate_size=shape.ffn_width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=shape.positions,
            attention_dropout=0.0,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
