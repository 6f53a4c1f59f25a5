"""Computes an emulated device's kernel times from its profile, and checks that the model fits its memory.

Forward and backward follow the compute roofline, gradient norm and optimizer the memory roofline (Williams et al. 2009,
"Roofline"), and copies the link bandwidth. The host's time for launching kernels is excluded; ``launch_us`` or
``compute.inject`` declares it.
"""

from __future__ import annotations

from typing import NamedTuple

from trainer.config import EmulatedDevice, TrainerConfig
from trainer.devices.estimates import flops_per_token, parameters
from trainer.devices.profiles import DeviceProfile, matmul_dtype
from trainer.errors import InputError
from trainer.model import Shape
from trainer.model_files import objective_of

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
    """Return the kernel durations at ``device.speed``: configured ones, or by the roofline of ``profile``."""
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
    estimates_ms["h2d_ms"] = batch_bytes(config) / (profile.link_bandwidth_bytes_per_s * device.memory_efficiency) * 1e3
    fixed_ms = {name: value for name, value in fixed.model_dump().items() if value is not None}
    return Kernels(**{name: value / device.speed for name, value in {**estimates_ms, **fixed_ms}.items()})


def batch_bytes(config: TrainerConfig) -> int:
    """Return the bytes copied to the device per micro-batch: ids, labels, and the mask if the model needs it.

    A causal model does not, because its padding follows the text. The padding of a user's own source is unknown here.
    """
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
