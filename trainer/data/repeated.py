"""Repeats a few batches forever instead of making new ones (``data.replay``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from time import monotonic
from typing import Protocol

from trainer import telemetry
from trainer.data.batch import Batch
from trainer.data.position import Position
from trainer.inject import Injector

# Limits of the batches that `data.replay` repeats of a user's source. A repetition of the experiment has 10 or 20 steps
# (`slice_steps`) and goes through many of the batches, so that repetitions are alike.
REPEATED_BATCHES = 32
REPEATED_BYTES = 256 * 2**20  # size of all tensors
REPEATED_S = 10.0  # time to make them, before the first step


class BatchPipeline(Protocol):
    """Yields batches, each with its position, and None at the end. Only a pipeline over one epoch ends."""

    def next_batch(self) -> Batch | None: ...


class RepeatedBatches:
    """Pipeline that repeats a few batches forever, from ``start`` on, at no cost but declared ones."""

    def __init__(self, batches: Sequence[Batch], injector: Injector, start: Position) -> None:
        self._batches, self._injector = cycle(batches), injector
        self._worker, self._made = start.worker, start.batches
        injector.skip(self._made)
        for _ in range(self._made % len(batches)):
            next(self._batches)

    def next_batch(self) -> Batch:
        """Return the next batch as a new Batch with the same tensors, after its declared costs."""
        for stage in telemetry.STAGES:
            if self._injector.cost_ms(stage):
                with telemetry.span(stage):
                    self._injector.spend(stage)
        self._injector.spend("transfer")
        batch = next(self._batches)
        self._made += 1
        return replace(batch, trace=telemetry.take(), position=Position(self._worker, self._made, 0, self._made))


def to_repeat(first: BatchPipeline) -> list[Batch]:
    """Return the first batches of a user's source to repeat; a single one if all have the same shape.

    The time of a step grows with its batch's length, so one batch of varying lengths is not typical.
    """
    batches: list[Batch] = []
    size, deadline_s = 0, monotonic() + REPEATED_S
    while len(batches) < REPEATED_BATCHES and size < REPEATED_BYTES and (not batches or monotonic() < deadline_s):
        batch = first.next_batch()
        assert batch is not None, "a user's pipeline has no end"
        batches.append(batch)
        tensors = batch.input_ids, batch.labels, batch.attention_mask
        size += sum(tensor.nbytes for tensor in tensors if tensor is not None)
    return batches if len({batch.input_ids.shape for batch in batches}) > 1 else batches[:1]
