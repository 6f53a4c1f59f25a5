"""Names and reads the files that torch.profiler leaves in a run's folder.

``torch_profile.json.gz`` is the main process's first window, ``torch_profile.2.json.gz`` its second and so on.
``torch_profile.loader-K.json.gz`` is loader worker K's. Each header says, under ``harness``, how far the realtime clock
was ahead of CLOCK_MONOTONIC and what the file leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.study.traces.kineto import read_header, read_profile
from trainer.errors import InputError
from trainer.json_types import JsonObject

if TYPE_CHECKING:
    import pyarrow as pa

STEM, SUFFIX = "torch_profile", ".json.gz"
HEADER = "harness"  # key of the harness's facts in a trace's header
OFFSET = "realtime_minus_monotonic_ns"  # its [at start, at end]
CUT = "cut"  # why it ends early, or null


def file_name(role: str, window: int = 1) -> str:
    """Name the file of ``window`` (from 1) of the main process, or the single file of a worker (role loader-K)."""
    part = f".{role}" if role != "main" else f".{window}" if window > 1 else ""
    return f"{STEM}{part}{SUFFIX}"


def files(folder: Path) -> list[tuple[Path, str]]:
    """Find the profiles in ``folder`` with their roles: the main process's windows in order, then the workers'."""
    found = []
    for path in folder.glob(f"{STEM}*{SUFFIX}"):
        part = path.name.removeprefix(STEM).removesuffix(SUFFIX).removeprefix(".")
        if part.startswith("loader-"):
            found.append((path, part))
        elif not part or part.isdecimal():
            found.append((path, "main"))
    return sorted(found, key=lambda one: (one[1] != "main", len(one[0].name), one[0].name))


def header(path: Path) -> JsonObject:
    """Read the harness's facts in a trace's header; {} for another program's trace. Raises InputError if unreadable."""
    ours = read_header(path).get(HEADER)
    return ours if isinstance(ours, dict) else {}


def read_profiles(folder: Path, clock_offsets: Sequence[int] = ()) -> tuple[list[pa.Table], list[str]]:
    """Read every profile in a run's folder (``read_profile`` in kineto.py), with a line per damaged one.

    ``clock_offsets`` is OFFSET in the run's probes.json, for files without a clock offset.
    """
    tables, problems = [], []
    for path, role in files(folder):
        try:
            offsets = header(path).get(OFFSET) or list(clock_offsets)
            if not isinstance(offsets, list) or not offsets or not all(type(one) is int for one in offsets):
                raise InputError(f"{path}: its clock is unknown (no {OFFSET} in it or in probes.json)")
            tables.append(read_profile(path, round(sum(offsets) / len(offsets)), role))
        except InputError as error:
            problems.append(str(error))
    return tables, problems
