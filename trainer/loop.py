"""Runs the training loop. Every measurement goes through ``telemetry``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from trainer import telemetry
from trainer.checkpoint import Saver
from trainer.compute.base import Compute, Loss
from trainer.config import TrainerConfig
from trainer.data.batch import Batch


def train(
    config: TrainerConfig,
    compute: Compute,
    batches: Iterator[Batch],
    first_step: int = 0,
    saver: Saver | None = None,
) -> Iterator[int]:
    """Train step by step and yield the index of each finished step, from ``first_step``.

    The caller decides when to stop and may pause between steps. Closing the generator reads the remaining losses.
    ``saver`` saves checkpoints where they are due; the losses up to there are read first.
    Raises FloatingPointError on a non-finite gradient norm (``compute.check_finite``).
    """
    unread: list[tuple[int, list[Loss]]] = []  # losses stay on the device: reading one blocks the host
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
                losses.append(loss if loss is None else loss.detach())
            with telemetry.span("optimizer"):
                norm = compute.clip_gradients()
            if config.compute.check_finite:
                # On an asynchronous device the host waits here for the whole backward pass, and only then
                # launches the optimizer: whatever it does next overlaps with the optimizer's kernels.
                with telemetry.span("sync"):
                    compute.check_finite(norm, step)
            with telemetry.span("optimizer"):
                compute.optimizer_step()
            unread.append((step, losses))
            if (step + 1) % config.log_every == 0:
                with telemetry.span("log"):
                    _log(compute, unread)
            # The end of a step: whatever is done between steps (evaluation, tracking) belongs here.
            if saver is not None and saver.is_due(step + 1):
                with telemetry.span("checkpoint"):
                    if unread:
                        _read(compute, unread)
                    compute.synchronize()
                    saver.save(step + 1)
            yield step
    finally:
        if unread:
            _log(compute, unread)


def _log(compute: Compute, unread: list[tuple[int, list[Loss]]]) -> None:
    last = unread[-1][0]
    value = _read(compute, unread)
    if value is not None:
        print(f"step {last + 1}: loss {value:.4f}", flush=True)


def _read(compute: Compute, unread: list[tuple[int, list[Loss]]]) -> float | None:
    """Report every loss that was not read yet; returns the last one."""
    values = compute.read_losses([losses for _, losses in unread])
    for (step, _), value in zip(unread, values, strict=True):
        if value is not None:
            telemetry.loss(step, value)
    unread.clear()
    return values[-1]
