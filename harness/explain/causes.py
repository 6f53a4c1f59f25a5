"""Finds what slowed steps besides their own work: waits for a core, and the causes that an agent noted.

The record has how long the main thread was ready without a core in each step, and the CPU time of each phase. It does
not have in which phase the thread waited. Two rules place the waits; where they differ the interval includes both:

    by running     a thread waits for a core the more, the more it runs (likely)
    off a core     any moment that a phase spent off a core may have been such a wait

No phase gives up more than it spent off a core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.explain.ledger import RunLedger
from harness.explain.policy import GC_CAUSE_SHARE
from harness.explain.spans import NOT_MEASURED, bounds, spans_of
from harness.explain.statistics import Estimate, from_block_values, holding
from harness.study.records import RunFacts, made_of
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
        ms = holding(likely, [other])
        ms = ms if ms.ci_low is None else replace(ms, ci_low=max(0.0, ms.ci_low))
        found.append(StepPart(name, ms, float(np.median(shares))))
    return tuple(sorted(found, key=lambda part: -part.ms.median))


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


Z_95 = 1.96  # standard deviations that hold 95 % of a normal distribution
CODE, GC = "code", "gc"  # kinds of what took time in measured steps: a place, sampled; garbage collections, measured
WAITING_MODULES = {"queue", "multiprocessing", "concurrent", "threading", "asyncio", "select", "selectors"}
GROWING, PADDING, SETTING = "growing", "padding", "setting"  # kinds of what is known of the whole program
SAMPLED = "sampled"  # kind of a row: the measured steps of a block in which the recorded thread was sampled


@dataclass(frozen=True)
class SlowCause:
    """One cause. A place has times and milliseconds a step, of a few early steps that were audited.

    What is counted in every measured step has the number of steps with it, and how long these and the others took.
    """

    kind: str
    """``device wait``, ``copy`` or ``pageable`` (a place), ``retries`` or ``compiled`` (counted), or ``code`` or ``gc``
    (time spent in measured steps: sampled, or measured), ``growing`` (steps get longer), ``padding`` or ``setting``
    (left on)."""
    place: str = ""
    code: str = ""  # line of the program
    times: float = 0.0
    share: float | None = None  # of the audited steps, those in which the place waited; None: not noted
    ms: float | None = None  # None: not timed
    bytes: int = 0  # a step, from pageable memory
    steps: int = 0
    of: int = 0  # measured steps
    rest_ms: float = 0.0  # sum over the steps without it
    phase: str = ""  # "code": in which the place was sampled; "" outside of all phases
    late: bool = False  # "code": the time was spent in Python code that ended there
    called: str = ""  # "code": function of a library that the line called
    spent_ms: float = 0.0  # sum over the measured steps
    wall_ms: float = 0.0  # of these steps
    looks: int = 0  # number of samples of which ``spent_ms`` is a share; 0: it was measured
    low_ms: float | None = None  # 95 % interval of ``ms``
    high_ms: float | None = None
    at_most: bool = False  # ``ms`` is an upper bound
    figures: Mapping[str, float] = field(default_factory=dict)  # by name, see :mod:`harness.attach.program_causes`

    @property
    def cost_ms(self) -> float | None:
        """Milliseconds that it costs a measured step, on average; None if that is not known."""
        if self.spent_ms:
            return self.step_ms
        if self.steps:  # counted
            longer_ms = self.longer_ms
            return None if longer_ms is None else max(0.0, longer_ms) * self.steps / self.of
        return self.ms

    @property
    def step_ms(self) -> float:
        """Milliseconds a measured step, on average, that were spent there."""
        return self.spent_ms / self.of if self.of else 0.0

    @property
    def spent_share(self) -> float:
        """Share of the measured time that was spent there."""
        return self.spent_ms / self.wall_ms if self.wall_ms else 0.0

    @property
    def least_share(self) -> float:
        """Lower end of the 95 % interval of :attr:`spent_share`, over the samples (Wilson 1927) if it was sampled."""
        share, n = min(self.spent_share, 1.0), self.looks
        if not n:
            return share
        spread = Z_95 * math.sqrt(share * (1 - share) / n + (Z_95 / n / 2) ** 2)
        return (share + Z_95**2 / n / 2 - spread) / (1 + Z_95**2 / n)

    @property
    def is_wait(self) -> bool:
        """True if the line waits for what another thread or process makes: for batches, maybe."""
        return self.called.partition(".")[0] in WAITING_MODULES

    @property
    def longer_ms(self) -> float | None:
        """Milliseconds by which a step with it is longer than one without; None if there are no others."""
        if self.ms is None or not self.steps or self.of <= self.steps:
            return None
        return self.ms / self.steps - self.rest_ms / (self.of - self.steps)


def slow_causes(facts: Sequence[RunFacts]) -> tuple[SlowCause, ...]:
    """Return the causes of an arm's runs: places once, as they are notes of the whole program, counts summed."""
    found: dict[tuple[str, str, str, str], SlowCause] = {}
    for row in (row for one in facts for row in one.causes or ()):
        cause = made_of(SlowCause, row)
        key = cause.kind, cause.place, cause.phase, cause.called
        before = found.get(key)
        if before is None:
            found[key] = cause
        elif cause.of or cause.spent_ms:
            found[key] = replace(
                before,
                times=before.times + cause.times,
                ms=None if cause.ms is None and before.ms is None else (before.ms or 0.0) + (cause.ms or 0.0),
                steps=before.steps + cause.steps,
                of=before.of + cause.of,
                rest_ms=before.rest_ms + cause.rest_ms,
                spent_ms=before.spent_ms + cause.spent_ms,
                wall_ms=before.wall_ms + cause.wall_ms,
                looks=before.looks + cause.looks,
                late=before.late and cause.late,
            )
    sampled = found.pop((SAMPLED, "", "", ""), SlowCause(SAMPLED))
    collecting_ms = {one.place: one.spent_ms for one in found.values() if one.kind == GC}
    return tuple(
        replace(one, of=sampled.of, wall_ms=sampled.wall_ms, looks=sampled.looks if one.kind == CODE else 0)
        if one.spent_ms
        else one
        for one in found.values()
        if one.kind != CODE or collecting_ms.get(one.place, 0.0) < GC_CAUSE_SHARE * one.spent_ms
    )
