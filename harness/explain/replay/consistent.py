"""Replays pipelines until step time and contention agree, as each depends on the other; many pipelines at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.explain.replay.contention import Stretch, stretch
from harness.explain.replay.pipeline import Pipeline, shape_of, together
from harness.explain.replay.simulate import Simulated, simulate

Array = NDArray[np.float64]
Make = Callable[[Stretch], Pipeline]
OFFSETS_SEED = 20240229
CONTENTION_REPLAYS = 12  # of step time against contention
CONTENTION_CLOSE = 0.005


def spread_offsets(block: int, replicates: int, ranks: int) -> Array:
    """Where each rank of each replicate starts, (replicates, ranks) in [0, 1): spread evenly, then shuffled."""
    generator = np.random.default_rng([OFFSETS_SEED, block])
    cells = (np.arange(replicates) + generator.random((ranks, replicates))) / replicates
    return generator.permuted(cells, axis=1).T


def consistent(makes: Sequence[Make], offsets: Array, then: Stretch, *, account: bool = True) -> list[Simulated]:
    """Replay what each of ``makes`` builds for a contention, which is ``then`` at first; all with the same offsets."""
    nows = [then] * len(makes)
    results: list[Simulated | None] = [None] * len(makes)
    pending = list(range(len(makes)))
    for _ in range(CONTENTION_REPLAYS):
        pipelines = [makes[number](nows[number]) for number in pending]
        unsettled = []
        for number, pipeline, result in zip(
            pending, pipelines, simulate_all(pipelines, offsets, account=account), strict=True
        ):
            results[number], now = result, nows[number]
            following = stretch(pipeline.demand, float(result.step_ms.mean()) * 1e6)
            if max(abs(following.main / now.main - 1), abs(following.worker / now.worker - 1)) >= CONTENTION_CLOSE:
                nows[number] = Stretch((now.main + following.main) / 2, (now.worker + following.worker) / 2)
                unsettled.append(number)
        pending = unsettled
        if not pending:
            break
    return [result for result in results if result is not None]


def simulate_all(pipelines: Sequence[Pipeline], offsets: Array, *, account: bool = True) -> list[Simulated]:
    """One result for each of ``pipelines``; those of the same shape run side by side."""
    by_shape: dict[object, list[int]] = {}
    for number, pipeline in enumerate(pipelines):
        by_shape.setdefault(shape_of(pipeline), []).append(number)
    found: dict[int, Simulated] = {}
    for numbers in by_shape.values():
        joined = together([pipelines[number] for number in numbers]) if len(numbers) > 1 else pipelines[numbers[0]]
        variants = np.repeat(np.arange(len(numbers)), len(offsets))
        results = simulate(joined, np.tile(offsets, (len(numbers), 1)), variants, account=account)
        found |= dict(zip(numbers, _split(results, len(offsets)), strict=True))
    return [found[number] for number in range(len(pipelines))]


def _split(results: Simulated, replicates: int) -> list[Simulated]:
    """The results of each variant."""
    count = len(results.step_ms) // replicates
    parts = [slice(first * replicates, (first + 1) * replicates) for first in range(count)]
    return [
        Simulated(
            step_ms=results.step_ms[part],
            waits={stage: waits[part] for stage, waits in results.waits.items()},
            idle=None if results.idle is None else results.idle[part],
            step_ns=results.step_ns[part],
        )
        for part in parts
    ]
