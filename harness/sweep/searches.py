"""Strategies that search at the sweep's own size.

- ``grid`` trains the rates of a grid, or rates drawn at random; ``early-stopping`` ends those that fall behind.
- ``greedy`` doubles the learning rate until training diverges, then trains fractions of that rate. Two worse rates in a
  row, by more than noise, end the search.
- ``hyperband`` is algorithm 1 of Li et al. 2018, "Hyperband: A Novel Bandit-Based Approach to Hyperparameter
  Optimization". In every rung a rate is trained from the start, and its schedule ends with the trial:

    bracket s   n = ceil((s_max + 1) / (s + 1) * eta ** s) rates begin with R / eta ** s steps
    rung i      the best floor(n / eta ** i) of them go on with R / eta ** (s - i) steps, rounded down
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from statistics import variance
from typing import Literal, TypeAlias

from pydantic import Field

from harness.sweep.trials import SearchSpace, Trial, TrialPlan, Trials, TrialStage
from trainer.config import Config
from trainer.errors import InputError
from trainer.json_types import JsonObject

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
    """Trains the rates of a grid, or random ones, in short trials, and ends those early that fall behind.

    Behind: the mean training loss since the last milestone is above the median of earlier trials there (median stopping
    rule: Golovin et al. 2017, "Google Vizier", section 3.2.2, with this loss in place of the best so far).
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
    """Return ``count`` rates of the space, as a grid or at random (``seed``: a resumed sweep must repeat it)."""
    if draw == "grid":
        return spread(grid(space.low, space.high, count))
    chance = random.Random(seed)
    return [log_uniform(chance, space.low, space.high) for _ in range(count)]


def grid(low: float, high: float, count: int) -> list[float]:
    """Return ``count`` rates, evenly spaced in their logarithm. A single one is the geometric mean."""
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


WORSE = 2  # number of worse rates in a row that ends the search
# Losses that differ by less than this share count as the same, because the seed alone may cause that. Otherwise noise
# on a flat part of the curve would end the search above its optimum. The cost is at most a further rate.
FLAT = 0.01
SURE_DEVIATIONS = (
    2.0  # standard errors of the difference of two means, for rates with several seeds; a smaller difference is noise
)


class GreedyStrategy(Config):
    """Doubles the rate until training diverges, then trains fractions of that rate to their end.

    The doubled rates are short trials that only look for divergence. The full ones go down from the first rate that
    diverged, or the highest of the range, and stop when two in a row are worse than the best by more than noise.
    """

    name: Literal["greedy"]
    probe_fraction: float = Field(0.1, gt=0, le=1)
    """Share of a trial's steps for a trial that looks for divergence."""
    fraction: float = Field(0.5, gt=0, le=0.99)
    """Ratio of the next rate to the last one."""
    steps: int | None = Field(None, ge=1, le=10_000_000)
    """Optimizer steps of a trial, at the end of which its schedule ends; null: the sweep's steps. A few tens of steps
    cost little. The sweep does not test whether they have the best rate of the full training."""

    def stages(self, space: SearchSpace) -> list[TrialStage]:
        return [
            TrialStage("doubling", len(doubled(space)) * len(space.seeds[:1]), self._probe(space), exact=False),
            TrialStage("fractions", self._most(space) * len(space.seeds), self._longest(space), exact=False),
        ]

    def search(self, space: SearchSpace) -> Trials:
        rates = doubled(space)
        ceiling: float | None = None
        for rate in rates:
            probe = yield TrialPlan(rate, self._probe(space), space.seeds[0], "doubling", role="probe")
            if probe.status == "diverged":
                ceiling = rate
                break
        if ceiling == rates[0]:
            return  # No rate of the range trains.
        # Start at least at the lowest rate, which did not diverge. A small fraction of the diverging rate may lie below
        # it.
        rate = space.high if ceiling is None else max(space.low, ceiling * self.fraction)
        best, worse = math.inf, 0
        spreads: list[list[float]] = []
        while rate >= space.low and worse < WORSE:
            ended = []
            for seed in space.seeds:
                ended.append((yield TrialPlan(rate, self._longest(space), seed)))
            scores = [trial.score for trial in ended]
            mean = sum(scores) / len(scores)
            if mean < math.inf:
                spreads.append(scores)
            if any(trial.status == "diverged" for trial in ended):
                best, worse = math.inf, 0  # Neither this rate nor a higher one is chosen.
            elif best < math.inf:
                worse = worse + 1 if mean > best + noise_of(best, spreads) else 0
            best = min(best, mean)
            rate *= self.fraction

    def _longest(self, space: SearchSpace) -> int:
        return self.steps or space.steps

    def _probe(self, space: SearchSpace) -> int:
        return shortened(self._longest(space), self.probe_fraction)

    def _most(self, space: SearchSpace) -> int:
        count, rate = 0, space.high
        while rate >= space.low:
            count, rate = count + 1, rate * self.fraction
        return count


def noise_of(loss: float, spreads: Sequence[Sequence[float]]) -> float:
    """Return the difference of two mean losses that may be noise, by the seeds' losses at each rate (``spreads``)."""
    squares = sum(variance(losses) * (len(losses) - 1) for losses in spreads if len(losses) > 1)
    freedom = sum(len(losses) - 1 for losses in spreads)
    error = math.sqrt(2 * squares / freedom / len(spreads[0])) if freedom else 0.0
    return max(FLAT * abs(loss), SURE_DEVIATIONS * error)


def doubled(space: SearchSpace) -> list[float]:
    """Return the lowest rate of the range, then rates that double, and last the highest of the range."""
    rates, rate = [], space.low
    while rate < space.high:
        rates.append(rate)
        rate *= 2
    return [*rates, space.high]


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
    """Yield the plan of each trial of all brackets, and receive it ended. Plans have ``group`` and ``overrides``."""
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
