"""A study in whose folder something is a link is refused: what is written and deleted there would be another's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.study.store import StudyFolder
from tests.commands import harness
from tests.harness.synthetic import Arm, build, write
from trainer.errors import InputError

Tree = dict[Path, bytes]


@pytest.fixture
def study(tmp_path: Path) -> StudyFolder:
    folder = StudyFolder(tmp_path / "study")
    write(folder, *build([Arm("text", failed_blocks=(1,)), Arm("tokens")], [("text", "tokens")], blocks=2))
    return folder


def moved(path: Path, elsewhere: Path) -> None:
    """Replace ``path`` by a link to ``elsewhere``, where its content lies then."""
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)


def contents(folder: Path) -> Tree:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


LINKED = ("runs", "runs/text", "runs/tokens/1", "runs/tokens/0/run.json", "runs/tokens/0/steps.parquet")


@pytest.mark.parametrize(("command", "name"), [
    *(("report", name) for name in LINKED),
    ("run --resume", LINKED[0]),
    ("trace --no-browser --run tokens/0", LINKED[-1]),
])  # fmt: skip
def test_no_command_follows_a_link_within_a_study(
    study: StudyFolder, tmp_path: Path, name: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.commands.trace._serve", lambda *_args, **_named: None)
    monkeypatch.setattr("harness.commands.trace._interface", lambda: tmp_path)
    elsewhere = tmp_path / "elsewhere"
    moved(study.path / name, elsewhere)
    before = contents(tmp_path)
    done = harness(*command.split(), str(study.path))
    assert done.returncode == 2
    assert done.stderr == (
        f"harness: {study.path / name} is a link: a study's files must lie in its own folder; "
        "copy the study with cp -rL, or remove the link\n"
    )
    assert contents(tmp_path) == before


def test_a_log_that_is_a_link_is_not_written(study: StudyFolder, tmp_path: Path) -> None:
    (tmp_path / "private.txt").write_text("mine")
    (study.run("text", 1) / "log.txt").symlink_to(tmp_path / "private.txt")
    with pytest.raises(InputError, match=r"runs/text/1/log\.txt is a link: "):
        study.read_study()


@pytest.mark.parametrize(("name", "there"), [("plots", False), ("raw", True), (".lock", False)])
def test_at_the_top_what_is_written_through_is_refused(
    study: StudyFolder, tmp_path: Path, name: str, there: bool
) -> None:
    if there:
        (tmp_path / "elsewhere").mkdir()
    (study.path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=f"/study/{name} is a link: "):
        study.read_study()


def test_what_is_replaced_by_a_rename_leaves_the_file_elsewhere_as_it_was(study: StudyFolder, tmp_path: Path) -> None:
    for name in ("summary.md", "summary.html", "timeline.json.gz"):
        (tmp_path / name).write_text("mine")
        (study.path / name).symlink_to(tmp_path / name)
    assert harness("report", str(study.path)).returncode == 0
    assert [(tmp_path / name).read_text() for name in ("summary.md", "summary.html", "timeline.json.gz")] == [
        "mine"
    ] * 3
    assert not study.summary_md.is_symlink()


@pytest.mark.parametrize("link", [lambda path: path, lambda path: path.parent], ids=["study", "parent"])
def test_the_study_itself_may_be_reached_through_a_link(tmp_path: Path, link: Callable[[Path], Path]) -> None:
    path = tmp_path / "there" / "studies" / "study"
    write(StudyFolder(path), *build([Arm("text"), Arm("tokens")], [("text", "tokens")], blocks=2))
    linked = link(path)
    (tmp_path / "link").symlink_to(linked)
    assert harness("report", str(tmp_path / "link" / path.relative_to(linked))).returncode == 0
