"""Builds the compute that a configuration declares: a torch model, an emulated device, or nothing to compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.compute.base import Compute
from trainer.compute.cuda_timeline import CudaTimeline
from trainer.compute.emulated import build_emulated
from trainer.compute.injected import InjectedCompute, NoCompute
from trainer.compute.torch_compute import TorchCompute
from trainer.config import TrainerConfig
from trainer.errors import InputError
from trainer.model import Shape

if TYPE_CHECKING:
    import torch


def build_compute(config: TrainerConfig, tokenizer_vocab_size: int) -> Compute:
    """Build and seed the compute that ``config`` declares. Raises InputError where this machine cannot give it."""
    compute: Compute
    if config.compute.work == "none":
        compute = NoCompute()
    else:
        from trainer.model import resolve_shape

        shape = resolve_shape(config.model, tokenizer_vocab_size, config.data.sequence_length)
        compute = _torch_compute(config, shape) if config.compute.emulated is None else build_emulated(config, shape)
        if isinstance(compute, TorchCompute) and compute.asynchronous:
            compute = CudaTimeline(compute, pinned=config.data.pin_memory)
    if config.compute.inject is not None:
        compute = InjectedCompute(compute, config.compute.inject, config.seed, config.optimizer.accumulation)
    return compute


def _torch_compute(config: TrainerConfig, shape: Shape) -> TorchCompute:
    import torch

    from trainer.model import build_model

    assert isinstance(config.compute.device, str)
    device = _device(config.compute.device)
    if config.compute.threads is not None:
        torch.set_num_threads(config.compute.threads)
    torch.manual_seed(config.seed)
    # Drawn where they are used: 8 billion parameters would take 32 GB of the host's memory, and one of its cores.
    with device:
        model = build_model(shape)
    return TorchCompute(config, model, device)


def _device(name: str) -> torch.device:
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("compute.device: cuda, but this torch sees no CUDA device; allowed here: auto, cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
