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
    """Return the numbers of steps after which a trial reports its loss, without the end of the trial."""
    return sorted({ceil(steps * part / COUNT) for part in range(1, COUNT)} - {steps})


def is_behind(plan: TrialPlan, steps: int, loss: float, others: Sequence[Trial]) -> bool:
    """Return True if a trial should end early, because its mean loss at this milestone is above the others' median.

    Only trials that may end early are ended, not before :data:`EARLIEST` of their steps, and not with fewer than
    :data:`MIN_PEERS` others. ``others``: of any group; those like ``plan`` count.
    """
    if not plan.ends_behind or steps < EARLIEST * plan.steps:
        return False
    kind = (plan.group, plan.steps, plan.seed, plan.role)
    peers = [
        trial.milestones[steps]
        for trial in others
        if (trial.plan.group, trial.plan.steps, trial.plan.seed, trial.plan.role) == kind and steps in trial.milestones
    ]
    return len(peers) >= MIN_PEERS and loss > median(peers)
