"""Contention for cores: the mean field by hand."""

from __future__ import annotations

import numpy as np
import pytest

from harness.explain.replay.costs import Demand, stretch, stretched

MS = 1e6


def demand(main: float = 10, workers_ms: float = 10, threads: int = 1, workers: int = 1, cores: int = 1) -> Demand:
    return Demand(main * MS, workers_ms * MS, threads, workers, cores)


@pytest.mark.parametrize(
    ("wanted", "step_ms", "main", "worker"),
    [
        (demand(workers=3, cores=4), 10, 1.0, 1.0),  # everyone has a core
        (demand(main=10, workers_ms=10), 10, 2.0, 2.0),  # two always want the only one
        (demand(threads=4, workers=0, workers_ms=0, cores=2), 10, 2.0, 1.0),  # more threads than cores
        (demand(workers=8, workers_ms=0), 10, 1.0, None),  # workers sleep
    ],
)
def test_who_wants_a_core_is_stretched(wanted: Demand, step_ms: float, main: float, worker: float | None) -> None:
    found = stretch(wanted, step_ms * MS)
    assert found.main == pytest.approx(main)
    assert worker is None or found.worker == pytest.approx(worker)


def test_a_worker_that_wants_it_half_of_the_time_costs_half() -> None:
    # 4 ms of CPU per step of 20 ms: a worker stretched by w wants 4 w / 20 of the time, the main thread 10 m / 20.
    found = stretch(demand(main=10, workers_ms=4), 20 * MS)
    assert found.main == pytest.approx(1 + 4 * found.worker / 20, rel=1e-4)
    assert found.worker == pytest.approx(1 + 10 * found.main / 20, rel=1e-4)


def test_more_of_them_stretch_more() -> None:
    by_workers = [stretch(demand(workers=n, workers_ms=5.0 * n, cores=2), 12 * MS).main for n in range(1, 6)]
    assert by_workers == sorted(by_workers)
    assert by_workers[-1] > by_workers[1] > 1


def test_only_cpu_time_stretches_and_the_recorded_stretch_is_divided_out() -> None:
    wall, cpu = np.array([10.0, 10.0, 10.0]), np.array([0.0, 2.0, 5.0])
    assert stretched(wall, cpu, (1.0, 3.0)).tolist() == [10.0, 14.0, 20.0]
    assert stretched(wall, cpu, (2.0, 1.0)).tolist() == [10.0, 8.0, 5.0]
    assert stretched(stretched(wall, cpu, (1.0, 1.7)), cpu, (1.7, 1.0)) == pytest.approx(wall)
