"""Atomic writes: a reader sees the old file or the new one, and nothing else stays."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainer.errors import in_words, plain_reason
from trainer.files import (
    final_name,
    partial_path,
    remove_leftovers,
    remove_leftovers_of,
    temporary_path,
    write_atomically,
    write_text,
)


def test_a_write_that_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "facts.json"
    write_text(path, "old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_threads_that_write_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    texts = [str(number) * 10_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: write_text(path, text), texts * 5))
    assert path.read_text() in texts
    assert list(tmp_path.iterdir()) == [path]


DAY_S = 86_400
ENDED = 4_194_305  # above the most that Linux gives


def left_by(pid: int, path: Path) -> Path:
    return path.with_name(temporary_path(path).name.replace(f".{os.getpid()}.", f".{pid}."))


def test_of_an_ended_process_everything_goes_whatever_its_age(tmp_path: Path) -> None:
    left_by(ENDED, tmp_path / "file.json").write_text("half")
    folder = left_by(ENDED, tmp_path / "folder")
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_text("half")
    (tmp_path / "file.json").write_text("whole")
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file.json"]


def test_beside_a_file_of_the_user_s_only_its_own_goes(tmp_path: Path) -> None:
    left_by(ENDED, tmp_path / "model.bin").write_text("half")
    others = [tmp_path / ".model.bin", tmp_path / ".vimrc.tmp", left_by(ENDED, tmp_path / "other.bin")]
    for path in others:
        path.write_text("somebody's")
        os.utime(path, (0, 0))
    remove_leftovers_of(tmp_path / "model.bin")
    assert set(tmp_path.iterdir()) == set(others)
    remove_leftovers_of(tmp_path / "no such folder" / "model.bin")


def test_of_a_living_process_nothing_goes_however_old(tmp_path: Path) -> None:
    mine = temporary_path(tmp_path / "file.json")
    mine.write_text("half")
    first = left_by(1, tmp_path / "other.json")  # lives, and may be another user's
    first.write_text("half")
    for path in (mine, first):
        os.utime(path, (0, 0))
    remove_leftovers(tmp_path)
    assert set(tmp_path.iterdir()) == {mine, first}


@pytest.mark.parametrize("name", [".key.a1b2c3d4.tmp", ".file.json.12.34.tmp", ".file.json.00000000.12.34.tmp"])
def test_of_a_process_elsewhere_what_nobody_wrote_to_for_a_day_goes(tmp_path: Path, name: str) -> None:
    """Names of earlier versions say nothing of where their process runs, or do not say which it is."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "data").write_text("half")
    os.utime(folder, (0, 0))
    remove_leftovers(tmp_path)  # its file is new: somebody writes it
    assert folder.is_dir()
    then = time.time() - DAY_S - 60
    os.utime(folder / "data", (then, then))
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_temporary_file_stays(tmp_path: Path) -> None:
    for name in (".hidden", "data.tmp", ".git"):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (0, 0))
    remove_leftovers(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    remove_leftovers(tmp_path / "no such folder")


@pytest.mark.parametrize("name", ["a.json", "a.b.tmp", ".hidden", "a/.git/b"])
def test_a_temporary_name_says_what_it_is_to_become(name: str) -> None:
    path = Path("/folder") / name
    for written in (path, temporary_path(path), partial_path(path), temporary_path(path) / "inner"):
        assert final_name(str(written)).removesuffix("/inner") == str(path)


@pytest.mark.parametrize(("error", "line"), [
    (ValueError("a\n b"), "ValueError: a b"),
    (MemoryError(), "MemoryError"),
    (TimeoutError("nothing came"), "nothing came"),
    (TimeoutError(), "TimeoutError"),
])  # fmt: skip
def test_an_error_is_one_line_and_no_colon_ends_it(error: Exception, line: str) -> None:
    assert in_words(error) == line


@pytest.mark.parametrize(("error", "line"), [
    (NotADirectoryError(20, "Not a directory"), "Not a directory"),
    (OSError("[Errno 20] Cannot create directory 'f'. Detail: [errno 20] Not a directory"),
     "Cannot create directory 'f': Not a directory"),
    (ValueError("a [Errno] of somebody"), "a [Errno] of somebody"),
])  # fmt: skip
def test_error_numbers_are_left_out(error: Exception, line: str) -> None:
    assert plain_reason(error) == line
