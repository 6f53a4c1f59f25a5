"""Chooses the implementation of attention, and keeps the documents of a packed row apart.

Given position_ids and no attention mask, transformers looks on the device if positions start again within a row, for
which the host waits. A batch already has the answer on the host (:func:`known`). A compiled model cannot look:
transformers then takes all rows for packed, with a mask that the fastest kernels do not support.

Models do not declare if they keep documents apart (``data.documents: separated``), so a trial checks it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from trainer.config import TrainerConfig
from trainer.errors import InputError

if TYPE_CHECKING:
    import torch


_FLASH_FROM = (8, 0)  # compute capability: Ampere (torch/nn/attention, SDPBackend.FLASH_ATTENTION)
_HALF = ("bf16", "pure-bf16", "fp16")  # precisions that the flash kernel supports on CUDA


def implementation(config: TrainerConfig, device: torch.device) -> str | None:
    """Return transformers' name for ``model.attention`` (None: auto). Raises InputError if flash is unsupported."""
    attention = config.model.attention
    if attention == "auto":
        return None
    if attention == "flash":
        _check_flash(config, device)
        return "sdpa"
    return attention


def kernels(config: TrainerConfig) -> AbstractContextManager[None]:
    """Return a context for passes of the model, in which ``model.attention: flash`` allows only the flash kernel."""
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
            "model.attention: flash, but torch has no flash kernel for this model's attention (an unsupported mask, "
            "head size or bias); allowed: auto, sdpa, eager"
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
            f"model.attention: flash needs half precision on CUDA, not {config.compute.precision}; allowed: "
            "compute.precision bf16 or pure-bf16, or model.attention auto, sdpa, eager"
        )


# Value for the current forward pass; a process runs one at a time. None: transformers checks by itself. A plain global,
# because code that torch.compile traces reads it.
_several: bool | None = None
_look: Any = None


@contextmanager
def known(several: bool | None) -> Iterator[None]:
    """Context that tells transformers if rows hold several documents; None: transformers checks the positions."""
    global _several
    _several = several
    try:
        yield
    finally:
        _several = None


def several_documents(position_ids: torch.Tensor) -> bool:
    """Return True if positions of shape (rows, length), in the host's memory, start again within any row."""
    return bool((position_ids[:, 1:] - position_ids[:, :-1] != 1).any())


def teach_transformers() -> None:
    """Patch transformers' search for several documents in a row, if it has one, to use :func:`known`'s answer."""
    global _look
    from transformers import masking_utils

    look = getattr(masking_utils, "find_packed_sequence_indices", None)
    if look is None or look is _find:
        return
    _look = look
    masking_utils.find_packed_sequence_indices = _find


def _find(position_ids: torch.Tensor) -> torch.Tensor | None:
    """Return the number of each position's document within its row; None if every row is one document."""
    import torch

    if _several is None:
        result: torch.Tensor | None = _look(position_ids)
        return result
    if not _several:
        return None
    return (torch.diff(position_ids, prepend=position_ids[:, :1] - 1, dim=-1) != 1).cumsum(-1)


_FIRST, _SECOND = 3, 4  # tokens of the two trial documents
_TOLERANCE = 1e-4  # share of the largest logit that other documents may change


def check_separation(config: TrainerConfig, model: torch.nn.Module) -> None:
    """Raise InputError if the logits of a row's second document depend on its first, in a trial of two short rows."""
    name = config.model.factory or getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if (reason := _why_not(model)) is not None:
        raise InputError(f"data.documents: separated, but {name} {reason}; allowed with it: joined")


def _why_not(model: torch.nn.Module) -> str | None:
    import torch

    try:
        parameters = inspect.signature(model.forward).parameters
    except ValueError:
        parameters = {}  # type: ignore[assignment]
    if "position_ids" not in parameters:
        return "has no parameter position_ids"
    device = next(model.parameters()).device
    second = [1, 2, 3, 4]
    ids = torch.tensor([[5, 6, 7, *second], [8, 9, 5, *second]], device=device)
    places = torch.tensor([[*range(_FIRST), *range(_SECOND)]], device=device).expand(2, -1)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            output = model(input_ids=ids, position_ids=places)
    except Exception as error:  # The user's own code may raise anything.
        return f"fails with position_ids that restart ({type(error).__name__})"
    finally:
        model.train(training)
    logits = getattr(output, "logits", None)
    if logits is None:
        return "returns no logits, so document separation cannot be checked"
    first_row, second_row = logits[:, _FIRST:].float()
    if float((first_row - second_row).abs().max()) > _TOLERANCE * float(first_row.abs().max()):
        return "lets a document attend to earlier documents, for any position_ids"
    return None
