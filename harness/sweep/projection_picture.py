"""Draws a projection: the best learning rate over size, the line through it, and its prediction."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from harness.show.drawing import CURVES, INK, NARROW, TEXT, WIDE, Picture, Sheet, drawn, title
from harness.sweep.fit import LearningRateOptimum
from harness.sweep.picture import dress, finished, logarithmic_figure
from harness.sweep.power_law import Extrapolation, PowerLaw
from harness.sweep.projected import Projection
from harness.sweep.projection_sentences import size_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLACES = 60  # number of points of the line and its band
OPEN_END = 26  # length of the arrow at an open end, in points
# Multiple of the optimum. An end further out is drawn as an arrow, because it would compress the rest of the picture.
FARTHEST_END = 100.0


def has_picture(found: Projection | None) -> bool:
    """Return True if at least two sizes have an optimum to draw. ``found``: None without a projection."""
    return found is not None and len(_drawn(found)) > 1


def rate_over_size(found: Projection, name: str) -> Picture | None:
    """Draw the best learning rate over size: optima with intervals, the line, and its 95 % band up to the sweep's
    own size.

    Returns None if fewer than two sizes have an optimum. An optimum without a bounded interval, which the line leaves
    out, is hollow. An arrow marks each open or very distant end of an interval. Without an extrapolation the line ends
    at the largest size.
    """
    if not has_picture(found):
        return None
    return drawn(size_figure(found, name), narrow=size_figure(found, name, NARROW))


def size_figure(found: Projection, name: str, sheet: Sheet = WIDE) -> Figure:
    """Draw one form of the picture of :func:`rate_over_size`."""
    figure, axes = logarithmic_figure(sheet)
    axes.set_yscale("log")
    if isinstance(found.law, PowerLaw):
        _draw_line(axes, found.law, found.prediction if isinstance(found.prediction, Extrapolation) else None)
    labels = {True: "optimum and 95 % interval", False: "open interval: in no line"}
    for group, size, optimum in _drawn(found):
        centre = optimum.learning_rate
        for end, up in ((optimum.ci_low, -OPEN_END), (optimum.ci_high, OPEN_END)):
            if end is None or not 1 / FARTHEST_END <= end / centre <= FARTHEST_END:
                arrow = {"arrowstyle": "<-", "color": INK}
                axes.annotate("", (size, centre), (0, up), textcoords="offset points", arrowprops=arrow)
            else:
                axes.plot([size, size], [centre, end], "-", color=INK, linewidth=1.2)
                axes.plot([size], [end], "_", color=INK, markersize=9)
        # The legend names each kind once.
        fill, label = ("full" if optimum.is_bounded else "none"), labels.pop(optimum.is_bounded, None)
        axes.plot([size], [centre], "o", color=INK, markersize=6, fillstyle=fill, label=label)
        axes.annotate(group, (size, centre), xytext=(6, 6), textcoords="offset points", fontsize=TEXT)
    axes.set_xlabel(size_of(0, found.unit).removeprefix("0 "))
    axes.set_ylabel("best learning rate")
    dress(axes, sheet, axes.xaxis, axes.yaxis)
    title(figure, f"{name}: best learning rate by size")
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
    axes.plot(places, [math.exp(log) for log in line], color=CURVES[0], linewidth=1.4, label="power law")
    if one is not None:
        reaches = [law.reach(size) for size in places]
        lows = [math.exp(log - below) for log, (below, _) in zip(line, reaches, strict=True)]
        highs = [math.exp(log + above) for log, (_, above) in zip(line, reaches, strict=True)]
        axes.fill_between(places, lows, highs, color=CURVES[0], alpha=0.12, linewidth=0, label="95 % prediction band")
        axes.plot([one.size], [one.learning_rate], "D", color=CURVES[1], markersize=8, label="projected")
