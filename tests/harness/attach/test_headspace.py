"""Headspace of simulated loops whose truth is known: a clock that only moves where the loop works or waits."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator

import pytest

import harness
from harness.attach import headspace as module
from harness.attach.headspace import COMPARED_MIN, PAIR_STEPS, HeadspaceLoader


class Clock:
    ns = 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "perf_counter_ns", lambda: found.ns)
    return found


class Loader:
    """Batches 0, 1, 2 ...; each takes its time of one of the workers, or of the loop where there are none."""

    def __init__(self, clock: Clock, batches: int, batch_ns: Iterable[int], workers: int = 0) -> None:
        self.clock, self.batches, self.batch_ns = clock, batches, list(batch_ns)
        self.num_workers, self.prefetch_factor = workers, 2 if workers else None

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[int]:
        free_ns = [self.clock.ns] * self.num_workers  # when each worker has nothing to do any more
        ready: deque[int] = deque()  # when each batch that was asked for is ready

        def ask(number: int) -> None:
            worker = number % self.num_workers
            free_ns[worker] = max(free_ns[worker], self.clock.ns) + self.batch_ns[number % len(self.batch_ns)]
            ready.append(free_ns[worker])

        for number in range(2 * self.num_workers):
            ask(number)
        for number in range(self.batches):
            if not self.num_workers:
                self.clock.ns += self.batch_ns[number % len(self.batch_ns)]
            else:
                self.clock.ns = max(self.clock.ns, ready.popleft())
                ask(number + 2 * self.num_workers)
            yield number


def trained(clock: Clock, loader: HeadspaceLoader[int], step_ns: int) -> list[int]:
    served = []
    for batch in loader:
        served.append(batch)
        clock.ns += step_ns
    return served


def interval(loader: HeadspaceLoader[int]) -> tuple[float, float]:
    assert loader.result is not None
    return loader.result.speedup.ci_low or math.nan, loader.result.speedup.ci_high or math.nan


@pytest.mark.parametrize(
    ("workers", "batch_ns", "truth"),
    [
        (0, [6000], 1.6),
        (0, [0], 1.0),
        (2, [30_000], 1.5),  # two workers make a batch in 15 us
        (2, [5_000], 1.0),
        (2, [22_000], 1.1),  # their queue would take 40 steps to run empty
        (4, [80_000, 20_000, 20_000, 20_000], 2.0),  # one slow worker, as batches stay in order
    ],
)
def test_the_gain_of_free_data_is_found(clock: Clock, workers: int, batch_ns: list[int], truth: float) -> None:
    loader = harness.headspace(Loader(clock, 3000, batch_ns, workers), seconds=0.01)
    assert trained(clock, loader, 10_000) == list(range(3000))  # each batch once, in order
    found = loader.result
    assert found is not None
    assert found.speedup.median == pytest.approx(truth, rel=0.01)
    assert found.free_step_ms == pytest.approx(0.01)
    assert found.step_ms == pytest.approx(0.01 * truth, rel=0.01)
    assert found.speedup.n >= COMPARED_MIN


def test_a_rare_long_wait_is_in_the_gain_and_widens_its_interval(clock: Clock) -> None:
    """Every 100th batch takes 50 steps: a median of comparisons would not have it."""
    loader = harness.headspace(Loader(clock, 20_000, [500_000, *[0] * 99]), seconds=0.1)
    trained(clock, loader, 10_000)
    low, high = interval(loader)
    assert low < 1.5 < high
    assert high / low > 1.1


@pytest.mark.parametrize("period", [5, 7, 35])
def test_a_slow_step_now_and_then_is_no_gain(clock: Clock, period: int) -> None:
    """A log, a checkpoint: usual and free steps take their turns with another period than that."""
    loader = harness.headspace(Loader(clock, 3000, [0]), seconds=0.005)
    for number, _ in enumerate(loader):
        clock.ns += 100_000 if number % period == 0 else 10_000
    low, high = interval(loader)
    assert low <= 1 <= high


def test_epochs_that_are_short_count_together_and_one_without_an_answer_says_so(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = harness.headspace(Loader(clock, 5 * PAIR_STEPS, [6000]), seconds=0.0)
    for epoch in range(COMPARED_MIN):
        assert loader.result is None
        assert trained(clock, loader, 10_000) == list(range(5 * PAIR_STEPS))
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1, epoch
    assert loader.result is not None
    assert loader.result.speedup.median == pytest.approx(1.6)
    assert str(loader.result) == lines[0]
    assert trained(clock, loader, 10_000) == list(range(5 * PAIR_STEPS))
    assert capsys.readouterr().err == ""


def test_it_stands_for_the_loader(clock: Clock) -> None:
    loader = harness.headspace(Loader(clock, 7, [0], workers=3))
    assert len(loader) == 7
    assert loader.num_workers == 3
    with pytest.raises(AttributeError):
        loader.nothing  # noqa: B018
    with pytest.raises(ValueError, match="negative"):
        harness.headspace([], ahead=-1)


@pytest.mark.slow
def test_batches_of_real_workers_are_served_once_and_in_order() -> None:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = DataLoader(TensorDataset(torch.arange(1000)), batch_size=2, num_workers=2)
    loader = harness.headspace(data, seconds=0.0)
    assert [batch.tolist() for (batch,) in loader] == [[2 * n, 2 * n + 1] for n in range(500)]
    assert loader.result is not None
