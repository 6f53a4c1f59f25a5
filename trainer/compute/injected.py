"""Defines two computes without a model: ``NoCompute`` drops batches, ``InjectedCompute`` adds declared costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainer.compute.base import Compute, Loss, Stateful
from trainer.compute.scores import EndingRow, Scores
from trainer.config import ComputeInject
from trainer.data.batch import Batch
from trainer.generate import Generated, TokenChoice
from trainer.inject import Injector


class NoCompute(Compute):
    """Drops every batch, so that only the input side of a step remains (the data-only control)."""

    device = "none"
    asynchronous = False
    emulated = False
    parameters: int | None = None
    attention: str | None = None
    longest_row: int | None = None

    def to_device(self, batch: Batch) -> Batch:
        return batch

    def read_losses(self, losses: list[list[Loss]]) -> list[float | None]:
        return [None] * len(losses)

    def validate(self, batches: Sequence[Batch], beat: Callable[[], None]) -> Scores:
        raise AssertionError("without a model there is nothing to evaluate")

    def log_likelihoods(self, rows: Sequence[EndingRow], beat: Callable[[], None]) -> list[float]:
        raise AssertionError("without a model there is nothing to evaluate")

    def generated(
        self, prompt: Sequence[int], choice: TokenChoice, most: int, vocab_size: int, eos_id: int | None
    ) -> Generated:
        raise AssertionError("without a model there is nothing to generate")

    def is_lead_settled(self) -> bool:
        return True  # A host that computes itself is never ahead.

    def parts(self) -> dict[str, Stateful]:
        return {}


class InjectedCompute:
    """Runs another compute and adds the declared costs of training steps on the host's main thread."""

    def __init__(self, inner: Compute, inject: ComputeInject, seed: int, micro_batches: int = 1) -> None:
        self._inner = inner
        self._cost = Injector(inject, seed, parts={"forward": micro_batches, "backward": micro_batches})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def begin_step(self, step: int) -> None:
        self._inner.begin_step(step)
        self._cost.spend("other")

    def forward(self, batch: Batch) -> Loss:
        self._cost.spend("forward")
        return self._inner.forward(batch)

    def backward(self, loss: Loss) -> None:
        self._cost.spend("backward")
        self._inner.backward(loss)

    def check_finite(self, norm: Any, step: int) -> None:
        self._cost.spend("sync")
        self._inner.check_finite(norm, step)

    def optimizer_step(self) -> None:
        self._cost.spend("optimizer")
        self._inner.optimizer_step()

    def read_copy(self, copy: Any, step: int) -> float | None:
        self._cost.spend("sync")
        return self._inner.read_copy(copy, step)
