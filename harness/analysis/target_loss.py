"""What each arm learned, and how soon: its last loss, and the first step at which its loss is down to a target.

One step's loss scatters with its documents. So a loss here is a mean over the last few steps, as in ``step_losses``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from harness.analysis.ledger import RunLedger
from harness.analysis.statistics import Estimate, from_block_values
from harness.analysis.step_losses import LAST_STEPS
from harness.study.records import RunRecord


@dataclass(frozen=True)
class Learned:
    """One arm. None: not measured, or not reached.

    ``loss``: after its last step. ``steps``, ``tokens``: trained until its loss was ``target``, over the ``reached`` of
    ``runs`` that came there. ``trained_steps``: of its shortest run, warm-up steps too, as they train.
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


def learned(
    arm: str,
    target: float,
    runs: Mapping[int, RunLedger],
    records: Sequence[RunRecord],
    tokens_per_step: float | None,
    step_ms: float | None,
) -> Learned:
    """``runs``: its ledgers by block; ``records``: of the same runs."""
    curves = [one for run in runs.values() if len((one := run.losses.by_step())[0])]
    last = [float(losses[-LAST_STEPS:].mean()) for _, losses in curves]
    first = [step for steps, losses in curves if (step := steps_to(target, steps, losses)) is not None]
    steps = from_block_values([float(step) for step in first])
    return Learned(
        arm=arm,
        target=target,
        loss=from_block_values(last),
        steps=steps,
        tokens=None if steps is None or tokens_per_step is None else steps.median * tokens_per_step,
        seconds=None if steps is None or step_ms is None else steps.median * step_ms / 1e3,
        reached=len(first),
        runs=len(curves),
        trained_steps=min((int(steps[-1]) + 1 for steps, _ in curves), default=None),
        peak_memory_bytes=_median([one.peak_memory_bytes for one in records]),
        peak_device_bytes=_median([one.peak_device_bytes for one in records]),
    )


def steps_to(target: float, steps: NDArray[np.int64], losses: NDArray[np.float64]) -> int | None:
    """How many steps it took until the mean loss of the last :data:`LAST_STEPS` was ``target`` or less; None: never."""
    if len(losses) < LAST_STEPS:
        return None
    means = np.convolve(losses, np.full(LAST_STEPS, 1 / LAST_STEPS), mode="valid")
    below = np.flatnonzero(means <= target)
    return int(steps[below[0] + LAST_STEPS - 1]) + 1 if len(below) else None


def _median(values: Sequence[int | None]) -> float | None:
    known = [one for one in values if one]
    return float(median(known)) if known else None
