"""Read the files that the agent wrote in each process of a command (format: ``agent/events.py``).

The file of a killed process may end with a partial frame or zeros. All complete frames before that count.
"""

from __future__ import annotations

import errno
import marshal
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from harness.attach.agent import events as kinds
from harness.study.records import made_of
from harness.study.run_data import Minute

_SCHEDSTAT = re.compile(rb"(\d+ \d+ \d+\s*)?")  # line of the kernel; empty for a thread that has ended
MOST_FRAME_BYTES = 1 << 28  # bytes of a few steps: a larger frame is invalid

Piece = tuple[str, int, int, int]  # stage, start, end, CPU time
Series = tuple[int, int]  # process id and start of the first file: the files of one process that continue each other
DIGEST = "digest"  # file with notes of deleted segments and minutes of closed ones (retention.py)
NOTES, MINUTE = "notes", "minute"  # words of its frames: (series, segment, content)


class Made(NamedTuple):
    """One batch as recorded by the loader worker that made it: worker number, pieces of stages, and number of items."""

    worker: int
    pieces: tuple[Piece, ...]
    items: int = 0  # items in the batch; 0: unknown


class Segment(NamedTuple):
    """One file of a process: its number in the series, and the number of steps that began in it."""

    number: int
    path: Path
    steps: int


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
    series_ns: int = 0  # CLOCK_MONOTONIC at the start of the first file of its series; 0 in earlier recordings
    segment: int = 0  # number of the file in its series

    @property
    def series(self) -> Series:
        return self.pid, self.series_ns or self.now_ns


@dataclass(frozen=True)
class AttachedProcess:
    """One recorded process: facts, notes, and the batches that it made as a loader worker. Steps: :func:`events`."""

    path: Path  # its first file
    process: ProcessFacts
    notes: tuple[tuple[str, Any], ...] = ()
    made: Mapping[int, Made] = field(default_factory=dict)  # batches by number, if it is a loader worker
    steps: int = 0  # steps that it began
    segments: tuple[Segment, ...] = ()  # its files, in order; empty: the first is the only one
    minutes: Mapping[int, Minute] = field(default_factory=dict)  # by number of the segment; only those in the digest

    @property
    def stretches(self) -> list[list[Segment]]:
        """Lists of files that directly continue each other. Between two lists, files were deleted to save space."""
        stretches: list[list[Segment]] = []
        for segment in self.segments or (Segment(0, self.path, self.steps),):
            if stretches and segment.number == stretches[-1][-1].number + 1:
                stretches[-1].append(segment)
            else:
                stretches.append([segment])
        return stretches

    @property
    def loader(self) -> tuple[int, int, bool]:
        """(Workers, batches in flight per worker, True if workers outlive an epoch) of the loader with most workers."""
        largest: tuple[int, int, bool] = max(self.noted("loader"), default=(0, 2, False))
        return largest

    @property
    def loader_warmup(self) -> int:
        """Number of steps after which every batch that the loader had made in advance is served."""
        workers, prefetch, _ = self.loader
        return workers * prefetch + 1

    def noted(self, what: str) -> list[Any]:
        """Return the contents of the process's notes of the kind ``what``, oldest first; empty without such notes."""
        return [content for kind, content in self.notes if kind == what]


def was_attached(folder: Path) -> bool:
    """True if a process of the command imported torch while the agent, which records in ``folder``, was loaded."""
    return (folder / kinds.ATTACHED).exists()


def frames(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the complete frames of a file, (word, content), in order. Reading stops at the first damaged frame."""
    with path.open("rb") as file:
        while len(head := file.read(kinds.LENGTH_BYTES)) == kinds.LENGTH_BYTES:
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


def is_worker(path: Path) -> bool:
    """Return True if the process of this file makes batches and trains on none: a loader worker."""
    try:
        return next((word == kinds.BATCH for word, _ in frames(path) if word in (kinds.BATCH, kinds.EVENTS)), False)
    except FileNotFoundError:  # thinned meanwhile, which only files of steps are
        return False


def append(path: Path, word: str, content: Any) -> None:
    """Append a frame to the file ``path``. Raises OSError on a full disk, and then leaves no part of the frame."""
    frame = kinds.framed((word, content))
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        if file.write(frame) < len(frame):
            file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read(folder: Path, recent: int | None = None) -> list[AttachedProcess]:
    """Return all processes in ``folder``, by start. ``recent``: only so many last files of each, but all notes."""
    files: dict[Series, list[_File]] = {}
    for path in folder.glob(f"*{kinds.SUFFIX}"):
        with suppress(FileNotFoundError):  # The launcher has deleted it meanwhile.
            if (file := read_file(path)) is not None:
                files.setdefault(file.process.series, []).append(file)
    digests = _read_digest(folder)
    processes = [_process(whole, digests.get(series, {}), recent) for series, whole in files.items()]
    return sorted(processes, key=lambda process: process.process.now_ns)


def trained_by_rank(processes: Iterable[AttachedProcess]) -> list[AttachedProcess]:
    return sorted((process for process in processes if process.steps), key=lambda process: process.process.rank or 0)


def made_in(processes: Iterable[AttachedProcess]) -> dict[int, Mapping[int, Made]]:
    """Return the batches of each loader worker by number, by process id."""
    return {process.process.pid: process.made for process in processes if process.made}


def _process(files: list[_File], digest: Mapping[str, Mapping[int, Any]], recent: int | None) -> AttachedProcess:
    """Combine the ``files`` of one process. ``digest``: its part of DIGEST by kind of frame and number of the file."""
    files.sort(key=lambda file: file.process.segment)
    # A file is deleted after its notes were written.
    notes = {**digest.get(NOTES, {}), **{file.process.segment: file.notes for file in files}}
    steps = max((file.last_step + 1 for file in files), default=0)
    files = files[-recent:] if recent else files
    return AttachedProcess(
        files[0].path,
        files[0].process,
        tuple((kind, content) for segment in sorted(notes) for kind, content in notes[segment]),
        {number: made for file in files for number, made in file.made.items()},
        steps,
        tuple(Segment(file.process.segment, file.path, file.steps) for file in files),
        {segment: made_of(Minute, content) for segment, content in digest.get(MINUTE, {}).items()},
    )


def _read_digest(folder: Path) -> dict[Series, dict[str, dict[int, Any]]]:
    """Return the file DIGEST of ``folder`` by series, kind of frame and number of the file; empty if it is missing."""
    contents: dict[Series, dict[str, dict[int, Any]]] = {}
    path = folder / DIGEST
    if path.exists():
        for word, (series, segment, content) in frames(path):
            contents.setdefault(tuple(series), {}).setdefault(word, {})[segment] = content
    return contents


class _File(NamedTuple):
    """Content of one file without the events of its steps: facts, notes, made batches, and numbers of its steps."""

    path: Path
    process: ProcessFacts
    notes: list[tuple[str, Any]]
    made: dict[int, Made]
    steps: int
    last_step: int  # -1: none


def read_file(path: Path) -> _File | None:
    """Return the content of the file ``path``; None if its process was killed before its first frame was complete."""
    written = frames(path)
    word, content = next(written, ("", None))
    if word != kinds.PROCESS or content is None:
        return None
    file = _File(path, ProcessFacts(**content), [], {}, 0, -1)
    for word, content in written:
        if word == kinds.NOTE:
            file.notes.append(tuple(content))
        elif word == kinds.BATCH:
            worker, number, pieces, items = content
            file.made[number] = Made(worker, tuple(tuple(piece) for piece in pieces), items)
        elif word == kinds.EVENTS:
            begun = [event[3] for event in content if event[0] == kinds.STEP]
            if begun:
                file = file._replace(steps=file.steps + len(begun), last_step=begun[-1])
    return file


def events(paths: Iterable[Path]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the events of a process from its consecutive files, one list per step.

    A list ends with the STEP event that begins the next step or a PAUSE event; a killed program may lack the last.
    """
    for path in paths:
        for word, content in frames(path):
            if word == kinds.EVENTS:
                portion: list[tuple[Any, ...]] = []
                for event in content:
                    if event[0] not in (kinds.STEP, kinds.PAUSE):
                        portion.append(tuple(event))
                    else:
                        yield [*portion, _with_lines(event)]
                        portion = []
                if portion:
                    yield portion


def _with_lines(event: Sequence[Any]) -> tuple[Any, ...]:
    """Return a STEP or PAUSE event whose reading has one line of schedstat per thread; () if one is none of schedstat.

    A main thread that did not wait has (CPU time in ns, earlier line): here, the line gets that CPU time.
    """
    kind, now, reading, *rest = event
    if reading and not isinstance(reading[0], bytes):
        cpu_ns, line = reading[0]
        reading = (b"%d %s" % (cpu_ns, line.partition(b" ")[2]), *reading[1:])
    if not all(_SCHEDSTAT.fullmatch(line) for line in reading):
        reading = ()
    return (kind, now, reading, *rest)
