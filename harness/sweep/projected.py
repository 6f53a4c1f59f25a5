"""Projects the optima of several sizes to the sweep's own size. Computes numbers only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.sweep.fit import Edge, LearningRateOptimum, NoOptimum
from harness.sweep.power_law import (
    Extrapolation,
    NoExtrapolation,
    NoPowerLaw,
    PowerLaw,
    extrapolate,
    fit_power_law,
)
from harness.sweep.sizes import ProjectionPlan, Unit
from trainer.json_types import JsonObject


@dataclass(frozen=True)
class ProjectedPoint:
    """One searched size and the optimum of its curve; None as long as it has no curve."""

    group: str
    size: float
    optimum: LearningRateOptimum | NoOptimum | None
    edge: Edge | None = None
    """End of the tried rates beyond which the optimum may lie."""


@dataclass(frozen=True)
class Projection:
    """Result of a projection, made by :func:`project`: the optima of the sizes, the line, and its prediction at
    ``target``.
    """

    unit: Unit
    target: float
    points: tuple[ProjectedPoint, ...]
    law: PowerLaw | NoPowerLaw
    prediction: Extrapolation | NoExtrapolation | None
    """None without a line, and always for widths under mup, because nothing is extrapolated along them."""

    mup: JsonObject | None = None
    """Section model.mup that the sweep's own model needs, so that the rate is its best."""

    @property
    def largest(self) -> ProjectedPoint | None:
        """The largest size whose optimum lies inside the tried rates; None if no size has such an optimum."""
        inside = [point for point in self.points if _is_inside(point.optimum)]
        return max(inside, key=lambda point: point.size, default=None)


def project(
    plan: ProjectionPlan, optima: Mapping[str, tuple[LearningRateOptimum | NoOptimum, Edge | None]]
) -> Projection:
    """Fit a line through the optima of the sizes and extrapolate it to the sweep's own size.

    Widths are not extrapolated. ``optima``: by group, its optimum and the end of the tried rates beyond which it may
    lie (None: inside).
    """
    points = tuple(ProjectedPoint(size.group, size.size, *optima.get(size.group, (None, None))) for size in plan.sizes)
    fitted = [(point.size, point.optimum) for point in points if isinstance(point.optimum, LearningRateOptimum)]
    law = fit_power_law([size for size, _ in fitted], [optimum for _, optimum in fitted])
    prediction = None
    if isinstance(law, PowerLaw) and plan.unit != "width":
        prediction = extrapolate(law, plan.target)
    return Projection(plan.unit, plan.target, points, law, prediction, plan.mup)


def _is_inside(optimum: LearningRateOptimum | NoOptimum | None) -> bool:
    return isinstance(optimum, LearningRateOptimum) and optimum.at_edge is None
