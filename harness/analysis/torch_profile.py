"""What torch.profiler recorded of one run, worked out: operators, kernels and memory of the profiled steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.analysis.memory_timeline import MemoryTimeline, memory_timelines
from harness.analysis.operators import ProfiledOperators, profiled_operators

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class TorchProfile:
    """One profiled run. Its steps ran under the profiler, so their times compare with each other and nothing else."""

    arm: str
    windows: tuple[tuple[int, int, int, int], ...]  # start_ns, end_ns (CLOCK_MONOTONIC), first step, last step
    operators: ProfiledOperators
    memory: tuple[MemoryTimeline, ...]
    flops: dict[str, float]  # floating point operations by operator, over all windows; empty where not asked for
    problems: tuple[str, ...]

    @property
    def steps(self) -> int:
        return sum(last - first + 1 for _, _, first, last in self.windows)


def torch_profile(
    arm: str, profiles: Sequence[pa.Table], facts: Mapping[str, Any], problems: Sequence[str] = ()
) -> TorchProfile | None:
    """``profiles``: the run's files (:func:`harness.traces.profiles.read_profiles`), ``facts``: the entry
    ``torch_profiler`` of its probes.json, ``problems``: what went wrong with reading or recording.

    None where nothing was recorded and nothing went wrong.
    """
    windows = tuple((int(w[0]), int(w[1]), int(w[2]), int(w[3])) for w in facts.get("windows") or ())
    full = [profile for profile in profiles if len(profile)]
    if not full and not problems:
        return None
    profiled_ns = sum(end - start for start, end, _, _ in windows)
    operators = profiled_operators(full, profiled_ns) if full else ProfiledOperators((), (), None)
    memory = tuple(memory_timelines(full, windows)) if full else ()
    return TorchProfile(arm, windows, operators, memory, dict(facts.get("flops") or {}), tuple(problems))
