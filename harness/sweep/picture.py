"""Draw the U-shaped curve of a sweep, loss over the logarithm of the learning rate, and a projection."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from harness.show import drawing
from harness.sweep.findings import RateCurve, mean_losses
from harness.sweep.fit import LearningRateOptimum
from harness.sweep.messages import rate
from harness.sweep.power_law import Extrapolation, PowerLaw, Projection
from harness.sweep.projection_sentences import size_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def picture(draw: Callable[..., Figure], *of: Any) -> drawing.Picture:
    """Draw a figure of this module, such as :func:`loss_figure`, on a wide and on a narrow sheet."""
    return drawing.drawn(draw(*of), narrow=draw(*of, drawing.NARROW))


def loss_figure(curves: Sequence[RateCurve], name: str, sheet: drawing.Sheet = drawing.WIDE) -> Figure:
    """Draw held-out loss over learning rate: trials, means, optimum and interval. Each curve needs a point."""
    figure, axes = logarithmic_figure(sheet)
    above = "excluded from fits: at or above a rate that diverged"
    for curve, colour in zip(curves, drawing.CURVES, strict=False):
        means = _plot_trials(axes, curve, curve.points, colour)
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
        ([learning_rate for curve in curves for learning_rate in curve.behind], "v", "ended early (behind)"),
    ):
        if rates:
            axes.plot(rates, [top] * len(rates), marker, color=drawing.INK, markersize=7, label=label, clip_on=False)
    axes.set_xlabel("learning rate")
    axes.set_ylabel("loss on held-out data (nats per label)")
    dress(axes, sheet, axes.xaxis)
    optimum = curves[0].optimum
    optimum_text = f": optimum {rate(optimum.learning_rate)}" if isinstance(optimum, LearningRateOptimum) else ""
    drawing.title(figure, f"{name}: loss by learning rate{optimum_text}")
    return finished(figure, axes, sheet)


def _plot_trials(
    axes: Any, curve: RateCurve, points: Sequence[tuple[float, float]], colour: str
) -> list[tuple[float, float]]:
    """Draw ``points`` of a curve, and the line through their means at each rate; return the means."""
    label = f"{curve.group or 'trials'} ({curve.steps:,} steps)"
    axes.plot(*zip(*points, strict=True), "o", color=colour, markersize=6, label=label)
    means = sorted(mean_losses(points).items())
    axes.plot(*zip(*means, strict=True), color=colour, linewidth=1.2, alpha=0.7)
    return means


def training_figure(curves: Sequence[RateCurve], name: str, sheet: drawing.Sheet = drawing.WIDE) -> Figure:
    """Draw the last step's training loss over learning rate. No curve is fitted: these losses are too noisy."""
    figure, axes = logarithmic_figure(sheet)
    lowest_of, star = [], "lowest"
    for curve, colour in zip(curves, drawing.CURVES, strict=False):
        if not curve.training:
            continue
        means = _plot_trials(axes, curve, curve.training, colour)
        lowest = min(means, key=lambda point: point[1])
        lowest_of.append(lowest[0])
        axes.plot(*lowest, "*", color=colour, markersize=14, markeredgecolor="white", label=star)
        star = ""  # One entry in the legend is enough.
    axes.set_xlabel("learning rate")
    axes.set_ylabel("training loss of the last step (nats per label)")
    dress(axes, sheet, axes.xaxis)
    lowest_text = f": lowest at {rate(lowest_of[0])}" if len(lowest_of) == 1 else ""
    drawing.title(figure, f"{name}: training loss by learning rate{lowest_text}")
    return finished(figure, axes, sheet)


def logarithmic_figure(sheet: drawing.Sheet) -> tuple[Figure, Any]:
    """Return an empty figure, and its axes with a logarithmic x axis."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(sheet.width, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_xscale("log")
    return figure, axes


def dress(axes: Any, sheet: drawing.Sheet, *logarithmic: Any) -> None:
    """Draw a grid, remove two borders, and number the axes ``logarithmic`` like ``2e-03``, sparsely if narrow."""
    axes.grid(color=drawing.GRID)
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


def finished(figure: Figure, axes: Any, sheet: drawing.Sheet) -> Figure:
    """Add the legend below, fit the figure to its sheet, and return it."""
    drawing.legend_below(figure, axes, 3)
    return drawing.fitted(figure, sheet)


PLACES = 60  # number of points of the line and its band
OPEN_END = 26  # length of the arrow at an open end, in points
# Multiple of the optimum. An end further out is drawn as an arrow, because it would compress the rest of the picture.
FARTHEST_END = 100.0


def has_picture(found: Projection | None) -> bool:
    """Return True if at least two sizes have an optimum to draw. ``found``: None without a projection."""
    return found is not None and len(_drawn(found)) > 1


def size_figure(found: Projection, name: str, sheet: drawing.Sheet = drawing.WIDE) -> Figure:
    """Draw the best rate over size: optima (hollow if left out), the line and its 95 % band. An arrow marks an open or
    very distant end.
    """
    figure, axes = logarithmic_figure(sheet)
    axes.set_yscale("log")
    if isinstance(found.law, PowerLaw):
        _draw_line(axes, found.law, found.prediction if isinstance(found.prediction, Extrapolation) else None)
    labels = {True: "optimum and 95 % interval", False: "open interval: excluded from lines"}
    for group, size, optimum in _drawn(found):
        centre = optimum.learning_rate
        for end, up in ((optimum.ci_low, -OPEN_END), (optimum.ci_high, OPEN_END)):
            if end is None or not 1 / FARTHEST_END <= end / centre <= FARTHEST_END:
                arrow = {"arrowstyle": "<-", "color": drawing.INK}
                axes.annotate("", (size, centre), (0, up), textcoords="offset points", arrowprops=arrow)
            else:
                axes.plot([size, size], [centre, end], "-", color=drawing.INK, linewidth=1.2)
                axes.plot([size], [end], "_", color=drawing.INK, markersize=9)
        # The legend names each kind once.
        fill, label = ("full" if optimum.is_bounded else "none"), labels.pop(optimum.is_bounded, None)
        axes.plot([size], [centre], "o", color=drawing.INK, markersize=6, fillstyle=fill, label=label)
        axes.annotate(group, (size, centre), xytext=(6, 6), textcoords="offset points", fontsize=drawing.TEXT)
    axes.set_xlabel(size_of(0, found.unit).removeprefix("0 "))
    axes.set_ylabel("best learning rate")
    dress(axes, sheet, axes.xaxis, axes.yaxis)
    drawing.title(figure, f"{name}: best learning rate by size")
    return finished(figure, axes, sheet)


def _drawn(found: Projection) -> list[tuple[str, float, LearningRateOptimum]]:
    return [
        (point.group, point.size, point.optimum)
        for point in found.points
        if isinstance(point.optimum, LearningRateOptimum)
    ]


def _draw_line(axes: Any, law: PowerLaw, one: Extrapolation | None) -> None:
    ends = sorted([law.smallest, law.largest, *([] if one is None else [one.size])])
    ratio = math.log(ends[-1] / ends[0])
    places = [ends[0] * math.exp(ratio * place / (PLACES - 1)) for place in range(PLACES)]
    line = [law.intercept + law.slope * math.log(size) for size in places]
    axes.plot(places, [math.exp(log) for log in line], color=drawing.CURVES[0], linewidth=1.4, label="power law")
    if one is not None:
        reaches = [law.reach(size) for size in places]
        lows = [math.exp(log - below) for log, (below, _) in zip(line, reaches, strict=True)]
        highs = [math.exp(log + above) for log, (_, above) in zip(line, reaches, strict=True)]
        axes.fill_between(
            places, lows, highs, color=drawing.CURVES[0], alpha=0.12, linewidth=0, label="95 % prediction band"
        )
        axes.plot([one.size], [one.learning_rate], "D", color=drawing.CURVES[1], markersize=8, label="projected")
