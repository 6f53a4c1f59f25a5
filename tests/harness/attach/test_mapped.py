"""The file that the agent puts its frames into: whole frames only, whatever ends the process, and no other file."""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.attach import frames
from harness.attach.command import SHIM

FRAMES = [("note", ("number", "x" * (number % 700))) for number in range(3000)]


@pytest.fixture
def mapped() -> ModuleType:
    spec = importlib.util.spec_from_file_location("agent_mapped", SHIM.parent / "agent" / "mapped.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def record() -> Any:
    from harness.attach import hooks

    hooks._agent()
    from _harness_agent import record as found

    before = found._folder, found._file, found._owner
    found._folder, found._file, found._owner = "", None, 0
    yield found
    found._folder, found._file, found._owner = before


def put(file: Any, content: Any) -> None:
    import marshal

    frame = marshal.dumps(content, 2)
    file.add(len(frame).to_bytes(4, "little") + frame)


def test_frames_go_on_from_window_to_window_and_what_was_reserved_is_given_back(
    mapped: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "1.frames"
    file = mapped.MappedFile(str(path))
    for content in FRAMES:
        put(file, content)
    large = ("note", ("large", "y" * (2 * mapped.WINDOW_BYTES)))
    put(file, large)
    assert list(frames.frames(path)) == [*FRAMES, large]  # before it is closed: so a process that is killed leaves it
    whole = path.stat().st_size
    file.close()
    assert path.stat().st_size < whole
    assert list(frames.frames(path)) == [*FRAMES, large]


@pytest.mark.parametrize("after", [0, 1, 2])
def test_where_no_room_can_be_reserved_frames_are_written(
    mapped: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """After so many windows the disk is full, but for what single writes take."""
    path = tmp_path / "1.frames"
    reserve, windows = os.posix_fallocate, itertools.count()

    def full(*given: Any) -> None:
        if next(windows) >= after:
            raise OSError(28, "No space left on device")
        reserve(*given)

    monkeypatch.setattr(mapped.os, "posix_fallocate", full)
    file = mapped.MappedFile(str(path))
    for content in FRAMES:
        put(file, content)
    assert list(frames.frames(path)) == FRAMES
    file.close()
    assert list(frames.frames(path)) == FRAMES


def test_on_a_filesystem_that_may_break_its_promise_frames_are_written(
    mapped: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "_filesystem", lambda _device: "btrfs")
    monkeypatch.setattr(mapped.mmap, "mmap", None)
    file = mapped.MappedFile(str(tmp_path / "1.frames"))
    for content in FRAMES[:20]:
        put(file, content)
    assert list(frames.frames(tmp_path / "1.frames")) == FRAMES[:20]


def test_half_a_written_frame_is_an_error(mapped: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "_filesystem", lambda _device: "btrfs")
    monkeypatch.setattr(mapped.os, "pwrite", lambda _file, data, _at: len(data) - 1)
    with pytest.raises(OSError, match="half a frame"):
        put(mapped.MappedFile(str(tmp_path / "1.frames")), FRAMES[0])


def test_a_file_that_took_the_number_of_ours_is_left_as_it_is(mapped: ModuleType, tmp_path: Path) -> None:
    """A program that becomes a daemon closes every file."""
    file = mapped.MappedFile(str(tmp_path / "1.frames"))
    put(file, FRAMES[9])
    other = tmp_path / "data"
    other.write_bytes(b"the program's")
    descriptor = os.open(other, os.O_RDWR)
    os.dup2(descriptor, file._descriptor)
    file.close()
    assert other.read_bytes() == b"the program's"
    os.write(file._descriptor, b"T")  # nor was it closed
    os.close(file._descriptor)
    os.close(descriptor)
    assert list(frames.frames(tmp_path / "1.frames")) == FRAMES[9:10]


def test_the_filesystem_is_known(mapped: ModuleType, tmp_path: Path) -> None:
    assert mapped._filesystem(Path("/proc").stat().st_dev) == "proc"
    assert mapped._filesystem(tmp_path.stat().st_dev)
    assert mapped._filesystem(os.makedev(4095, 77)) == ""


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_every_frame_and_its_child_a_file_of_its_own(
    record: Any, tmp_path: Path
) -> None:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        record.begin(str(tmp_path))
        for number in range(100):
            record.write("note", ("parent", number))
        if os.fork() == 0:
            record.write("note", ("child", 0))
            os.kill(os.getpid(), signal.SIGKILL)
        os.wait()
        record.write("note", ("parent", 100))
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    parent, child = frames.read(tmp_path)
    assert (parent.process.pid, parent.noted("parent")) == (pid, list(range(101)))
    assert (child.noted("child"), child.noted("parent")) == ([0], [])


def test_a_frame_of_another_thread_never_comes_before_who_the_process_is(
    record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came first once in some thousand runs, and all that the process had recorded was lost."""
    record._folder = str(tmp_path)
    process = record._process

    def slowly() -> dict[str, Any]:
        monkeypatch.setattr(record, "_process", process)
        other = threading.Thread(target=record.note, args=("other_thread", "Thread-2"))
        other.start()
        other.join()
        return dict(process())

    monkeypatch.setattr(record, "_process", slowly)
    record.note("forward", "Net")
    (found,) = frames.read(tmp_path)
    assert sorted(found.notes) == [("forward", "Net"), ("other_thread", "Thread-2")]
    assert len(list(tmp_path.iterdir())) == 1
    record._file.close()
