"""Finds the few steps of an arm that last far longer than its others, and the phase that makes them so.

A step in twenty that writes a checkpoint makes the mean several times what a step typically takes, in every block: the
median over blocks is one of such means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

LONG = 3.0  # times its run's median: a step that lasts longer is long
FEW = 0.25  # of the steps: more are no exception


@dataclass(frozen=True)
class LongSteps:
    """The long ones among ``of`` measured steps of all runs; ``mean_ms``: of these. ``phase``: that with most of what
    they last longer than their run's steps typically do; "" where none has more than half of it.
    """

    steps: int
    of: int
    mean_ms: float
    phase: str
    range_ms: tuple[float, float] = (0.0, 0.0)  # the shortest and the longest of them


@dataclass(frozen=True)
class RunLongSteps:
    """Those of one run: how many, their times together in ms, and by phase what of that is above its median."""

    steps: int = 0
    sum_ms: float = 0.0
    excess_ms: Mapping[str, float] = field(default_factory=dict)
    range_ms: tuple[float, float] = (0.0, 0.0)  # the shortest and the longest


@dataclass(frozen=True)
class LeftOut:
    """Steps before the measured ones of a run's later turns, which no figure holds, and the long ones among them.

    The first step of a turn is not among them: the run was suspended until then, and what that costs is no training.
    """

    step_ms: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    long: RunLongSteps = field(default_factory=RunLongSteps)


def run_long_steps(
    wall_ns: NDArray[np.float64],
    phases: Sequence[str],
    phase_ns: Callable[[str], NDArray[np.float64]],
    counted: NDArray[np.bool_] | None = None,
) -> RunLongSteps:
    """``wall_ns``: of steps, ``phase_ns`` gives those of a phase; NaN where one was not measured.

    ``counted``: the steps among which long ones are looked for, all where it is None. Others only say what is typical.
    """
    long = _is_long(wall_ns) if counted is None else counted & _is_long(wall_ns, wall_ns[~counted])
    if not long.any():
        return RunLongSteps()
    excess = {
        name: float(np.nansum(of[long] - np.nanmedian(of))) / 1e6
        for name in phases
        if not np.isnan(of := phase_ns(name)).all()
    }
    times_ms = wall_ns[long] / 1e6
    ends = float(times_ms.min()), float(times_ms.max())
    return RunLongSteps(int(long.sum()), float(times_ms.sum()), excess, ends)


def without_long(wall_ns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Times of a run, (steps,), each long step as a typical one; as they are where long ones are no exception."""
    long = _is_long(wall_ns)
    return np.where(long, np.median(wall_ns), wall_ns) if long.mean() <= FEW else wall_ns


def _is_long(wall_ns: NDArray[np.float64], typical_ns: NDArray[np.float64] | None = None) -> NDArray[np.bool_]:
    """``typical_ns``: times that say what is typical; all of them where it is None."""
    found: NDArray[np.bool_] = wall_ns > LONG * np.median(wall_ns if typical_ns is None else typical_ns)
    return found


def long_steps(runs: Sequence[RunLongSteps], of: int) -> LongSteps | None:
    """Of all ``runs``, with ``of`` steps together; None where there are none, or so many that they are no exception."""
    steps = sum(run.steps for run in runs)
    if not steps or steps > FEW * of:
        return None
    excess: Counter[str] = Counter()
    for run in runs:
        excess.update(run.excess_ms)
    total = sum(one for one in excess.values() if one > 0)
    phase = next((name for name, one in excess.items() if one > total / 2), "")
    ends = [run.range_ms for run in runs if run.steps]
    within = min(low for low, _ in ends), max(high for _, high in ends)
    return LongSteps(steps, of, sum(run.sum_ms for run in runs) / steps, phase, within)
