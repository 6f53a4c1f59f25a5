"""Finds the few steps of an arm that last far longer than its others, and the phase that makes them so.

A step in twenty that writes a checkpoint makes the mean several times what a step typically takes, in every block: the
median over blocks is one of such means.

A step is long by what is typical of all steps of the arm, as the mean is one of all of them. In a block of which most
steps are long, its own median would call none of them long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harness.explain.policy import LONG_STEP_FACTOR, LONG_STEPS_SHARE_MAX

Array = NDArray[np.float64]
Places = NDArray[np.int8]
NO_PHASE = -1


@dataclass(frozen=True)
class LongSteps:
    """Long steps among ``of`` measured steps of all runs. The weighted mean of both means is the mean of all steps.

    ``phase``: the phase with most of the time above a typical step; "" if no phase has more than half of it.
    """

    steps: int
    of: int
    mean_ms: float  # mean of the long steps
    others_ms: float  # mean of the others
    phase: str
    range_ms: tuple[float, float] = (0.0, 0.0)  # the shortest and the longest of them


@dataclass(frozen=True)
class LeftOut:
    """Steps before the measured ones of a run's later turns, which no figure holds.

    The first step of a turn is not among them: the run was suspended until then, and what that costs is no training.
    """

    step_ms: Array = field(default_factory=lambda: np.zeros(0))
    longest: Places = field(default_factory=lambda: np.zeros(0, dtype=np.int8))  # see :func:`longest_phases`


def longest_phases(
    phases: Sequence[str], phase_ns: Callable[[str], Array], counted: NDArray[np.bool_] | None = None
) -> Places:
    """Return the index in ``phases`` of the phase furthest above its median, by step; NO_PHASE if none was measured.

    ``phase_ns`` gives the times of a phase; NaN where one was not measured. ``counted``: the steps that are asked
    about, all where it is None. The others only say what is typical.
    """
    excess = np.array([_above_typical(phase_ns(name), counted) for name in phases])
    found = np.where(np.isneginf(excess).all(axis=0), NO_PHASE, excess.argmax(axis=0)).astype(np.int8)
    return found if counted is None else found[counted]


def _above_typical(phase_ns: Array, counted: NDArray[np.bool_] | None) -> Array:
    typical = phase_ns if counted is None or counted.all() else phase_ns[~counted]
    known = typical[~np.isnan(typical)]
    return np.nan_to_num(phase_ns - np.median(known), nan=-np.inf) if len(known) else np.full(len(phase_ns), -np.inf)


def without_long(wall_ns: Array) -> Array:
    """Replace the time of each long step by the median, unless more than LONG_STEPS_SHARE_MAX are long."""
    long = wall_ns > LONG_STEP_FACTOR * np.median(wall_ns)
    return np.where(long, np.median(wall_ns), wall_ns) if long.mean() <= LONG_STEPS_SHARE_MAX else wall_ns


def long_steps(step_ms: Array, longest: Places, phases: Sequence[str], typical_ms: float) -> LongSteps | None:
    """Return the long steps of ``step_ms``; None if there are none. ``longest``: see :func:`longest_phases`."""
    long = step_ms > LONG_STEP_FACTOR * typical_ms
    if not long.any() or long.all():
        return None
    excess = step_ms[long] - typical_ms
    known = longest[long] != NO_PHASE
    by_phase = np.bincount(longest[long][known], weights=excess[known], minlength=len(phases))
    most = int(by_phase.argmax())
    return LongSteps(
        steps=int(long.sum()),
        of=len(step_ms),
        mean_ms=float(step_ms[long].mean()),
        others_ms=float(step_ms[~long].mean()),
        phase=phases[most] if by_phase[most] > excess.sum() / 2 else "",
        range_ms=(float(step_ms[long].min()), float(step_ms[long].max())),
    )
