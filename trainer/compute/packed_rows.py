"""Passes to transformers if rows hold several documents, so that it need not read this from the device.

Given position_ids and no attention mask, ``masking_utils.find_packed_sequence_indices`` checks if positions start again
within a row. Its ``.all()`` of a tensor on the device makes the host wait for all queued work. A batch already has this
on the host. A compiled model cannot check: transformers then assumes that all rows are packed, and computes attention
with a mask, which the fastest kernels do not support.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Value for the current forward pass; a process runs one at a time. None: transformers checks by itself. A plain global,
# because code that torch.compile traces reads it.
_several: bool | None = None
_look: Any = None


@contextmanager
def known(several: bool | None) -> Iterator[None]:
    """Context that tells transformers if rows hold several documents.

    None: transformers checks the positions by itself.
    """
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
    """Make transformers use :func:`known`. Does nothing in a version that does not look for packed rows."""
    global _look
    from transformers import masking_utils

    look = getattr(masking_utils, "find_packed_sequence_indices", None)
    if look is None or look is _find:
        return
    _look = look
    masking_utils.find_packed_sequence_indices = _find


def _find(position_ids: torch.Tensor) -> torch.Tensor | None:
    """Replacement for transformers' function: return the number of each position's document within its row.

    None if every row is one document, and then no mask is needed.
    """
    import torch

    if _several is None:
        result: torch.Tensor | None = _look(position_ids)
        return result
    if not _several:
        return None
    return (torch.diff(position_ids, prepend=position_ids[:, :1] - 1, dim=-1) != 1).cumsum(-1)
