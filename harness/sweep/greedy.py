"""Doubles the learning rate until training diverges, then trains fractions of that rate until two are worse.

Two worse rates in a row, by more than noise, end the search. On a flat part of the curve it continues downward, because
above the trained rates it only tests if training diverges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import variance
from typing import Literal

from pydantic import Field

from harness.sweep.grid import shortened
from harness.sweep.trials import SearchSpace, TrialPlan, Trials, TrialStage
from trainer.config import Config

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
    diverged (from the highest of the range, where none did), and stop when two in a row are worse than the best by more
    than noise.
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
    """Return the largest difference between two mean losses of about ``loss`` that may be noise.

    ``spreads``: for each rate, the losses of its seeds. Their pooled variance gives the noise, but it is at least
    :data:`FLAT` of the loss.
    """
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
