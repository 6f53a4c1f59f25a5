"""The study folder: what was written is read back, and damage stays where it is."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from harness.study import tables
from harness.study.contract import RUN_COLUMNS, STEP_COLUMNS
from harness.study.files import sealed
from harness.study.records import ArmRecord, CodeRecord, ComparisonRecord, RunRecord, StudyRecord
from harness.study.run_data import ProbesRecord, PySpyRecord, TorchProfilerRecord
from harness.study.store import StudyFolder, write_json
from harness.study.tables import write_table
from trainer.errors import InputError

STEPS = {"step": [0, 1], "warmup": [False, False], "start_ns": [0, 5], "wall_ns": [5, 6]}


def study(folder: Path) -> StudyFolder:
    result = StudyFolder(folder)
    result.write_study(StudyRecord("s", "q?", "done"))
    for arm in ("a", "b"):
        result.write_tables(arm, 0, STEPS, {}, {})
        result.write_run(RunRecord(arm, 0, "done"))
    return result


def test_a_damaged_table_fails_its_own_run_only(tmp_path: Path) -> None:
    folder = study(tmp_path)
    damaged = folder.run("a", 0) / "steps.parquet"
    damaged.write_bytes(damaged.read_bytes()[:100])
    first, second = folder.runs()
    assert first.record.status == "failed"
    assert "not a readable parquet file" in (first.record.error or "")
    assert first.steps is None
    assert second.record.status == "done"
    assert second.steps.column("wall_ns").to_pylist() == [5, 6]


def test_a_table_that_is_damaged_in_its_middle_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = study(tmp_path)
    damaged = folder.run("a", 0) / "steps.parquet"
    pq.write_table(pq.read_table(damaged), damaged, row_group_size=1)
    second = pq.read_metadata(damaged).row_group(1).column(len(RUN_COLUMNS)).data_page_offset
    content = bytearray(damaged.read_bytes())
    content[second : second + 8] = b"\xff" * 8
    damaged.write_bytes(content)
    for small in (tables.SMALL_FILE_BYTES, 0):  # read as a whole, and one row group ahead
        monkeypatch.setattr(tables, "SMALL_FILE_BYTES", small)
        error = next(folder.runs()).record.error or ""
        assert "steps.parquet: not a readable parquet file (" in error
        assert error.isprintable(), error


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
def test_a_table_of_several_row_groups_is_read_in_order(tmp_path: Path, rows: int) -> None:
    folder, steps = StudyFolder(tmp_path), list(range(rows))
    times = dict.fromkeys(("step", "start_ns", "wall_ns"), steps)
    folder.write_tables("a", 0, {**times, "warmup": [False] * rows}, {}, {})
    path = folder.run("a", 0) / "steps.parquet"
    pq.write_table(pq.read_table(path), path, row_group_size=1)
    stored = tables.StoredTable(path, STEP_COLUMNS)
    assert stored.columns(["step"]).column("step").to_pylist() == steps


def test_columns_of_which_another_program_says_that_none_is_null_are_read(tmp_path: Path) -> None:
    path = study(tmp_path).run("a", 0) / "steps.parquet"
    table = pq.read_table(path)
    place, never_null = table.column_names.index("wall_ns"), pa.field("wall_ns", pa.int64(), nullable=False)
    pq.write_table(table.set_column(place, never_null, table.column("wall_ns")), path)
    for read_before in (False, True):
        stored = tables.StoredTable(path, STEP_COLUMNS)
        if read_before:
            stored.read()
        assert stored.columns(["wall_ns", "tokens"]).to_pydict() == {"wall_ns": [5, 6], "tokens": [None, None]}


@pytest.mark.parametrize(("name", "kind", "problem"), [
    ("start_ns", "float64", None),  # the same values, written wider
    ("warmup", "int8", None),
    ("turn", "string", None),
    ("start_ns", "list", "column 'start_ns' is list<element: int64>, not int64"),
])  # fmt: skip
def test_columns_of_another_type_are_read_as_the_contract_has_them_or_fail_their_run(
    tmp_path: Path, name: str, kind: str, problem: str | None
) -> None:
    folder = StudyFolder(tmp_path)
    folder.write_run(RunRecord("a", 0, "done"))
    steps = {key: [1, 2] for key, _ in STEP_COLUMNS if key != "warmup"} | {"warmup": [True, False]}
    folder.write_tables("a", 0, steps, {}, {})
    path = folder.run("a", 0) / "steps.parquet"
    table = pq.read_table(path)
    column = pa.array([[1], [2]]) if kind == "list" else table.column(name).cast(kind)
    pq.write_table(table.set_column(table.column_names.index(name), name, column), path)
    (run,) = folder.runs()
    if problem is None:
        found = run.step_columns(["start_ns", "turn", "warmup"])
        assert found.to_pydict() == {"start_ns": [1, 2], "turn": [1, 2], "warmup": [True, False]}
        assert {one: str(found.schema.field(one).type) for one in found.column_names} == {
            "start_ns": "int64",
            "turn": "int32",
            "warmup": "bool",
        }
    else:
        assert (run.record.status, run.has_steps) == ("failed", False)
        assert problem in (run.record.error or "")


def test_another_schema_is_refused(tmp_path: Path) -> None:
    folder = study(tmp_path)
    write_json(folder.study_json, {"schema": 2})
    with pytest.raises(InputError, match="schema 2; this version reads schema 1"):
        folder.read_study()
    with pytest.raises(InputError, match="is this a study folder"):
        StudyFolder(tmp_path / "nowhere").read_study()


def test_what_a_killed_exec_left_is_told_from_no_study(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    with pytest.raises(InputError, match=r"was killed: then harness exec --recorded \S+/raw makes the study"):
        StudyFolder(tmp_path).read_study()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "steps.parquet"
    write_table(path, STEP_COLUMNS, {"step": [1]})
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"NaN|Out of range"):
        write_json(path, {"value": float("nan")})
    with pytest.raises(Exception, match="int"):
        write_table(path, STEP_COLUMNS, {"step": ["no number"]})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_unreadable_record_fails_its_own_run_only(tmp_path: Path) -> None:
    folder = study(tmp_path)
    (folder.run("a", 0) / "run.json").write_text("")
    (tmp_path / "runs" / "a" / "notes").mkdir()
    (tmp_path / "runs" / "a" / "notes" / "run.json").write_text("{}")
    first, second = folder.runs()
    assert (first.record.arm, first.record.status) == ("a", "failed")
    assert "not readable JSON" in (first.record.error or "")
    assert second.record.status == "done"
    assert folder.read_record("a", 0) is None  # so that a resume runs it again


def test_keys_of_a_later_version_are_left_out_and_missing_ones_named(tmp_path: Path) -> None:
    folder = study(tmp_path)
    content = json.loads(folder.study_json.read_text())
    write_json(folder.study_json, sealed({**content, "added_later": 1}))
    assert folder.read_study().scenario == "s"
    del content["scenario"]
    write_json(folder.study_json, content)
    with pytest.raises(InputError, match=r"study\.json: scenario: Field required"):
        folder.read_study()


@pytest.mark.parametrize(("told", "wrong"), [
    ({"torch_profiler": ["x"]}, "torch_profiler"),
    ({"torch_profiler": {"windows": [[1, 2]]}}, "torch_profiler.windows.0"),
    ({"py_spy": {"rate_hz": 0, "window": [1, 2]}}, "py_spy.rate_hz"),
    ({"taken_samples": {"host": "3"}}, "taken_samples.host"),
    ({"problems": "nvml: no driver"}, "problems"),
    (["x"], "an object"),
])  # fmt: skip
def test_what_probes_told_is_refused_where_it_is_damaged_and_its_run_still_counts(
    tmp_path: Path, told: object, wrong: str
) -> None:
    folder = study(tmp_path)
    write_json(folder.run("a", 0) / "probes.json", told)
    folder.write_probes("b", 0, {"problems": ["said"], "py_spy": {}, "failed": ["py_spy"], "later": 1})
    first, second = folder.runs()
    assert first.record.status == "done"
    assert first.probes == ProbesRecord(problems=first.probes.problems)
    (problem,) = first.probes.problems
    assert wrong in problem
    assert "probes.json" in problem
    assert "\n" not in problem
    assert second.probes == ProbesRecord(problems=("said",), failed=("py_spy",))


def test_what_probes_reported_comes_back_and_what_a_later_version_added_is_left_out(tmp_path: Path) -> None:
    folder = study(tmp_path)
    reported = ProbesRecord(
        problems=("py-spy: late",),
        missed_samples={"host": 1},
        taken_samples={"host": 9},
        torch_profiler=TorchProfilerRecord(
            windows=((5, 9, 2, 3),), realtime_minus_monotonic_ns=(-7, 8), clock_error_ns=3, flops={"aten::mm": 2.0}
        ),
        py_spy=PySpyRecord(rate_hz=100, marks=((1, 2),), window=(5, 9), metronome=(7, 8), roots=("/src",), gil=True),
        failed=("other",),
    )
    content = asdict(reported)
    folder.write_probes("a", 0, {**content, "later": 1, "py_spy": {**content["py_spy"], "later": {}}})
    assert next(folder.runs()).probes == reported


def test_probes_that_are_no_json_are_said(tmp_path: Path) -> None:
    folder = study(tmp_path)
    (folder.run("a", 0) / "probes.json").write_bytes(b'{"problems": [')
    (folder.run("b", 0) / "probes.json").write_bytes(b"\xff\xfe")
    for run in folder.runs():
        assert run.probes == ProbesRecord(problems=run.probes.problems)
        assert len(run.probes.problems) == 1


@pytest.mark.parametrize(("changed", "message"), [
    ({"arms": ["text"]}, "arms.0: Input should be a dictionary"),
    ({"arms": [{"control": "a-a"}]}, "arms.0.name: Field required"),
    ({"comparisons": [{"baseline": "a"}]}, "comparisons.0.candidate: Field required"),
    ({"scenario": None}, "scenario: Input should be a valid string"),
    ({"status": "over"}, "status: Input should be 'running'"),
])  # fmt: skip
def test_a_damaged_study_is_one_line(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    folder = study(tmp_path)
    write_json(folder.study_json, {**json.loads(folder.study_json.read_text()), **changed})
    with pytest.raises(InputError) as caught:
        folder.read_study()
    assert str(caught.value).startswith(f"{folder.study_json}: {message}")
    assert "\n" not in str(caught.value)


def test_a_finished_run_whose_table_is_gone_is_failed_and_a_resume_runs_it_again(tmp_path: Path) -> None:
    folder = study(tmp_path)
    assert folder.is_done("a", 0)
    (folder.run("a", 0) / "steps.parquet").unlink()
    assert not folder.is_done("a", 0)
    first, second = folder.runs()
    assert (first.record.status, first.record.error) == ("failed", "it was done, but its steps.parquet is missing")
    assert not first.has_steps
    assert second.record.status == "done"


def test_runs_come_by_the_number_of_their_block(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    for block in (10, 9, 2):
        folder.write_run(RunRecord("a", block, "failed"))
    assert [run.record.block for run in folder.runs()] == [2, 9, 10]


def test_json_that_is_nested_too_deep_is_one_line(tmp_path: Path) -> None:
    folder = study(tmp_path)
    deep = "[" * 100_000
    (folder.run("a", 0) / "run.json").write_text(deep)
    (folder.run("b", 0) / "probes.json").write_text(deep)
    first, second = folder.runs()
    assert first.record.status == "failed"
    assert "run.json: not readable JSON (nested too deep)" in (first.record.error or "")
    assert "nested too deep" in second.probes.problems[0]
    folder.study_json.write_text(deep)
    with pytest.raises(InputError, match=r"study\.json: not readable JSON \(nested too deep\)"):
        folder.read_study()


def test_arms_keep_their_json_shape_and_older_ones_are_read(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    code = CodeRecord("/code", "/python", "abc", 2)
    side = ArmRecord("b", declared={"steps": 3}, contest="b", code=code, environment={"torch": "2"})
    record = StudyRecord("s", "q?", "done", arms=[ArmRecord("a"), side], comparisons=[ComparisonRecord("a", "b")])
    folder.write_study(record)
    content = json.loads(folder.study_json.read_text())
    assert content["arms"][0] == {"name": "a", "control": None, "of": None, "declared": {}, "config": {}}
    assert list(content["arms"][1]) == ["name", "control", "of", "declared", "config", "contest", "code", "environment"]
    assert content["comparisons"] == [{"baseline": "a", "candidate": "b"}]
    assert folder.read_study() == record
    del content["content_sha256"]  # older ones have none
    content["arms"] = [
        {"name": "a", "of_a_later_version": 1},
        {"name": "b", "code": {"folder": "", "python": "", "label": "abc"}},
    ]
    write_json(folder.study_json, content)
    assert folder.read_study().arms == [ArmRecord("a"), ArmRecord("b", code=CodeRecord("", "", "abc", 1))]


@pytest.mark.parametrize("wrong", [-1, 0, "8", True, 10**12, [8]])
def test_a_configuration_that_no_run_can_have_had_fails_its_run(tmp_path: Path, wrong: object) -> None:
    folder = study(tmp_path)
    path = folder.run("a", 0) / "run.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "config": {"data": {"batch_size": wrong, "of_tomorrow": -1}}}))
    record = next(folder.runs()).record
    assert record.status == "failed"
    assert f"{path}: config: Value error, data.batch_size: expected a number from 1 to" in (record.error or "")


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e400", "9" * 30, "9" * 5000])
def test_numbers_that_no_program_can_count_with_are_no_json(tmp_path: Path, number: str) -> None:
    folder = study(tmp_path)
    path = folder.run("a", 0) / "run.json"
    path.write_text(path.read_text().replace('"pid": 0', f'"pid": {number}'))
    error = next(folder.runs()).record.error or ""
    assert f"{path}: not readable JSON ({number[:40]} is outside of the range of numbers)" in error


def test_every_table_says_in_its_rows_of_which_run_it_is(tmp_path: Path) -> None:
    """So that one query over all files tells the runs apart; whoever reads a run back has its record."""
    folder = study(tmp_path)
    (first, second) = folder.runs()
    folder.write_steps(second.record, second.steps)  # type: ignore[arg-type]  # derived columns change: it is replaced
    files = sorted(tmp_path.glob("runs/*/*/steps.parquet"))
    tables = [pq.read_table(file, partitioning=None) for file in files]
    assert [
        set(zip(*(table.column(name).to_pylist() for name in ("arm", "block")), strict=True)) for table in tables
    ] == [
        {("a", 0)},
        {("b", 0)},
    ]
    assert [str(tables[0].schema.field(name).type) for name in ("arm", "block")] == ["string", "int32"]
    for run in (first, second):
        assert run.steps.column_names == [name for name, _ in STEP_COLUMNS]
    assert second.steps_where(pc.field("wall_ns") > 5).column_names[0] == "step"  # type: ignore[union-attr]


def test_a_table_elsewhere_says_nothing_of_a_run(tmp_path: Path) -> None:
    write_table(tmp_path / "steps.parquet", STEP_COLUMNS, {})
    assert pq.read_schema(tmp_path / "steps.parquet").names[0] == "step"
