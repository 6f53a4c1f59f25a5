"""Pairs two runs that alternated, round by round: one value a block for the step and for each of its parts.

A round is one repetition of both sides, side by side in time and over the same documents. A block's value is the median
over its rounds of the logarithm of candidate time / baseline time: a pause that hits one round moves it by next to
nothing, and a burst of long documents hits both sides alike. Rounds of one pair of processes share its luck, so only
blocks count as independent values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.explain.ledger import column, derived_steps
from harness.regress.policy import ROUNDS_PER_RUN
from harness.study.contract import PHASES, STAGES
from harness.study.run_data import RunData

STEP = "step"
EXPOSED = "exposed "  # + a stage: what it made the step wait
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Rounds:
    """One run: mean milliseconds per measured step by round, {part: (rounds,)}, for the step, its phases and stages.

    The work of a stage counts whether the step waited for it or not.
    """

    parts: Mapping[str, Values]
    alternated: bool  # whether its rounds are repetitions
    session: str

    def mean_ms(self, part: str) -> float | None:
        values = self.parts.get(part)
        return None if values is None else float(values.mean())

    def typical_ms(self, part: str) -> float | None:
        values = self.parts.get(part)
        return None if values is None else float(np.median(values))


def rounds(run: RunData) -> Rounds | None:
    """The rounds of a finished run; None where it did not finish or left no measured step.

    Warm-up steps, of the run and of each repetition, are left out.
    """
    steps = derived_steps(run).table
    if run.record.status != "done" or steps is None:
        return None
    wall = column(steps, "wall_ns")
    measured = np.not_equal(column(steps, "warmup"), 1) & (wall > 0)
    if not measured.any():
        return None
    repetition = np.nan_to_num(column(steps, "turn")[measured])
    alternated = run.record.interleave == "slices" and len(np.unique(repetition)) > 1
    if not alternated:
        repetition = np.floor(np.arange(len(repetition)) * min(ROUNDS_PER_RUN, len(repetition)) / len(repetition))
    _, places = np.unique(repetition, return_inverse=True)
    counts = np.bincount(places)

    def per_step(values: Values) -> Values | None:
        if np.isnan(values).any():
            return None
        summed: Values = np.bincount(places, weights=values) / counts / 1e6
        return summed

    parts = {STEP: per_step(wall[measured])}
    for phase in PHASES:
        parts[phase] = per_step(column(steps, f"{phase}_ns")[measured])
    for stage in STAGES:
        exposed, hidden, work = (
            column(steps, f"{kind}_{stage}_ns")[measured] for kind in ("exposed", "hidden", "work")
        )
        if np.isnan(work).all():  # a table from before there was this column
            work = exposed + np.nan_to_num(hidden)
        parts[stage], parts[f"{EXPOSED}{stage}"] = per_step(work), per_step(exposed)
    known = {part: values for part, values in parts.items() if values is not None}
    return Rounds(known, alternated, run.record.session)


def typical_log(baseline: Rounds, candidate: Rounds, part: str = STEP, control: Rounds | None = None) -> float | None:
    """Median over rounds of log(candidate / baseline) and, where it ran in the same rounds, log(candidate / control).

    The A/A control is the baseline once more: with it the values of blocks scatter less than without (by how much here:
    results/reference/detection-power). Were the two averaged before dividing, a jump of the machine's speed under
    either would spoil the round. None where a side has no such time in half of the rounds.
    """
    logs = [
        np.log(pair[1][both] / pair[0][both])
        for one in (baseline, *([control] if control is not None and control.session == baseline.session else []))
        if (pair := _paired(one, candidate, part)) is not None
        and (both := (pair[0] > 0) & (pair[1] > 0)).sum() * 2 >= len(both)
        and both.any()
    ]
    return float(np.median(np.concatenate(logs))) if logs else None


def total_log(baseline: Rounds, candidate: Rounds, part: str = STEP) -> float | None:
    """Log of the ratio of total times: moved by a rare long step, too; None where a side spent nothing."""
    pair = _paired(baseline, candidate, part)
    if pair is None or not pair[0].sum() > 0 or not pair[1].sum() > 0:
        return None
    return math.log(pair[1].sum() / pair[0].sum())


def _paired(baseline: Rounds, candidate: Rounds, part: str) -> tuple[Values, Values] | None:
    """The rounds of both; of runs that do not have as many, each side's own median instead of pairs."""
    first, second = baseline.parts.get(part), candidate.parts.get(part)
    if first is None or second is None:
        return None
    if len(first) == len(second):
        return first, second
    return np.array([np.median(first)]), np.array([np.median(second)])
