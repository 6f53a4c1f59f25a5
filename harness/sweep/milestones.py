"""Decides at milestones if a trial has fallen behind the others of its group."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import median

from harness.sweep.trials import Trial, TrialPlan

COUNT = 10  # number of parts of a trial; a milestone lies between two parts
EARLIEST = 0.3  # share of the steps; before it, a high rate that learns fast looks better than it ends
MIN_PEERS = 3  # A median of fewer trials is not reliable.


def milestones(steps: int) -> list[int]:
    """Return the step counts after which a trial reports. The end of the trial is not included."""
    return sorted({ceil(steps * part / COUNT) for part in range(1, COUNT)} - {steps})


def is_behind(plan: TrialPlan, steps: int, loss: float, others: Sequence[Trial]) -> bool:
    """Return True if ``loss``, the mean at the milestone ``steps``, is above the median of the group's other trials."""
    if not plan.ends_behind or steps < EARLIEST * plan.steps:
        return False
    kind = (plan.group, plan.steps, plan.seed, plan.role)
    peers = [
        trial.milestones[steps]
        for trial in others
        if (trial.plan.group, trial.plan.steps, trial.plan.seed, trial.plan.role) == kind and steps in trial.milestones
    ]
    return len(peers) >= MIN_PEERS and loss > median(peers)
