"""Reads the losses of a run by the number of the training step, so that two runs are compared at the same steps.

Measured steps are no such number: each repetition begins with warm-up steps, and arms with other workers have others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.explain.policy import LOSS_STEPS
from harness.study.run_data import RunData


@dataclass(frozen=True, eq=False)
class StepLosses:
    """The losses of ``run``, of warm-up steps too; read when they are asked for, as a long run has a million."""

    run: RunData | None = None

    def by_step(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Steps with a finite loss, each once and ascending, and these losses."""
        steps, losses = self.recorded()
        finite = np.isfinite(losses)
        return steps[finite], losses[finite]

    def recorded(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The same with losses that are NaN or infinite: a run that diverged has not stopped training there."""
        table = None if self.run is None else self.run.step_columns(["step", "loss"])
        if table is None:
            return np.empty(0, np.int64), np.empty(0)
        known = table.drop_null()
        steps, losses = (known.column(name).to_numpy() for name in ("step", "loss"))
        steps, first = np.unique(steps, return_index=True)
        return steps, losses[first]


def at_common_steps(ours: StepLosses, theirs: StepLosses) -> tuple[float, float] | None:
    """The mean losses of two runs over the last :data:`LOSS_STEPS` steps that both trained; None without such a step.

    A run may be further in its training than the other: its later steps say nothing of the difference.
    """
    (our_steps, our_losses), (their_steps, their_losses) = ours.by_step(), theirs.by_step()
    _, here, there = np.intersect1d(our_steps, their_steps, assume_unique=True, return_indices=True)
    if not len(here):
        return None
    return float(our_losses[here[-LOSS_STEPS:]].mean()), float(their_losses[there[-LOSS_STEPS:]].mean())
