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


class NoCompute:
    """Drops every batch, so that only the input side of a step remains (the data-only control)."""

    device = "none"
    asynchronous = False
    emulated = False
    parameters: int | None = None
    attention: str | None = None
    longest_row: int | None = None

    def begin_step(self, step: int) -> None:
        pass

    def to_device(self, batch: Batch) -> Batch:
        return batch

    def forward(self, batch: Batch) -> Loss:
        return None

    def backward(self, loss: Loss) -> None:
        pass

    def clip_gradients(self) -> Any:
        return None

    def check_finite(self, norm: Any, step: int) -> None:
        pass

    def optimizer_step(self) -> None:
        pass

    def kept(self, loss: Loss) -> Loss:
        return None

    def read_losses(self, losses: list[list[Loss]]) -> list[float | None]:
        return [None] * len(losses)

    def copy_to_host(self, losses: list[Loss], norm: Any) -> Any:
        return None

    def read_copy(self, copy: Any, step: int) -> float | None:
        return None

    def learning_rate(self) -> None:
        return None

    def validate(self, batches: Sequence[Batch], beat: Callable[[], None]) -> Scores:
        raise AssertionError("without a model there is nothing to evaluate")

    def log_likelihoods(self, rows: Sequence[EndingRow], beat: Callable[[], None]) -> list[float]:
        raise AssertionError("without a model there is nothing to evaluate")

    def generated(
        self, prompt: Sequence[int], choice: TokenChoice, most: int, vocab_size: int, eos_id: int | None
    ) -> Generated:
        raise AssertionError("without a model there is nothing to generate")

    def drain_to_one_step(self) -> None:
        pass

    def hold_device(self) -> None:
        pass

    def is_lead_settled(self) -> bool:
        return True  # A host that computes itself is never ahead.

    def skipped_steps(self) -> int | None:
        return None

    def repeated_rows(self) -> tuple[int, ...] | None:
        return None

    def synchronize(self) -> None:
        pass

    def parts(self) -> dict[str, Stateful]:
        return {}

    def end_together(self) -> str | None:
        return None


class InjectedCompute:
    """Runs another compute and adds the declared costs on the host's main thread."""

    def __init__(self, inner: Compute, inject: ComputeInject, seed: int, micro_batches: int = 1) -> None:
        self._inner = inner
        self._cost = Injector(inject, seed, parts={"forward": micro_batches, "backward": micro_batches})
        self.device = inner.device
        self.attention = inner.attention
        self.asynchronous = inner.asynchronous
        self.emulated = inner.emulated
        self.parameters = inner.parameters
        self.longest_row = inner.longest_row

    def begin_step(self, step: int) -> None:
        self._inner.begin_step(step)
        self._cost.spend("other")

    def to_device(self, batch: Batch) -> Batch:
        return self._inner.to_device(batch)

    def forward(self, batch: Batch) -> Loss:
        self._cost.spend("forward")
        return self._inner.forward(batch)

    def backward(self, loss: Loss) -> None:
        self._cost.spend("backward")
        self._inner.backward(loss)

    def clip_gradients(self) -> Any:
        return self._inner.clip_gradients()

    def check_finite(self, norm: Any, step: int) -> None:
        self._cost.spend("sync")
        self._inner.check_finite(norm, step)

    def optimizer_step(self) -> None:
        self._cost.spend("optimizer")
        self._inner.optimizer_step()

    def kept(self, loss: Loss) -> Loss:
        return self._inner.kept(loss)

    def read_losses(self, losses: list[list[Loss]]) -> list[float | None]:
        return self._inner.read_losses(losses)

    def copy_to_host(self, losses: list[Loss], norm: Any) -> Any:
        return self._inner.copy_to_host(losses, norm)

    def read_copy(self, copy: Any, step: int) -> float | None:
        self._cost.spend("sync")
        return self._inner.read_copy(copy, step)

    def learning_rate(self) -> float | None:
        return self._inner.learning_rate()

    def validate(self, batches: Sequence[Batch], beat: Callable[[], None]) -> Scores:
        return self._inner.validate(batches, beat)  # Declared costs belong to training steps.

    def log_likelihoods(self, rows: Sequence[EndingRow], beat: Callable[[], None]) -> list[float]:
        return self._inner.log_likelihoods(rows, beat)

    def generated(
        self, prompt: Sequence[int], choice: TokenChoice, most: int, vocab_size: int, eos_id: int | None
    ) -> Generated:
        return self._inner.generated(prompt, choice, most, vocab_size, eos_id)

    def drain_to_one_step(self) -> None:
        self._inner.drain_to_one_step()

    def hold_device(self) -> None:
        self._inner.hold_device()

    def is_lead_settled(self) -> bool:
        return self._inner.is_lead_settled()

    def skipped_steps(self) -> int | None:
        return self._inner.skipped_steps()

    def repeated_rows(self) -> tuple[int, ...] | None:
        return self._inner.repeated_rows()

    def synchronize(self) -> None:
        self._inner.synchronize()

    def parts(self) -> dict[str, Stateful]:
        return self._inner.parts()

    def end_together(self) -> str | None:
        return self._inner.end_together()
