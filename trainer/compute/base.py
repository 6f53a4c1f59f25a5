"""Defines ``Compute``, the protocol between the training loop and a device, and names the source line that blocks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainer.data.batch import Batch

if TYPE_CHECKING:
    from trainer.compute.likelihood import EndingRow
    from trainer.compute.scores import Scores
    from trainer.generate import Generated, TokenChoice

Loss = Any  # what forward returns: a device scalar for torch, None where nothing is computed


class Stateful(Protocol):
    """A part of a checkpoint, as torch's modules and optimizers are."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


class Compute(Protocol):
    """What the loop asks of a device. The methods that wait for the device say "Block"; the others queue work."""

    device: str
    asynchronous: bool  # whether the host runs ahead of the device
    emulated: bool  # whether the device is emulated: it takes time and computes nothing
    parameters: int | None  # of the model that it computes; None where there is none
    attention: str | None  # its implementation by transformers' name; None where there is none, or nobody knows
    longest_row: int | None  # ids of a row of log_likelihoods at most; None where nothing is computed

    def begin_step(self, step: int) -> None:
        """Called once per step, before its first batch is asked for."""

    def to_device(self, batch: Batch) -> Batch: ...

    def forward(self, batch: Batch) -> Loss: ...

    def backward(self, loss: Loss) -> None:
        """Accumulate the gradients of ``loss`` divided by the number of micro-batches."""

    def clip_gradients(self) -> Any:
        """Clip to the configured norm and return the global norm as a device scalar (None where there is none)."""

    def check_finite(self, norm: Any, step: int) -> None:
        """Block until ``norm`` is known. Raises FloatingPointError where it is NaN or infinite."""

    def optimizer_step(self) -> None: ...

    def kept(self, loss: Loss) -> Loss:
        """What is kept of ``loss`` until it is read: nothing of its graph and, where it is known at once, its value.

        A tensor that outlives its step, however small, lies in the midst of the memory that the step frees: the next
        one needs new pages for what no longer fits.
        """

    def read_losses(self, losses: list[list[Loss]]) -> list[float | None]:
        """Block until the losses are known, and return each step's mean over its micro-batches."""

    def copy_to_host(self, losses: list[Loss], norm: Any) -> Any:
        """Queue a copy of a step's mean loss and of ``norm`` (None: of the loss alone), for ``read_copy``."""

    def read_copy(self, copy: Any, step: int) -> float | None:
        """Block until ``copy``, of ``step``, is there, and return its loss. Raises as ``check_finite`` does."""

    def learning_rate(self) -> float | None:
        """Of the next optimizer step; None where nothing is optimized."""

    def validate(self, batches: Sequence[Batch], beat: Callable[[], None]) -> Scores:
        """Block until the model has been through ``batches``, which training does not see. Changes nothing of it.

        ``beat`` is called after each batch. Never called where nothing is computed.
        """

    def log_likelihoods(self, rows: Sequence[EndingRow], beat: Callable[[], None]) -> list[float]:
        """Block until it is known how likely the model finds each row's ending. Changes nothing of it.

        ``beat`` is called now and then. Never called where nothing is computed.
        """

    def generated(
        self, prompt: Sequence[int], choice: TokenChoice, most: int, vocab_size: int, eos_id: int | None
    ) -> Generated:
        """Continue ``prompt`` (trainer.generate) and block until that is done. Does not change the model.

        Every rank calls it. It is never called for emulated compute or for a user's own model.
        """

    def drain_to_one_step(self) -> None:
        """Block until the device is at most one step behind: it has done all that was queued before this step."""

    def hold_device(self) -> None:
        """Let the device stand still for about as long as the host takes for a step: the host gets ahead meanwhile.

        Does nothing where the host is never ahead, or while it is not known how long it takes.
        """

    def is_lead_settled(self) -> bool:
        """Whether the host is as far ahead of the device as it gets (``compute.host_lead``); True where it never is."""

    def skipped_steps(self) -> int | None:
        """Block until known: how many optimizer steps loss scaling skipped; None where the loss is not scaled."""

    def repeated_rows(self) -> tuple[int, ...] | None:
        """Return the rows that training got again, among its first 1, 2, 4, ... rows; None where a loss shows that."""

    def synchronize(self) -> None:
        """Block until the device has done everything that was queued."""

    def parts(self) -> dict[str, Stateful]:
        """What a checkpoint must hold of it, by name: objects with ``state_dict`` and ``load_state_dict``."""

    def end_together(self) -> str | None:
        """After the last step: the digest of the parameters that all ranks hold; None where there is one rank.

        Raises RanksDifferError where they hold others.
        """


def call_site(what: str, *inside: str) -> str:
    """Name the innermost caller outside this file and the files ``inside``, as in ``trainer/loop.py:49: what``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename in (__file__, *inside):
        frame = frame.f_back
    return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}: {what}"


def short_path(path: str) -> str:
    """Return the last two parts of ``path``: enough to find the file, without a path of this machine."""
    return "/".join(Path(path).parts[-2:])
