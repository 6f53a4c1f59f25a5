"""Runs the training loop, and reads each step's loss and gradient norm. Every measurement goes through ``telemetry``.

``compute.sync`` sets the time of these copies. An asynchronous device gives a value only after it has done everything
before it. Reading at once blocks the host, and the device runs out of queued work:

    every-step  host    |launch i ...|== wait: norm i ==|optimizer i|== wait: loss i ==|fetch i+1 (device idle)
    norm        host    |launch i ...|== wait: norm i ==|optimizer i|fetch i+1 (device: optimizer i)
    late        host    |launch i ............|optimizer i|= wait: i-1 =|fetch i+1 (device: all of step i)

``late`` queues a copy to the host's memory after the norm, and reads it when the next step has been launched. Then the
device still has that whole step to do. On a synchronous device every value is known at once: there ``late`` equals
``norm`` and costs nothing, and unlogged losses are kept as numbers (``Compute.kept``).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from trainer import telemetry
from trainer.checkpoint import Saver
from trainer.compute.base import Compute, Loss
from trainer.config import TrainerConfig
from trainer.data.batch import Batch
from trainer.evaluate import Evaluator


def train(
    config: TrainerConfig,
    compute: Compute,
    batches: Iterator[Batch],
    first_step: int = 0,
    saver: Saver | None = None,
    evaluator: Evaluator | None = None,
    prints: bool = True,
) -> Iterator[int]:
    """Train step by step and yield the index of each finished step, from ``first_step``.

    Closing the generator reads the remaining losses, which are also read before a checkpoint. Raises FloatingPointError
    on a non-finite norm; with ``sync: late`` one step later.
    """
    readings = ValueReader(config, compute, prints)
    try:
        for step in count(first_step):
            telemetry.step(step)
            compute.begin_step(step)
            losses: list[Loss] = []
            for _ in range(config.optimizer.accumulation):
                with telemetry.span("fetch"):
                    batch = next(batches)
                telemetry.received(batch.trace, batch.tokens, batch.trained_tokens, batch.samples)
                with telemetry.span("h2d"):
                    batch = compute.to_device(batch)
                with telemetry.span("forward"):
                    loss = compute.forward(batch)
                with telemetry.span("backward"):
                    compute.backward(loss)
                losses.append(compute.kept(loss))
            with telemetry.span("optimizer"):
                norm = compute.clip_gradients()
            readings.before_update(step, losses, norm)
            if (rate := compute.learning_rate()) is not None:
                telemetry.learning_rate(step, rate)
            with telemetry.span("optimizer"):
                compute.optimizer_step()
            readings.after_update(step, losses)
            if saver is not None and saver.is_due(step + 1):
                with telemetry.span("checkpoint"):
                    compute.synchronize()
                    readings.read_all()
                    saver.save(step + 1)
            if evaluator is not None:
                evaluator.after(step)
            yield step
    except GeneratorExit:
        readings.close()
        raise
    except BaseException:
        readings.close(failed=True)
        raise


class ValueReader:
    """Reads each step's loss, prints it every ``log_every`` steps, and checks the norm (FloatingPointError)."""

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
        """Check the norm between clipping and optimizer; ``late`` only queues copies for the next step."""
        if self._late:
            with telemetry.span("sync"):
                self._copies.append((step, self._compute.copy_to_host(losses, norm if self._checks else None)))
        elif self._checks:
            # On an asynchronous device the host waits here for the whole backward pass, and only then launches the
            # optimizer. Its next work overlaps with the optimizer's kernels.
            with telemetry.span("sync"):
                self._compute.check_finite(norm, step)

    def after_update(self, step: int, losses: list[Loss]) -> None:
        """Read what must be reported after the optimizer is launched; ``late``: the values of the step before."""
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
        """Read and check all that is not yet read, before a checkpoint, which must not include an unknown norm."""
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
            if self._logs(step):
                with telemetry.span("log"):
                    self._print(step, value)

    def _read_losses(self, *, say: bool = False) -> None:
        values = self._compute.read_losses([losses for _, losses in self._unread])
        for (step, _), value in zip(self._unread, values, strict=True):
            if value is not None:
                telemetry.loss(step, value)
        self._unread.clear()
        if value is not None and (say or self._logs(step)):
            self._print(step, value)

    def _logs(self, step: int) -> bool:
        return (step + 1) % self._log_every == 0

    def _print(self, step: int, value: float) -> None:
        if self._prints:
            print(f"step {step + 1}: loss {value:.4f}", flush=True)
