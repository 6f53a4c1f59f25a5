"""A sample of `python -m tests.campaigns faults.records`: wrong values in records and tables end no command in a
traceback.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.faults.records import Case, record_cases, small_study, table_cases, tried

pytestmark = pytest.mark.slow  # every command for each case: a second each

# What once ended in a traceback, and a place of each kind besides.
RECORDS = (
    'study/study.json: arms.0.config.data = ["wrong"]',
    "study/runs/text-padded/0/run.json: facts.flops_per_token = NaN",
    "study/runs/text-padded/0/run.json: config.data.batch_size = -1",
    'study/runs/text-padded/0/run.json: arm = "../../x"',
    "study/runs/text-padded/0/probes.json: torch_profiler.windows.0.0 = 1e400",
)
TABLES = (
    "study/runs/text-padded/0/samples.parquet: unit as bytes called text",
    "study/runs/text-padded/0/steps.parquet: start_ns null",
    "study/runs/text-padded/0/steps.parquet: other_ns smallest",
    "study/runs/text-padded/0/steps.parquet: the table without columns",
)
STARTS_A_PROCESS = ("run",)  # git, for the environment


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_study(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def cases(folder: Path) -> dict[str, Case]:
    return {case.place: case for make in (record_cases, table_cases) for case in make(folder)}


BY_DAY = (RECORDS[0], RECORDS[3], TABLES[1], TABLES[3])


@pytest.mark.parametrize(
    "place",
    [place if place in BY_DAY else pytest.param(place, marks=pytest.mark.nightly) for place in (*RECORDS, *TABLES)],
)
def test_no_command_ends_in_a_traceback(cases: dict[str, Case], folder: Path, place: str) -> None:
    assert tried(cases[place], folder, without=STARTS_A_PROCESS) == []
