"""Analyses what torch.profiler recorded of one run: operators, kernels and memory of the profiled steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.explain.probes.memory_timeline import MemoryTimeline, memory_timelines
from harness.explain.probes.operators import ProfiledOperators, launched_work, profiled_operators, read_events
from harness.study.probes_json import TorchProfilerRecord
from harness.study.traces.kineto import is_cut
from harness.study.traces.names import STEP

if TYPE_CHECKING:
    import pyarrow as pa

Window = tuple[int, int, int, int]  # start_ns, end_ns (CLOCK_MONOTONIC), first step, last step


@dataclass(frozen=True)
class CutProfile:
    """A profile that is not whole, or belongs to no window: left out."""

    steps: int  # that it has marks of


@dataclass(frozen=True)
class LostProfile:
    """Steps that were profiled, with no whole profile of them."""

    first: int
    last: int


@dataclass(frozen=True)
class TorchProfile:
    """One profiled run. Its steps ran under the profiler, so their times compare with each other and nothing else."""

    arm: str
    windows: tuple[Window, ...]  # those whose profiles are whole
    operators: ProfiledOperators
    memory: tuple[MemoryTimeline, ...]
    flops: dict[str, float]  # floating point operations by operator, over all windows; empty where not asked for
    problems: tuple[str, ...]  # of recording and reading, a line each
    gaps: tuple[CutProfile | LostProfile, ...] = ()
    # The device was at kernels and copies that were launched within the windows, over all of these. Others are of the
    # steps before them, whose host ran ahead. None without a device.
    launched_ms: float | None = None

    @property
    def steps(self) -> int:
        return sum(last - first + 1 for _, _, first, last in self.windows)


def torch_profile(
    arm: str, profiles: Sequence[pa.Table], facts: TorchProfilerRecord, problems: Sequence[str] = ()
) -> TorchProfile | None:
    """``profiles``: the run's files (:func:`harness.study.traces.profiles.read_profiles`), ``facts``: what
    its probes.json says of them, ``problems``: what went wrong with reading or recording.

    None where nothing was recorded and nothing went wrong.
    """
    full, windows, gaps = whole_profiles([profile for profile in profiles if len(profile)], facts.windows)
    if not full and not problems and not gaps:
        return None
    profiled_ns = sum(end - start for start, end, _, _ in windows)
    operators = profiled_operators(full, profiled_ns) if full else ProfiledOperators((), (), None)
    memory = tuple(memory_timelines(full, windows)) if full else ()
    flops = {} if gaps else dict(facts.flops)  # of all windows: too many for those that are left
    launched_ms = _launched_ms(full, windows) if operators.device_ms is not None else None
    return TorchProfile(arm, tuple(windows), operators, memory, flops, tuple(problems), tuple(gaps), launched_ms)


def _launched_ms(full: Sequence[pa.Table], windows: Sequence[Window]) -> float | None:
    """Sum up what was launched within ``windows``; None where no launch of it is known."""
    work = launched_work(read_events(full))
    inside = np.zeros(len(work.launched), dtype=np.bool_)
    for since, until, _, _ in windows:
        inside |= (work.launched >= since) & (work.launched < until)
    return float((work.ends - work.starts)[inside].sum()) / 1e6 if inside.any() else None


def whole_profiles(
    profiles: Sequence[pa.Table], windows: Sequence[Window]
) -> tuple[list[pa.Table], list[Window], list[CutProfile | LostProfile]]:
    """The profiles and the windows that belong together, and a record of each that lacks the other.

    A window's profile has a mark of torch's for each of its steps, and was not cut. Where no windows were recorded, all
    profiles count.
    """
    import pyarrow.compute as pc

    if not windows:
        return list(profiles), [], []
    kept: list[pa.Table] = []
    found: set[int] = set()
    gaps: list[CutProfile | LostProfile] = []
    ends = [end for _, end, _, _ in windows]
    for profile in profiles:
        if "main" not in pc.unique(profile["role"]).to_pylist():
            kept.append(profile)  # of a worker, which records through all windows
            continue
        of_main = pc.equal(profile["role"], "main")
        marks = profile.filter(pc.and_(of_main, pc.starts_with(profile["name"].cast("string"), STEP)))
        starts = marks["start_ns"].to_pylist()
        places = {bisect_right(ends, start) for start in starts}
        place = places.pop() if len(places) == 1 else len(windows)
        if place < len(windows) and len(starts) == windows[place][3] - windows[place][2] + 1 and not is_cut(profile):
            kept.append(profile)
            found.add(place)
        else:
            gaps.append(CutProfile(len(starts)))
    missing = [window for place, window in enumerate(windows) if place not in found]
    gaps += [LostProfile(first, last) for *_, first, last in missing]
    return kept, [window for place, window in enumerate(windows) if place in found], gaps
