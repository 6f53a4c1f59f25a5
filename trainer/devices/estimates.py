"""Counts parameters and FLOPs of a model shape, and estimates its memory, by arithmetic alone (no torch).

Each estimate of memory is a range. Its low end excludes everything that a library could do without, so a run with less
memory cannot work. Its high end includes what transformers and PyTorch are known to keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.config import DataConfig, TrainerConfig
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
    """Return the number of embedding parameters that are only looked up, without a matrix product."""
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


# An allocator holds more than its live blocks: glibc keeps freed blocks of less than 32 MB, CUDA's allocator rounds and
# caches. On a CPU a run once took 27 % more than the sum below (results/reference/peak-memory: llama, the second).
FRAGMENTED = 1.3
# Copies of a layer's attention scores with eager attention. Kept for the backward pass: softmax, dropout and its mask.
# At once while a layer computes: product, mask, softmax in single precision, gradients.
SCORES_KEPT, SCORES_AT_ONCE = 3, 5
ID_BYTES = 8  # token ids, labels and attention mask are int64


@dataclass(frozen=True)
class ByteRange:
    """An amount of memory known only as a range."""

    low_bytes: int
    high_bytes: int

    def __add__(self, other: ByteRange) -> ByteRange:
        return ByteRange(self.low_bytes + other.low_bytes, self.high_bytes + other.high_bytes)

    def times(self, count: int) -> ByteRange:
        """Return ``count`` times this range."""
        return ByteRange(self.low_bytes * count, self.high_bytes * count)


@dataclass(frozen=True)
class Footprint:
    """Memory of one rank for training, on the device that computes."""

    parameters: int
    bytes_per_value: int
    """Bytes of each weight, gradient and moment: 4, or 2 with pure-bf16."""
    activations: ByteRange
    """Activations of one micro-batch, including its logits."""
    shards: int = 1
    """Number of ranks that each hold a share of weights, gradients and moments (fsdp)."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that a rank keeps. The gradients take as much, the two moments of AdamW twice that."""
        return self.parameters * self.bytes_per_value // self.shards

    @property
    def lasting_bytes(self) -> int:
        """Bytes kept between two steps: weights and moments. Gradients are dropped after each step."""
        return 3 * self.weight_bytes

    @property
    def peak(self) -> ByteRange:
        """Peak memory of a step. Gradients grow while activations are freed, so the low end has only the larger of the
        two.

        With shares, the high end also includes the whole weights and gradients, as if all were gathered at once.
        """
        gathered = 2 * self.parameters * self.bytes_per_value if self.shards > 1 else 0
        return ByteRange(
            self.lasting_bytes + max(self.weight_bytes, self.activations.low_bytes),
            self.lasting_bytes + self.weight_bytes + gathered + self.activations.high_bytes,
        )


def footprint(config: TrainerConfig, shape: Shape) -> Footprint:
    """Estimate the memory of one rank that trains ``shape``: parameters exactly, activations as a range.

    Low end, for each layer and token: the tensors for the backward pass (the inputs of both norms, of attention and of
    the feed-forward products), the logits and their log-softmax. Fused attention does not keep attention scores.

    High end, additionally:

    - the results of norms and residual sums, an attention mask in floating point, and the logits' gradients;
    - for an embedding tied to the output projection, both gradients beside their sum, until the two are added;
    - attention scores (a square of the sequence's length per head) if ``model.attention`` is eager;
    - the overhead of the allocator.

    With activation checkpointing each layer keeps only its input (in single precision at the high end), and one layer
    at a time is recomputed. At the low end that is not while the logits exist.
    """
    data = config.data
    tokens = data.batch_size * data.sequence_length
    half = config.compute.precision not in ("fp32", "tf32")
    value_bytes = 2 if half else 4
    layer_low = (6 * shape.width + 2 * shape.ffn_width) * value_bytes
    layer_high = (20 * shape.width + 6 * shape.ffn_width) * 4
    logits_low, logits_high = shape.vocab_size * (value_bytes + 4), shape.vocab_size * 4 * 4
    low, high = shape.layers * layer_low + logits_low, shape.layers * layer_high + logits_high
    if config.model.activation_checkpointing:
        low = shape.layers * shape.width * value_bytes + max(layer_low, logits_low)
        high = shape.layers * shape.width * 4 + layer_high + logits_high
    count = parameters(shape)
    copies = (
        2 * count if config.compute.precision in ("bf16", "fp16") else 0
    )  # weights that autocast has cast for this step
    mask = data.sequence_length * tokens * 4
    scores = 0
    if config.model.attention == "eager":
        scores_kept = 0 if config.model.activation_checkpointing else SCORES_KEPT * shape.layers
        scores = (scores_kept + SCORES_AT_ONCE) * shape.heads * data.sequence_length * tokens * 4
    element = 2 if config.compute.precision == "pure-bf16" else 4
    embedding = 2 * shape.vocab_size * shape.width * element if is_tied(shape) else 0
    sharded = config.launch is not None and config.launch.parallel == "fsdp"
    return Footprint(
        count,
        element,
        ByteRange(tokens * low, round(FRAGMENTED * (tokens * high + mask + scores + copies + embedding))),
        config.ranks if sharded else 1,
    )


def batch_bytes(data: DataConfig) -> ByteRange:
    """Return the bytes of one batch: ids and labels (low end), and an attention mask if rows are padded (high end)."""
    ids = data.batch_size * data.sequence_length * ID_BYTES
    return ByteRange(2 * ids, 3 * ids)
