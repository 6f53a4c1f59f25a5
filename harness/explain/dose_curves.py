"""Builds one curve per block: the step time against the work, with one kind of work done k times more.

x = measured work per step on the critical path: all time of a stage (of data: of all stages that make a batch), divided
by the workers that do it side by side; of the device its busy time. y = step time. Both are totals of a run over its
steps, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.explain.ledger import Blocks, RunLedger
from harness.explain.policy import DOSE_ADDED_MIN
from harness.explain.statistics import Estimate, from_block_values

What = Literal["tokenize", "read", "device", "data"]
UnfittedKind = Literal["no run of the arm", "no dosed run", "no shared block", "work not measured", "no work added"]
MADE = ("read", "tokenize", "pack")  # what making a batch consists of; handing it over is none of it


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
        """Added work of the largest dose that the step did not feel: the slack, if what exceeds it counts in full.

        Beyond it a millisecond may cost more than one, where one worker of several makes the slow batches: as much as
        the largest dose says. Never less than 0.
        """
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
    stages = MADE if what == "data" else (what,)
    if any(stage not in run.work_ms for run in runs for stage in stages):
        return None
    return lambda run: sum(run.work_ms[stage] for stage in stages)


def segment(curves: Sequence[Curve], first: int) -> Estimate | None:
    """Slope between two neighbouring doses; None where in some block the larger one did not have more work."""
    if any(curve.work[first + 1] <= curve.work[first] for curve in curves):
        return None
    return from_block_values([curve.slope(curve.step, first, first + 2) for curve in curves])
