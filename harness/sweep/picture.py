"""Draws the U-shaped curve of a sweep: loss over the logarithm of the learning rate, with its optimum and interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.show.drawing import CURVES, GRID, INK, NARROW, WIDE, Picture, Sheet, drawn, fitted, legend_below, title
from harness.sweep.findings import RateCurve
from harness.sweep.fit import LearningRateOptimum
from harness.sweep.messages import rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def loss_over_rate(curves: Sequence[RateCurve], name: str) -> Picture:
    """Draw held-out loss over learning rate for each curve: its trials, the mean of each rate, the optimum and its
    interval.

    ``curves`` must have points. ``name``: of the sweep, for the title.
    """
    return drawn(loss_figure(curves, name), narrow=loss_figure(curves, name, NARROW))


def loss_figure(curves: Sequence[RateCurve], name: str, sheet: Sheet = WIDE) -> Figure:
    """Draw one form of the picture of :func:`loss_over_rate`."""
    figure, axes = logarithmic_figure(sheet)
    above = "in no fit: at or above a rate that diverged"
    for curve, colour in zip(curves, CURVES, strict=False):
        label = f"{curve.group or 'trials'} ({curve.steps:,} steps)"
        axes.plot(*zip(*curve.points, strict=True), "o", color=colour, markersize=6, label=label)
        means = _means(curve.points)
        axes.plot(*zip(*means, strict=True), color=colour, linewidth=1.2, alpha=0.7)
        if curve.above:  # These points are in no line either.
            axes.plot(*zip(*curve.above, strict=True), "o", color=colour, markersize=6, fillstyle="none", label=above)
            above = ""  # The legend names it once.
        optimum = curve.optimum
        if isinstance(optimum, LearningRateOptimum):
            axes.axvline(optimum.learning_rate, color=colour, linestyle="--", linewidth=1.4)
            ends = (optimum.ci_low or means[0][0], optimum.ci_high or means[-1][0])
            axes.axvspan(*ends, color=colour, alpha=0.12, linewidth=0)
    top = axes.get_ylim()[1]
    for rates, marker, label in (
        ([learning_rate for curve in curves for learning_rate in curve.diverged], "x", "diverged"),
        ([learning_rate for curve in curves for learning_rate in curve.behind], "v", "ended early as behind"),
    ):
        if rates:
            axes.plot(rates, [top] * len(rates), marker, color=INK, markersize=7, label=label, clip_on=False)
    axes.set_xlabel("learning rate")
    axes.set_ylabel("loss on held-out data (nats per label)")
    dress(axes, sheet, axes.xaxis)
    optimum = curves[0].optimum
    optimum_text = f": optimum {rate(optimum.learning_rate)}" if isinstance(optimum, LearningRateOptimum) else ""
    title(figure, f"{name}: loss by learning rate{optimum_text}")
    return finished(figure, axes, sheet)


def training_loss_over_rate(curves: Sequence[RateCurve], name: str) -> Picture:
    """Draw the training loss of the last step over learning rate, with the mean of each rate and a star at the
    lowest mean.

    No optimum is fitted, because the loss of a single step depends on its batch.
    """
    return drawn(training_figure(curves, name), narrow=training_figure(curves, name, NARROW))


def training_figure(curves: Sequence[RateCurve], name: str, sheet: Sheet = WIDE) -> Figure:
    """Draw one form of the picture of :func:`training_loss_over_rate`."""
    figure, axes = logarithmic_figure(sheet)
    lowest_of, star = [], "lowest"
    for curve, colour in zip(curves, CURVES, strict=False):
        if not curve.training:
            continue
        label = f"{curve.group or 'trials'} ({curve.steps:,} steps)"
        axes.plot(*zip(*curve.training, strict=True), "o", color=colour, markersize=6, label=label)
        means = _means(curve.training)
        axes.plot(*zip(*means, strict=True), color=colour, linewidth=1.2, alpha=0.7)
        lowest = min(means, key=lambda point: point[1])
        lowest_of.append(lowest[0])
        axes.plot(*lowest, "*", color=colour, markersize=14, markeredgecolor="white", label=star)
        star = ""  # One entry in the legend is enough.
    axes.set_xlabel("learning rate")
    axes.set_ylabel("training loss of the last step (nats per label)")
    dress(axes, sheet, axes.xaxis)
    lowest_text = f": lowest at {rate(lowest_of[0])}" if len(lowest_of) == 1 else ""
    title(figure, f"{name}: training loss by learning rate{lowest_text}")
    return finished(figure, axes, sheet)


def logarithmic_figure(sheet: Sheet) -> tuple[Figure, Any]:
    """Return an empty figure, and its axes with a logarithmic x axis."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(sheet.width, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_xscale("log")
    return figure, axes


def dress(axes: Any, sheet: Sheet, *logarithmic: Any) -> None:
    """Draw a grid and label the ``logarithmic`` axes with plain numbers; matplotlib would write formulas.

    On a narrow sheet, only an axis of at most 1.5 decades has numbers between powers of ten.
    """
    axes.grid(color=GRID)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for axis in logarithmic:
        axis.set_major_formatter(lambda value, _: f"{value:.0e}")
        low, high = axis.get_view_interval()
        numbered = "25" if not sheet.stacked or high / low < 10**1.5 else ""
        axis.set_minor_formatter(
            lambda value, _, digits=numbered: f"{value:.0e}" if f"{value:.0e}"[0] in digits else ""
        )


def finished(figure: Figure, axes: Any, sheet: Sheet) -> Figure:
    """Add the legend below, fit the figure to its sheet, and return it."""
    legend_below(figure, axes, 3)
    return fitted(figure, sheet)


def _means(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    by_rate: dict[float, list[float]] = {}
    for learning_rate, loss in points:
        by_rate.setdefault(learning_rate, []).append(loss)
    return [(learning_rate, sum(losses) / len(losses)) for learning_rate, losses in sorted(by_rate.items())]
