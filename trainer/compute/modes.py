"""Switches a model to activation checkpointing or to a fused activation, and compiles it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainer.errors import InputError, one_line

if TYPE_CHECKING:
    import torch


def keep_layer_inputs_alone(model: torch.nn.Module) -> None:
    """Let each layer keep only its input, and recompute the layer in the backward pass (activation checkpointing).

    Raises InputError if the model does not support it.
    """
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
    """Replace transformers' tanh approximation of GELU (Hendrycks and Gimpel 2016) by torch's single kernel.

    Raises InputError if the model has no such activation of transformers.
    """
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
    """Return a function that computes the loss of ``model`` and returns nothing else of its output.

    Every output of a compiled function has a gradient. For unused logits that is an equally large tensor of zeros,
    which the backward pass fills and reads. It takes 3 % of a step of GPT-2 124M on an H200, and its memory.
    """

    def loss(**inputs: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = model(**inputs).loss
        return value

    return loss


def compiled(model: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return ``model``, a module or a function, compiled by torch.compile.

    It compiles in the first steps, and for each new shape of a batch. Raises InputError if this machine has no
    compiler.
    """
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
