"""Create a torch.profiler, mark the ledger's phases in its trace, and write the trace with both clocks' offset."""

from __future__ import annotations

import errno
import gzip
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Any

from harness.probes.probe import ProbeSettings
from harness.study.traces.kineto import BETWEEN, CUT, CUT_NAME, HEADER, OFFSET, PHASE, STAGE
from trainer.telemetry import STAGES, BatchTrace, Recorder

if TYPE_CHECKING:
    from torch.profiler import profile, record_function


CLOCK_READINGS = 32  # a reading takes under 0.1 us; the tightest was not interrupted


def realtime_minus_monotonic() -> tuple[int, int]:
    """Return (CLOCK_REALTIME - CLOCK_MONOTONIC, maximum error) in ns, valid until the realtime clock is set."""
    best_width, best = None, 0
    for _ in range(CLOCK_READINGS):
        before = monotonic_ns()
        realtime = time_ns()
        after = monotonic_ns()
        if best_width is None or after - before < best_width:
            best_width, best = after - before, realtime - (before + after) // 2
    assert best_width is not None
    return best, (best_width + 1) // 2


MAX_TRACE_BYTES = 400_000_000  # bytes of text, about a million events: viewers still open it
_CLOSE = f'\n  }}\n  ],\n  "traceName": "{CUT_NAME}"\n}}'.encode()
_PIECE_BYTES = 1 << 20
_TRACE_GZIP_LEVEL = 3  # compared with gzip's default: a fifth of the time, a tenth more bytes


@dataclass(frozen=True)
class TorchProfilerSettings(ProbeSettings):
    """Settings of the probe torch.profiler: the scenario's ``probes.torch_profiler``. Schedule in steps."""

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
    """Return a torch profiler, not yet started. ``device``: False leaves CUDA out. ``more``: further arguments."""
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
    """Add ``offsets`` (CLOCK_REALTIME - CLOCK_MONOTONIC in ns) and ``cut`` (why it is not whole) to the header."""
    profiler.add_metadata_json(HEADER, json.dumps({OFFSET: offsets, CUT: cut}))


def export(profiler: profile, path: Path) -> bool:
    """Write the last window to ``path`` (.json.gz). Return True if it was cut to MAX_TRACE_BYTES. Raises OSError."""
    text = path.with_name(f".{path.name}.{os.getpid()}.text.tmp")
    try:
        profiler.export_chrome_trace(str(text))
        return keep(text, path)
    finally:
        for leftover in (text, text.with_name(f"{text.name}.tmp")):  # the second is torch's own
            leftover.unlink(missing_ok=True)


def keep(text: Path, path: Path) -> bool:
    """Compress torch's trace into ``path``. True: cut at MAX_TRACE_BYTES. Raises OSError if it is not whole."""
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
    """Return True if the trace in ``text`` is complete: torch writes the file's name after the events."""
    try:
        with open(text, "rb") as file:
            file.seek(max(text.stat().st_size - _PIECE_BYTES, 0))
            return b'"traceName"' in file.read()
    except FileNotFoundError:
        return False


def pack(text: Path, packed: Path, most_bytes: int) -> bool:
    """Compress ``text`` into ``packed``. True: cut after ``most_bytes`` of text, between events."""
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


_STAGES = frozenset(STAGES)


class TorchSpans:
    """Recorder that also marks each phase and stage in torch's profile, at 12 us. ``on_batch``: called after each."""

    def __init__(self, inner: Recorder, on_batch: Callable[[], None] | None = None) -> None:
        from torch.profiler import record_function

        self._inner = inner
        self._on_batch = on_batch
        self._mark = record_function
        self._open: list[record_function] = []

    def enter(self, name: str) -> None:
        mark = self._mark((STAGE if name in _STAGES else PHASE) + name)
        mark.__enter__()  # type: ignore[no-untyped-call]
        self._open.append(mark)
        self._inner.enter(name)

    def exit(self, name: str) -> None:
        self._inner.exit(name)
        self._open.pop().__exit__(None, None, None)

    def take(self) -> BatchTrace | None:
        trace = self._inner.take()
        if self._on_batch is not None:
            self._on_batch()
        return trace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
