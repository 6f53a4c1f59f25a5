"""What each arm learned, and how soon: its last loss, and the first step at which its loss is down to a target.

One step's loss scatters with its documents. So a loss here is a mean over the last few steps, as in ``step_losses``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from harness.explain.ledger import RunLedger
from harness.explain.policy import LOSS_STEPS
from harness.explain.statistics import Estimate, from_amounts, from_block_values
from harness.study.records import RunRecord


@dataclass(frozen=True)
class Learned:
    """One arm. None: not measured, or not reached.

    ``loss``: after its last step; None where a run diverged. ``steps``, ``tokens``: trained until its loss was
    ``target``, medians over all ``runs``: one that did not come there counts as later than any other, so there is a
    median where most came, and an interval where all did. ``trained_steps``: of its shortest run, warm-up steps too, as
    they train.
    """

    arm: str
    target: float
    loss: Estimate | None
    steps: Estimate | None
    tokens: float | None
    seconds: float | None  # those steps, at the arm's typical step
    reached: int
    runs: int
    trained_steps: int | None
    peak_memory_bytes: float | None  # the processes' resident memory, median over runs
    peak_device_bytes: float | None
    left: int = 0  # runs that reached it and whose last loss was above it again: by chance, or they diverged
    diverged: int = 0  # runs whose last losses are not finite
    failed: int = 0  # runs that did not finish: not among ``runs``


def learned(
    arm: str,
    target: float,
    runs: Mapping[int, RunLedger],
    records: Sequence[RunRecord],
    tokens_per_step: float | None,
    step_ms: float | None,
    failed: int = 0,
) -> Learned:
    """``runs``: its ledgers by block; ``records``: of the same runs; ``failed``: how many others did not finish."""
    curves = [one for run in runs.values() if len((one := run.losses.recorded())[0])]
    last = [float(losses[-LOSS_STEPS:].mean()) for _, losses in curves]
    first = [steps_to(target, steps, losses) for steps, losses in curves]
    diverged = sum(not math.isfinite(one) for one in last)
    steps = _steps(first)
    return Learned(
        arm=arm,
        target=target,
        loss=None if diverged else from_block_values(last),
        steps=steps,
        tokens=None if steps is None or tokens_per_step is None else steps.median * tokens_per_step,
        seconds=None if steps is None or step_ms is None else steps.median * step_ms / 1e3,
        reached=sum(one is not None for one in first),
        runs=len(curves),
        trained_steps=min((int(steps[-1]) + 1 for steps, _ in curves), default=None),
        peak_memory_bytes=_median([one.peak_memory_bytes for one in records]),
        peak_device_bytes=_median([one.peak_device_bytes for one in records]),
        left=sum(one is not None and not end <= target for one, end in zip(first, last, strict=True)),
        diverged=diverged,
        failed=failed,
    )


def _steps(first: Sequence[int | None]) -> Estimate | None:
    """The median over runs, None for one that did not come there: without an interval, and none below half of them."""
    if all(one is not None for one in first):
        return from_amounts([float(one) for one in first if one is not None])
    middle = median(math.inf if one is None else one for one in first)
    return Estimate(float(middle), None, None, len(first)) if math.isfinite(middle) else None


def steps_to(target: float, steps: NDArray[np.int64], losses: NDArray[np.float64]) -> int | None:
    """How many steps it took until the mean loss of the last :data:`LOSS_STEPS` was ``target`` or less; None: never.

    ``losses`` may be NaN: no mean with one of them is anything.
    """
    if len(losses) < LOSS_STEPS:
        return None
    means = np.lib.stride_tricks.sliding_window_view(losses, LOSS_STEPS).mean(axis=1)
    below = np.flatnonzero(means <= target)
    return int(steps[below[0] + LOSS_STEPS - 1]) + 1 if len(below) else None


def _median(values: Sequence[int | None]) -> float | None:
    known = [one for one in values if one]
    return float(median(known)) if known else None
