"""Create a torch.profiler from the settings, add facts to its trace's header, and write the trace to a file."""

from __future__ import annotations

import errno
import gzip
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.probes.probe import ProbeSettings
from harness.study.traces.kineto import BETWEEN, CUT, CUT_NAME, HEADER, OFFSET

if TYPE_CHECKING:
    from torch.profiler import profile

MAX_TRACE_BYTES = 400_000_000  # bytes of text, about a million events: viewers still open it
_CLOSE = f'\n  }}\n  ],\n  "traceName": "{CUT_NAME}"\n}}'.encode()
_PIECE_BYTES = 1 << 20
_TRACE_GZIP_LEVEL = 3  # compared with gzip's default: a fifth of the time, a tenth more bytes


@dataclass(frozen=True)
class TorchProfilerSettings(ProbeSettings):
    """Settings of the probe torch.profiler: its schedule in steps, and what a profile contains.

    They are the scenario's ``probes.torch_profiler`` (``harness.scenario.model``).
    """

    wait: int = 1
    warmup: int = 2
    active: int = 3
    repeat: int = 1  # number of windows
    shapes: bool = False
    memory: bool = False
    stack: bool = False
    flops: bool = False
    workers: bool = True  # True to profile loader workers, too


def make_profiler(settings: TorchProfilerSettings, device: bool = True, **more: Any) -> profile:
    """Return a torch profiler, not yet started, of the CPU and of a CUDA device if there is one.

    ``device``: False leaves the device out. ``more``: further arguments of ``torch.profiler.profile``.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if device and torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    return profile(
        activities=activities,
        record_shapes=settings.shapes,
        profile_memory=settings.memory,
        with_stack=settings.stack,
        with_flops=settings.flops,
        **more,
    )


def describe(profiler: profile, offsets: list[int], cut: str | None = None) -> None:
    """Add facts to the header of the trace that ``profiler`` is recording.

    ``offsets``: CLOCK_REALTIME - CLOCK_MONOTONIC in ns at both ends. ``cut``: why the trace is incomplete; None if
    complete.
    """
    profiler.add_metadata_json(HEADER, json.dumps({OFFSET: offsets, CUT: cut}))


def export(profiler: profile, path: Path) -> bool:
    """Write the last window of ``profiler`` to ``path`` (.json.gz). Return True if it was cut to MAX_TRACE_BYTES.

    Raises OSError if writing fails.
    """
    text = path.with_name(f".{path.name}.{os.getpid()}.text.tmp")
    try:
        profiler.export_chrome_trace(str(text))
        return keep(text, path)
    finally:
        for leftover in (text, text.with_name(f"{text.name}.tmp")):  # the second is torch's own
            leftover.unlink(missing_ok=True)


def keep(text: Path, path: Path) -> bool:
    """Compress the trace that torch wrote to the file ``text`` into ``path`` (.json.gz).

    Return True if it was cut to MAX_TRACE_BYTES. Raises OSError if writing fails or the trace is incomplete.
    """
    packed = path.with_name(f".{path.name}.{os.getpid()}.gz.tmp")
    try:
        if not _is_whole(text):  # torch reports no error if it could not write
            raise OSError(errno.EIO, "torch could not write all of it: is the disk full, or the size of files limited?")
        cut = pack(text, packed, MAX_TRACE_BYTES)
        packed.replace(path)
    finally:
        packed.unlink(missing_ok=True)
    return cut


def _is_whole(text: Path) -> bool:
    """Return True if torch has written the trace in the file ``text`` to its end.

    torch writes the file's name after the events.
    """
    try:
        with open(text, "rb") as file:
            file.seek(max(text.stat().st_size - _PIECE_BYTES, 0))
            return b'"traceName"' in file.read()
    except FileNotFoundError:
        return False


def pack(text: Path, packed: Path, most_bytes: int) -> bool:
    """Compress the trace ``text`` into ``packed``. If it exceeds ``most_bytes``, cut it between two events.

    Return True if it was cut; the last events are then lost.
    """
    fits = text.stat().st_size <= most_bytes
    with open(text, "rb") as source, gzip.open(packed, "wb", compresslevel=_TRACE_GZIP_LEVEL) as target:
        remaining = most_bytes
        while piece := source.read(_PIECE_BYTES if fits else min(_PIECE_BYTES, remaining)):
            remaining -= len(piece)
            if not fits and remaining <= 0:
                piece = piece[: piece.rindex(BETWEEN)] + _CLOSE
                target.write(piece)
                break
            target.write(piece)
    return not fits
