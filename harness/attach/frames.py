"""Read the files that the agent wrote in each process of a command (format: ``agent/events.py``).

The file of a killed process may end with a partial frame or zeros. All complete frames before that count.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from harness.attach.agent.events import ATTACHED, BATCH, EVENTS, LENGTH_BYTES, NOTE, PAUSE, PROCESS, STEP, SUFFIX

_SCHEDSTAT = re.compile(rb"(\d+ \d+ \d+\s*)?")  # line of the kernel; empty for a thread that has ended
MOST_FRAME_BYTES = 1 << 28  # bytes of a few steps: a larger frame is invalid

Piece = tuple[str, int, int, int]  # stage, start, end, CPU time


class Made(NamedTuple):
    """One batch as recorded by the loader worker that made it: worker number, pieces of stages, and number of items."""

    worker: int
    pieces: tuple[Piece, ...]
    items: int = 0  # items in the batch; 0: unknown


@dataclass(frozen=True)
class ProcessFacts:
    """Facts about a process, as its agent recorded them in the first frame of its file."""

    pid: int
    tid: int  # thread id of the thread that trains, usually the main thread
    rank: int | None  # rank in a distributed program, as set by its launcher (torchrun, Slurm)
    world: int | None
    python: str  # version
    torch: str  # version
    threads: int | None  # compute threads of torch
    cores: int  # cores that the process may use
    warmup: int  # unmeasured steps at the start
    now_ns: int  # CLOCK_MONOTONIC at the start of its file
    realtime_minus_monotonic_ns: int


@dataclass(frozen=True)
class AttachedProcess:
    """Facts, notes and batches of one recorded process; its step events are read by :func:`events`."""

    path: Path
    process: ProcessFacts
    notes: tuple[tuple[str, Any], ...] = ()
    made: tuple[Made, ...] = ()  # batches, if it is a loader worker
    steps: int = 0  # steps that it began

    @property
    def loader(self) -> tuple[int, int]:
        """Workers and batches in flight per worker, of the loader with most workers; (0, 2) without one."""
        workers, prefetch, _ = self._largest_loader
        return int(workers), int(prefetch)

    @property
    def persistent_workers(self) -> bool:
        """True if the workers of the DataLoader with the most workers outlive an epoch."""
        return bool(self._largest_loader[2])

    @property
    def _largest_loader(self) -> tuple[int, int, bool]:
        """Workers, batches in flight, True if workers persist, by most workers; else (0, 2, False)."""
        largest: tuple[int, int, bool] = max(self.noted("loader"), default=(0, 2, False))
        return largest

    @property
    def loader_warmup(self) -> int:
        """Number of steps after which the loader serves no batch any more that it made before these steps."""
        workers, prefetch = self.loader
        return workers * prefetch + 1

    def noted(self, what: str) -> list[Any]:
        """Return the contents of the process's notes of the kind ``what``, oldest first; empty without such notes."""
        return [content for kind, content in self.notes if kind == what]


def was_attached(folder: Path) -> bool:
    """True if a process of the command imported torch while the agent, which records in ``folder``, was loaded."""
    return (folder / ATTACHED).exists()


def frames(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the complete frames of a file, (word, content), in order. Reading stops at the first damaged frame."""
    with path.open("rb") as file:
        while len(head := file.read(LENGTH_BYTES)) == LENGTH_BYTES:
            length = int.from_bytes(head, "little")
            if not 0 < length <= MOST_FRAME_BYTES:  # zeros after the last frame, or an invalid frame
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
    """Return all processes with records in ``folder``, by first frame; without those killed within it."""
    processes = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        written = frames(path)
        word, content = next(written, ("", None))
        if word != PROCESS or content is None:  # killed before its first frame was complete
            continue
        notes: list[tuple[str, Any]] = []
        made: list[Made] = []
        steps = 0
        facts = ProcessFacts(**content)
        for word, content in written:
            if word == NOTE:
                notes.append(tuple(content))
            elif word == BATCH:
                worker, _number, pieces, items = content
                made.append(Made(worker, tuple(tuple(piece) for piece in pieces), items))
            elif word == EVENTS:
                steps += sum(event[0] == STEP for event in content)
        processes.append(AttachedProcess(path, facts, tuple(notes), tuple(made), steps))
    return sorted(processes, key=lambda process: process.process.now_ns)


def events(path: Path) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the events of a process, one list per step, in the form of ``harness.probes.ledger.rows``.

    A list ends with the STEP event of the next step or with a PAUSE event; that of a killed program may end without.
    The first list precedes all steps.
    """
    for word, content in frames(path):
        if word == EVENTS:
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
    """Return a STEP or PAUSE event with a complete run-queue reading: one schedstat line per thread.

    (CPU time, earlier line) instead of the main thread's line means no wait since. A reading is invalid, and becomes
    empty, if the program closed all file descriptors and reused their numbers.
    """
    kind, now, reading, *rest = event
    if reading and not isinstance(reading[0], bytes):
        cpu_ns, line = reading[0]
        reading = (b"%d %s" % (cpu_ns, line.partition(b" ")[2]), *reading[1:])
    if not all(_SCHEDSTAT.fullmatch(line) for line in reading):
        reading = ()
    return (kind, now, reading, *rest)
