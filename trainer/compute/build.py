"""Builds the compute that a configuration declares: a torch model, an emulated device, or nothing to compute."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainer.compute.attention import implementation
from trainer.compute.base import Compute, InjectedCompute, NoCompute
from trainer.compute.cuda_timeline import CudaTimeline
from trainer.compute.emulated import build_emulated
from trainer.compute.optimizer import scale_initial_weights
from trainer.compute.parallel import Parallel
from trainer.compute.torch_compute import TorchCompute
from trainer.config import TrainerConfig
from trainer.errors import InputError
from trainer.llmc_model import load_seed
from trainer.model import Shape, build_model, resolve_shape, shape_of
from trainer.model_files import build_from_files, model_files, objective_of
from trainer.ranks import ALONE, Rank, device_of
from trainer.trained_model import brought_here
from trainer.user_code import call

if TYPE_CHECKING:
    import torch


def build_compute(
    config: TrainerConfig, tokenizer_vocab_size: int, rank: Rank = ALONE, *, takes_weights: bool = False
) -> Compute:
    """Build and seed the compute (model and device, or an emulation) that ``config`` declares. Raises InputError.

    With several ranks, each waits here for the last one. ``takes_weights``: True to load the weights of
    ``config.resume``.
    """
    compute: Compute
    if config.compute.work == "none":
        compute = NoCompute()
    else:
        if config.compute.emulated is not None:
            compute = build_emulated(config, emulated_shape(config, tokenizer_vocab_size))
        else:
            compute = _torch_compute(
                config, lambda device: _model(config, tokenizer_vocab_size, device, takes_weights), rank
            )
        if isinstance(compute, TorchCompute) and compute.asynchronous:
            compute = CudaTimeline(compute, pinned=config.data.pin_memory)
    if config.compute.inject is not None:
        compute = InjectedCompute(compute, config.compute.inject, config.seed, config.optimizer.accumulation)
    return compute


def emulated_shape(config: TrainerConfig, tokenizer_vocab_size: int) -> Shape:
    """Return the dimensions that an emulated device takes its times from. Raises InputError if unknown."""
    shape = shape_of(config.model, tokenizer_vocab_size, config.data.sequence_length)
    if shape is None:
        files = model_files(config.model)
        raise InputError(
            f"{'model.factory' if files is None else files.title}: an emulated device takes its times from a model's "
            "dimensions, and those of this model do not determine its work; allowed: compute.device auto, cpu, cuda"
        )
    return shape


def _model(
    config: TrainerConfig, tokenizer_vocab_size: int, device: torch.device, takes_weights: bool
) -> torch.nn.Module:
    """Build the model with the configured attention. ``takes_weights``: True to load ``config.resume``'s weights."""
    model = _described(config, tokenizer_vocab_size, device)
    if takes_weights and config.resume is not None:
        with brought_here(config.resume.llmc, "resume.llmc") as path:
            left_out = load_seed(model, path)
        if left_out:
            print(left_out, flush=True)
    return model


def _described(config: TrainerConfig, tokenizer_vocab_size: int, device: torch.device) -> torch.nn.Module:
    if config.model.factory is not None:
        return _own_model(config, tokenizer_vocab_size)
    objective_of(config.model)  # Raises InputError for an objective that the model cannot have.
    attention = implementation(config, device)
    if (files := model_files(config.model)) is None:
        shape = resolve_shape(config.model, tokenizer_vocab_size, config.data.sequence_length)
        if not shape.vocab_size:
            raise InputError(f"model.vocab_size: give it, because {config.data.source} does not define it")
        model = build_model(shape, attention)
        if config.model.mup is not None:
            scale_initial_weights(model, config.model.mup)
        return model
    # Raises InputError for a model that the data do not fit.
    shape_of(config.model, tokenizer_vocab_size, config.data.sequence_length)
    return build_from_files(files, config.model, attention)


def _own_model(config: TrainerConfig, tokenizer_vocab_size: int) -> torch.nn.Module:
    """Call the user's model factory. Raises InputError if it fails, or returns no trainable module."""
    import torch

    name = config.model.factory
    assert name is not None
    offered = {"sequence_length": config.data.sequence_length, "seed": config.seed}
    # rounded up to a multiple of 64, as for a preset
    if vocab_size := config.model.vocab_size or -(-tokenizer_vocab_size // 64) * 64:
        offered["vocab_size"] = vocab_size
    model = call("model.factory", name, config.model.arguments, offered)
    if not isinstance(model, torch.nn.Module) or not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(
            f"model.factory: {name} gave a {type(model).__name__}; a torch module that can be trained is due"
        )
    return model


def _torch_compute(config: TrainerConfig, build: Callable[[torch.device], torch.nn.Module], rank: Rank) -> TorchCompute:
    import torch

    assert isinstance(config.compute.device, str)
    device = device_of(rank, torch_device(config.compute.device))
    if config.compute.threads is not None:
        torch.set_num_threads(config.compute.threads)
    elif rank.of > 1 and device.type == "cpu":  # Otherwise each rank would have a thread on every core.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // (rank.here or rank.of)))
    if device.type == "cpu":
        keep_freed_memory()
    torch.manual_seed(config.seed)
    # Weights are drawn on the device. On the host, 8 billion parameters would take 32 GB of memory and one core.
    with device:
        model = build(device)
    if rank.of == 1:
        return TorchCompute(config, model, device)
    assert config.launch is not None
    return TorchCompute(config, model, device, Parallel(config.launch, rank, device, config.optimizer.accumulation))


def torch_device(name: str, key: str = "compute.device") -> torch.device:
    """Return the torch device for ``name`` (auto, cpu, cuda). Raises InputError, naming ``key``, without CUDA."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise InputError(f"{key}: cuda, but this torch sees no CUDA device; allowed here: auto, cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


# mallopt(3). Setting one of them ends glibc's own adjustment of both, so both are set. Larger allocations than the
# second get their own pages and return them when freed. It is set to glibc's maximum, which limits its own adjustment,
# too.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NEVER = -1
_MOST_BYTES = 4 * 1024 * 1024 * ctypes.sizeof(ctypes.c_long)  # DEFAULT_MMAP_THRESHOLD_MAX of malloc/malloc.c


def keep_freed_memory() -> bool:
    """Keep freed memory in this process: a step would page-fault for it again. Return False if this is not glibc."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):  # musl has a mallopt that does nothing.
        return False
    trim, mapped = library.mallopt(_M_TRIM_THRESHOLD, _NEVER), library.mallopt(_M_MMAP_THRESHOLD, _MOST_BYTES)
    return bool(trim and mapped)
