"""Measure within a user's loop how much faster it would be with free data: ``for batch in harness.headspace(loader)``.

Each batch is served once and in order. Some are fetched ahead into a stock; then steps of two kinds alternate:

    usual   a batch is fetched as always and put at the end of the stock; the first batch of the stock is served
    free    only the first batch of the stock is served: the step does not wait for data

Fetching ahead also empties the workers' queue, so that usual steps do not start with a full one that they could not
keep. The first steps of each kind refill it, and are not measured. Imports nothing named ``trainer``: a user may have a
file of that name.
"""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sized
from dataclasses import dataclass
from itertools import islice
from random import Random
from time import perf_counter_ns
from typing import Any, Generic, TypeVar, cast

from harness.explain.statistics import Estimate, reach_of_mean

Batch = TypeVar("Batch")
PAIR_STEPS = 16  # measured steps of one kind in a row: equal numbers of updates, if 2, 4, 8 or 16 steps make one
COMPARED_MIN = 5  # minimum comparisons of usual and free steps


@dataclass(frozen=True)
class Headspace:
    """Measured gain if data cost no time. ``speedup``: mean usual step / mean free step, with its 95 % interval.

    ``step_ms``: mean duration of a usual step. ``free_step_ms``: of a free step, which does not wait for data.
    """

    speedup: Estimate
    step_ms: float
    free_step_ms: float

    def __str__(self) -> str:
        low, high = self.speedup.ci_low or 0.0, self.speedup.ci_high or 0.0
        gain = (
            f"would be {self.speedup.median:.2f}x as fast ({low:.2f}x to {high:.2f}x)"
            if low > 1
            else f"would not be measurably faster ({low:.2f}x to {high:.2f}x)"
        )
        return (
            f"headspace: with free data this loop {gain}. A step takes {self.step_ms:.3g} ms, and "
            f"{self.free_step_ms:.3g} ms without waiting for data ({self.speedup.n} comparisons of {PAIR_STEPS} steps)."
        )


class HeadspaceLoader(Generic[Batch]):
    """Wrapped loader that measures, while it is iterated, how much faster the loop would be with free data.

    ``result``: the :class:`Headspace`; None until enough steps are compared, which may take several epochs.
    :func:`headspace` makes the loader.
    """

    def __init__(self, loader: Iterable[Batch], seconds: float, ahead: int | None) -> None:
        self.loader = loader
        self.result: Headspace | None = None
        self._least_ns = seconds * 1e9  # minimum measured time
        workers, prefetch = (getattr(loader, name, None) or 0 for name in ("num_workers", "prefetch_factor"))
        self._ahead = int(workers) * int(prefetch) if ahead is None else ahead
        self._pairs: list[tuple[int, int]] = []  # nanoseconds of PAIR_STEPS usual steps, and of as many free steps
        self._spent_ns = 0
        self._chance = Random(0)  # separate generator: the program's random state does not change

    def __iter__(self) -> Iterator[Batch]:
        batches = iter(self.loader)
        return batches if self.result is not None else self._measured(batches)

    def __len__(self) -> int:
        return len(cast("Sized", self.loader))

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # a copy is being made
            raise AttributeError(name)
        return getattr(self.loader, name)

    def _measured(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield all batches of an epoch in order. Measure usual and free steps meanwhile, until there is a result."""
        stock: deque[Batch] = deque()
        yield from islice(batches, PAIR_STEPS)  # the first steps build and compile
        while self.result is None:
            begun_ns = perf_counter_ns()
            stock.extend(islice(batches, self._ahead + 1 + PAIR_STEPS))
            # A random number, so that rare slow steps (a log, a checkpoint) fall into both kinds alike.
            yield from self._usual(batches, stock, 2 * self._ahead + 2 + self._chance.randrange(PAIR_STEPS))
            usual_ns = _now_ns()
            steps = yield from self._usual(batches, stock, PAIR_STEPS)
            usual_ns = _now_ns() - usual_ns
            if steps < PAIR_STEPS:  # the epoch ended
                break
            for _ in range(self._ahead + 1):
                yield stock.popleft()
            free_ns = _now_ns()
            for _ in range(PAIR_STEPS):
                yield stock.popleft()
            now_ns = _now_ns()
            self._pairs.append((usual_ns, now_ns - free_ns))
            self._spent_ns += now_ns - begun_ns
            self._conclude()
        yield from stock
        if self.result is None:
            _say(
                f"headspace: undecided after {len(self._pairs)} of {COMPARED_MIN} comparisons: iterate again or longer."
            )
        yield from batches

    @staticmethod
    def _usual(batches: Iterator[Batch], stock: deque[Batch], most: int) -> Generator[Batch, None, int]:
        steps = 0
        for batch in islice(batches, most):
            stock.append(batch)
            yield stock.popleft()
            steps += 1
        return steps

    def _conclude(self) -> None:
        n = len(self._pairs)
        if n < COMPARED_MIN or self._spent_ns < self._least_ns:
            return
        usual_ns, free_ns = (sum(pair[kind] for pair in self._pairs) for kind in (0, 1))
        log_speedup = math.log(usual_ns / free_ns)
        # Jackknife of a ratio of sums: a median of ratios would drop the rare long waits.
        values = [
            n * log_speedup - (n - 1) * math.log((usual_ns - usual) / (free_ns - free)) for usual, free in self._pairs
        ]
        reach = reach_of_mean(values)
        speedup = Estimate(math.exp(log_speedup), math.exp(log_speedup - reach), math.exp(log_speedup + reach), n)
        steps = n * PAIR_STEPS * 1e6
        self.result = Headspace(speedup, usual_ns / steps, free_ns / steps)
        _say(str(self.result))


def headspace(loader: Iterable[Batch], *, seconds: float = 10.0, ahead: int | None = None) -> HeadspaceLoader[Batch]:
    """Return ``loader`` wrapped: iterating it measures how much faster the loop would be with free data, and prints it.

    Every batch is served once and in order, so the training does not change. During the measurement, up to ``ahead`` +
    17 batches are held in memory, and the loader's position is that far ahead. Wrap the loader last, for example after
    ``accelerator.prepare``.

    ``seconds``: minimum measured time. ``ahead``: batches that the loader may make in advance; None means num_workers *
    prefetch_factor, or 0 without a DataLoader. Raise ValueError if one is negative.
    """
    if seconds < 0 or (ahead or 0) < 0:
        raise ValueError(f"headspace: seconds {seconds}, ahead {ahead}: neither may be negative")
    return HeadspaceLoader(loader, seconds, ahead)


def _now_ns() -> int:
    """Wait until the CUDA device is idle (if the program uses one) and return the time in ns (perf_counter_ns)."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return perf_counter_ns()


def _say(line: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(line, file=sys.stderr, flush=True)
