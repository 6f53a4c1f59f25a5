"""Runs the training loop. Every measurement goes through ``telemetry``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from trainer import telemetry
from trainer.compute.base import Compute, Loss
from trainer.config import TrainerConfig
from trainer.data.batch import Batch


def train(config: TrainerConfig, compute: Compute, batches: Iterator[Batch], *, prints: bool = True) -> Iterator[int]:
    """Train step by step and yield the index of each finished step, from 0.

    The caller decides when to stop and may pause between steps. Closing the generator reads the remaining losses.
    ``prints``: log lines too, which one of several ranks does for all.
    Raises FloatingPointError on a non-finite gradient norm (``compute.check_finite``).
    """
    unread: list[tuple[int, list[Loss]]] = []  # losses stay on the device: reading one blocks the host
    try:
        for step in count():
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
                    _log(compute, unread, prints)
            yield step
    finally:
        if unread:
            _log(compute, unread, prints)


def _log(compute: Compute, unread: list[tuple[int, list[Loss]]], prints: bool) -> None:
    values = compute.read_losses([losses for _, losses in unread])
    for (step, _), value in zip(unread, values, strict=True):
        if value is not None:
            telemetry.loss(step, value)
    if prints and values[-1] is not None:
        print(f"step {unread[-1][0] + 1}: loss {values[-1]:.4f}", flush=True)
    unread.clear()
