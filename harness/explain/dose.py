"""Fits the step time when one kind of work is done k times more: a slowdown injection (scenario key ``dose``).

    step ms                                   per block, least squares through the points of k = 0, 1, 2, 4:
      |                    o  exposed (1)     slope = ms of step time for 1 ms more of that work
      |              o     .
      |        o  .     .     contended or    x = measured work per step on the critical path: all time of the stage,
      |     o. .              partial         divided by the workers that do it side by side
      |  o------o-----------o hidden (0)      y = step time; both are totals of the run over its steps
      +--0--1--2-----4------------- work ms

A hidden stage has slope 0, one that the step waits for has 1, whatever the number of workers. A curve that starts flat
and turns up has used its slack. The slope describes *added* work. Removing work gains at most what is waited for.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np

from harness.explain.ledger import Blocks, RunLedger
from harness.explain.policy import (
    DOSE_ADDED_MIN,
    DOSE_BLOCKS_MAX,
    EXPOSED_SLOPE_MIN,
    HIDDEN_SLOPE_MAX,
    KINK_BEND_MIN,
    PARTIAL_SLOPE_MARGIN,
)
from harness.explain.spans import BUILT
from harness.explain.statistics import Estimate, from_block_values, student_t

What = Literal["tokenize", "read", "device", "data"]
UnfittedKind = Literal["no run of the arm", "no dosed run", "no shared block", "work not measured", "no work added"]


@dataclass(frozen=True)
class Unfitted:
    """Why there is nothing to fit."""

    kind: UnfittedKind
    ks: tuple[int, ...] = ()  # "no shared block": the doses that share none
    least_ms: float = 0.0  # "no work added": work per step without a dose, and with the largest
    most_ms: float = 0.0


@dataclass(frozen=True)
class Curve:
    """One block: its runs by k, and for each the work and the step time in milliseconds."""

    ks: tuple[int, ...]
    runs: tuple[RunLedger, ...]
    work: tuple[float, ...]
    step: tuple[float, ...]

    def slope(self, values: Sequence[float], since: int = 0, until: int | None = None) -> float:
        """Least-squares slope of ``values`` against the work, through the points from ``since`` to before ``until``."""
        x, y = np.asarray(self.work[since:until]), np.asarray(values[since:until])
        x = x - x.mean()
        return float(x @ (y - y.mean()) / (x @ x))

    @property
    def absorbed(self) -> float:
        """Added work of the largest dose that the step did not feel (its slack); at least 0."""
        last = self.slope(self.step, since=len(self.ks) - 2)
        return max(0.0, (self.work[-1] - self.work[0]) - (self.step[-1] - self.step[0]) / max(1.0, last))

    @property
    def waited(self) -> list[float]:
        """Waiting for data, all stages together, for each k."""
        return [run.waited_ms or 0.0 for run in self.runs]


def curves_of(by_k: Mapping[int, Blocks], what: What, workers: int) -> list[Curve] | Unfitted:
    """The curve of every block that has all doses, or why there is nothing to fit."""
    if not by_k[0]:
        return Unfitted("no run of the arm")
    if len(by_k) == 1:
        return Unfitted("no dosed run")
    blocks = sorted(set.intersection(*(set(runs) for runs in by_k.values())))
    if not blocks:
        return Unfitted("no shared block", tuple(by_k))
    work = _work(what, [by_k[k][block] for k in by_k for block in blocks])
    if work is None:
        return Unfitted("work not measured")
    curves = []
    for block in blocks:
        runs = tuple(by_k[k][block] for k in by_k)
        costs = tuple(work(run) / workers for run in runs)
        curves.append(Curve(tuple(by_k), runs, costs, tuple(run.mean_step_ms for run in runs)))
    own, most = (float(np.mean([curve.work[i] for curve in curves])) for i in (0, -1))
    if most - own <= DOSE_ADDED_MIN * own or any(curve.work[-1] <= curve.work[0] for curve in curves):
        return Unfitted("no work added", least_ms=own, most_ms=most)
    return curves


def _work(what: What, runs: Sequence[RunLedger]) -> Callable[[RunLedger], float] | None:
    """What measures the work of ``what`` in all of ``runs``: a device's busy time, or without one the forward phase."""
    if what == "device":
        if all(run.device_busy_ms is not None for run in runs):
            return lambda run: run.device_busy_ms or 0.0
        if any("forward" not in run.phase_ms or run.record.facts.asynchronous for run in runs):
            return None  # of an asynchronous device the phase is only the launching
        return lambda run: run.phase_ms["forward"]
    stages = BUILT if what == "data" else (what,)
    if any(stage not in run.work_ms for run in runs for stage in stages):
        return None
    return lambda run: sum(run.work_ms[stage] for stage in stages)


def segment(curves: Sequence[Curve], first: int) -> Estimate | None:
    """Slope between two neighbouring doses; None where in some block the larger one did not have more work."""
    if any(curve.work[first + 1] <= curve.work[first] for curve in curves):
        return None
    return from_block_values([curve.slope(curve.step, first, first + 2) for curve in curves])


DoseKind = Literal["hidden", "exposed", "partial", "contended", "kink", "undecided"]
_CONTROL = re.compile(r"dose-(tokenize|read|device|data)-([1-9][0-9]*)")


@dataclass(frozen=True)
class DosePoint:
    """Means over blocks, in milliseconds per step, with the work done k times more. None: not measured."""

    k: int
    work_ms: float  # on the critical path
    step_ms: float
    waited_ms: float | None  # all exposed stages together
    contended_ms: float | None


@dataclass(frozen=True)
class Dose:
    """What more of ``what`` costs ``arm``."""

    arm: str
    what: What
    kind: DoseKind
    unfitted: Unfitted | None = None  # why there is no slope
    points: tuple[DosePoint, ...] = ()
    slope: Estimate | None = None  # ms of step time per ms of work, over all doses
    local_slope: Estimate | None = None  # of the first dose alone: what the arm as it is would feel first
    last_slope: Estimate | None = None  # of the largest dose alone
    waited_slope: Estimate | None = None  # ms of waiting for data per ms of work; of the device None
    slack_ms: Estimate | None = None  # of a kink: how much work can be added before it costs anything
    blocks_needed: int | None = None  # of an undecided one: how many blocks in all would probably decide
    unfinished: tuple[int, ...] = ()  # doses k without a finished run: left out
    workers: int = 1  # that do the work side by side: figures of work are the work of all, divided by their number


def parse_control(control: str | None) -> tuple[What, int] | None:
    """``("tokenize", 2)`` of the control ``dose-tokenize-2``; None of any other."""
    found = _CONTROL.fullmatch(control or "")
    return (cast("What", found[1]), int(found[2])) if found else None


def dose(arm_blocks: Blocks, doses: Mapping[int, Blocks], what: What, workers: int) -> Dose:
    """Return the dose of ``what``: ``doses[k]`` is the control with k times more. Blocks need all doses."""
    by_k = {0: arm_blocks} | {k: doses[k] for k in sorted(doses) if doses[k]}
    name = next((run.record.of or run.record.arm for blocks in by_k.values() for run in blocks.values()), "an arm")
    abreast = 1 if what == "device" else max(1, workers)
    curves = curves_of(by_k, what, abreast)
    if isinstance(curves, Unfitted):
        return Dose(name, what, "undecided", curves, workers=abreast)
    found = _judge(name, what, curves, tuple(k for k in sorted(doses) if not doses[k]))
    return replace(found, workers=abreast)


def _judge(name: str, what: What, curves: Sequence[Curve], unfinished: tuple[int, ...]) -> Dose:
    points = _points(curves)
    slope = from_block_values([curve.slope(curve.step) for curve in curves])
    assert slope is not None
    waited = None if what == "device" else from_block_values([curve.slope(curve.waited) for curve in curves])
    kind = _kind(what, curves, slope, waited)
    return Dose(
        arm=name,
        what=what,
        kind=kind,
        points=points,
        slope=slope,
        local_slope=segment(curves, 0),
        last_slope=segment(curves, len(points) - 2),
        waited_slope=waited,
        slack_ms=from_block_values([curve.absorbed for curve in curves]) if kind == "kink" else None,
        blocks_needed=_blocks_needed(slope) if kind == "undecided" else None,
        unfinished=unfinished,
    )


def _kind(what: What, curves: Sequence[Curve], slope: Estimate, waited: Estimate | None) -> DoseKind:
    low, high = slope.ci_low, slope.ci_high
    if low is None or high is None:
        return "undecided"
    if _bends(what, curves):
        return "kink"
    if high < HIDDEN_SLOPE_MAX:
        return "hidden"
    # Whatever the loader causes, the step waits for; a step that gets longer without waiting lost its cores.
    unwaited = waited is not None and waited.median < slope.median / 2
    if low > EXPOSED_SLOPE_MIN and unwaited:
        return "contended"
    if low > EXPOSED_SLOPE_MIN:
        return "kink" if what != "device" and _fits_today(curves) else "exposed"
    if low >= PARTIAL_SLOPE_MARGIN and high <= 1 - PARTIAL_SLOPE_MARGIN:
        return "contended" if unwaited else "partial"
    return "undecided"


def _bends(what: What, curves: Sequence[Curve]) -> bool:
    """True if the last slope exceeds the first beyond doubt, and because the step waits."""
    last = len(curves[0].ks) - 2
    first_slope, last_slope = segment(curves, 0), segment(curves, last)
    if last < 1 or first_slope is None or last_slope is None:
        return False
    bend = from_block_values([c.slope(c.step, last) - c.slope(c.step, 0, 2) for c in curves])
    if bend is None or bend.ci_low is None or bend.ci_low <= KINK_BEND_MIN:
        return False
    waits = float(np.median([curve.slope(curve.waited, last) for curve in curves]))
    return what == "device" or waits >= last_slope.median / 2


def _fits_today(curves: Sequence[Curve]) -> bool:
    """Return True if more is waited for in full, but hardly any of the present work but transfer."""
    waited = [curve.waited[0] - curve.runs[0].exposed_ms.get("transfer", 0.0) for curve in curves]
    return float(np.mean(waited)) < HIDDEN_SLOPE_MAX * float(np.mean([curve.work[0] for curve in curves]))


def _points(curves: Sequence[Curve]) -> tuple[DosePoint, ...]:
    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if known else None

    return tuple(
        DosePoint(
            k,
            float(np.mean([curve.work[i] for curve in curves])),
            float(np.mean([curve.step[i] for curve in curves])),
            mean([curve.runs[i].waited_ms for curve in curves]),
            mean([curve.runs[i].contended_ms for curve in curves]),
        )
        for i, k in enumerate(curves[0].ks)
    )


def _blocks_needed(slope: Estimate) -> int | None:
    """Return the blocks that would probably decide; None beyond DOSE_BLOCKS_MAX, or without an interval."""
    if slope.ci_low is None or slope.ci_high is None:
        return None
    # The half-width that meets some kind's conditions, if the median stays about where it is.
    at = min(1.0, max(0.0, slope.median))
    wanted = max(
        HIDDEN_SLOPE_MAX - at, min(at - PARTIAL_SLOPE_MARGIN, 1 - PARTIAL_SLOPE_MARGIN - at), at - EXPOSED_SLOPE_MIN
    )
    scatter = (slope.ci_high - slope.ci_low) / 2 * math.sqrt(slope.n) / student_t(0.975, slope.n - 1)
    candidates = range(slope.n + 1, DOSE_BLOCKS_MAX + 1)
    place = bisect_left(candidates, True, key=lambda n: student_t(0.975, n - 1) * scatter / math.sqrt(n) < wanted)
    return candidates[place] if place < len(candidates) else None
