"""Defines ``Batch``, which every data path yields, keeps batches during copies, and repeats some (``data.replay``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from trainer import telemetry
from trainer.data.position import Position
from trainer.inject import Injector
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


# Limits of the batches that `data.replay` repeats of a user's source. A repetition of the experiment has 10 or 20 steps
# (`slice_steps`) and goes through many of the batches, so that repetitions are alike.
REPEATED_BATCHES = 32
REPEATED_BYTES = 256 * 2**20  # size of all tensors
REPEATED_S = 10.0  # time to make them, before the first step


class BatchPipeline(Protocol):
    """Yields batches, each with its position, and None at the end. Only a pipeline over one epoch ends."""

    def next_batch(self) -> Batch | None: ...


class RepeatedBatches:
    """Repeats ``batches`` in a circle from ``start`` on. Its only costs are the artificial ones of ``injector``."""

    def __init__(self, batches: Sequence[Batch], injector: Injector, start: Position) -> None:
        self._batches, self._injector = cycle(batches), injector
        self._worker, self._made = start.worker, start.batches
        injector.skip(self._made)
        for _ in range(self._made % len(batches)):
            next(self._batches)

    def next_batch(self) -> Batch:
        """Spend the artificial costs (``data.inject``). Return the next batch, a new Batch with the same tensors."""
        for stage in telemetry.STAGES:
            if self._injector.cost_ms(stage):
                with telemetry.span(stage):
                    self._injector.spend(stage)
        self._injector.spend("transfer")
        batch = next(self._batches)
        self._made += 1
        return replace(batch, trace=telemetry.take(), position=Position(self._worker, self._made, 0, self._made))


def to_repeat(first: BatchPipeline) -> list[Batch]:
    """Return a source's batches to repeat: one if all have a shape, else several, limited by count, bytes and time."""
    batches: list[Batch] = []
    size, deadline_s = 0, monotonic() + REPEATED_S
    while len(batches) < REPEATED_BATCHES and size < REPEATED_BYTES and (not batches or monotonic() < deadline_s):
        batch = first.next_batch()
        assert batch is not None, "a user's pipeline has no end"
        batches.append(batch)
        tensors = batch.input_ids, batch.labels, batch.attention_mask
        size += sum(tensor.nbytes for tensor in tensors if tensor is not None)
    return batches if len({batch.input_ids.shape for batch in batches}) > 1 else batches[:1]
