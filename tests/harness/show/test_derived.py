"""The report rests on the raw record: a changed rule changes the report of a study that was recorded before."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.explain import derived
from harness.explain.replay.attribution import Split
from harness.show.build import build_report, keep_derived
from harness.study.contract import STEP_COLUMNS
from harness.study.store import StudyFolder
from harness.study.tables import read_table
from tests.harness.explain.by_hand import DEVICE_COLUMNS, STAGE_COLUMNS
from tests.harness.synthetic import Arm, build, write

STAGED = Arm("text", workers=1, tokenize=40.0)


@pytest.fixture
def recorded(tmp_path: Path) -> StudyFolder:
    """A study as runs leave it: nothing of its steps is derived yet."""
    study, runs = build([STAGED], blocks=1)
    folder = StudyFolder(tmp_path)
    write(folder, study, runs)
    for run in runs:
        assert run.steps is not None
        steps = run.steps
        for name in (*STAGE_COLUMNS, *DEVICE_COLUMNS):
            steps = steps.set_column(steps.column_names.index(name), name, pa.nulls(len(steps), pa.int64()))
        folder.write_steps(run.record, steps)
    return folder


def exposed(folder: StudyFolder) -> dict[str, float]:
    build_report(folder.path)
    found: dict[str, float] = json.loads(folder.summary_json.read_text())["arms"]["text"]["exposed_ms"]
    return found


def kept(folder: StudyFolder) -> list[int]:
    table = read_table(folder.run("text", 0) / "steps.parquet", STEP_COLUMNS)
    values: list[int] = table.column("exposed_tokenize_ns").to_pylist()
    return values


def test_the_report_of_a_study_that_runs_writes_into_no_runs_folder(recorded: StudyFolder) -> None:
    """Its launcher is writing there."""
    recorded.write_study(replace(recorded.read_study(), status="running"))
    before = {path: path.read_bytes() for path in recorded.path.glob("runs/*/*/*")}
    assert exposed(recorded)["tokenize"] > 5
    assert {path: path.read_bytes() for path in recorded.path.glob("runs/*/*/*")} == before


def test_what_was_not_derived_when_it_was_recorded_is_in_the_report_and_then_in_the_table(
    recorded: StudyFolder,
) -> None:
    assert kept(recorded)[0] is None
    assert exposed(recorded)["tokenize"] > 5
    whole = kept(recorded)
    assert min(whole) >= 0
    assert sum(whole) > 0
    tables = {path: path.stat().st_ino for path in recorded.path.glob("runs/*/*/steps.parquet")}
    exposed(recorded)
    assert {path: path.stat().st_ino for path in tables} == tables  # by the same rules nothing is written again


def test_a_mended_rule_reaches_a_study_of_before(recorded: StudyFolder) -> None:
    before, stored = exposed(recorded), kept(recorded)
    rule = derived.split

    def half_of_it(*arguments):
        return Split(rule(*arguments).exposed // 2)

    with mock.patch.object(derived, "split", half_of_it):
        after = exposed(recorded)
    assert after["tokenize"] == pytest.approx(before["tokenize"] / 2)
    assert sum(kept(recorded)) == pytest.approx(sum(stored) / 2)
    assert (exposed(recorded), kept(recorded)) == (before, stored)


def test_damaged_spans_are_no_ground_to_replace_what_was_recorded(recorded: StudyFolder) -> None:
    """A study whose spans are gone, lack rows, or have a fetch that ends before it starts, keeps the columns it has."""
    exposed(recorded)
    stored, path = kept(recorded), recorded.run("text", 0) / "spans.parquet"
    whole = pq.read_table(path)
    rows = whole.to_pylist()
    fetch = next(row for row in rows if row["name"] == "fetch")
    fetch["end_ns"] = fetch["start_ns"] - 1
    backward = pa.Table.from_pylist(rows, schema=whole.schema)
    for part in (whole.slice(0, 0), whole.slice(0, len(whole) // 2), backward, None):
        path.unlink() if part is None else pq.write_table(part, path)
        (run,) = recorded.runs()
        keep_derived(recorded, run)
        assert kept(recorded) == stored


def test_columns_of_others_stay_in_the_table(recorded: StudyFolder) -> None:
    path = recorded.run("text", 0) / "steps.parquet"
    steps = pq.read_table(path)
    pq.write_table(steps.append_column("of_mine", pa.array(range(len(steps)))), path)
    assert exposed(recorded)["tokenize"] > 0
    assert kept(recorded)[0] is not None
    assert pq.read_table(path)["of_mine"].to_pylist() == list(range(len(steps)))
