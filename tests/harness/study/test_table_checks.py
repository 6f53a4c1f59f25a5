"""Tables of the right columns and wrong content: one line says what is wrong, and only that run is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.study import tables
from harness.study.contract import SPAN_COLUMNS, STEP_COLUMNS
from harness.study.records import RunRecord
from harness.study.store import StudyFolder
from harness.study.tables import StoredTable
from tests.campaigns.faults.table_damage import COLUMN
from trainer.errors import InputError

Change = Callable[[pa.Table, str], pa.Table]


def changed(what: str) -> Change:
    return lambda table, name: table.set_column(
        table.column_names.index(name), name, COLUMN[what](table.column(name).combine_chunks())
    )


@pytest.fixture(params=[True, False], ids=["at once", "in pieces"])
def folder(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StudyFolder:
    if not request.param:
        monkeypatch.setattr(tables, "SMALL_FILE_BYTES", 0)
    study = StudyFolder(tmp_path)
    study.write_run(RunRecord("a", 0, "done"))
    steps = {name: [1, 2] for name, _ in STEP_COLUMNS if name != "warmup"} | {"warmup": [True, False]}
    spans = {name: ["x", "y"] if kind == "string" else [1, 2] for name, kind in SPAN_COLUMNS}
    study.write_tables("a", 0, steps, spans, {})
    return study


@pytest.mark.parametrize(("table", "name", "change", "problem"), [
    ("spans", "name", changed("as bytes called text"), "column 'name' holds bytes that are no text"),
    ("spans", "rank", lambda table, name: table.append_column(name, table[name]), "2 columns named 'rank'"),
    ("spans", "role", changed("null"), "column 'role' holds nulls"),
    ("steps", "start_ns", changed("some null"), "column 'start_ns' holds nulls"),
    ("steps", "wall_ns", changed("largest"), f"column 'wall_ns' holds {2**63 - 1}, not {-(2**53)} to {2**53}"),
    ("steps", "other_ns", changed("smallest"), f"column 'other_ns' holds {-(2**63)}, not"),
    ("steps", "start_ns", changed("largest"), f"column 'start_ns' holds {2**63 - 1}, not 0 to {2**62}"),
    ("spans", "end_ns", changed("smallest"), f"column 'end_ns' holds {-(2**63)}, not 0 to"),
])  # fmt: skip
def test_wrong_content_fails_its_run(folder: StudyFolder, table: str, name: str, change: Change, problem: str) -> None:
    path = folder.run("a", 0) / f"{table}.parquet"
    pq.write_table(change(pq.read_table(path), name), path)
    (run,) = folder.runs()
    assert (run.record.status, run.has_steps) == ("failed", False)
    assert f"{path}: not a results table of schema 1: {problem}" in (run.record.error or "")


def test_a_clock_may_run_for_years(folder: StudyFolder) -> None:
    path = folder.run("a", 0) / "steps.parquet"
    table = pq.read_table(path)
    years = pa.array([2**58, 2**58 + 1])
    pq.write_table(table.set_column(table.column_names.index("start_ns"), "start_ns", years), path)
    assert StoredTable(path, STEP_COLUMNS).read()["start_ns"].to_pylist() == [2**58, 2**58 + 1]


def test_a_name_of_a_column_that_is_no_text_is_one_line(folder: StudyFolder) -> None:
    path = folder.run("a", 0) / "steps.parquet"
    path.write_bytes(path.read_bytes().replace(b"other_ns", b"\xff\xfe\xfd\xfc\xff\xfe\xfd\xfc"))
    with pytest.raises(InputError, match=r"steps\.parquet: ") as error:
        StoredTable(path, STEP_COLUMNS).check()
    assert str(error.value).isprintable()
