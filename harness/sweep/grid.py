"""Trains the rates of a grid, or rates drawn at random; the strategy early-stopping ends those that fall behind."""

from __future__ import annotations

import math
import random
from typing import Literal, TypeAlias

from pydantic import Field

from harness.sweep.trials import SearchSpace, TrialPlan, Trials, TrialStage
from trainer.config import Config

Draw: TypeAlias = Literal["grid", "random"]
"""grid: evenly spaced in their logarithm, both bounds among them; random: uniform in their logarithm."""


class GridStrategy(Config):
    """Trains every rate of a grid, or of a random draw, to the end."""

    name: Literal["grid"]
    trials: int = Field(10, ge=1, le=10_000)
    """Number of rates."""
    draw: Draw = "grid"
    """grid: evenly spaced in their logarithm, both bounds among them; random: uniform in their logarithm."""

    def stages(self, space: SearchSpace) -> list[TrialStage]:
        return [TrialStage(self.draw, self.trials * len(space.seeds), space.steps)]

    def search(self, space: SearchSpace) -> Trials:
        for rate in rates_of(self.draw, self.trials, space, f"{self.name}/{space.seed}"):
            for seed in space.seeds:
                yield TrialPlan(rate, space.steps, seed)


class EarlyStoppingStrategy(Config):
    """A grid or random rates at a fraction of the steps; those that fall behind end early.

    A trial is behind where its mean training loss since the last milestone is above the median of those that trials
    before it had there (median stopping rule: Golovin et al. 2017, "Google Vizier", section 3.2.2, with the loss of the
    milestone in place of the best so far).
    """

    name: Literal["early-stopping"]
    trials: int = Field(10, ge=1, le=10_000)
    """Number of rates."""
    draw: Draw = "grid"
    """grid: evenly spaced in their logarithm, both bounds among them; random: uniform in their logarithm."""
    fraction: float = Field(0.25, gt=0, le=1)
    """Share of the steps that a trial has. Its schedule ends with it."""

    def stages(self, space: SearchSpace) -> list[TrialStage]:
        steps = shortened(space.steps, self.fraction)
        return [TrialStage("early-stopping", self.trials * len(space.seeds), steps)]

    def search(self, space: SearchSpace) -> Trials:
        steps = shortened(space.steps, self.fraction)
        for rate in rates_of(self.draw, self.trials, space, f"{self.name}/{space.seed}"):
            for seed in space.seeds:
                yield TrialPlan(rate, steps, seed, ends_behind=True)


def rates_of(draw: Draw, count: int, space: SearchSpace, seed: str) -> list[float]:
    """Return ``count`` learning rates of the space, as a grid or at random, in the order of their trials.

    ``seed``: of the random draw; a resumed sweep must repeat it.
    """
    if draw == "grid":
        return spread(grid(space.low, space.high, count))
    chance = random.Random(seed)
    return [log_uniform(chance, space.low, space.high) for _ in range(count)]


def grid(low: float, high: float, count: int) -> list[float]:
    """Return ``count`` rates from ``low`` to ``high``, evenly spaced in their logarithm.

    A single one is the geometric mean.
    """
    if count == 1:
        return [math.sqrt(low * high)]
    ratio = math.log(high / low)
    inner = [low * math.exp(ratio * place / (count - 1)) for place in range(1, count - 1)]
    return [low, *inner, high]  # The bounds are kept exact, without rounding.


def spread(rates: list[float]) -> list[float]:
    """Reorder the sorted ``rates`` so that the first ones cover the whole range: each next one halves a gap."""
    bits = max(1, (len(rates) - 1).bit_length())
    places = (int(format(place, f"0{bits}b")[::-1], 2) for place in range(2**bits))  # van der Corput's sequence
    return [rates[place] for place in places if place < len(rates)]


def log_uniform(chance: random.Random, low: float, high: float) -> float:
    """Draw a rate from ``low`` to ``high`` whose logarithm is uniformly distributed."""
    return min(max(math.exp(chance.uniform(math.log(low), math.log(high))), low), high)


def shortened(steps: int, fraction: float) -> int:
    """Return ``fraction`` of ``steps``, rounded, at least 1."""
    return max(1, round(steps * fraction))
