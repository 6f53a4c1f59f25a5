"""Estimates the memory that training a model shape takes, by arithmetic alone (no torch).

Each estimate is a range. Its low end leaves out whatever a library could do without, so a run that lacks even that
cannot work. Its high end holds what transformers and PyTorch are known to keep.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config import DataConfig, TrainerConfig
from trainer.devices.flops import is_tied, parameters
from trainer.model import Shape

# An allocator holds more than what lives in it: glibc keeps freed blocks of less than 32 MB, CUDA's rounds and caches.
# On a CPU 27 % more than all that is counted below was held once (results/reference/peak-memory: llama, the second).
FRAGMENTED = 1.3
# Copies of a layer's attention scores, where attention is eager: kept for the backward pass (the softmax, the dropout
# and its mask), and there at once while a layer computes (product, mask, softmax in single precision, gradients).
SCORES_KEPT, SCORES_AT_ONCE = 3, 5
ID_BYTES = 8  # token ids, labels and attention mask are int64


@dataclass(frozen=True)
class ByteRange:
    """An amount of memory that is only known to lie between two figures."""

    low_bytes: int
    high_bytes: int

    def __add__(self, other: ByteRange) -> ByteRange:
        return ByteRange(self.low_bytes + other.low_bytes, self.high_bytes + other.high_bytes)

    def times(self, count: int) -> ByteRange:
        """``count`` times this."""
        return ByteRange(self.low_bytes * count, self.high_bytes * count)


@dataclass(frozen=True)
class Footprint:
    """What training holds where it computes."""

    parameters: int
    bytes_per_value: int
    """Of weights, gradients and moments: 4, or 2 with pure-bf16."""
    activations: ByteRange
    """Of one micro-batch, its logits included."""
    shards: int = 1
    """Ranks that each hold a share of weights, gradients and moments (fsdp)."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that a rank keeps. The gradients take as much, the two moments of AdamW twice that."""
        return self.parameters * self.bytes_per_value // self.shards

    @property
    def lasting_bytes(self) -> int:
        """What stays between two steps: weights and moments. Gradients are dropped after each step."""
        return 3 * self.weight_bytes

    @property
    def peak(self) -> ByteRange:
        """What a step holds at most. Gradients grow as activations are freed, so the low end has the larger of them.

        Of shares the high end also has the whole weights and gradients, as if all of them were gathered at once.
        """
        whole = 2 * self.parameters * self.bytes_per_value if self.shards > 1 else 0
        return ByteRange(
            self.lasting_bytes + max(self.weight_bytes, self.activations.low_bytes),
            self.lasting_bytes + self.weight_bytes + whole + self.activations.high_bytes,
        )


def footprint(config: TrainerConfig, shape: Shape) -> Footprint:
    """Estimate what one rank that trains ``shape`` holds: parameters exactly, activations as a range.

    Low, for each layer and token: what backward needs (the inputs of both norms, of attention and of the feed-forward
    products), attention scores left out as fused attention does not keep them; the logits and their log-softmax.
    High: also the results of norms and residual sums, an attention mask in floating point, and the logits' gradients;
    of an embedding that is tied to the output projection both gradients beside their sum, until the two are added;
    attention scores, a square of the sequence's length for each head, where ``model.attention`` is eager; and what an
    allocator holds beyond that.

    With activation checkpointing each layer keeps its input alone (in single precision at the high end), and one layer
    at a time is computed again. At the low end that is not while the logits are there.
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
        kept = 0 if config.model.activation_checkpointing else SCORES_KEPT * shape.layers
        scores = (kept + SCORES_AT_ONCE) * shape.heads * data.sequence_length * tokens * 4
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
    """Size of one batch: ids and labels, and an attention mask where rows are padded."""
    ids = data.batch_size * data.sequence_length * ID_BYTES
    return ByteRange(2 * ids, 3 * ids)
