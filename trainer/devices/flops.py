"""Counts parameters and FLOPs of a model shape, by arithmetic alone (no torch)."""

from __future__ import annotations

from typing import Literal

from trainer.model import Shape

Convention = Literal["palm", "causal-half", "non-embedding"]


def parameters(shape: Shape) -> int:
    """Return the number of trainable parameters.

    GPT-2 and DistilBERT tie the output projection to the input embedding, Llama does not. DistilBERT has a masked-LM
    head: one more matrix and norm, and a bias for each token id.
    """
    if shape.counted is not None:
        return shape.counted.parameters
    width, head_dim = shape.width, shape.width // shape.heads
    if shape.family == "llama":
        attention = 2 * width * width + 2 * width * shape.kv_heads * head_dim
        block = attention + 3 * width * shape.ffn_width + 2 * width
        return shape.layers * block + 2 * shape.vocab_size * width + width
    attention = 4 * width * width + 4 * width  # q, k, v, output, with biases
    feed_forward = 2 * width * shape.ffn_width + shape.ffn_width + width
    norms = 4 * width  # two layer norms, weight and bias
    block = attention + feed_forward + norms
    # One more norm: at the end (GPT-2), or of the embeddings (DistilBERT).
    body = shape.layers * block + (shape.vocab_size + shape.positions) * width + 2 * width
    head = width * width + width + 2 * width + shape.vocab_size if shape.family == "distilbert" else 0
    return body + head


def lookups(shape: Shape) -> int:
    """Return the number of embedding parameters that are only looked up, without a matrix product (not a tied
    output).
    """
    if shape.counted is not None:
        return shape.counted.lookups
    return (shape.vocab_size if shape.family == "llama" else shape.positions) * shape.width


def is_tied(shape: Shape) -> bool:
    """Return True if the output projection and the token embedding are the same matrix."""
    if shape.counted is not None:
        return shape.counted.lookups < shape.vocab_size * shape.width
    return shape.family != "llama"


def flops_per_token(shape: Shape, sequence_length: int, convention: Convention = "palm") -> float:
    """Return the training FLOPs per token, forward and backward, by a named convention. The optimizer is excluded.

    Recomputation by activation checkpointing is excluded, too: these are the model's FLOPs (MFU), not the hardware's
    (HFU).

    palm: 6 N + 12 x layers x heads x head_dim x sequence (Chowdhery et al. 2022, "PaLM", appendix B). N excludes
    embedding *lookups* (no matrix product) but includes the output projection. The attention term is the full square,
    including the masked half. torch's own counter (torch.utils.flop_counter) counts the same products, without the part
    of 6 N for norms and biases. A test compares the two.

    causal-half: 6 N + 6 x layers x heads x head_dim x sequence, with the same N. A causal kernel skips the masked half
    (Dao 2023, "FlashAttention-2", section 4.1, divides by 2 for the same reason). A masked-LM attends to everything, so
    this is half of its work.

    non-embedding: 6 N, with N without embeddings and without the output projection; attention is excluded (Kaplan et
    al. 2020, "Scaling Laws for Neural Language Models", section 2.1).
    """
    matmul_parameters = parameters(shape) - lookups(shape)
    if convention == "non-embedding":
        return 6.0 * (matmul_parameters - shape.vocab_size * shape.width)
    per_position = 12.0 if convention == "palm" else 6.0
    return 6.0 * matmul_parameters + per_position * shape.layers * shape.attention_width * sequence_length
