"""Holds what the process is and writes what it saw: frames in a file of its own, so that a SIGKILL loses one step.

A frame is its length (4 bytes, little endian) and the marshal (format 2, which every Python reads) of a pair: a word
and its content. Words: "process" (who this is), "events" (of one step, as ``probes.ledger.rows`` has them), "batch" (of
a loader worker: its spans) and "note".
"""

from __future__ import annotations

import atexit
import json
import marshal
import os
import sys
import time
from typing import Any

MARSHAL_FORMAT = 2

_folder = ""  # empty: nothing is recorded
_registered = False
_file = -1
_owner = 0  # the process whose file it is: one that was forked from it begins a file of its own
settings: dict[str, int | str | None] = {}


def begin(folder: str) -> bool:
    """Whether there is a folder to write to; the file is made when there is something to say."""
    global _folder, _registered
    if _folder or not os.path.isdir(folder):
        return False
    _folder = folder
    settings.clear()
    try:
        with open(os.path.join(folder, "settings.json"), encoding="utf-8") as file:
            settings.update(json.load(file))
    except (OSError, ValueError):
        pass
    if not _registered:
        _registered = True
        os.register_at_fork(after_in_child=_forked)
        atexit.register(end)
    return True


def _forked() -> None:
    """In a child: the file stays the parent's, and so does what it has seen."""
    global _file, _owner
    _file, _owner = -1, 0
    from _harness_agent import boundaries, controls, guard, loading, profiling, run_queue, stages

    stages.forget()
    loading.forget()
    run_queue.forget()
    boundaries.forget()
    controls.forget()
    guard.carefully(profiling.forget)


def write(word: str, content: Any) -> None:
    """Write one frame, all at once."""
    if not _owner and not _open():
        return
    frame = marshal.dumps((word, content), MARSHAL_FORMAT)
    os.write(_file, len(frame).to_bytes(4, "little") + frame)


def _open() -> bool:
    """Begin this process's file, with who it is; whether anything is recorded."""
    global _file, _owner
    if not _folder:
        return False
    path = os.path.join(_folder, f"{os.getpid()}-{time.monotonic_ns()}.frames")
    _file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    _owner = os.getpid()
    write("process", _process())
    return True


def note(what: str, text: Any) -> None:
    """Write a fact of this process that somebody will want to read."""
    write("note", (what, text))


def end() -> None:
    """Write what is left, and close the file."""
    global _file, _folder, _owner
    from _harness_agent import boundaries, guard, profiling

    if _owner == os.getpid():
        guard.carefully(profiling.finish)
        guard.carefully(boundaries.flush)
        os.close(_file)
    _file, _folder, _owner = -1, "", 0


def folder() -> str:
    """Where this process writes; empty where nothing is recorded."""
    return _folder


def number(name: str) -> int | None:
    """A setting that is a number; None where it is not set."""
    found = settings.get(name)
    return found if isinstance(found, int) else None


def word(name: str) -> str | None:
    """A setting that is a word; None where it is not set."""
    found = settings.get(name)
    return found if isinstance(found, str) and found else None


def ranks() -> tuple[int | None, int | None]:
    """This process's rank in its distributed program and how many there are, as its launcher says (torchrun, Slurm)."""
    rank = next((os.environ[name] for name in ("RANK", "SLURM_PROCID") if os.environ.get(name, "").isdecimal()), None)
    world = next((os.environ[name] for name in ("WORLD_SIZE", "SLURM_NTASKS") if name in os.environ), None)
    return int(rank) if rank is not None else None, int(world) if world is not None and world.isdecimal() else None


def _process() -> dict[str, Any]:
    """Who this is."""
    rank, world = ranks()
    torch = sys.modules.get("torch")
    return {
        "pid": os.getpid(),
        "tid": os.getpid(),  # on Linux the main thread's; Python's native_id is the parent's after a fork
        "rank": rank,
        "world": world,
        "python": sys.version.split()[0],
        "torch": str(getattr(torch, "__version__", "")),
        "threads": _threads(torch),
        "cores": len(os.sched_getaffinity(0)),
        "warmup": number("warmup") or 0,
        "now_ns": time.monotonic_ns(),
        "realtime_minus_monotonic_ns": time.time_ns() - time.monotonic_ns(),
    }


def _threads(torch: Any) -> int | None:
    try:
        return int(torch.get_num_threads())
    except Exception as error:
        from _harness_agent import guard

        guard.let_through(error)
        return None
