"""Runs ``python -m trainer.worker_trial``: times for ``data.workers: auto``, from JSON to JSON, on its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from time import monotonic, sleep

from trainer.config import TrainerConfig
from trainer.errors import InputError

BATCHES, BATCHES_S = 40, 3.0  # limits of each measurement: batches and seconds
# minimum seconds of making batches; a long document is tokenized in one of the hundreds of batches that it fills
MADE_S = 1.0
STEPS, STEPS_S = 6, 10.0
# Minimum saving of a step for more workers, as a share. A trial cannot resolve less.
LEAST_WORKER_GAIN = 0.03


@dataclass(frozen=True)
class WorkerTrial:
    """Median times (ms; ``stage_ms``: mean) of making, receiving and training on one micro-batch."""

    stage_ms: float  # time to make a batch in the training process
    ready_ms: float  # time to receive a finished batch from a worker
    cycle_ms: float  # time between two batches of a worker that has nothing to make
    step_ms: float  # time to train on it
    threads: int  # cores that the step keeps busy on this machine
    cores: int

    def predicted_ms(self, workers: int) -> float:
        """Return a step's time (ms): all in turn without workers, else the slowest of trainer, workers, cores."""
        if not workers:
            return self.step_ms + self.stage_ms
        made_ms = (self.stage_ms + self.cycle_ms) / workers
        work_ms = self.step_ms * self.threads + self.ready_ms + self.stage_ms + self.cycle_ms
        return max(self.step_ms + self.ready_ms, made_ms, work_ms / self.cores)

    def best(self) -> int:
        """Return the fewest workers from which no further one saves :data:`LEAST_WORKER_GAIN` of a step."""
        best, shortest_ms = 0, self.predicted_ms(0)
        for workers in range(1, max(1, self.cores) + 1):
            if self.predicted_ms(workers) < shortest_ms * (1 - LEAST_WORKER_GAIN):
                best, shortest_ms = workers, self.predicted_ms(workers)
        return best


def measure(config: TrainerConfig) -> WorkerTrial:
    """Prepare the data, and measure the data path with and without a worker, and the training step."""
    from trainer.data.loader import open_batches
    from trainer.data.prepare import prepare
    from trainer.model_files import objective_of

    data = config.data
    prepared = prepare(data, evaluation=config.evaluation).with_objective(objective_of(config.model))
    # First, while this process has no threads, because workers are forked. They repeat one batch.
    handed = data.model_copy(update={"workers": 1, "replay": True, "inject": None})
    with open_batches(handed, prepared, config.seed) as batches:
        for _ in range(5):
            next(batches)
        cycle_ms = _median_ms(lambda: next(batches), BATCHES)
        ready_ms = _median_ms(lambda: next(batches), 10, before=lambda: sleep(max(0.01, 4e-3 * cycle_ms)))
    with open_batches(data, prepared, config.seed) as batches:
        next(batches)  # The first batch opens files and loads tokenizers.
        stage_ms = mean_ms(lambda: next(batches))
        step_ms, threads = _step_ms(config, prepared.vocab_size, next(batches))
    return WorkerTrial(stage_ms, ready_ms, cycle_ms, step_ms, threads, len(os.sched_getaffinity(0)))


def _step_ms(config: TrainerConfig, vocab_size: int, batch: object) -> tuple[float, int]:
    """Return (time of a training step divided by its micro-batches, in ms; number of cores that the step uses)."""
    import torch

    from trainer.compute.build import build_compute

    compute = build_compute(config.model_copy(update={"launch": None}), vocab_size)
    accumulation = config.optimizer.accumulation

    def step() -> None:
        compute.begin_step(0)
        for _ in range(accumulation):
            compute.backward(compute.forward(compute.to_device(batch)))  # type: ignore[arg-type]
        compute.clip_gradients()
        compute.optimizer_step()
        compute.synchronize()

    step()
    found_ms = _median_ms(step, STEPS, limit_s=STEPS_S) / accumulation
    return found_ms, torch.get_num_threads() if compute.device == "cpu" else 1


def mean_ms(work: Callable[[], object]) -> float:
    """Return the mean ms of a call: a few slow batches do the work of many. It takes BATCHES calls and MADE_S."""
    begun, count = monotonic(), 0
    while (took_s := monotonic() - begun) < BATCHES_S and (count < BATCHES or took_s < MADE_S):
        work()
        count += 1
    return took_s * 1e3 / count


def _median_ms(
    work: Callable[[], object], most: int, *, limit_s: float = BATCHES_S, before: Callable[[], None] = lambda: None
) -> float:
    times_ms: list[float] = []
    deadline_s = monotonic() + limit_s
    while len(times_ms) < most and (not times_ms or monotonic() < deadline_s):
        before()
        start = monotonic()
        work()
        times_ms.append((monotonic() - start) * 1e3)
    return median(times_ms)


def main() -> int:
    """Print the times of stdin's configuration, or an InputError as ``{"error"}``, as JSON. Return 0."""
    out = os.dup(1)
    os.dup2(2, 1)  # Output of libraries must not mix with the answer.
    content = json.loads(sys.stdin.read())
    result: dict[str, object]
    try:
        config = TrainerConfig.model_validate(content)
        result = asdict(measure(config))
    except InputError as error:
        result = {"error": str(error)}
    with os.fdopen(out, "w") as answer:
        json.dump(result, answer)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
