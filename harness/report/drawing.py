"""Draws the parts that all pictures share (axes of rows, points with intervals, ratio axes), and makes PNG bytes."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.analysis.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 130
TICKS = [m * 10**e for e in range(-3, 5) for m in (1, 1.5, 2, 3, 5, 7)]


def row_axes(count: int, height: float, margin: float) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, margin + height * count), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_ylim(count - 0.4, -0.6)  # first row on top
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure, axes


def point(
    axes: Axes, estimate: Estimate, row: float, colour: str, marker: str, label: str | None, hollow: bool = False
) -> None:
    """A median with its interval; hollow where there is no interval."""
    if estimate.ci_low is not None and estimate.ci_high is not None:
        axes.plot([estimate.ci_low, estimate.ci_high], [row, row], color=colour, linewidth=2.2, zorder=4)
    face = "white" if hollow or estimate.ci_low is None else colour
    axes.plot(estimate.median, row, marker, color=colour, markerfacecolor=face, markersize=7, zorder=5, label=label)


def text_right_of(axes: Axes, row: int, text: str, colour: str) -> None:
    """Put text in the column right of the axes."""
    where = ("axes fraction", "data")
    axes.annotate(text, (1.02, row), xycoords=where, va="center", fontsize=8.5, color=colour, annotation_clip=False)


def bounds(estimate: Estimate | None) -> list[float]:
    if estimate is None:
        return []
    return [estimate.median, estimate.ci_low or estimate.median, estimate.ci_high or estimate.median]


def ratio_axis(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis around 1 with plain ticks such as 0.98x or 5x."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    low, high = min(*values, 0.99), max(*values, 1.01)
    room = 0.06 * math.log(high / low)
    low, high = low * math.exp(-room), high * math.exp(room)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = [tick for tick in TICKS if low <= tick <= high]
    if high / low < 2.5:
        ticks = [
            float(tick) for tick in MaxNLocator(7, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= tick <= high
        ]
    elif len(ticks) > 9:
        ticks = [tick for tick in ticks if f"{tick:e}"[:3] in ("1.0", "2.0", "5.0")]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}x"))
    axes.axvline(1, color="#888888", linewidth=1, linestyle="--", zorder=2)
    axes.grid(axis="x", color="#EEEEEE", zorder=0)
    axes.set_axisbelow(True)


def row_labels(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels, fontsize=8.5)


def short(name: str) -> str:
    """Leaves out the middle of a long name: names of arms mostly differ at their ends."""
    return name if len(name) <= 36 else f"{name[:17]}…{name[-18:]}"


def title(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.008, ha="left", fontsize=11, fontweight="bold")


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower left", ncols=columns, fontsize=8.5, frameon=False
    )


def png(figure: Figure, emulated: bool = False) -> bytes:
    """The picture as PNG bytes, marked where the device is emulated."""
    if emulated:
        figure.text(
            0.992, 0.99, "EMULATED DEVICE", ha="right", va="top", fontsize=9, fontweight="bold", color="#D55E00"
        )
    content = io.BytesIO()
    # no version and no date in the file: the same study gives the same picture
    figure.savefig(content, format="png", dpi=DPI, metadata={"Software": None}, facecolor="white")
    return content.getvalue()
