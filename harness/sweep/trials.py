"""Define a trial, its milestones, and the protocol of strategies, which decide which trials run.

A strategy is a generator that yields plans and receives ended trials, so a sweep is resumed from its journal. It must
not read a clock, nor draw what its seed does not determine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from typing import Literal, Protocol, TypeAlias

from trainer.config import TrainerConfig
from trainer.json_types import JsonObject

TrialStatus = Literal["running", "done", "diverged", "behind", "late"]
Role = Literal["curve", "probe"]


@dataclass(frozen=True)
class TrialPlan:
    """One training that a strategy asks for: its learning rate, length and seed."""

    learning_rate: float
    steps: int  # Number of optimizer steps
    seed: int = 0
    group: str = ""  # Trials of one group with the same number of steps are points of one curve. "": all trials are.
    role: Role = "curve"  # curve: a point of a loss curve; probe: only looks for divergence.
    ends_behind: bool = False  # True if the trial ends at a milestone where its loss is above its group's median
    overrides: JsonObject = field(default_factory=dict)  # the trainer's dotted keys that differ from the sweep's

    @property
    def kind(self) -> str:
        """Key that is equal for trials whose steps take the same time: their overrides as JSON."""
        return json.dumps(self.overrides, sort_keys=True)


@dataclass(frozen=True)
class Trial:
    """One trial of a sweep: its plan, and its state or result."""

    number: int
    plan: TrialPlan
    status: TrialStatus = "running"
    """diverged: a loss or gradient norm that is not finite, or a loss above its start; behind: its loss was above the
    others' median; late: it exceeded the time limit of a trial.
    """
    loss: float | None = None  # held-out loss after its last step (behind: if ``evaluate_behind`` is set); else None
    training_loss: float | None = None  # Training loss of the last known step
    steps: int = 0
    tokens: int = 0  # Positions computed, including padding
    seconds: float = 0.0  # Wall time of all parts
    hellaswag: float | None = None  # share of right multiple-choice answers at the end; None without questions
    milestones: Mapping[int, float] = field(default_factory=dict)  # mean training loss since the previous one, by steps

    @property
    def score(self) -> float:
        """Score for strategies: the held-out loss, or infinity if the trial did not finish."""
        return self.loss if self.status == "done" and self.loss is not None else math.inf


Trials: TypeAlias = Generator[TrialPlan, Trial, None]


@dataclass(frozen=True)
class SearchSpace:
    """Input of a strategy: learning rates from ``low`` to ``high``, seeds, and the length of trials."""

    low: float
    high: float
    seeds: tuple[int, ...]  # Seeds of the trials. A rate is trained once with each.
    seed: int  # Seed of the strategy's draws
    config: TrainerConfig  # Configuration of every trial, without its rate, steps, seed and overrides
    steps_of: Callable[[JsonObject], int]  # Optimizer steps of a full trial whose configuration has these overrides
    step_tokens: int = 1  # Tokens of an optimizer step, including padding

    @property
    def steps(self) -> int:
        """Optimizer steps of a full trial."""
        return self.steps_of({})


@dataclass(frozen=True)
class TrialStage:
    """Planned trials of one length, as far as a strategy knows them before it starts."""

    name: str
    trials: int  # Maximum number of trials; the exact number if ``exact``.
    steps: int  # Optimizer steps of each trial
    exact: bool = True
    of: str = ""  # Bracket or size to which it belongs
    group: str = ""  # Group of its trials, as in TrialPlan. ``overrides``: settings of these trials.
    overrides: JsonObject = field(default_factory=dict)


class Strategy(Protocol):
    """Protocol of a search strategy. Its settings are a section of the sweep file (harness.sweep.strategies)."""

    def search(self, space: SearchSpace) -> Trials:
        """Yield each plan, and receive its ended trial. The rate is chosen later, from all trials."""
        ...

    def stages(self, space: SearchSpace) -> list[TrialStage]:
        """Return the trials to come, by stage in order. Raises InputError if settings are not possible."""
        ...


MILESTONE_PARTS = 10  # number of parts of a trial; a milestone lies between two parts
EARLIEST_END = 0.3  # share of the steps; before it, a high rate that learns fast looks better than it ends
MIN_PEERS = 3  # A median of fewer trials is not reliable.


def milestones(steps: int) -> list[int]:
    """Return the steps at which a trial of ``steps`` steps reports its loss: each tenth (rounded up), not the end."""
    return sorted({ceil(steps * part / MILESTONE_PARTS) for part in range(1, MILESTONE_PARTS)} - {steps})


def is_behind(plan: TrialPlan, steps: int, loss: float, others: Sequence[Trial]) -> bool:
    """Return True if ``loss``, the trial's mean at milestone ``steps``, is above the median of its peers in ``others``.

    False with fewer than :data:`MIN_PEERS` of its group, length, seed and role, and before :data:`EARLIEST_END`.
    """
    if not plan.ends_behind or steps < EARLIEST_END * plan.steps:
        return False
    kind = (plan.group, plan.steps, plan.seed, plan.role)
    peers = [
        trial.milestones[steps]
        for trial in others
        if (trial.plan.group, trial.plan.steps, trial.plan.seed, trial.plan.role) == kind and steps in trial.milestones
    ]
    return len(peers) >= MIN_PEERS and loss > median(peers)
