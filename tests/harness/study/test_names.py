"""Names within a study stay inside it: what an arm or a scenario is called never leads to another folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from harness.launch.channel import WaitLimits
from harness.launch.fork_server import ForkServer
from harness.launch.probing import probes_of
from harness.launch.process import RunProcess
from harness.regress import baselines
from harness.study.files import folder_name
from harness.study.records import RunRecord
from harness.study.store import StudyFolder
from tests.commands import harness
from tests.harness.regress.test_across import series
from tests.harness.synthetic import Arm, build, write
from trainer.errors import InputError

LEADING_AWAY = ["../../../evil", "/{tmp}/evil", "a\nb"]
HOSTILE = [*LEADING_AWAY, "..", ".", "", "a/b", "a\\b", "a\0b", "\x1b[2J", "\u202eevil", "x" * 256]


def hostile(name: str, folder: Path) -> str:
    return name.replace("/{tmp}", str(folder))


@pytest.fixture
def study(tmp_path: Path) -> StudyFolder:
    """A study of two arms, three folders below ``tmp_path``, where `evil` holds what somebody else needs."""
    folder = StudyFolder(tmp_path / "results" / "s" / "t")
    record, runs = build([Arm("a"), Arm("b")], [("a", "b")], blocks=3)
    write(folder, record, runs)
    other = tmp_path / "results" / "evil" / "0"
    for path in (other, tmp_path / "evil" / "0"):
        (path / ".py-spy-x").mkdir(parents=True)
        (path / "run.json").write_text("precious")
        (path / ".py-spy-x" / "file").write_text("precious")
    return folder


def outside(folder: StudyFolder) -> dict[str, bytes]:
    """Every file that is not the study's."""
    root = folder.path.parents[2]
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_relative_to(folder.path))
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def rename(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_only_the_name_of_one_folder_is_one() -> None:
    for name in ("a", "text-padded@batch_size=4,workers=0+a-a", "<script>", "straße", "x" * 255):
        assert folder_name(name) == name
    for name in HOSTILE:
        with pytest.raises(ValueError, match="folder's name"):
            folder_name(name)


@pytest.mark.parametrize("name", LEADING_AWAY)
def test_a_run_is_never_started_in_another_folder(study: StudyFolder, tmp_path: Path, name: str) -> None:
    class NoServer:
        import_ns = 0

        def fork(self, *_: object) -> int:
            return 0

    before = outside(study)
    record = RunRecord(hostile(name, tmp_path), 0, "done")
    process = RunProcess(record, study, probes_of({"host": False}, None), WaitLimits(start_s=1, silence_s=1))
    with pytest.raises(InputError, match="folder's name"):
        process.start(cast("ForkServer", NoServer()))
    assert outside(study) == before


@pytest.mark.parametrize("name", LEADING_AWAY)
def test_a_resumed_study_with_such_an_arm_is_refused_in_one_line(study: StudyFolder, tmp_path: Path, name: str) -> None:
    def change(content: Any) -> None:
        content["arms"][0]["name"] = hostile(name, tmp_path)
        content["order"] = [[hostile(name, tmp_path)]]

    rename(study.study_json, change)
    before = outside(study)
    done = harness("run", "--resume", str(study.path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"harness: {study.study_json}: order.0.0: ")
    assert "folder's name" in done.stderr
    assert done.stderr.rstrip("\n").isprintable()
    assert outside(study) == before


@pytest.mark.parametrize("name", ["../../../evil", "../b", "b"])
def test_a_record_in_the_folder_of_another_run_fails_that_run(study: StudyFolder, name: str) -> None:
    """Of `b` in the folder of `a`: the derived columns of `a` would replace the steps of `b`."""
    for path in study.path.glob("runs/a/*/run.json"):
        rename(path, lambda content: content.update(arm=name))
    tables = {path: path.read_bytes() for path in study.path.glob("runs/b/*/*.parquet")}
    before = outside(study)
    runs = list(study.runs())
    assert {run.record.arm: run.record.status for run in runs} == {"a": "failed", "b": "done"}
    assert {study.run("b", block) for block in range(3)} == {run.folder for run in runs if run.record.status == "done"}
    assert study.read_record("a", 0) is None
    assert outside(study) == before
    assert {path: path.read_bytes() for path in tables} == tables


def test_folders_of_names_that_no_arm_may_have_are_no_runs(study: StudyFolder) -> None:
    for name in ("a\x1b[2J/0", "a/007", "a/٣"):
        shutil.copytree(study.run("a", 0), study.path / "runs" / name)
    assert len(list(study.runs())) == 6


@pytest.mark.parametrize("command", ["report {}", "baseline save {} --baselines {}/kept", "compare {} {}"])
@pytest.mark.parametrize("name", ["../../../evil/0/run", "a\x1b[2J"])
def test_a_scenario_of_such_a_name_is_refused_in_one_line(
    study: StudyFolder, tmp_path: Path, command: str, name: str
) -> None:
    rename(study.study_json, lambda content: content.update(scenario=hostile(name, tmp_path)))
    before = outside(study)
    done = harness(*(word.replace("{}", str(study.path)) for word in command.split()))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"harness: {study.study_json}: scenario: ")
    assert done.stderr.rstrip("\n").isprintable()
    assert outside(study) == before


@pytest.mark.parametrize("name", ["../../../evil/0/run", "x/../../../../evil/0/run"])
def test_no_picture_of_a_sweep_is_drawn_elsewhere(study: StudyFolder, name: str) -> None:
    (study.plots / "whatif-x").mkdir(parents=True)  # or the way out of it would not exist
    for path in study.path.glob("runs/a/*/run.json"):
        rename(path, lambda content: content.update(arm=name))
    before = outside(study)
    done = harness("whatif", str(study.path), "--arm", name, "--sweep", "batch_size=1,2", "--out", str(study.plots))
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith(f"harness: --arm {name}: no such arm")
    assert outside(study) == before


@pytest.mark.parametrize("key", ["scenario", "arm"])
def test_a_baseline_keeps_to_its_folder(tmp_path: Path, key: str) -> None:
    path = baselines.save(tmp_path / "kept", series())
    rename(path, lambda content: content.update({key: "../../evil"}))
    with pytest.raises(InputError, match=rf"{key}: .*folder's name"):
        baselines.read(path)
    with pytest.raises(InputError, match="folder's name"):
        baselines.save(tmp_path / "kept", series(**{key: "../../evil"}))
    assert [one.name for one in tmp_path.rglob("*.json")] == [path.name]
