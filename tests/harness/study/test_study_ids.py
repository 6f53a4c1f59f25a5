"""A run belongs to the study that began it: one that was copied out of another study is not used."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.study.files import sealed
from harness.study.records import RunRecord, StudyRecord, is_of_study, new_study_id, session_of
from harness.study.store import StudyFolder
from tests.commands import harness
from tests.harness.synthetic import Arm, build, write

OURS, THEIRS = "0123456789ab", "ba9876543210"


def study(path: Path, study_id: str, seed: int = 0) -> StudyFolder:
    folder = StudyFolder(path)
    record, runs = build([Arm("text"), Arm("tokens")], [("text", "tokens")], blocks=2, seed=seed)
    for run in runs:
        object.__setattr__(run, "record", replace(run.record, session=session_of(study_id, run.record.session)))
    write(folder, replace(record, id=study_id), runs)
    return folder


@pytest.fixture
def ours(tmp_path: Path) -> StudyFolder:
    return study(tmp_path / "ours", OURS)


@pytest.fixture
def theirs(tmp_path: Path) -> StudyFolder:
    return study(tmp_path / "theirs", THEIRS, seed=1)


def test_no_two_studies_have_one_id() -> None:
    assert len({new_study_id() for _ in range(100)}) == 100
    assert len(new_study_id()) == 12


def test_a_session_begins_with_the_id_of_its_study() -> None:
    assert session_of(OURS, "0-abc") == f"{OURS}.0-abc"
    assert session_of("", "0-abc") == "0-abc"
    assert is_of_study(OURS, f"{OURS}.0-abc")
    assert not is_of_study(OURS, f"{THEIRS}.0-abc")
    assert not is_of_study(OURS, f"{OURS}0.0-abc")
    assert not is_of_study(OURS, "0-abc")
    assert is_of_study("", f"{THEIRS}.0-abc")
    assert is_of_study("", "")


def copied(source: StudyFolder, target: StudyFolder, *runs: tuple[str, int]) -> None:
    for run in runs:
        shutil.copytree(source.run(*run), target.run(*run), dirs_exist_ok=True)


def test_runs_of_another_study_are_named_left_out_and_run_again(ours: StudyFolder, theirs: StudyFolder) -> None:
    copied(theirs, ours, ("text", 0), ("tokens", 0))
    found = {f"{run.record.arm}/{run.record.block}": run for run in ours.runs()}
    assert {name: run.record.status for name, run in found.items()} == {
        "text/0": "failed", "text/1": "done", "tokens/0": "failed", "tokens/1": "done",
    }  # fmt: skip
    for name in ("text/0", "tokens/0"):
        assert found[name].record.error == (
            f"{ours.path / 'runs' / name / 'run.json'}: it is a run of another study "
            f"(its session is '{THEIRS}.session-0', this study's id {OURS})"
        )
        assert not found[name].has_steps
    assert [ours.is_done(arm, block) for block in (0, 1) for arm in ("text", "tokens")] == [False, False, True, True]
    done = harness("report", str(ours.path))
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())
    assert "tokens: failed (" in shown
    assert "is a run of another study" in shown


@pytest.mark.parametrize("what", ["runs", "study.json"])
def test_a_study_of_whose_runs_none_is_its_own_has_no_report(ours: StudyFolder, theirs: StudyFolder, what: str) -> None:
    if what == "runs":
        copied(theirs, ours, *((arm, block) for arm in ("text", "tokens") for block in (0, 1)))
    else:
        shutil.copy(theirs.study_json, ours.study_json)
    done = harness("report", str(ours.path))
    assert done.returncode == 2
    assert "is a run of another study" in done.stderr
    assert not ours.summary_md.exists()


def test_a_copy_under_another_name_is_the_same_study(ours: StudyFolder, tmp_path: Path) -> None:
    copy = StudyFolder(Path(shutil.copytree(ours.path, tmp_path / "renamed")))
    copied(copy, ours, ("text", 0))
    assert {run.record.status for folder in (ours, copy) for run in folder.runs()} == {"done"}


def test_a_study_of_before_there_were_ids_is_read_and_written_as_before(tmp_path: Path, theirs: StudyFolder) -> None:
    older = study(tmp_path / "older", "")
    assert "id" not in json.loads(older.study_json.read_text())
    assert older.read_study().id == ""
    assert {run.record.status for run in older.runs()} == {"done"}
    copied(theirs, older, ("text", 0))
    assert {run.record.status for run in older.runs()} == {"done"}


def test_the_id_is_that_of_the_file_as_it_is_now(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    folder.write_run(RunRecord("a", 0, "failed", session=session_of(OURS, "0")))
    assert folder.read_record("a", 0) is not None
    folder.write_study(StudyRecord("s", "?", "done", id=THEIRS))
    assert folder.read_record("a", 0) is None
    folder.write_study(StudyRecord("s", "?", "done", id=OURS))
    assert folder.read_record("a", 0) is not None


def test_an_older_version_reads_a_study_with_an_id(ours: StudyFolder) -> None:
    """It leaves out keys that it does not know, and its seal covers them all."""
    content = json.loads(ours.study_json.read_text())
    assert content["id"] == OURS
    assert sealed({key: one for key, one in content.items() if key != "content_sha256"}) == content
