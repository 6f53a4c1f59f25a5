"""What a sweep has spent and may spend: hours, money, tokens. Arithmetic alone; the sentences are in ``messages``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.sweep.model import SweepBudget
from harness.sweep.store import Pilot
from harness.sweep.trials import Trial, TrialPlan

Resource = Literal["hours", "usd", "tokens"]


@dataclass(frozen=True)
class Shortage:
    """What a trial needs more of than is left."""

    resource: Resource
    needed: float
    left: float
    budget: float


@dataclass(frozen=True)
class Spending:
    """What trials have taken until now. ``usd``: None where no price is known."""

    seconds: float
    tokens: int
    usd: float | None


def usd_of(seconds: float, price_usd_per_hour: float | None) -> float | None:
    """What that time costs."""
    return None if price_usd_per_hour is None else seconds / 3600 * price_usd_per_hour


def spent_by(trials: Sequence[Trial], price_usd_per_hour: float | None, extra_s: float = 0.0) -> Spending:
    """The sum over ``trials``, and ``extra_s``: seconds that were no trial's."""
    seconds = sum(one.seconds for one in trials) + extra_s
    return Spending(seconds, sum(one.tokens for one in trials), usd_of(seconds, price_usd_per_hour))


def shortage(
    budget: SweepBudget,
    plan: TrialPlan,
    step_tokens: int,
    spent: Spending,
    pilot: Pilot | None,
    price_usd_per_hour: float | None,
) -> Shortage | None:
    """What is too little for the trial ``plan``; None where there is enough of all, as far as that can be expected."""
    if budget.tokens is not None and (needed := plan.steps * step_tokens) > budget.tokens - spent.tokens:
        return Shortage("tokens", needed, budget.tokens - spent.tokens, budget.tokens)
    if pilot is None:
        return None
    seconds = pilot.seconds(plan.steps)
    if budget.hours is not None and seconds > (left_s := budget.hours * 3600 - spent.seconds):
        return Shortage("hours", seconds / 3600, left_s / 3600, budget.hours)
    usd = usd_of(seconds, price_usd_per_hour)
    if budget.usd is not None and usd is not None and spent.usd is not None and usd > budget.usd - spent.usd:
        return Shortage("usd", usd, budget.usd - spent.usd, budget.usd)
    return None


def limit_s(budget: SweepBudget, price_usd_per_hour: float | None) -> float | None:
    """The seconds that the budget allows in all; None where time is not limited."""
    limits = [] if budget.hours is None else [budget.hours * 3600]
    if budget.usd is not None and price_usd_per_hour is not None:
        limits.append(budget.usd / price_usd_per_hour * 3600)
    return min(limits, default=None)
