"""Defines ``Batch``, which every data path yields and the training loop consumes, and keeps batches during copies.

The memory of a batch may be reused as soon as nothing holds it (:mod:`trainer.data.buffers`). An asynchronous copy from
page-locked memory returns at once and reads it later, without a reference in Python. So :class:`InFlight` holds it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainer.data.position import Position
from trainer.telemetry import BatchTrace

if TYPE_CHECKING:
    import torch


IGNORED = -100  # label that cross entropy ignores (PyTorch's ignore_index default)


@dataclass(slots=True)
class Batch:
    """Token ids and labels of shape (samples, sequence), int64, labels aligned with the inputs.

    Labels follow the Hugging Face convention: ``labels[:, t]`` is the target predicted from position t - 1, because the
    model shifts. ``labels`` is -100 on padding and on the first token of each document (nothing before it in its own
    document could predict it). ``attention_mask`` is None if no position is padding (packed rows). ``masked``: True if
    the model needs the mask. It does not if padding follows the text and nothing is predicted from it. ``shifted``:
    False for a masked-LM, where ``labels[:, t]`` is the token that stood at t, or -100.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    attention_mask: torch.Tensor | None
    tokens: int  # positions the device computes: samples x sequence
    trained_tokens: int  # labels that count: (labels[:, 1:] != -100).sum(), or of all labels if not ``shifted``
    samples: int
    trace: BatchTrace | None = field(default=None)
    masked: bool = False
    shifted: bool = True
    position: Position | None = None  # its worker's position after this batch
    # Packed rows with separated documents: positions that begin at 0 with each document. Given these and no mask, a
    # model lets each token attend to its own document alone.
    position_ids: torch.Tensor | None = None
    several_documents: bool | None = None  # True if a row of position_ids holds several documents; None: not computed

    def pin_memory(self) -> Batch:
        """Copy the tensors to page-locked memory, for asynchronous copies to the device (DataLoader's pin thread)."""
        self.input_ids = self.input_ids.pin_memory()
        self.labels = self.labels.pin_memory()
        if self.attention_mask is not None:
            self.attention_mask = self.attention_mask.pin_memory()
        if self.position_ids is not None:
            self.position_ids = self.position_ids.pin_memory()
        return self


class InFlight:
    """Holds batches, in the order in which their copies to a device end, so that their memory is not reused."""

    def __init__(self) -> None:
        self._held: deque[tuple[Callable[[], bool], Batch]] = deque()

    def hold(self, batch: Batch, is_done: Callable[[], bool]) -> None:
        """Keep ``batch`` until ``is_done()`` returns True. Drop earlier batches whose copies are done."""
        while self._held and self._held[0][0]():
            self._held.popleft()
        self._held.append((is_done, batch))

    def __len__(self) -> int:
        return len(self._held)
