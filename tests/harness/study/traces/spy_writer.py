"""Writes what ``py-spy record --format chrometrace`` writes, after its src/chrometrace.rs: the oracle of the reader."""

from __future__ import annotations

import json
from typing import NamedTuple


class Thread(NamedTuple):
    """A thread as py-spy sees it: ``ident`` is its pthread id, which forked processes share."""

    pid: int
    ident: int
    name: str = "MainThread"
    number: int | None = None  # as the system has it; of a main thread the process's

    @property
    def frames(self) -> list[Frame]:
        """What --subprocesses and --threads put at the root of its stacks."""
        thread = f"thread ({self.number or self.pid})" + f": {self.name}" * bool(self.name)
        return [Frame(f'process {self.pid}:"python program.py"', "", 0), Frame(thread, "", 0)]


class Frame(NamedTuple):
    name: str
    filename: str = "/src/program.py"
    line: int = 1


class Writer:
    """``increment`` with the stack (outermost first) of each thread at each sample, then ``text``."""

    def __init__(self) -> None:
        self.events: list[dict] = []
        self._last: dict[int, tuple[Thread, list[Frame]]] = {}

    def increment(self, now_us: int, thread: Thread, frames: list[Frame]) -> None:
        stack = [*thread.frames, *frames]
        before = self._last.get(thread.ident, (thread, []))[1]  # perhaps another process's
        same = 0
        while same < min(len(before), len(stack)) and before[same] == stack[same]:
            same += 1
        for frame in reversed(before[same:]):
            self._event("E", now_us, thread, frame)
        for frame in stack[same:]:
            self._event("B", now_us, thread, frame)
        self._last[thread.ident] = thread, stack

    def text(self, now_us: int) -> bytes:
        for thread, stack in self._last.values():
            for frame in reversed(stack):
                self._event("E", now_us, thread, frame)
        self._last = {}
        return json.dumps(self.events).encode()

    def _event(self, phase: str, now_us: int, thread: Thread, frame: Frame) -> None:
        self.events.append(
            {
                "args": {"filename": frame.filename, "line": frame.line},
                "cat": "py-spy",
                "name": frame.name,
                "ph": phase,
                "pid": thread.pid,
                "tid": thread.ident,
                "ts": now_us,
            }
        )
