"""Decodes py-spy's format chrometrace: every change of a thread's stack.

The file is a list of begin (B) and end (E) events. They are written where a sample differs from the thread's last one:

    ts   pid tid ph name         sample at 20: pid 7, stack (main, work)
    20     7   0  B main                 at 31: pid 7, stack (main, rest)
    20     7   0  B work
    31     7   0  E work         ``tid`` is the pthread id, which a process shares with its forks. So the "last
    31     7   0  B rest         sample" may be another process's: the stack is one per tid, whatever the pid.

Events of one sample share ts, pid and tid, and follow one another. --subprocesses adds a root frame for each process
("process 7:..."), --threads one for the thread ("thread (7): MainThread", with its system id). Both are left out of the
stacks here.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

from harness.study.traces.chrome_json import open_trace
from trainer.errors import InputError

_PROCESS = re.compile(r"process \d+:")
_LIBRARY = re.compile(r".*/(?:site-packages|dist-packages|lib/python\d\.\d+)/")
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_THREAD = re.compile(r"thread \((0x[0-9A-Fa-f]+|\d+)\)(?:: (.*))?")
# (pid, pthread id) -> (its system id, or the pthread id; its name in Python)
Threads = dict[tuple[int, int], tuple[int, str]]
# The file is read as a whole and takes four times its size in memory. A trainer and two workers at 100 Hz write 5 MB/s.
MAX_TRACE_BYTES_READ = 512_000_000


class FrameArgs(TypedDict):
    """Where a frame's code is."""

    filename: str
    line: int | None


class StackEvent(TypedDict):
    """An event of the file. Only that it is an object is checked: :func:`decode` raises KeyError for what it lacks."""

    ph: str
    ts: int
    pid: int
    tid: int
    name: str
    args: FrameArgs


class MemoryChange(NamedTuple):
    """A thread's new stack in a sample, outermost frame first; None where the trace ends."""

    time_us: int  # since py-spy started
    pid: int
    tid: int
    stack: tuple[str, ...] | None


def read_events(source: Path | bytes) -> list[StackEvent]:
    """Read the events of a trace (gzipped or not). Raises InputError where it is truncated, too large or malformed."""
    try:
        with open_trace(source) as file:
            content = file.read()
        if len(content) > MAX_TRACE_BYTES_READ:
            raise InputError(f"{len(content) / 1e9:.1f} GB are too many to read: fewer seconds, or a lower rate_hz")
        events = json.loads(content)
    except FileNotFoundError as error:
        raise InputError("no such file") from error
    except InputError:
        raise
    except (OSError, EOFError, zlib.error, ValueError) as error:  # truncated, or never a trace
        raise InputError(f"not readable, perhaps cut short ({error})") from error
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise InputError("expected a list of events, as py-spy's chrometrace is")
    return events


def decode(events: Sequence[StackEvent], roots: Sequence[str]) -> tuple[list[MemoryChange], Threads]:
    """Return every change of a stack in order, and the ids and names of the threads."""
    threads: Threads = {}
    open_frames: dict[int, list[tuple[str, str | None]]] = {}
    changes: list[MemoryChange] = []
    texts: dict[tuple[str, str, int | None], str | None] = {}
    key: tuple[int, int, int] | None = None

    def finish() -> None:
        if key is not None:
            time_us, pid, tid = key
            frames = open_frames[tid]
            stack = tuple(text for _, text in frames if text is not None) if frames else None
            changes.append(MemoryChange(time_us, pid, tid, stack))

    for event in events:
        if event["ph"] == "M":
            continue  # thread names that newer versions of py-spy write; --threads gives them here
        if key != (now := (event["ts"], event["pid"], event["tid"])):
            finish()
            key = now
        frames = open_frames.setdefault(event["tid"], [])
        if event["ph"] == "B":
            frame = event["name"], event["args"]["filename"], event["args"]["line"]
            if frame not in texts:
                texts[frame] = _text(*frame, roots)
            frames.append((event["name"], texts[frame]))
            if not frame[1] and (thread := _THREAD.fullmatch(event["name"])) is not None:
                threads[event["pid"], event["tid"]] = int(thread[1], 0), thread[2] or ""
        elif event["ph"] != "E" or not frames or frames.pop()[0] != event["name"]:
            raise InputError(f"event {event['ph']} of {event['name']!r} at {event['ts']} us does not fit its stack")
    finish()
    if any(open_frames.values()):
        raise InputError("ends with frames still open")
    return changes, threads


def _text(name: str, filename: str, line: int | None, roots: Sequence[str]) -> str | None:
    """Format a frame as ``function (file:line)``; None for a frame that names a process or thread."""
    if not filename:
        return None if _PROCESS.match(name) or _THREAD.fullmatch(name) else name
    short = shorten(filename, roots)
    if _ADDRESS.fullmatch(name):
        name = "unnamed"  # a native library without symbols: one function for all of its addresses
    return f"{name} ({short}:{line})" if line else f"{name} ({short})"


def shorten(filename: str, roots: Sequence[str] = ()) -> str:
    """Shorten a path to its part below an import root: one of ``roots`` (longest first) or a library's folder.

    A shared library outside of them is shortened to its name; other paths stay as they are.
    """
    for root in roots:
        if filename.startswith(root.rstrip("/") + "/"):
            return filename[len(root.rstrip("/")) + 1 :]
    short = _LIBRARY.sub("", filename)
    return Path(short).name if short.startswith("/") and ".so" in short else short
