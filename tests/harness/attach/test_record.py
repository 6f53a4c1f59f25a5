"""The file that the agent puts its frames into: whole frames only, whatever ends the process, and no other file."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from harness.attach import frames

FRAMES = [("note", ("number", "x" * (number % 700))) for number in range(3000)]


@pytest.fixture
def record() -> Any:
    from harness.attach import hooks

    hooks._agent()
    from _harness_agent import record as found

    before = found._folder, found._file, found._owner
    found._folder, found._file, found._owner = "", None, 0
    yield found
    found._folder, found._file, found._owner = before


def test_frames_are_there_before_the_file_is_closed(record: Any, tmp_path: Path) -> None:
    path = tmp_path / "1.frames"
    file = record.FrameFile(str(path))
    large = ("note", ("large", "y" * (1 << 20)))
    for content in (*FRAMES, large):
        file.add(content)
    assert list(frames.frames(path)) == [*FRAMES, large]
    file.close()
    assert list(frames.frames(path)) == [*FRAMES, large]


def test_half_a_written_frame_is_an_error(record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = record.FrameFile(str(tmp_path / "1.frames"))
    monkeypatch.setattr(record.os, "write", lambda _file, data: len(data) - 1)
    with pytest.raises(OSError, match="half a frame"):
        file.add(FRAMES[0])


def test_a_file_that_took_the_number_of_ours_is_left_as_it_is(record: Any, tmp_path: Path) -> None:
    """A program that becomes a daemon closes every file."""
    file = record.FrameFile(str(tmp_path / "1.frames"))
    file.add(FRAMES[9])
    other = tmp_path / "data"
    other.write_bytes(b"the program's")
    descriptor, number = os.open(other, os.O_RDWR), file._descriptor
    os.dup2(descriptor, number)
    file.add(FRAMES[10])
    file.close()
    assert other.read_bytes() == b"the program's"
    os.write(number, b"T")  # nor was it closed
    os.close(number)
    os.close(descriptor)
    assert list(frames.frames(tmp_path / "1.frames")) == FRAMES[9:11]


def test_a_file_is_continued_as_it_is_if_no_other_can_be_opened(
    record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may have as many files open as it is allowed to."""

    def fails(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    file = record.FrameFile(str(path := tmp_path / "1.frames"))
    for name, value in {"_file": file, "_owner": os.getpid(), "_segment": 0, "_new_file": fails}.items():
        monkeypatch.setattr(record, name, value)
    file.until_ns = 1
    large = "x" * record.SEGMENT_BYTES[0]
    record.write("note", large)
    record.write("note", large)
    assert list(frames.frames(path)) == [("note", large)] * 2
    assert (record._file, record._segment) == (file, 0)
    file.close()


def test_short_steps_share_a_frame(record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from _harness_agent import boundaries, phases

    written: list[list[Any]] = []
    monkeypatch.setattr(record, "write", lambda _word, events: written.append(events))
    monkeypatch.setattr(boundaries, "steps", boundaries._Steps())
    monkeypatch.setattr(boundaries, "measuring", boundaries._Measuring(warming=False))
    monkeypatch.setattr(phases, "state", phases._Phases())
    monkeypatch.setattr(boundaries, "on_step_end", [])
    now, short, long = 10**10, 10**6, boundaries.FRAME_NS + 1
    for lasted in (*[short] * 3, long, long, *[short] * (boundaries.FRAME_EVENTS + 3)):
        now += lasted
        boundaries._begin(now, ())
    assert [len(events) for events in written] == [1, 3, 1, boundaries.FRAME_EVENTS + 1]
    assert [event[3] for events in written for event in events] == list(range(6 + boundaries.FRAME_EVENTS))


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
