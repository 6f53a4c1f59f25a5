"""Draws a projection: the best learning rate over size, the line through it, and what it predicts."""

from __future__ import annotations

import math

from harness.report.drawing import Picture, drawn, title
from harness.sweep.fit import LearningRateOptimum
from harness.sweep.picture import dress
from harness.sweep.power_law import Extrapolation, PowerLaw
from harness.sweep.projected import Projection
from harness.sweep.projection_sentences import size_of

PLACES = 60  # of the line and its band


def has_line(found: Projection | None) -> bool:
    """Whether there is something to draw."""
    return found is not None and isinstance(found.law, PowerLaw)


def rate_over_size(found: Projection, name: str) -> Picture | None:
    """The optima with their intervals, and the line with its 95 % prediction band up to the sweep's own size.

    None where there is no line. Where nothing may be extrapolated the line ends at the largest size.
    """
    if not isinstance(law := found.law, PowerLaw):
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_xscale("log")
    axes.set_yscale("log")
    one = found.prediction if isinstance(found.prediction, Extrapolation) else None
    ends = sorted([law.smallest, law.largest, *([] if one is None else [one.size])])
    ratio = math.log(ends[-1] / ends[0])
    places = [ends[0] * math.exp(ratio * place / (PLACES - 1)) for place in range(PLACES)]
    line = [law.intercept + law.slope * math.log(size) for size in places]
    halves = [law.half_width(size) for size in places]
    axes.plot(places, [math.exp(log) for log in line], color="#0072B2", linewidth=1.4, label="power law")
    if one is not None:
        lows, highs = (
            [math.exp(log + sign * half) for log, half in zip(line, halves, strict=True)] for sign in (-1, 1)
        )
        axes.fill_between(places, lows, highs, color="#0072B2", alpha=0.12, linewidth=0, label="95 % prediction band")
        axes.plot([one.size], [one.learning_rate], "D", color="#D55E00", markersize=8, label="projected")
    for point in found.points:
        optimum = point.optimum
        if isinstance(optimum, LearningRateOptimum):
            inside = optimum.at_edge is None
            centre = optimum.learning_rate
            bars = [[centre - (optimum.ci_low or centre)], [(optimum.ci_high or centre) - centre]]
            axes.errorbar(
                [point.size], [centre], yerr=bars, fmt="o" if inside else "x", color="#333333", capsize=4, markersize=6
            )
            axes.annotate(point.group, (point.size, centre), xytext=(6, 6), textcoords="offset points", fontsize=9)
    axes.set_xlabel(size_of(0, found.unit).removeprefix("0 "))
    axes.set_ylabel("best learning rate")
    dress(axes, axes.xaxis, axes.yaxis)
    title(figure, f"{name}: best learning rate by size")
    return drawn(figure)
