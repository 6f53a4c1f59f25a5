"""Reads what the agent wrote in each process of a command: see ``agent/record.py`` for the format.

A process that was killed leaves half a frame at most, at its end, or zeros: what is whole before it counts.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from harness.probes.ledger.rows import PAUSE, STEP

SUFFIX = ".frames"
ATTACHED = "attached"  # The name must match agent/record.py.
_LENGTH_BYTES = 4
_SCHEDSTAT = re.compile(rb"(\d+ \d+ \d+\s*)?")  # a line of the kernel; none of a thread that has ended
MOST_FRAME_BYTES = 1 << 28  # of some steps: more is no frame of ours

Piece = tuple[str, int, int, int]  # stage, start, end, CPU time


class Made(NamedTuple):
    """One batch as the worker that made it tells: its place among the worker's batches, and its stages."""

    worker: int
    pieces: tuple[Piece, ...]
    items: int = 0  # that it is made of; 0: not known


@dataclass(frozen=True)
class ProcessFacts:
    """Who a process is, as the agent in it says."""

    pid: int
    tid: int  # thread id of the thread that trains, usually the main thread
    rank: int | None  # of a distributed program, as its launcher says (torchrun, Slurm)
    world: int | None
    python: str  # version
    torch: str  # version
    threads: int | None  # that torch computes with
    cores: int  # that the process may use
    warmup: int  # steps at the beginning that are not measured
    now_ns: int  # CLOCK_MONOTONIC, when it began its file
    realtime_minus_monotonic_ns: int


@dataclass(frozen=True)
class AttachedProcess:
    """What one process wrote, without its events, which :func:`events` reads one step at a time."""

    path: Path
    process: ProcessFacts
    notes: tuple[tuple[str, Any], ...] = ()
    made: tuple[Made, ...] = ()  # batches, where it is a loader worker
    steps: int = 0  # that it began

    @property
    def loader(self) -> tuple[int, int]:
        """Loader workers, and batches in flight for each, of the loader that had most; (0, 2) where there was none."""
        workers, prefetch, _ = self._largest_loader
        return int(workers), int(prefetch)

    @property
    def persistent_workers(self) -> bool:
        """Return True if the workers of that loader outlive an epoch."""
        return bool(self._largest_loader[2])

    @property
    def _largest_loader(self) -> tuple[int, int, bool]:
        """The note of the loader with most workers."""
        found: tuple[int, int, bool] = max(self.noted("loader"), default=(0, 2, False))
        return found

    @property
    def loader_warmup(self) -> int:
        """Steps until a loader serves no batch that it made before them."""
        workers, prefetch = self.loader
        return workers * prefetch + 1

    def noted(self, what: str) -> list[Any]:
        """The contents of its notes of one kind."""
        return [content for kind, content in self.notes if kind == what]


def was_attached(folder: Path) -> bool:
    """Return True if a process of the command imported torch with the agent in it."""
    return (folder / ATTACHED).exists()


def frames(path: Path) -> Iterator[tuple[str, Any]]:
    """The whole frames of a file, in their order."""
    with path.open("rb") as file:
        while len(head := file.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
            length = int.from_bytes(head, "little")
            if not 0 < length <= MOST_FRAME_BYTES:  # zeros come after the last frame, or it is no frame of ours
                return
            frame = file.read(length)
            if len(frame) < length:
                return
            try:
                word, content = marshal.loads(frame)
            except (EOFError, ValueError, TypeError):
                return
            yield word, content


def read(folder: Path) -> list[AttachedProcess]:
    """Every process that wrote something, in the order of their first word."""
    found = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        written = frames(path)
        word, content = next(written, ("", None))
        if word != "process" or content is None:  # killed before its first frame was whole
            continue
        notes: list[tuple[str, Any]] = []
        made: list[Made] = []
        steps = 0
        facts = ProcessFacts(**content)
        for word, content in written:
            if word == "note":
                notes.append(tuple(content))
            elif word == "batch":
                worker, _number, pieces, items = content
                made.append(Made(worker, tuple(tuple(piece) for piece in pieces), items))
            elif word == "events":
                steps += sum(event[0] == STEP for event in content)
        found.append(AttachedProcess(path, facts, tuple(notes), tuple(made), steps))
    return sorted(found, key=lambda one: one.process.now_ns)


def events(path: Path) -> Iterator[list[tuple[Any, ...]]]:
    """The events of each step, ready for ``harness.probes.ledger.rows``."""
    for word, content in frames(path):
        if word == "events":
            portion: list[tuple[Any, ...]] = []
            for event in content:
                if event[0] not in (STEP, PAUSE):
                    portion.append(tuple(event))
                else:
                    yield [*portion, _with_lines(event)]
                    portion = []
            if portion:
                yield portion


def _with_lines(event: Sequence[Any]) -> tuple[Any, ...]:
    """An event with a run-queue reading: a line of the kernel for each thread, also where one had not changed.

    Instead of the main thread's line there may be (its CPU time, an earlier line): it has not waited since. A program
    that closes all descriptors may have opened files of its own under the numbers of these: then nothing was read.
    """
    kind, now, reading, *rest = event
    if reading and not isinstance(reading[0], bytes):
        cpu_ns, line = reading[0]
        reading = (b"%d %s" % (cpu_ns, line.partition(b" ")[2]), *reading[1:])
    if not all(_SCHEDSTAT.fullmatch(line) for line in reading):
        reading = ()
    return (kind, now, reading, *rest)
