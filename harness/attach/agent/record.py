"""Write the facts and events of this process as frames into its own file.

A SIGKILL loses the open step, and earlier steps in the same frame (``boundaries.FRAME_NS``). ``events.py`` defines
the frames and what they contain. A file that is as old as the setting ``segment_s``, and not very small, is continued
in a new one: a segment of the same series.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from importlib import import_module
from typing import Any, NoReturn

from _harness_agent import forks
from _harness_agent.events import ATTACHED, EVENTS, NOTE, PROCESS, SETTINGS_FILE, SUFFIX, framed

_RESET_IN_CHILD = (
    "switches",
    "stages",
    "loading",
    "run_queue",
    "boundaries",
    "controls",
    "inspection",
    "padding",
    "repeats",
    "on_demand",
)
SEGMENT_BYTES = 128 << 10, 4 << 20  # least and most bytes of a segment: a step takes some hundred bytes

_folder = ""  # empty: nothing is recorded
_registered = False
_file: FrameFile | None = None
_series_ns = _segment = 0  # start of the series' first file, and number of the open file in it
_continuing = threading.Lock()
training_thread: int | None = None  # kernel thread id of the training thread; None: the main thread
_owner = 0  # process that owns the file; a forked process starts its own file
settings: dict[str, int | str | None] = {}


def begin(folder: str) -> bool:
    """Start to record this process into ``folder``; False if there is no such folder or a recording is active."""
    global _folder, _registered
    if _folder or not os.path.isdir(folder):
        return False
    _folder = folder
    settings.clear()
    with suppress(OSError), open(os.path.join(folder, ATTACHED), "wb"):
        pass
    try:
        with open(os.path.join(folder, SETTINGS_FILE), encoding="utf-8") as file:
            settings.update(json.load(file))
    except (OSError, ValueError):
        pass
    if not _registered:
        _registered = True
        os.register_at_fork(after_in_child=_forked)
        atexit.register(end)
        os._exit = _writing(os._exit)  # type: ignore[assignment]
    return True


def _writing(leave: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
    """Return a replacement of ``os._exit`` (``leave``) that first writes ended steps, as no ``atexit`` runs."""

    @wraps(leave)
    def _exit(status: int) -> NoReturn:
        from _harness_agent import boundaries, guard, phases

        if guard.on and _owner == os.getpid() and threading.get_ident() == phases.recorded_thread:
            guard.carefully(boundaries.write_whole_steps)
        leave(status)

    return _exit


def _forked() -> None:
    """Reset all state of the agent in a forked child. The open file stays the parent's: the child writes its own."""
    global _file, _owner, training_thread, _continuing
    _file, _owner, training_thread = None, 0, None
    _continuing = threading.Lock()
    from _harness_agent import guard

    for name in _RESET_IN_CHILD:
        import_module(f"{__package__}.{name}").forget()
    for name in ("profiling", "causes", "own_time"):
        guard.carefully(import_module(f"{__package__}.{name}").forget)
    forks.settled()


def write(word: str, content: Any) -> None:
    """Append one frame (``word``, ``content``) to this process's file, if any, by one system call."""
    if not forks.here[0]:  # a child that was not forked by Python
        _forked()
        if word == EVENTS:
            return  # the parent began this step, in its own file
    file = _file or _open()
    if file is None:
        return
    file.add((word, content))
    if file.until_ns and file.size > SEGMENT_BYTES[time.monotonic_ns() < file.until_ns]:
        _continue(file)


class FrameFile:
    """File of frames, each appended by one system call, so that written ones outlive the process."""

    __slots__ = ("_descriptor", "_identity", "_path", "size", "until_ns")

    def __init__(self, path: str) -> None:
        self._path = path
        self.size = self.until_ns = 0  # bytes written; time at which a new file continues this one (0: never)
        self._begin()

    def _begin(self) -> None:
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        status = os.fstat(self._descriptor)
        self._identity = status.st_dev, status.st_ino

    def add(self, content: Any) -> None:
        if not self._is_open():
            self._begin()
        frame = framed(content)
        self.size += len(frame)
        if os.write(self._descriptor, frame) < len(frame):
            raise OSError(errno.ENOSPC, "half a frame was written")

    def close(self) -> None:
        if self._is_open():
            os.close(self._descriptor)

    def _is_open(self) -> bool:
        """True if the descriptor is still this file: the program may have closed it and reused the number."""
        try:
            status = os.fstat(self._descriptor)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity


def _open() -> FrameFile | None:
    """Return this process's new file, or the one that another thread opened meanwhile; None if nothing is recorded."""
    global _file, _owner, _series_ns, _segment
    if not _folder:
        return None
    now_ns = time.monotonic_ns()
    path, file = _new_file(now_ns, now_ns, 0)
    _owner = os.getpid()
    if _file is None:
        _file, _series_ns, _segment = file, now_ns, 0
    else:  # Another thread was faster.
        file.close()
        os.unlink(path)
    return _file


def _new_file(now_ns: int, series_ns: int, segment: int) -> tuple[str, FrameFile]:
    path = os.path.join(_folder, f"{os.getpid()}-{threading.get_native_id()}-{now_ns}{SUFFIX}")
    file = FrameFile(path)
    file.add((PROCESS, {**_process(), "now_ns": now_ns, "series_ns": series_ns, "segment": segment}))
    seconds = number("segment_s")
    file.until_ns = now_ns + seconds * 1_000_000_000 if seconds else 0
    return path, file


def _continue(file: FrameFile) -> None:
    """Continue ``file`` in a new one, unless another thread does, or no file can be opened."""
    global _file, _segment
    if not _continuing.acquire(blocking=False):
        return
    try:
        if _file is file and _owner == os.getpid():
            _, _file = _new_file(time.monotonic_ns(), _series_ns, _segment + 1)
            _segment += 1
            file.close()
    except OSError:  # The program may have too many files open. This one is continued once it is as large again.
        file.size = 0
    finally:
        _continuing.release()


def begin_anew() -> None:
    """Close the file. The next frame goes into a new file, which begins with the process's facts."""
    global _file
    from _harness_agent import guard, own_time

    guard.carefully(own_time.forget)  # Its places are noted only in the old file.
    file, _file = _file, None
    if file is not None and _owner == os.getpid():
        file.close()


def note(what: str, text: Any) -> None:
    """Write one fact about this process: its kind, such as "device", and its value, plain data."""
    write(NOTE, (what, text))


def end() -> None:
    """Write the remaining events, close the file and end the recording."""
    global _file, _folder, _owner
    from _harness_agent import boundaries, guard, own_time, profiling

    if _file is not None and _owner == os.getpid():
        guard.carefully(profiling.finish)
        guard.carefully(boundaries.flush)
        guard.carefully(own_time.forget)
        _file.close()
    _file, _folder, _owner = None, "", 0


def write_whole(path: str, text: str) -> None:
    """Create the file ``path``, which other processes see only with all of ``text``. Raises OSError."""
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.tmp", path)


def folder() -> str:
    """Return the folder that this process writes to; empty if nothing is recorded."""
    return _folder


def number(name: str) -> int | None:
    """Return the integer setting ``name``; None if it is missing or not an integer."""
    value = settings.get(name)
    return value if isinstance(value, int) else None


def word(name: str) -> str | None:
    """Return the text setting ``name``; None if it is missing, empty or not a text."""
    value = settings.get(name)
    return value if isinstance(value, str) and value else None


def ranks() -> tuple[int | None, int | None]:
    """Return (rank, number of ranks) from torchrun's or Slurm's environment; each None without it."""
    rank = next((os.environ[name] for name in ("RANK", "SLURM_PROCID") if os.environ.get(name, "").isdecimal()), None)
    world = next((os.environ[name] for name in ("WORLD_SIZE", "SLURM_NTASKS") if name in os.environ), None)
    return int(rank) if rank is not None else None, int(world) if world is not None and world.isdecimal() else None


def _process() -> dict[str, Any]:
    """Return the facts of this process for the first frame: ``ProcessFacts`` in ``attach/frames.py``."""
    rank, world = ranks()
    torch = sys.modules.get("torch")
    return {
        "pid": os.getpid(),
        "tid": training_thread or os.getpid(),  # on Linux, the main thread's id is the process id
        "rank": rank,
        "world": world,
        "python": sys.version.split()[0],
        "torch": str(getattr(torch, "__version__", "")),
        "threads": _threads(torch),
        "cores": len(os.sched_getaffinity(0)),
        "warmup": number("warmup") or 0,
        "realtime_minus_monotonic_ns": time.time_ns() - time.monotonic_ns(),
    }


def _threads(torch: Any) -> int | None:
    try:
        return int(torch.get_num_threads())
    except Exception as error:
        from _harness_agent import guard

        guard.let_through(error)
        return None
