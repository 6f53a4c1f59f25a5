"""A file of a run that was damaged is seen, whatever it holds; what replaces one is known before it takes its place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.study import store, tables
from harness.study.contract import RUN_COLUMNS, STEP_COLUMNS
from harness.study.files import digest, sealed
from harness.study.records import RunRecord, StudyRecord
from harness.study.store import StudyFolder
from harness.study.tables import write_table
from tests.examples import examples
from trainer.errors import InputError
from trainer.files import temporary_path

STEPS = 40


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    """A study of one finished run that left tables, a report of its probes and a profile."""
    study = StudyFolder(tmp_path)
    study.write_study(StudyRecord("damage", "", "done"))
    times = {name: list(range(STEPS)) for name in ("step", "turn", "start_ns", "wall_ns")}
    steps = {**times, "warmup": [False] * STEPS}
    spans = {"name": ["fetch"] * STEPS, "role": ["main"] * STEPS, "batch": list(range(STEPS))}
    spans |= {"start_ns": list(range(STEPS)), "end_ns": list(range(STEPS))}
    samples = {"t_ns": [1, 2], "source": ["host"] * 2, "metric": ["cpu"] * 2, "value": [0.5, 1.5]}
    study.write_tables("a", 0, steps, spans, samples)
    study.write_probes("a", 0, {})
    (study.run("a", 0) / "stacks.txt").write_text("main;fetch 3\n")
    study.write_whole_run(RunRecord("a", 0, "done"))
    return study


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


@settings(examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["steps", "spans", "samples"]), st.integers(0, 100_000))
def test_any_flipped_bit_of_a_table_fails_its_run_and_a_resume_runs_it_again(
    folder: StudyFolder, table: str, bit: int
) -> None:
    path = folder.run("a", 0) / f"{table}.parquet"
    assert folder.is_done("a", 0)
    flip(path, bit)
    try:
        (run,) = folder.runs()
        assert run.record.status == "failed"
        assert run.record.error.startswith(f"{path}: damaged, or changed since it was written")
        assert not run.has_steps
        assert not folder.is_done("a", 0)
    finally:
        flip(path, bit)


@pytest.mark.parametrize("name", ["spans.parquet", "samples.parquet", "probes.json", "stacks.txt"])
def test_a_file_that_is_gone_is_said_and_a_resume_runs_it_again(folder: StudyFolder, name: str) -> None:
    path = folder.run("a", 0) / name
    path.unlink()
    (run,) = folder.runs()
    told = run.record.error if name.endswith("parquet") else run.probes.problems[0]
    assert told == f"{path}: the run wrote this file, but it is missing"
    assert not folder.is_done("a", 0)


def test_a_damaged_report_of_the_probes_is_not_used(folder: StudyFolder) -> None:
    path = folder.run("a", 0) / "probes.json"
    path.write_text('{"perturbation": 1}')
    (run,) = folder.runs()
    assert run.record.status == "done"  # its tables are what it wrote
    (problem,) = run.probes.problems
    assert problem.startswith(f"{path}: damaged, or changed")


def test_a_flipped_bit_is_seen_while_a_page_is_read_too(folder: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the check and the reading of a large table: parquet's own checksums."""
    monkeypatch.setattr(tables, "SMALL_FILE_BYTES", 0)
    (run,) = folder.runs()
    path = folder.run("a", 0) / "steps.parquet"
    column = pq.ParquetFile(path).metadata.row_group(0).column(len(RUN_COLUMNS))  # the first that is read
    flip(path, 8 * (column.data_page_offset + column.total_compressed_size - 2))
    with pytest.raises(tables.InputError, match=r"steps\.parquet: not a readable parquet file \(.*CRC"):
        _ = run.steps


@pytest.mark.parametrize("renamed", [False, True])
def test_a_kill_while_a_table_is_replaced_loses_nothing(
    folder: StudyFolder, monkeypatch: pytest.MonkeyPatch, renamed: bool
) -> None:
    """Both the old and the new table are as written, until the record names the new one alone."""
    (run,) = folder.runs()
    path = folder.run("a", 0) / "steps.parquet"
    table = run.steps.append_column("mine", pa.array([1] * STEPS))
    stopped = 2 if renamed else 1
    written: list[Path] = []
    write = store.write_json

    def killed(target: Path, content: object) -> None:
        written.append(target)
        if len(written) == stopped and renamed:
            raise KeyboardInterrupt
        write(target, content)
        if len(written) == stopped:
            raise KeyboardInterrupt

    monkeypatch.setattr(store, "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.write_steps(run.record, table)
    assert ("mine" in pq.read_schema(path).names) == renamed
    assert not temporary_path(path).exists()
    (again,) = folder.runs()
    assert again.record.status == "done"
    assert folder.is_done("a", 0)


@settings(examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["study.json", "runs/a/0/run.json"]), st.integers(0, 20_000))
def test_any_flipped_bit_of_a_record_is_seen_or_changes_nothing(folder: StudyFolder, name: str, bit: int) -> None:
    path = folder.path / name
    written = path.read_bytes()
    study, run = folder.read_study(), folder.read_record("a", 0)
    flip(path, bit)
    try:
        with suppress(InputError):
            assert folder.read_study() == study
        (found,) = folder.runs()
        # Of a file that is no table the digest is no longer that of the file: told with the problems of the probes.
        assert found.record == run or found.record.status == "failed" or found.probes.problems
    finally:
        path.write_bytes(written)


def test_a_record_that_says_something_else_names_the_key_to_remove(folder: StudyFolder) -> None:
    content = json.loads(folder.study_json.read_text())
    folder.study_json.write_text(json.dumps({**content, "blocks": 7}))
    with pytest.raises(InputError, match=r"study\.json: damaged, or changed since it was written: .* remove that key"):
        folder.read_study()
    del content["content_sha256"]
    folder.study_json.write_text(json.dumps({**content, "blocks": 7}))
    assert folder.read_study().blocks == 7


def test_a_table_replaced_has_one_digest_and_what_a_later_version_wrote_into_the_record_stays(
    folder: StudyFolder,
) -> None:
    record = folder.run("a", 0) / "run.json"
    record.write_text(json.dumps(sealed({**json.loads(record.read_text()), "later": 1})))
    (run,) = folder.runs()
    folder.write_steps(run.record, run.steps.append_column("mine", pa.array([1] * STEPS)))
    content = json.loads(record.read_text())
    assert content["later"] == 1
    assert len(content["digests"]["steps.parquet"]) == 1
    (again,) = folder.runs()
    assert "mine" in again.steps.column_names


def test_whoever_changes_a_table_on_purpose_removes_its_digest_and_the_seal(folder: StudyFolder) -> None:
    one_step = {"step": [7], "warmup": [False], "start_ns": [1], "wall_ns": [1]}
    write_table(folder.run("a", 0) / "steps.parquet", STEP_COLUMNS, one_step)
    (run,) = folder.runs()
    assert "remove the entry and the key content_sha256" in (run.record.error or "")
    edit_record(folder, lambda content: content["digests"].pop("steps.parquet"))
    (run,) = folder.runs()
    assert run.record.status == "failed"
    edit_record(folder, lambda content: content.pop("content_sha256"))
    (run,) = folder.runs()
    assert run.steps.column("step").to_pylist() == [7]


def edit_record(folder: StudyFolder, change: Callable[[dict[str, Any]], object]) -> Path:
    path = folder.run("a", 0) / "run.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("change", [
    lambda content: content.update(digests={}),
    lambda content: content.pop("digests"),
    lambda content: content["digests"].pop("spans.parquet"),
    lambda content: content["digests"].pop("steps.parquet"),
    lambda content: content["digests"]["spans.parquet"].append("sha256:0"),
], ids=["none", "no key", "one less", "without the steps", "one more"])  # fmt: skip
def test_who_takes_a_digest_away_switches_no_check_off(
    folder: StudyFolder, change: Callable[[dict[str, Any]], object]
) -> None:
    path = edit_record(folder, change)
    (run,) = folder.runs()
    assert (run.record.status, run.has_steps, folder.is_done("a", 0)) == ("failed", False, False)
    assert (run.record.error or "").startswith(
        f"{path}: damaged, or changed since it was written: its key digests does not match the SHA-256 in its key "
    )
    edit_record(folder, lambda content: content.pop("digests_sha256"))
    (run,) = folder.runs()
    assert "does not match the SHA-256 in its key content_sha256" in (run.record.error or "")


def test_a_table_that_the_run_did_not_write_is_not_used(folder: StudyFolder) -> None:
    """As of another run, put into the folder of one that left none."""
    path = folder.run("a", 0) / "spans.parquet"
    kept = path.read_bytes()
    path.unlink()
    folder.write_whole_run(RunRecord("a", 0, "done"))
    assert folder.is_done("a", 0)
    path.write_bytes(kept)
    (run,) = folder.runs()
    assert (run.record.error or "").startswith(f"{path}: the run did not write this file: ")
    assert not folder.is_done("a", 0)


def test_a_run_of_before_its_digests_were_sealed_is_read_as_before(folder: StudyFolder) -> None:
    def older(content: dict[str, Any]) -> None:
        del content["digests_sha256"], content["content_sha256"]
        plain = {key: value for key, value in content.items() if key != "digests"}
        content["content_sha256"] = sealed(plain)["content_sha256"]
        content["digests"] = {"steps.parquet": content["digests"]["steps.parquet"]}

    edit_record(folder, older)
    (run,) = folder.runs()
    assert run.record.status == "done"
    folder.write_steps(run.record, run.steps.append_column("mine", pa.array([1] * STEPS)))
    (again,) = folder.runs()
    assert again.record.status == "done"


def test_the_report_of_an_older_version_replaces_a_table_and_the_run_is_still_what_was_written(
    folder: StudyFolder,
) -> None:
    """It leaves the seal as it finds it, and names the table's new digest."""
    path = folder.run("a", 0) / "steps.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("mine", pa.array([1] * STEPS)), path)
    edit_record(folder, lambda content: content["digests"].update({"steps.parquet": [digest(path)]}))
    (run,) = folder.runs()
    assert (run.record.status, folder.is_done("a", 0)) == ("done", True)


def test_an_older_version_finds_the_seal_that_it_knows(folder: StudyFolder) -> None:
    """It hashes everything but the digests of the files and the seal itself."""
    content = json.loads((folder.run("a", 0) / "run.json").read_text())
    own = {key: value for key, value in content.items() if key not in ("content_sha256", "digests")}
    text = json.dumps(own, sort_keys=True, separators=(",", ":"))
    assert content["content_sha256"] == hashlib.sha256(text.encode()).hexdigest()
