"""Runs the training loop. Every measurement goes through ``telemetry``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from trainer import telemetry
from trainer.compute.base import Compute, Loss
from trainer.config import TrainerConfig
from trainer.data.batch import Batch
from trainer.readings import ValueReader


def train(config: TrainerConfig, compute: Compute, batches: Iterator[Batch]) -> Iterator[int]:
    """Train step by step and yield the index of each finished step, from 0.

    The caller decides when to stop and may pause between steps. Closing the generator reads the remaining losses.
    Raises FloatingPointError on a non-finite gradient norm (``compute.check_finite``), with ``compute.sync: late`` on
    an asynchronous device one step later, or as the generator is closed.
    """
    readings = ValueReader(config, compute)
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
            readings.before_update(step, losses, norm)
            with telemetry.span("optimizer"):
                compute.optimizer_step()
            readings.after_update(step, losses)
            yield step
    except GeneratorExit:
        readings.close()
        raise
    except BaseException:
        readings.close(failed=True)
        raise
