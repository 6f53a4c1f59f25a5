"""Doubles the learning rate until training diverges, then trains fractions of that rate until two are worse."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.sweep.grid import shortened
from harness.sweep.trials import SearchSpace, TrialPlan, Trials, TrialStage
from trainer.config import Config

WORSE = 2  # so many smaller rates in a row that are worse than the best close the search from below


class GreedyStrategy(Config):
    """Doubles the rate until training diverges, then trains fractions of that rate to their end.

    The doubled rates are short trials that only look for divergence. The full ones go down from the first rate that
    diverged (from the highest of the range, where none did), and stop when two in a row are worse than the best.
    """

    name: Literal["greedy"]
    probe_fraction: float = Field(0.1, gt=0, le=1)
    """Share of the steps of a trial that looks for divergence."""
    fraction: float = Field(0.5, gt=0, le=0.99)
    """Of a rate that was trained, the next one."""

    def stages(self, space: SearchSpace) -> list[TrialStage]:
        return [
            TrialStage("doubling", len(doubled(space)) * len(space.seeds[:1]), self._probe(space), exact=False),
            TrialStage("fractions", self._most(space) * len(space.seeds), space.steps, exact=False),
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
            return  # no rate of the range trains
        # At least the lowest, which did not diverge: a small fraction of the rate that did may lie below it.
        rate = space.high if ceiling is None else max(space.low, ceiling * self.fraction)
        best, worse = float("inf"), 0
        while rate >= space.low and worse < WORSE:
            scores = []
            for seed in space.seeds:
                ended = yield TrialPlan(rate, space.steps, seed)
                scores.append(ended.score)
            score = sum(scores) / len(scores)
            worse = worse + 1 if score >= best < float("inf") else 0
            best = min(best, score)
            rate *= self.fraction

    def _probe(self, space: SearchSpace) -> int:
        return shortened(space.steps, self.probe_fraction)

    def _most(self, space: SearchSpace) -> int:
        count, rate = 0, space.high
        while rate >= space.low:
            count, rate = count + 1, rate * self.fraction
        return count


def doubled(space: SearchSpace) -> list[float]:
    """The rates from the lowest of the range, each twice the one before; the highest of the range is the last."""
    rates, rate = [], space.low
    while rate < space.high:
        rates.append(rate)
        rate *= 2
    return [*rates, space.high]
