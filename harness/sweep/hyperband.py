"""Hyperband (Li et al. 2018, "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", algorithm 1).

    bracket s   n = ceil((s_max + 1) / (s + 1) * eta ** s) rates begin with R / eta ** s steps
    rung i      the best floor(n / eta ** i) of them go on with R / eta ** (s - i) steps

In every rung a rate is trained from the start to the rung's steps, as the algorithm's budget counts it. So nothing is
kept between rungs, and each trial's schedule ends with the trial. A rung's steps are rounded down to whole steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Literal

from pydantic import Field

from harness.sweep.grid import Draw, rates_of
from harness.sweep.trials import SearchSpace, Trial, TrialPlan, Trials, TrialStage
from trainer.config import Config
from trainer.errors import InputError
from trainer.json_types import JsonObject


@dataclass(frozen=True)
class Rung:
    """One stage of a bracket: its number of trials, and the optimizer steps of each."""

    trials: int
    steps: int


@dataclass(frozen=True)
class Bracket:
    """One run of successive halving. ``s``: how many times it cuts the number of trials to 1/eta."""

    s: int
    rungs: tuple[Rung, ...]


class HyperbandStrategy(Config):
    """Hyperband: brackets of successive halving, from many short trials to a few full ones."""

    name: Literal["hyperband"]
    R: int | None = Field(None, ge=1, le=10_000_000)
    """Optimizer steps of the longest trial; null: those of the sweep."""
    eta: int = Field(3, ge=2, le=100)
    """One in eta of a rung's rates goes on, with eta times as many steps."""
    draw: Draw = "random"
    """Choice of the learning rates of each bracket's first rung. random: uniform in their logarithm; grid: evenly
    spaced in it, including both bounds."""

    def stages(self, space: SearchSpace) -> list[TrialStage]:
        return [
            TrialStage(f"rung {place}", rung.trials, rung.steps, of=f"s = {bracket.s}")
            for bracket in brackets(self._longest(space), self.eta)
            for place, rung in enumerate(bracket.rungs)
        ]

    def search(self, space: SearchSpace) -> Trials:
        yield from hyperband(space, self._longest(space), self.eta, draw=self.draw)

    def _longest(self, space: SearchSpace) -> int:
        if len(space.seeds) > 1:
            raise InputError("seeds: hyperband trains each rate with one seed; give one")
        return self.R or space.steps


def hyperband(
    space: SearchSpace,
    most_steps: int,
    eta: int,
    group: str = "",
    overrides: JsonObject | None = None,
    draw: Draw = "random",
) -> Trials:
    """Yield the trials of all brackets, and receive each when it has ended.

    ``most_steps``: steps of the longest trials. ``group`` and ``overrides``: name and configuration of the model size;
    by default the sweep's own model.
    """
    for bracket in brackets(most_steps, eta):
        rates = rates_of(draw, bracket.rungs[0].trials, space, f"hyperband/{space.seed}/{group}/{bracket.s}")
        for rung in bracket.rungs:
            ended: list[Trial] = []
            for rate in rates[: rung.trials]:
                plan = TrialPlan(rate, rung.steps, space.seeds[0], group, overrides=overrides or {})
                ended.append((yield plan))
            # Diverged trials never go on, even if the next rung then has fewer trials than planned.
            alive = [trial for trial in ended if trial.status == "done"]
            rates = [trial.plan.learning_rate for trial in sorted(alive, key=lambda trial: (trial.score, trial.number))]


def brackets(most_steps: int, eta: int) -> list[Bracket]:
    """Return the brackets of Hyperband with their rungs, for longest trials of ``most_steps`` steps (R) and ``eta``."""
    s_max = 0
    while eta ** (s_max + 1) <= most_steps:  # s_max = floor(log_eta(R)); floating point gets it wrong for powers.
        s_max += 1
    result = []
    for s in range(s_max, -1, -1):
        n = ceil(Fraction(s_max + 1, s + 1) * eta**s)
        rungs = [Rung(floor(Fraction(n, eta**i)), floor(Fraction(most_steps * eta**i, eta**s))) for i in range(s + 1)]
        result.append(Bracket(s, tuple(rungs)))
    return result
