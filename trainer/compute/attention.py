"""Chooses the implementation of attention for the device, and restricts torch to its flash kernel on request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from trainer.config import TrainerConfig
from trainer.errors import InputError

if TYPE_CHECKING:
    import torch

_FLASH_FROM = (8, 0)  # compute capability: Ampere (torch/nn/attention, SDPBackend.FLASH_ATTENTION)
_HALF = ("bf16", "pure-bf16", "fp16")  # precisions that the flash kernel supports on CUDA


def implementation(config: TrainerConfig, device: torch.device) -> str | None:
    """Return transformers' name for the attention of ``model.attention``. None for ``auto``: transformers chooses.

    Raises InputError if the scenario requires flash attention and the device has no kernel for it.
    """
    attention = config.model.attention
    if attention == "auto":
        return None
    if attention == "flash":
        _check_flash(config, device)
        return "sdpa"
    return attention


def kernels(config: TrainerConfig) -> AbstractContextManager[None]:
    """Return a context for passes of the model.

    With ``model.attention: flash`` torch uses only its flash kernel in it; otherwise the context changes nothing.
    """
    return _flash_alone() if config.model.attention == "flash" else nullcontext()


@contextmanager
def _flash_alone() -> Iterator[None]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            yield
    except RuntimeError as error:
        if "No available kernel" not in str(error):
            raise
        raise InputError(
            "model.attention: flash, but torch has no flash kernel for this model's attention (a mask, a head size or "
            "a bias that it does not take); allowed: auto, sdpa, eager"
        ) from error


def _check_flash(config: TrainerConfig, device: torch.device) -> None:
    if device.type != "cuda":  # A CPU's kernel supports every precision.
        return
    import torch

    capability = torch.cuda.get_device_capability(device)
    if capability < _FLASH_FROM:
        available, needed = (".".join(map(str, version)) for version in (capability, _FLASH_FROM))
        raise InputError(
            f"model.attention: flash needs compute capability {needed}, and {torch.cuda.get_device_name(device)} has "
            f"{available}; allowed here: auto, sdpa, eager"
        )
    if config.compute.precision not in _HALF:
        raise InputError(
            f"model.attention: flash takes half precision alone on CUDA, not {config.compute.precision}; allowed: "
            "compute.precision bf16 or pure-bf16, or model.attention auto, sdpa, eager"
        )
