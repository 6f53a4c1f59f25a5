"""Compute what a sweep has spent, what its trials are expected to need, and the rest of its budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.judge.cost import HOUR_S, cost_of_trials, usd_of
from harness.launch.costing import work_of_training
from harness.sweep.model import SweepBudget, TrialConfigs
from harness.sweep.store import Pilot
from harness.sweep.trials import SearchSpace, Trial, TrialPlan, TrialStage

Resource = Literal["hours", "usd", "tokens"]


@dataclass(frozen=True)
class Shortage:
    """A resource that does not suffice for the next trials. Its figures are hours, USD or tokens."""

    resource: Resource
    needed: float
    left: float
    budget: float


@dataclass(frozen=True)
class Spending:
    """Time, tokens and money that trials have used so far. ``usd``: None without a known price."""

    seconds: float
    tokens: int
    usd: float | None


@dataclass(frozen=True)
class TrialsNeed:
    """Expected need of all trials of one size (``group``), run one after the other, if none ends early."""

    group: str
    trials: int
    steps: int  # Total steps of all trials. ``tokens`` and ``seconds`` are totals, too.
    tokens: int
    step_s: float | None = None
    seconds: float | None = None  # None without a pilot of that kind


class BudgetOver(Exception):  # noqa: N818 - an outcome; everything is kept
    """Error: the budget is spent, or its rest is too small for the next trial. The message has the figures."""


def spent_by(trials: Sequence[Trial], price_usd_per_hour: float | None, extra_s: float = 0.0) -> Spending:
    """Return what ``trials`` have used. ``extra_s``: seconds spent outside of trials, which cost money too."""
    seconds = sum(trial.seconds for trial in trials) + extra_s
    return Spending(seconds, sum(trial.tokens for trial in trials), usd_of(seconds, price_usd_per_hour))


def need_of(plan: TrialPlan, configs: TrialConfigs, pilots: Mapping[str, Pilot], trials: int = 1) -> TrialsNeed:
    """Return the expected need of ``trials`` trials like ``plan``; no times without a pilot of that kind (model)."""
    config = configs.of(plan)
    steps, pilot = trials * plan.steps, pilots.get(plan.kind)
    need = TrialsNeed(plan.group, trials, steps, steps * configs.step_tokens(config))
    if pilot is None:
        return need
    cost = cost_of_trials(pilot.measurement, trials, work_of_training(config, plan.steps))
    return replace(need, step_s=pilot.step_s, seconds=cost.likely)


def plan_of(stage: TrialStage, space: SearchSpace) -> TrialPlan:
    """Return a trial of ``stage`` at the lowest learning rate, where training is least likely to diverge."""
    return TrialPlan(space.low, stage.steps, space.seeds[0], stage.group, overrides=stage.overrides)


def needs_by_size(
    stages: Iterable[TrialStage], space: SearchSpace, configs: TrialConfigs, pilots: Mapping[str, Pilot]
) -> list[TrialsNeed]:
    """Return what all trials of each size (group) are expected to need, in the order of the stages."""
    needs: dict[str, TrialsNeed] = {}
    for stage in stages:
        need = need_of(plan_of(stage, space), configs, pilots, stage.trials)
        needs[stage.group] = _together(needs[stage.group], need) if stage.group in needs else need
    return list(needs.values())


def _together(one: TrialsNeed, more: TrialsNeed) -> TrialsNeed:
    sums = {name: getattr(one, name) + getattr(more, name) for name in ("trials", "steps", "tokens")}
    known = one.seconds is not None and more.seconds is not None
    return replace(one, **sums, seconds=(one.seconds or 0.0) + (more.seconds or 0.0) if known else None)


def shortage(
    budget: SweepBudget, needs: Sequence[TrialsNeed], spent: Spending, price_usd_per_hour: float | None
) -> Shortage | None:
    """Return the first of tokens, hours and USD that ``needs`` exhaust (tokens if seconds are unknown); or None."""
    tokens = sum(need.tokens for need in needs)
    if budget.tokens is not None and tokens > budget.tokens - spent.tokens:
        return Shortage("tokens", tokens, budget.tokens - spent.tokens, budget.tokens)
    durations_s = [need.seconds for need in needs if need.seconds is not None]
    if len(durations_s) < len(needs):
        return None
    seconds = sum(durations_s)
    if budget.hours is not None and seconds > (left_s := budget.hours * HOUR_S - spent.seconds):
        return Shortage("hours", seconds / HOUR_S, left_s / HOUR_S, budget.hours)
    usd = usd_of(seconds, price_usd_per_hour)
    if budget.usd is not None and usd is not None and spent.usd is not None and usd > budget.usd - spent.usd:
        return Shortage("usd", usd, budget.usd - spent.usd, budget.usd)
    return None
