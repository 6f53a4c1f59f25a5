"""Counts parameters and FLOPs of a model shape, by arithmetic alone (no torch)."""

from __future__ import annotations

from trainer.model import Shape


def parameters(shape: Shape) -> int:
    """Count the trainable parameters. GPT-2 ties the output projection to the input embedding, Llama does not."""
    head_dim = shape.width // shape.heads
    if shape.family == "gpt2":
        attention = 4 * shape.width * shape.width + 4 * shape.width  # q, k, v, output, with biases
        feed_forward = 2 * shape.width * shape.ffn_width + shape.ffn_width + shape.width
        norms = 4 * shape.width  # two layer norms, weight and bias
        block = attention + feed_forward + norms
        return shape.layers * block + (shape.vocab_size + shape.positions) * shape.width + 2 * shape.width
    attention = 2 * shape.width * shape.width + 2 * shape.width * shape.kv_heads * head_dim
    block = attention + 3 * shape.width * shape.ffn_width + 2 * shape.width
    return shape.layers * block + 2 * shape.vocab_size * shape.width + shape.width


def flops_per_token(shape: Shape, sequence_length: int) -> float:
    """Count training FLOPs per token, forward and backward: 6 N + 12 x layers x heads x head_dim x sequence.

    The formula is PaLM's (Chowdhery et al. 2022, appendix B): N leaves out embedding *lookups* (no matrix
    product) but counts the output projection; the attention term counts the full square, masked half included.
    The optimizer is left out.
    """
    embedding = shape.vocab_size * shape.width
    lookups = shape.positions * shape.width if shape.family == "gpt2" else embedding
    matmul_parameters = parameters(shape) - lookups
    head_dim = shape.width // shape.heads
    return 6.0 * matmul_parameters + 12.0 * shape.layers * shape.heads * head_dim * sequence_length
