"""Tells transformers whether rows hold several documents, so that it need not ask the device in each forward pass.

Given position_ids and no attention mask, ``masking_utils.find_packed_sequence_indices`` looks whether positions begin
anew within a row: ``.all()`` of a tensor on the device, for which the host waits until the device has done all that is
queued. A batch knows it on the host. A compiled model cannot look: there transformers takes all rows to be packed, and
attention is computed with a mask, which the fastest kernels do not take.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Of the forward pass that runs, which is one at a time in a process; None: transformers looks for itself. A plain
# global, as code that torch.compile traces reads it.
_several: bool | None = None
_look: Any = None


@contextmanager
def known(several: bool | None) -> Iterator[None]:
    """Within this transformers takes it that rows hold ``several`` documents or not; None: it looks."""
    global _several
    _several = several
    try:
        yield
    finally:
        _several = None


def several_documents(position_ids: torch.Tensor) -> bool:
    """Whether positions of shape (rows, length), in the host's memory, begin anew within any row."""
    return bool((position_ids[:, 1:] - position_ids[:, :-1] != 1).any())


def teach_transformers() -> None:
    """Have transformers go by :func:`known`; a version without that function is left as it is."""
    global _look
    from transformers import masking_utils

    look = getattr(masking_utils, "find_packed_sequence_indices", None)
    if look is None or look is _find:
        return
    _look = look
    masking_utils.find_packed_sequence_indices = _find


def _find(position_ids: torch.Tensor) -> torch.Tensor | None:
    """What the function of transformers returns: the number of its document for each position, or None of one a row."""
    import torch

    if _several is None:
        found: torch.Tensor | None = _look(position_ids)
        return found
    if not _several:
        return None
    return (torch.diff(position_ids, prepend=position_ids[:, :1] - 1, dim=-1) != 1).cumsum(-1)
