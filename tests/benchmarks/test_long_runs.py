"""Long runs: writing their tables and building their report. ``python -m tests.benchmarks.long_runs`` takes any size.

The figures for a million steps are in results/reference/long-runs/README.md; nothing is asserted about a time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.long_runs import analyse, make, write

pytestmark = pytest.mark.slow  # measurements

STEPS = 3_000  # where times are wanted
FEW_STEPS = 100


def steps(benchmark) -> int:
    return STEPS if benchmark.enabled else FEW_STEPS


def test_writing_the_tables_of_an_asynchronous_run(benchmark) -> None:
    assert benchmark.pedantic(write, args=(steps(benchmark),), rounds=1)["seconds"] > 0


@pytest.mark.parametrize("asynchronous", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_building_the_report_of_two_long_runs(benchmark, tmp_path: Path, asynchronous: bool) -> None:
    make(tmp_path, 2, steps(benchmark), asynchronous=asynchronous)
    benchmark.pedantic(analyse, args=(tmp_path,), rounds=1)
    assert (tmp_path / "summary.md").is_file()
