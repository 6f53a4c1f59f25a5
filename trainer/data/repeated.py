"""Repeats a few batches forever, in place of making others (``data.replay``)."""

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

# How many batches `data.replay` repeats of a user's source. A repetition has 10 or 20 steps (`slice_steps`): each goes
# through many of them, so that repetitions are alike. They are made before the first step: a slow source makes fewer.
REPEATED_BATCHES = 32
REPEATED_BYTES = 256 * 2**20  # of their tensors, all in all
REPEATED_S = 10.0  # that making them takes


class BatchPipeline(Protocol):
    """Yields batches one after the other, and None at the end. Only a pipeline over one epoch has an end.

    Each batch says where the pipeline goes on after it (``Batch.position``).
    """

    def next_batch(self) -> Batch | None: ...


class RepeatedBatches:
    """Repeats a few batches forever, in their order: no data cost except the declared ones.

    ``start``: where an earlier run was.
    """

    def __init__(self, batches: Sequence[Batch], injector: Injector, start: Position) -> None:
        self._batches, self._injector = cycle(batches), injector
        self._worker, self._made = start.worker, start.batches
        injector.skip(self._made)
        for _ in range(self._made % len(batches)):
            next(self._batches)

    def next_batch(self) -> Batch:
        """Return a new Batch around the tensors of the next one."""
        for stage in telemetry.STAGES:
            if self._injector.cost_ms(stage):
                with telemetry.span(stage):
                    self._injector.spend(stage)
        self._injector.spend("transfer")
        batch = next(self._batches)
        self._made += 1
        return replace(batch, trace=telemetry.take(), position=Position(self._worker, self._made, 0, self._made))


def to_repeat(first: BatchPipeline) -> list[Batch]:
    """The first batches of a user's source: one where all are as long, else as many as stand for the others.

    A step costs what its batch is long: one batch of a source that pads each to its longest row stands for none.
    """
    batches: list[Batch] = []
    size, until = 0, monotonic() + REPEATED_S
    while len(batches) < REPEATED_BATCHES and size < REPEATED_BYTES and (not batches or monotonic() < until):
        batch = first.next_batch()
        assert batch is not None, "a user's pipeline has no end"
        batches.append(batch)
        size += sum(one.nbytes for one in (batch.input_ids, batch.labels, batch.attention_mask) if one is not None)
    return batches if len({batch.input_ids.shape for batch in batches}) > 1 else batches[:1]
