"""Picks the steps that a picture of step times over the study shows: every outlier, and of the rest so many as fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.explain.ledger import column
from harness.explain.policy import OUTLIER_QUARTILES, STEP_OUTLIERS_MAX, STEP_POINTS_MAX
from harness.study.run_data import RunData


@dataclass(frozen=True)
class StepTimes:
    """Measured steps of one run, in the order they ran. ``start_s``: since the first measured step of the study."""

    arm: str
    block: int
    steps: int  # measured, of which those below are shown
    outliers: int
    median_ms: float
    start_s: tuple[float, ...]
    wall_ms: tuple[float, ...]
    step: tuple[int, ...]
    repetition: tuple[int, ...]
    outlier: tuple[bool, ...]


def step_times(runs: Sequence[RunData], most: int = STEP_POINTS_MAX) -> tuple[StepTimes, ...]:
    """The finished runs of arms (controls left out), by arm and block, thinned to about ``most`` points in all."""
    plain = [run for run in runs if run.record.control is None and run.record.status == "done"]
    share = max(20, most // max(1, len(plain)))
    found = [one for run in plain if (one := _of(run, share)) is not None]
    first = min((one.start_s[0] for one in found), default=0.0)
    return tuple(_since(one, first) for one in found)


def _of(run: RunData, most: int) -> StepTimes | None:
    table = run.step_columns(["step", "turn", "warmup", "start_ns", "wall_ns"])
    if table is None or not len(table):
        return None
    wall, start = column(table, "wall_ns"), column(table, "start_ns")
    measured = np.flatnonzero(np.not_equal(column(table, "warmup"), 1) & (wall > 0) & ~np.isnan(start))
    if not measured.size:
        return None
    milliseconds = wall[measured] / 1e6
    low, high = np.quantile(milliseconds, [0.25, 0.75])
    far: NDArray[np.bool_] = milliseconds > high + OUTLIER_QUARTILES * (high - low)
    outlier = _slowest(far, milliseconds)
    kept = _kept(outlier, most)
    shown = measured[kept]
    seconds = (start[shown] + float(run.record.realtime_minus_monotonic_ns)) / 1e9
    return StepTimes(
        run.record.arm,
        run.record.block,
        len(measured),
        int(far.sum()),
        float(np.median(milliseconds)),
        tuple(seconds.tolist()),
        tuple(milliseconds[kept].tolist()),
        tuple(column(table, "step")[shown].astype(np.int64).tolist()),
        tuple(np.nan_to_num(column(table, "turn")[shown]).astype(np.int64).tolist()),
        tuple(outlier[kept].tolist()),
    )


def _slowest(far: NDArray[np.bool_], milliseconds: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Of the outliers no more than the slowest :data:`STEP_OUTLIERS_MAX`."""
    if far.sum() <= STEP_OUTLIERS_MAX:
        return far
    chosen = np.zeros_like(far)
    chosen[np.argsort(milliseconds)[-STEP_OUTLIERS_MAX:]] = True
    return chosen


def _kept(outlier: NDArray[np.bool_], most: int) -> NDArray[np.int64]:
    """Places of every outlier and of others spread evenly, ``most`` where there are more."""
    others = np.flatnonzero(~outlier)
    room = max(1, most - int(outlier.sum()))
    if len(others) > room:
        others = others[np.linspace(0, len(others) - 1, room).astype(np.int64)]
    return np.sort(np.concatenate([np.flatnonzero(outlier), others]))


def _since(one: StepTimes, first: float) -> StepTimes:
    return StepTimes(**{**vars(one), "start_s": tuple(second - first for second in one.start_s)})
