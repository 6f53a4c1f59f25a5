"""Defines ``Compute``, the protocol between the training loop and a device, and two computes without a model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainer.config import ComputeInject
from trainer.data.batch import Batch
from trainer.inject import Injector

if TYPE_CHECKING:
    from trainer.compute.scores import EndingRow, Scores
    from trainer.generate import Generated, TokenChoice

Loss = Any  # output of forward: a device scalar for torch, None if nothing is computed


class Stateful(Protocol):
    """Interface of a checkpoint part: it gives and takes a state. torch's modules and optimizers have it."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


class Compute(Protocol):
    """Interface of a device for the training loop. Methods that wait for results of the device say "Block"."""

    device: str
    asynchronous: bool  # True if the host runs ahead of the device
    emulated: bool  # True if the device is emulated: it takes time and computes nothing
    parameters: int | None  # parameters of the model; None without a model
    attention: str | None  # transformers' name of the implementation; None if unknown or without a model
    longest_row: int | None  # maximum ids of a row of log_likelihoods; None if nothing is computed

    def begin_step(self, step: int) -> None:
        """Prepare a step. Called once per step, before its first batch is requested."""
        return

    def to_device(self, batch: Batch) -> Batch: ...

    def forward(self, batch: Batch) -> Loss:
        return None

    def backward(self, loss: Loss) -> None:
        """Accumulate the gradients of ``loss`` divided by the number of micro-batches."""
        return

    def clip_gradients(self) -> Any:
        """Clip the gradients. Return their norm before clipping, a device scalar; None if nothing is computed."""
        return None

    def check_finite(self, norm: Any, step: int) -> None:
        """Block until ``norm`` is known. Raises FloatingPointError if it is no number (fp16: many times in a row)."""
        return

    def optimizer_step(self) -> None:
        return

    def kept(self, loss: Loss) -> Loss:
        """Return ``loss`` without its graph; a known one as a number, because a kept tensor splits freed memory."""
        return None

    def read_losses(self, losses: list[list[Loss]]) -> list[float | None]:
        """Block until the losses (per step, of its micro-batches) are known. Return each step's mean, or None."""

    def copy_to_host(self, losses: list[Loss], norm: Any) -> Any:
        """Queue copies of a step's mean loss, and of ``norm`` unless None, to the host, for ``read_copy``."""
        return None

    def read_copy(self, copy: Any, step: int) -> float | None:
        """Block until ``copy`` is there. Return its mean loss, or None. Raises as check_finite does, with ``step``."""
        return None

    def learning_rate(self) -> float | None:
        """Return the learning rate of the next optimizer step; None without an optimizer."""
        return None

    def validate(self, batches: Sequence[Batch], beat: Callable[[], None]) -> Scores:
        """Block and score the model, unchanged, on ``batches``. ``beat`` is called after each batch."""

    def log_likelihoods(self, rows: Sequence[EndingRow], beat: Callable[[], None]) -> list[float]:
        """Block and return the log-likelihood of each row's ending. ``beat`` is called now and then."""

    def generated(
        self, prompt: Sequence[int], choice: TokenChoice, most: int, vocab_size: int, eos_id: int | None
    ) -> Generated:
        """Block and return at most ``most`` new ids, below ``vocab_size``, up to ``eos_id``. Every rank calls it."""

    def drain_to_one_step(self) -> None:
        """Block until the device is at most one step behind: it has done all that was queued before this step."""
        return

    def hold_device(self) -> None:
        """Let the device pause for about the host's time of a step, if known, so that the host gets ahead."""
        return

    def is_lead_settled(self) -> bool:
        """Return True if the host's lead over the device no longer grows (``compute.host_lead``)."""
        return True

    def skipped_steps(self) -> int | None:
        """Block until known: the number of optimizer steps that loss scaling skipped; None without loss scaling."""
        return None

    def repeated_rows(self) -> tuple[int, ...] | None:
        """Return how many of the first 1, 2, 4, ... rows repeat an earlier row; None if rows are not counted."""
        return None

    def synchronize(self) -> None:
        """Block until the device has done everything that was queued."""
        return

    def parts(self) -> dict[str, Stateful]:
        """Return the compute's parts of a checkpoint by name, such as model and optimizer."""

    def end_together(self) -> str | None:
        """Block and return the SHA-256 of the parameters (None with one rank). Raises RanksDifferError."""
        return None


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

    def parts(self) -> dict[str, Stateful]:
        return {}


class InjectedCompute:
    """Runs another compute, and spends ``compute.inject`` (ms per phase and step) on the calling thread."""

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


def call_site(what: str, *inside: str) -> str:
    """Return "trainer/loop.py:49: WHAT" of the innermost caller outside of this file and ``inside`` (file names)."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename in (__file__, *inside):
        frame = frame.f_back
    return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}: {what}"


def short_path(path: str) -> str:
    """Return the last two parts of ``path``: enough to find the file, without a path of this machine."""
    return "/".join(Path(path).parts[-2:])
