"""Copies each step's loss and gradient norm to the host, at the time set by ``compute.sync``.

The host gets a value of an asynchronous device only after the device has done everything before it. Reading at once
blocks the host, and the device runs out of queued work:

    every-step  host    |launch i ...|== wait: norm i ==|optimizer i|== wait: loss i ==|fetch i+1 (device idle)
    norm        host    |launch i ...|== wait: norm i ==|optimizer i|fetch i+1 (device: optimizer i)
    late        host    |launch i ............|optimizer i|= wait: i-1 =|fetch i+1 (device: all of step i)

``late`` queues a copy to the host's memory after the norm, and reads it when the next step has been launched. Then the
device still has that whole step to do. On a synchronous device every value is known at once: there ``late`` equals
``norm`` and costs nothing, and unlogged losses are kept as numbers (``Compute.kept``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer import telemetry
from trainer.compute.base import Compute, Loss
from trainer.config import TrainerConfig


class ValueReader:
    """Reads each step's loss and gradient norm, reports losses, and prints every ``log_every`` steps.

    The training loop has one. It raises FloatingPointError for a norm that is not finite.
    """

    def __init__(self, config: TrainerConfig, compute: Compute, prints: bool = True) -> None:
        """Prepare reading. ``prints``: also print log lines."""
        self._prints = prints
        self._compute = compute
        self._late = config.compute.sync == "late" and compute.asynchronous
        self._every_step = config.compute.sync == "every-step"
        self._checks = config.compute.check_finite
        self._log_every = config.log_every
        self._unread: list[tuple[int, list[Loss]]] = []  # Losses stay on an asynchronous device until they are read.
        self._copies: list[tuple[int, Any]] = []  # queued copies that were not read, at most of two steps

    def before_update(self, step: int, losses: list[Loss], norm: Any) -> None:
        """Check the norm, or with ``late`` queue a copy of loss and norm: between clipping and the optimizer."""
        if self._late:
            with telemetry.span("sync"):
                self._copies.append((step, self._compute.copy_to_host(losses, norm if self._checks else None)))
        elif self._checks:
            # On an asynchronous device the host waits here for the whole backward pass, and only then launches the
            # optimizer. Its next work overlaps with the optimizer's kernels.
            with telemetry.span("sync"):
                self._compute.check_finite(norm, step)

    def after_update(self, step: int, losses: list[Loss]) -> None:
        """Read the losses that are due, when the optimizer is launched; with ``late`` those of the step before."""
        if self._late:
            if len(self._copies) > 1:
                self._read_copy()
            return
        self._unread.append((step, losses))
        if self._every_step:
            with telemetry.span("sync"):
                self._read_losses()
        elif self._logs(step):
            with telemetry.span("log"):
                self._read_losses(say=True)

    def read_all(self) -> None:
        """Read and report every loss so far, because a checkpoint must not include a step of unknown norm."""
        if self._unread:
            self._read_losses()
        while self._copies:
            self._read_copy()

    def close(self, *, failed: bool = False) -> None:
        """Report the remaining values. Raises FloatingPointError like the other methods, unless the run ``failed``."""
        if self._unread:
            self._read_losses(say=True)
        while self._copies:
            try:
                self._read_copy()
            except FloatingPointError:
                if not failed:
                    raise

    def _read_copy(self) -> None:
        step, copy = self._copies.pop(0)
        with telemetry.span("sync"):
            value = self._compute.read_copy(copy, step)
        if value is not None:
            telemetry.loss(step, value)
            self._say(step, value)

    def _read_losses(self, *, say: bool = False) -> None:
        values = self._compute.read_losses([losses for _, losses in self._unread])
        self._report(values)
        step, value = self._unread[-1][0], values[-1]
        self._unread.clear()
        if value is not None and (say or self._logs(step)):
            self._print(step, value)

    def _report(self, values: Sequence[float | None]) -> None:
        for (step, _), value in zip(self._unread, values, strict=True):
            if value is not None:
                telemetry.loss(step, value)

    def _say(self, step: int, value: float) -> None:
        if self._logs(step):
            with telemetry.span("log"):
                self._print(step, value)

    def _logs(self, step: int) -> bool:
        return (step + 1) % self._log_every == 0

    def _print(self, step: int, value: float) -> None:
        if self._prints:
            print(f"step {step + 1}: loss {value:.4f}", flush=True)
