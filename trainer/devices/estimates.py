"""Counts parameters and FLOPs of a model shape, and estimates memory and kernel times, by arithmetic alone (no torch).

Each estimate of memory is a range. Its low end excludes everything that a library could do without, so a run with less
memory cannot work. Its high end includes what transformers and PyTorch are known to keep.

Kernel times of an emulated device: forward and backward follow the compute roofline, gradient norm and optimizer the
memory roofline (Williams et al. 2009, "Roofline"), and copies the link bandwidth. The host's time for launching kernels
is excluded; ``launch_us`` or ``compute.inject`` declares it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from trainer.config import DataConfig, EmulatedDevice, TrainerConfig
from trainer.devices.profiles import DeviceProfile, matmul_dtype
from trainer.errors import InputError
from trainer.model import Shape
from trainer.model_files import objective_of

Convention = Literal["palm", "causal-half", "non-embedding"]


def parameters(shape: Shape) -> int:
    """Return the number of trainable parameters. GPT-2 and DistilBERT tie the output projection, Llama does not."""
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
    """Memory in bytes that one rank needs on its device (GPU or CPU) for training."""

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
        """Peak memory of a step in bytes.

        Low end: weights, moments, and the larger of gradients and activations, because gradients grow while activations
        are freed. High end: all four. With several ``shards`` (fsdp) the high end also includes the whole weights and
        gradients, as if all were gathered at once.
        """
        gathered = 2 * self.parameters * self.bytes_per_value if self.shards > 1 else 0
        return ByteRange(
            self.lasting_bytes + max(self.weight_bytes, self.activations.low_bytes),
            self.lasting_bytes + self.weight_bytes + gathered + self.activations.high_bytes,
        )


def footprint(config: TrainerConfig, shape: Shape) -> Footprint:
    """Estimate the memory in bytes of one rank that trains ``shape``: parameters exactly, activations as a range.

    Low end: for each layer and token, the tensors for the backward pass (the inputs of both norms, of attention and of
    the feed-forward products); for each token, the logits and their log-softmax. Fused attention keeps no attention
    scores.

    High end, additionally:

    - the results of norms and residual sums, an attention mask in floating point, and the logits' gradients;
    - for an embedding tied to the output projection, both gradients beside their sum, until the two are added;
    - attention scores (a square of the sequence's length per head) if ``model.attention`` is eager;
    - the overhead of the allocator.

    With activation checkpointing each layer keeps only its input (in single precision at the high end), and one layer
    at a time is recomputed. The low end counts the larger of that layer's tensors and the logits, the high end both.
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


# Reads and writes of parameter-sized tensors. Fused AdamW reads weight, gradient and both moments and writes all but
# the gradient. PyTorch's foreach AdamW runs one kernel per operation (torch/optim/adamw.py, _multi_tensor_adamw): decay
# 2, first moment 3, second moment 2 + 3, square root 2, its correction 2, epsilon 2, update 4.
FUSED_ADAMW_PASSES = 7
FOREACH_ADAMW_PASSES = 20
NORM_PASSES = 3  # The norm reads the gradients; clipping reads and writes them.
UNSCALE_PASSES = 2  # fp16: dividing the gradients by the loss's scale reads and writes them
TENSOR_BYTES = {"fp32": 4, "tf32": 4, "bf16": 4, "pure-bf16": 2, "fp16": 4}  # one element of weight, gradient or moment
# Precisions that keep their activations in 32 bits.
WIDE = ("fp32", "tf32")
# Matrix products on the same tensor cores. Without a published rate, the share of the peak is assumed to be bf16's.
AS_BF16 = ("tf32", "fp16")
TOKEN_BYTES = 8  # int64
# Activations kept for the backward pass, per token, layer and unit of width, at 16 bit, without attention scores
# (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", equation 2).
ACTIVATION_BYTES = 34


class Kernels(NamedTuple):
    """Durations of kernels in milliseconds: h2d, forward, backward per micro-batch, the others per step."""

    h2d_ms: float
    forward_ms: float
    backward_ms: float
    norm_ms: float
    optimizer_ms: float


def matmul_flops_per_s(device: EmulatedDevice, profile: DeviceProfile, precision: str) -> float:
    """Return the rate of matrix products in FLOP/s. Raises InputError if it is neither configured nor published."""
    dtype = matmul_dtype(precision)
    try:
        peak = profile.peak_flops_per_s(dtype)
    except InputError as error:
        raise InputError(f"compute.precision: {precision}: {error}") from error
    if device.matmul_efficiency is not None:
        return peak * device.matmul_efficiency
    published = profile.achievable_matmul_flops_per_s
    achievable = published.get(dtype)
    if achievable is None and precision in AS_BF16 and "bf16" in published:
        achievable = peak * published["bf16"] / profile.peak_flops_per_s("bf16")
    if achievable is None:
        raise InputError(
            f"compute.device.matmul_efficiency: the profile {profile.name} states no achievable matmul rate for "
            f"{dtype}; give a share of the peak (more than 0, at most 1)"
        )
    return achievable


def kernels(config: TrainerConfig, shape: Shape, profile: DeviceProfile) -> Kernels:
    """Return kernel durations, configured or by ``profile``'s roofline, divided by ``device.speed``."""
    device = config.compute.emulated
    assert device is not None
    data, precision = config.data, config.compute.precision
    tokens = data.batch_size * data.sequence_length
    fixed = device.kernels
    estimates_ms = {}
    if fixed.forward_ms is None or fixed.backward_ms is None:
        forward_ms = (
            tokens * flops_per_token(shape, data.sequence_length) / 3 / matmul_flops_per_s(device, profile, precision)
        ) * 1e3
        # A checkpointed layer is computed once more, in the backward pass.
        recomputes = config.model.activation_checkpointing
        estimates_ms["forward_ms"], estimates_ms["backward_ms"] = forward_ms, (3 if recomputes else 2) * forward_ms
    moved_bytes = parameters(shape) * TENSOR_BYTES[precision]
    memory = profile.memory_bandwidth_bytes_per_s * device.memory_efficiency
    fused = config.optimizer.fused is not False
    passes = NORM_PASSES + (UNSCALE_PASSES if precision == "fp16" else 0)
    estimates_ms["norm_ms"] = passes * moved_bytes / memory * 1e3
    estimates_ms["optimizer_ms"] = (FUSED_ADAMW_PASSES if fused else FOREACH_ADAMW_PASSES) * moved_bytes / memory * 1e3
    estimates_ms["h2d_ms"] = (
        _copied_bytes(config) / (profile.link_bandwidth_bytes_per_s * device.memory_efficiency) * 1e3
    )
    fixed_ms = {name: value for name, value in fixed.model_dump().items() if value is not None}
    return Kernels(**{name: value / device.speed for name, value in {**estimates_ms, **fixed_ms}.items()})


def _copied_bytes(config: TrainerConfig) -> int:
    """Return bytes copied per micro-batch: ids, labels, and the mask of a masked LM's padded rows."""
    padded = config.data.source is None and config.data.path.endswith("-padded")
    return (3 if padded and objective_of(config.model) == "masked" else 2) * tensor_bytes(config)


def tensor_bytes(config: TrainerConfig) -> int:
    """Return the bytes of one tensor of a micro-batch (ids, labels or mask). Each is copied separately."""
    return TOKEN_BYTES * config.data.batch_size * config.data.sequence_length


def check_memory(config: TrainerConfig, shape: Shape, profile: DeviceProfile) -> None:
    """Raise InputError, with the arithmetic, if weights, gradients, moments and activations do not fit."""
    precision = config.compute.precision
    count, element = parameters(shape), TENSOR_BYTES[precision]
    state = 4 * element * count
    tokens = config.data.batch_size * config.data.sequence_length
    wide = 2 if precision in WIDE else 1
    each_layer = ACTIVATION_BYTES * wide * tokens * shape.width
    activations = each_layer * shape.layers
    if config.model.activation_checkpointing:  # the inputs of all layers, at 16 bit or 32, and all of one layer
        activations = 2 * wide * tokens * shape.width * shape.layers + each_layer
    logits = 2 * 4 * tokens * shape.vocab_size
    if (total := state + activations + logits) > profile.memory_bytes:
        name = config.model.preset or shape.family
        raise InputError(
            f"compute.device: {name} does not fit {profile.name}: {count / 1e9:.2f} billion parameters "
            f"x {4 * element} bytes (weight, gradient, two AdamW moments, {precision}) = {state / 1e9:.1f} GB, "
            f"activations about {activations / 1e9:.1f} GB, logits {logits / 1e9:.1f} GB: {total / 1e9:.1f} GB of "
            f"{profile.memory_bytes / 1e9:.1f} GB; allowed: a smaller model or batch"
            + ("" if config.model.activation_checkpointing else ", model.activation_checkpointing true")
            + ("" if element == 2 else ", or compute.precision pure-bf16 (8 bytes a parameter)")
        )
