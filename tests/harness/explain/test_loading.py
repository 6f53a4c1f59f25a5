"""How batches are made, against a known truth: by one slow worker, in a few long reads, on a core or off it."""

from __future__ import annotations

import numpy as np
import pytest

from harness.explain.lead_use import LongReads, MadeBy, SlowWorker, loading_of, long_reads, slow_worker
from harness.explain.policy import (
    LONG_READ_FACTOR,
    LONG_READS_MIN,
    LONG_READS_SHARE_MAX,
    LONG_READS_SPREAD_MAX,
    LONG_READS_TIME_MIN,
    SLOW_WORKER_BATCHES_MIN,
    SLOW_WORKER_FACTOR,
)
from tests.harness.explain.replay import oracle
from tests.harness.explain.replay.test_makers import SLOW
from tests.harness.explain.test_wall import ATTACHED, EXACT
from tests.harness.synthetic import Arm, build


def made(ms: list[float], count: int = 2 * SLOW_WORKER_BATCHES_MIN) -> MadeBy:
    """Batches of as many workers as there are ``ms``, by turns."""
    workers = np.arange(count) % len(ms)
    return MadeBy(workers.astype(np.int16), np.array(ms)[workers])


def test_a_slow_worker_is_named_with_both_times() -> None:
    assert slow_worker([made([3.0, 33.0, 3.0], 3 * SLOW_WORKER_BATCHES_MIN)]) == SlowWorker(1, 33.0, 3.0)
    assert slow_worker([made([3.0, 3.0 * SLOW_WORKER_FACTOR * 0.99])]) is None
    assert slow_worker([made([33.0, 3.0]), made([3.0, 33.0])]) is None  # not the same one
    assert slow_worker([made([33.0, 33.1, 33.0, 3.0], 4 * SLOW_WORKER_BATCHES_MIN)]) is None  # one is fast, none slow
    assert slow_worker([made([33.0, 3.0], 2 * SLOW_WORKER_BATCHES_MIN - 2)]) is None


@pytest.mark.parametrize("workers", [2, 16])
def test_chance_makes_no_worker_slow(workers: int) -> None:
    draw = np.random.default_rng(workers)
    numbers = np.arange(25 * workers) % workers
    studies = [[MadeBy(numbers, draw.lognormal(0, 0.6, len(numbers)))] for _ in range(100)]
    assert sum(slow_worker(blocks) is not None for blocks in studies) <= 0.1 * len(studies)


def test_a_worker_is_not_compared_with_a_time_of_nothing() -> None:
    """ "takes 0.000x as long per batch" was said of a worker."""
    found = slow_worker([made([33.0, 0.0])])
    assert found == SlowWorker(0, 33.0, 0.0)
    assert found.factor is None


def test_workers_of_a_recording_are_known() -> None:
    runs = [oracle.run(SLOW.having(pattern=(1.0, 3.0), seed=block), block=block) for block in range(3)]
    found = loading_of(runs).slow_worker
    assert found.number == 1
    assert found.factor == pytest.approx(3.0, rel=0.15)
    assert loading_of([oracle.run(SLOW.having(pattern=()))]).slow_worker is None


def reads(every: int, long_ms: float, count: int = 200) -> np.ndarray:
    return np.where(np.arange(count) % every == 0, long_ms, 1.0)


def test_long_reads_that_take_most_of_the_reading_are_found() -> None:
    assert long_reads(reads(40, 300.0)) == LongReads(40.0, 300.0)
    assert long_reads(reads(40, LONG_READ_FACTOR * 0.9)) is None
    few_ms = 300.0
    assert long_reads(reads(100, few_ms, 100 * (LONG_READS_MIN - 1))) is None
    assert long_reads(reads(100, few_ms, 100 * LONG_READS_MIN)) is not None
    assert long_reads(reads(round(0.8 / LONG_READS_SHARE_MAX), 300.0)) is None
    share = LONG_READS_TIME_MIN / (1 - LONG_READS_TIME_MIN)
    assert long_reads(reads(40, 39.0 * share * 0.9)) is None
    assert long_reads(reads(40, 39.0 * share * 1.1)) is not None
    assert long_reads(np.zeros(0)) is None
    assert long_reads(np.zeros(9)) is None


@pytest.mark.parametrize("spread", [0.9, 1.1])
def test_long_reads_at_any_time_are_waits_for_a_core(spread: float) -> None:
    """A file to load ahead was blamed for reads of 4 ms on a busy machine."""
    gap = 100
    near, far = (
        round(gap * (1 - spread * LONG_READS_SPREAD_MAX / 2)),
        round(gap * (1 + spread * LONG_READS_SPREAD_MAX / 2)),
    )
    ms = np.ones(2000)
    ms[np.cumsum([0, near, near, near, gap, gap, far, far, far])] = 300.0
    assert (long_reads(ms) is not None) == (spread < 1)


@pytest.mark.parametrize("off_core", [0.0, 3.0])
def test_the_time_of_a_stage_without_a_core_is_known(off_core: float) -> None:
    arm = Arm("script", read=4.0, facts=ATTACHED, off_core={"read": off_core})
    _, runs = build([arm], noise={**EXACT, "day": 0.0})
    assert loading_of(runs).on_core["read"] == pytest.approx(1 - off_core / 4.0, abs=0.01)
    assert "tokenize" in loading_of(runs).on_core
