"""Decides at milestones whether a trial has fallen behind the others of its group."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import median

from harness.sweep.trials import Trial, TrialPlan

COUNT = 10  # parts that a trial's steps are cut into; a milestone is where two of them meet
EARLIEST = 0.3  # of the steps: before, a high rate that learns fast looks better than it ends
MIN_PEERS = 3  # a median of fewer says little


def milestones(steps: int) -> list[int]:
    """After how many steps a trial reports; its end is none."""
    return sorted({ceil(steps * part / COUNT) for part in range(1, COUNT)} - {steps})


def is_behind(plan: TrialPlan, steps: int, loss: float, others: Sequence[Trial]) -> bool:
    """Whether a trial with this mean loss at the milestone ``steps`` is above the median of its group's others."""
    if not plan.ends_behind or steps < EARLIEST * plan.steps:
        return False
    same = (plan.group, plan.steps, plan.seed, plan.role)
    peers = [
        one.milestones[steps]
        for one in others
        if (one.plan.group, one.plan.steps, one.plan.seed, one.plan.role) == same and steps in one.milestones
    ]
    return len(peers) >= MIN_PEERS and loss > median(peers)
