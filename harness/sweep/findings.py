"""Evaluates the trials of a sweep: a curve for each group, its optimum, and the chosen rate. Numbers only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.sweep.fit import Edge, LearningRateOptimum, NoOptimum, fit_optimum
from harness.sweep.power_law import Extrapolation, Projection, project
from harness.sweep.projection import ProjectionPlan
from harness.sweep.trials import Trial

ChosenBy = Literal["fit", "lowest", "bound", "projection", "transfer"]


@dataclass(frozen=True)
class DivergedRate:
    """A learning rate that counts as diverged, because training diverged with at least one of its seeds."""

    learning_rate: float
    diverged: int  # Number of seeds that diverged
    seeds: int  # Number of seeds whose trial at this rate has ended


def mean_losses(points: Iterable[tuple[float, float]]) -> dict[float, float]:
    """Return {learning rate: mean loss over its seeds}, in the order of the (learning rate, loss) ``points``."""
    losses: dict[float, list[float]] = {}
    for rate, loss in points:
        losses.setdefault(rate, []).append(loss)
    return {rate: math.fsum(values) / len(values) for rate, values in losses.items()}


@dataclass(frozen=True)
class RateCurve:
    """Trials of one group (such as one model size) and length, which differ only in learning rate and seed."""

    group: str
    steps: int
    points: tuple[tuple[float, float], ...]  # (learning rate, held-out loss) of trials below the lowest diverged rate
    diverged: tuple[float, ...]  # Rates that diverged, including short trials, once per diverged trial
    behind: tuple[float, ...]  # Rates of trials that ended early as behind
    optimum: LearningRateOptimum | NoOptimum
    ceiling: DivergedRate | None = None  # Lowest rate at which a seed diverged. Neither it nor a higher rate is chosen.
    above: tuple[tuple[float, float], ...] = ()  # like ``points``, at or above the ceiling; no fit uses them
    training: tuple[tuple[float, float], ...] = ()  # (learning rate, last training loss) of ``points``

    @property
    def edge(self) -> Edge | None:
        """End of the tried rates beyond which the best may lie, as nothing further out diverged or ended; or None."""
        lowest, rates = self.lowest_mean, [rate for rate, _ in self.points]
        if self.optimum.at_edge is None or lowest is None:
            return None
        if lowest == min(rates):
            return None if any(rate < lowest for rate in self.behind) else "low"
        closed = self.ceiling is not None or any(rate > lowest for rate in self.behind)
        return "high" if lowest == max(rates) and not closed else None

    @property
    def trained_above(self) -> bool:
        """True if a trial finished above ``ceiling``, the lowest rate that diverged: not all higher rates diverge."""
        return self.ceiling is not None and any(rate > self.ceiling.learning_rate for rate, _ in self.above)

    @property
    def lowest(self) -> tuple[float, float] | None:
        """(learning rate, loss) of the trial with the lowest loss below every rate that diverged; None without one."""
        return min(self.points, key=lambda point: point[1], default=None)

    @property
    def lowest_mean(self) -> float | None:
        """Learning rate with the lowest mean loss over its seeds below every rate that diverged; None without one."""
        means = mean_losses(self.points)
        return min(means, key=lambda rate: means[rate], default=None)


@dataclass(frozen=True)
class ChosenRate:
    """The best rate of a sweep. ``by``: fit (minimum of the curve), bound (end of the tried range with the lowest
    loss), lowest (mean loss, without a minimum), projection (from several sizes), transfer (from another width, by
    mup).
    """

    learning_rate: float
    by: ChosenBy
    ci_low: float | None
    ci_high: float | None
    at_edge: Edge | None


@dataclass(frozen=True)
class SweepFindings:
    """Evaluation of a sweep: a curve per group, longest trials (or smallest size) first, and the chosen rate."""

    curves: tuple[RateCurve, ...]
    chosen: ChosenRate | None
    projection: Projection | None = None


def findings(trials: Sequence[Trial], plan: ProjectionPlan | None = None) -> SweepFindings:
    """Evaluate the ended trials: a curve per group, and the chosen rate. ``plan``: the sizes of a projection."""
    keys = dict.fromkeys((trial.plan.group, trial.plan.steps) for trial in trials if trial.plan.role == "curve")
    longest: dict[str, int] = {}
    for group, steps in keys:
        longest[group] = max(steps, longest.get(group, 0))
    curves = [_curve(group, steps, trials) for group, steps in longest.items()]
    if plan is not None:
        places = {size.group: place for place, size in enumerate(plan.sizes)}
        curves.sort(key=lambda curve: places.get(curve.group, len(places)))
        projection = project(plan, {curve.group: (curve.optimum, curve.edge) for curve in curves})
        return SweepFindings(tuple(curves), _projected(projection), projection)
    curves.sort(key=lambda curve: -curve.steps)
    return SweepFindings(tuple(curves), _chosen(curves[0]) if curves else None)


def diverged_rates(trials: Sequence[Trial]) -> list[DivergedRate]:
    """Return the learning rates at which at least one seed diverged, lowest first. ``trials``: of a single model."""
    ended: dict[float, set[int]] = {}
    diverged: dict[float, set[int]] = {}
    for trial in trials:
        if trial.status != "running":
            ended.setdefault(trial.plan.learning_rate, set()).add(trial.plan.seed)
        if trial.status == "diverged":
            diverged.setdefault(trial.plan.learning_rate, set()).add(trial.plan.seed)
    return [DivergedRate(rate, len(seeds), len(ended[rate])) for rate, seeds in sorted(diverged.items())]


def _curve(group: str, steps: int, trials: Sequence[Trial]) -> RateCurve:
    curve_trials = [
        trial
        for trial in trials
        if (trial.plan.group, trial.plan.steps) == (group, steps) and trial.plan.role == "curve"
    ]
    # A rate at which a shorter trial of the same model diverged would diverge here, too.
    relevant = [trial for trial in trials if _says(trial, group, steps)]
    diverged = tuple(trial.plan.learning_rate for trial in relevant if trial.status == "diverged")
    ceiling = next(iter(diverged_rates(relevant)), None)
    # A diverging rate has no points: the mean over its other seeds is not its loss. Higher rates that trained are not
    # reliable either.
    highest = math.inf if ceiling is None else ceiling.learning_rate
    ended = [(trial.plan.learning_rate, trial.score) for trial in curve_trials if math.isfinite(trial.score)]
    points = tuple(point for point in ended if point[0] < highest)
    above = tuple(point for point in ended if point[0] >= highest)
    training = tuple(
        (trial.plan.learning_rate, trial.training_loss)
        for trial in curve_trials
        if math.isfinite(trial.score) and trial.training_loss is not None and trial.plan.learning_rate < highest
    )
    behind = tuple(trial.plan.learning_rate for trial in curve_trials if trial.status == "behind")
    # A rate that ended early has no final loss, but is not the best. So it bounds the optimum from above.
    worse = [*diverged, *behind]
    rates = [rate for rate, _ in points] + worse
    optimum = fit_optimum(rates, [loss for _, loss in points] + [math.inf] * len(worse))
    if optimum.at_edge == "low" and any(rate < min(trained_rate for trained_rate, _ in points) for rate in behind):
        optimum = replace(optimum, at_edge=None)
    if len({rate for rate, _ in points}) < 2:  # A single rate has no neighbour to compare with.
        optimum = replace(optimum, at_edge=None)
    return RateCurve(group, steps, points, diverged, behind, optimum, ceiling, above, training)


def _says(one: Trial, group: str, steps: int) -> bool:
    """Return True if divergence of ``one`` excludes its rate and higher ones from the curve of ``group`` and ``steps``:
    of the group's trials of at most ``steps`` steps, and on the curve of group "" of all probes.
    """
    probes = one.plan.role == "probe" and not group
    return probes or (one.plan.role == "curve" and one.plan.group == group and one.plan.steps <= steps)


def _projected(found: Projection) -> ChosenRate | None:
    if isinstance(extrapolation := found.prediction, Extrapolation):
        return ChosenRate(extrapolation.learning_rate, "projection", extrapolation.ci_low, extrapolation.ci_high, None)
    largest = found.largest
    if found.unit != "width" or largest is None or not isinstance(optimum := largest.optimum, LearningRateOptimum):
        return None
    return ChosenRate(optimum.learning_rate, "transfer", optimum.ci_low, optimum.ci_high, None)


def _chosen(curve: RateCurve) -> ChosenRate | None:
    lowest, optimum, edge = curve.lowest_mean, curve.optimum, curve.edge
    if lowest is None:
        return None
    if isinstance(optimum, NoOptimum):
        return ChosenRate(lowest, "lowest" if edge is None else "bound", None, None, edge)
    # The fitted minimum lies where rates are already worse.
    if optimum.at_edge is not None and edge != optimum.at_edge:
        return ChosenRate(lowest, "lowest" if edge is None else "bound", optimum.ci_low, optimum.ci_high, edge)
    by: ChosenBy = "fit" if edge is None else "bound"
    return ChosenRate(optimum.learning_rate, by, optimum.ci_low, optimum.ci_high, edge)
