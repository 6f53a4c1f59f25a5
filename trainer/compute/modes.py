"""Decides how a model computes: activation checkpointing, fused activation, compilation and precision.

``compute.precision`` is checked against the device: TF32, autocast, and loss scaling for fp16. fp16 has 5 bits of
exponent: gradients below 6e-8 become 0. So the loss is multiplied by a large scale before the backward pass, and the
gradients are divided by it before they are used (Micikevicius et al. 2018, "Mixed Precision Training", section 3.2). A
step whose gradients overflow is skipped, and the scale is halved.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainer.errors import InputError, one_line

if TYPE_CHECKING:
    import torch


def keep_layer_inputs_alone(model: torch.nn.Module) -> None:
    """Let each layer keep only its input (activation checkpointing). Raises InputError if it cannot."""
    # its name until transformers 5, and its later name
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    switch: Any = next((getattr(model, name) for name in names if hasattr(model, name)), None)
    if switch is None or not getattr(model, "supports_gradient_checkpointing", False):
        raise InputError(
            f"model.activation_checkpointing: a {type(model).__name__} cannot (it has no "
            "gradient_checkpointing_enable); allowed: false"
        )
    # The other implementation (reentrant) needs an input with a gradient, and runs each layer under no_grad first.
    switch({"use_reentrant": False})


def fuse_gelu(model: torch.nn.Module) -> None:
    """Replace transformers' tanh GELU by torch's single kernel. Raises InputError if the model has none."""
    import torch
    from transformers.activations import FastGELUActivation, NewGELUActivation

    replaced = 0
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation | FastGELUActivation):
                setattr(module, name, torch.nn.GELU(approximate="tanh"))
                replaced += 1
    if not replaced:
        raise InputError(
            f"model.fused_gelu: a {type(model).__name__} has no activation gelu_new or gelu_fast; allowed: false"
        )


def loss_function(model: torch.nn.Module) -> Callable[..., torch.Tensor]:
    """Return a function that computes the loss alone: unused logits of a compiled function cost a gradient of zeros."""

    def loss(**inputs: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = model(**inputs).loss
        return value

    return loss


def compiled(model: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return ``model``, a module or a function, compiled by torch.compile. Raises InputError without a compiler."""
    import torch
    from torch._inductor import config as inductor

    if device.type == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except Exception as error:  # InvalidCxxCompiler, or any error of a broken compiler
            raise InputError(
                f"model.compile: torch.compile needs a C++ compiler (g++ or clang++) on a CPU: {one_line(error)}"
            ) from error
        inductor.compile_threads = 1  # Own processes would outlive a run and take the cores of others.
    result: Callable[..., Any] = torch.compile(model)
    return result


def compilations() -> int:
    """Return the number of graphs that torch.compile has compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


# Minimum compute capability of a CUDA device by precision (NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities").
# TF32 and bf16 matrix units came with Ampere (8.0), arithmetic in fp16 with 5.3.
LEAST_CAPABILITY = {"tf32": (8, 0), "bf16": (8, 0), "pure-bf16": (8, 0), "fp16": (5, 3)}
PRECISIONS = ("fp32", "tf32", "bf16", "pure-bf16", "fp16")
# The scale starts at 2**16 and halves with each skipped step. If gradients are not finite at 2**-16 either, the scale
# is not the cause: the run has diverged.
MOST_SKIPPED_IN_A_ROW = 32


def allowed_precisions(capability: tuple[int, int] | None) -> list[str]:
    """Return the precisions of a device. ``capability``: its CUDA compute capability (major, minor); None for a CPU."""
    if capability is None:
        return [precision for precision in PRECISIONS if precision != "tf32"]
    return [precision for precision in PRECISIONS if capability >= LEAST_CAPABILITY.get(precision, (0, 0))]


def check_precision(precision: str, device: str, capability: tuple[int, int] | None) -> None:
    """Raise InputError if ``device`` (its name) with that ``capability`` (None: a CPU) cannot do ``precision``."""
    allowed = allowed_precisions(capability)
    if precision in allowed:
        return
    description = "a CPU" if capability is None else f"compute capability {capability[0]}.{capability[1]}"
    needs = ".".join(map(str, LEAST_CAPABILITY[precision]))
    raise InputError(
        f"compute.precision: {precision} needs a CUDA device of compute capability {needs} or more, but {device} "
        f"{'is' if capability is None else 'has'} {description}; allowed here: {', '.join(allowed)}"
    )


class Precision:
    """Number format of a run: dtype of the weights, autocast, and loss scaling for fp16."""

    def __init__(self, name: str, device: torch.device) -> None:
        """Set up the precision ``name``. Raises InputError if ``device`` does not support it."""
        import torch

        on_cuda = device.type == "cuda"
        capability = torch.cuda.get_device_capability(device) if on_cuda else None
        check_precision(name, torch.cuda.get_device_name(device) if on_cuda else "cpu", capability)
        if name == "tf32":
            torch.set_float32_matmul_precision("high")  # A global setting; each run has its own process.
        self._torch: Any = torch
        self._type = device.type
        self._autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name)
        self.weights = torch.bfloat16 if name == "pure-bf16" else None
        self.scaling = LossScaling(device) if name == "fp16" else None

    def autocast(self) -> Any:
        """Return a context in which matrix products run in 16 bits, if the precision requires it."""
        dtype = self._autocast or self._torch.bfloat16
        return self._torch.autocast(self._type, dtype, enabled=self._autocast is not None)


class LossScaling:
    """torch.amp.GradScaler with a count of skipped steps on the device, without a blocking sync in each step."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._torch: Any = torch
        self._scaler: Any = torch.amp.GradScaler(device.type)
        self._skipped: Any = torch.zeros((), dtype=torch.int64, device=device)
        self._known_at_once = device.type == "cpu"
        self._behind = 0  # skipped steps for which the learning rate's schedule must still stand still

    def scaled(self, loss: Any) -> Any:
        """Return the scaled loss, on which ``backward`` is called."""
        return self._scaler.scale(loss)

    def unscale(self, optimizer: Any) -> None:
        """Divide the gradients by the loss's scale. Clipping requires their true size."""
        self._scaler.unscale_(optimizer)

    def count(self, norm: Any) -> None:
        """Count this step as skipped if ``norm``, the global norm of its gradients, is not finite."""
        self._skipped += (~self._torch.isfinite(norm)).to(self._skipped.dtype)
        if self._known_at_once and not math.isfinite(norm.item()):
            self._behind += 1

    def notice(self) -> None:
        """Record that the host has read the norm of a skipped step. On a CPU :meth:`count` has done that already."""
        if not self._known_at_once:
            self._behind += 1

    def keeps_rate(self) -> bool:
        """Return True if the rate must stay: once for each skipped step; with ``sync: late`` two steps later."""
        if not self._behind:
            return False
        self._behind -= 1
        return True

    def step(self, optimizer: Any) -> None:
        """Step the optimizer unless gradients overflowed, then adapt the scale."""
        self._scaler.step(optimizer)
        self._scaler.update()

    @property
    def skipped_steps(self) -> int:
        """Number of steps that overflow skipped. Blocks until the device has counted."""
        return int(self._skipped)

    def state_dict(self) -> dict[str, object]:
        """Return the scale and the counts of skipped steps, for a checkpoint."""
        return {"scaler": self._scaler.state_dict(), "skipped": self._skipped.clone(), "behind": self._behind}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Restore the state of :meth:`state_dict`."""
        self._scaler.load_state_dict(state["scaler"])
        self._skipped.copy_(state["skipped"])
        self._behind = int(state.get("behind", 0))  # type: ignore[call-overload]  # older checkpoints have none


class NormCheck:
    """Checks each step's gradient norm once the host has it. With ``scaling``, an overflow only skips the step."""

    def __init__(self, scaling: LossScaling | None) -> None:
        self._scaling = scaling
        self._in_a_row = 0

    def __call__(self, norm: float, step: int) -> None:
        """Raise FloatingPointError for a norm that is no number; with loss scaling only after many steps in a row."""
        if math.isfinite(norm):
            self._in_a_row = 0
            return
        if self._scaling is None:
            raise FloatingPointError(f"step {step}: the gradient norm is {norm}: is optimizer.learning_rate too high?")
        self._scaling.notice()
        self._in_a_row += 1
        if self._in_a_row >= MOST_SKIPPED_IN_A_ROW:
            raise FloatingPointError(
                f"step {step}: the gradient norm is {norm} and {self._in_a_row} steps in a row were skipped, whatever "
                "the scale of the loss: is optimizer.learning_rate too high?"
            )
