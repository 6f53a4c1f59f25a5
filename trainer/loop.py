"""Runs the training loop. Every measurement goes through ``telemetry``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from trainer import telemetry
from trainer.checkpoint import Saver
from trainer.compute.base import Compute, Loss
from trainer.config import TrainerConfig
from trainer.data.batch import Batch
from trainer.evaluate import Evaluator
from trainer.readings import ValueReader


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

    The caller decides when to stop and may pause between steps. Closing the generator reads the remaining losses.
    ``saver`` saves due checkpoints; the losses up to there are read first. ``evaluator`` evaluates between steps when
    due. ``prints``: print log lines, which one rank does for all. Raises FloatingPointError on a non-finite gradient
    norm (``compute.check_finite``). With ``compute.sync: late`` on an asynchronous device it is raised one step later,
    or when the generator is closed.
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
