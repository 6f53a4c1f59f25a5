"""Takes the waits for a core out of the parts of a step, so that these are known on a machine in use as well.

The record has how long the main thread was ready without a core in each step, and the CPU time of each phase. It does
not have in which phase the thread waited. Two rules place the waits; where they differ the interval includes both:

    by running     a thread waits for a core the more, the more it runs (likely)
    off a core     any moment that a phase spent off a core may have been such a wait

No phase gives up more than it spent off a core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.explain.ledger import RunLedger
from harness.explain.spans import NOT_MEASURED, spans_of
from harness.explain.statistics import Estimate, from_block_values, holding
from harness.explain.step_columns import bounds
from harness.study.run_data import RunData

if TYPE_CHECKING:
    import pyarrow as pa

WAITING = "waiting for a core"
REST = "other"  # what lies in no phase; its CPU time is not recorded
Float = NDArray[np.float64]


@dataclass(frozen=True)
class StepPart:
    """One part of a step, a phase without its waits for a core or :data:`WAITING`. All parts sum to the step."""

    name: str
    ms: Estimate  # a step, median over blocks
    share: float  # of the step, the median over blocks


@dataclass(frozen=True)
class _Block:
    """Of one block, milliseconds a step by phase: in all, and on a core. ``waited``: for a core, in all."""

    wall: Mapping[str, float]
    on_core: Mapping[str, float]
    waited: float

    @property
    def step_ms(self) -> float:
        return sum(self.wall.values())


def parts_without_waits(runs: Sequence[RunData], ledgers: Mapping[int, RunLedger]) -> tuple[StepPart, ...]:
    """Return the parts of a step, the largest first; none where waits for a core or CPU times were not recorded."""
    blocks = [_block(run, ledgers[run.record.block]) for run in runs if run.record.block in ledgers]
    known = [one for one in blocks if one is not None]
    if not known or len(known) < len(blocks):
        return ()
    by_running = [_left(one, lambda one, name: one.on_core[name]) for one in known]
    off_core = [_left(one, lambda one, name: one.wall[name] - one.on_core[name]) for one in known]
    names = dict.fromkeys(name for one in by_running for name in one)
    found = []
    for name in names:
        likely, other = (from_block_values([one.get(name, 0.0) for one in placed]) for placed in (by_running, off_core))
        assert likely is not None
        assert other is not None
        shares = [one.get(name, 0.0) / block.step_ms for one, block in zip(by_running, known, strict=True)]
        found.append(StepPart(name, _above_zero(holding(likely, [other])), float(np.median(shares))))
    return tuple(sorted(found, key=lambda part: -part.ms.median))


def _above_zero(found: Estimate) -> Estimate:
    return found if found.ci_low is None else replace(found, ci_low=max(0.0, found.ci_low))


def _left(block: _Block, weight: Callable[[_Block, str], float]) -> dict[str, float]:
    """Each phase without its part of the waits, in proportion to ``weight``, and the waits."""
    room = {name: max(0.0, block.wall[name] - block.on_core[name]) for name in block.wall}
    taken = dict.fromkeys(block.wall, 0.0)
    left = min(block.waited, sum(room.values()))
    for _ in block.wall:  # a phase that is full leaves its part to the others
        weights = {name: max(weight(block, name), 1e-9) for name in block.wall if room[name] - taken[name] > 1e-9}
        if left <= 1e-9 or not weights:
            break
        total, before = sum(weights.values()), left
        for name, one in weights.items():
            more = min(before * one / total, room[name] - taken[name])
            taken[name] += more
            left -= more
    return {name: block.wall[name] - taken[name] for name in block.wall} | {WAITING: sum(taken.values())}


def _block(run: RunData, ledger: RunLedger) -> _Block | None:
    share, steps = run.record.facts.waiting_share, run.step_columns(["start_ns", "wall_ns", "warmup"])
    if share is None or steps is None or not run.has_spans or not ledger.phase_ms:
        return None
    on_core = _on_core_ms(run, steps)
    if on_core is None:
        return None
    wall = {name: ms for name, ms in ledger.phase_ms.items() if ms > 0}
    known = {name: min(on_core.get(name, 0.0), ms) for name, ms in wall.items()}
    if REST in wall:  # it runs as much of its time as the other phases do
        timed = [name for name in wall if name != REST]
        runs_for = sum(known[name] for name in timed) / (sum(wall[name] for name in timed) or 1.0)
        known[REST] = wall[REST] * runs_for
    return _Block(wall, known, share * ledger.mean_step_ms)


def _on_core_ms(run: RunData, steps: pa.Table) -> dict[str, float] | None:
    """CPU time of each phase in milliseconds per measured step; None where it was not recorded."""
    spans = spans_of(run)
    phases = spans.phases
    if not len(phases) or (phases.cpu_ns == NOT_MEASURED).any():
        return None
    starts, ends = bounds(steps)
    measured = (steps.column("warmup").fill_null(False).to_numpy() == 0) & (ends > starts)
    place = np.searchsorted(starts, phases.starts, side="right") - 1
    inside = (place >= 0) & (phases.starts < ends[np.maximum(place, 0)]) & measured[np.maximum(place, 0)]
    own = _without_inner(phases.starts, phases.ends, phases.cpu_ns.astype(np.float64))
    count = int(measured.sum())
    return {
        spans.names[code]: float(own[inside & (phases.names == code)].sum()) / 1e6 / count
        for code in np.unique(phases.names[inside])
    }


def _without_inner(starts: NDArray[np.int64], ends: NDArray[np.int64], cpu_ns: Float) -> Float:
    """CPU time of each span without that of the spans directly inside it."""
    own = cpu_ns.copy()
    order = np.lexsort((-ends, starts))
    around: list[int] = []
    for place in order:
        while around and ends[around[-1]] <= starts[place]:
            around.pop()
        if around:
            own[around[-1]] -= cpu_ns[place]
        around.append(place)
    return np.maximum(own, 0.0)
