"""Draws what all pictures share: axes of rows, points with intervals, ratio axes; makes PNG and SVG."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.analysis.statistics import Estimate
from trainer.errors import visible_lines

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 130
GAIN, LOSS = "#007A58", "#B34700"  # dark enough for small text on white
_MOST_POINTS = 4000  # per curve: more than the picture has pixels
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
        if len(ticks) > 9:
            ticks = [tick for tick in ticks if f"{tick:e}"[:3] == "1.0"]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}x"))
    axes.axvline(1, color="#888888", linewidth=1, linestyle="--", zorder=2)
    axes.grid(axis="x", color="#EEEEEE", zorder=0)
    axes.set_axisbelow(True)


def row_labels(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels, fontsize=8.5)


def title(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.008, ha="left", fontsize=11, fontweight="bold")


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower left", ncols=columns, fontsize=8.5, frameon=False
    )


def thinned(time: np.ndarray, size: np.ndarray, most: int = _MOST_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Of long curves the lowest and the highest point of each of ``most / 2`` pieces, in order: no peak is lost."""
    if len(size) <= most:
        return time, size
    import numpy as np

    pieces = np.array_split(np.arange(len(size)), most // 2)
    kept = np.unique([at for piece in pieces for at in (piece[size[piece].argmin()], piece[size[piece].argmax()])])
    return time[kept], size[kept]


@dataclass(frozen=True)
class Picture:
    """One drawing: a PNG for markdown, and SVG for the page, whose colours follow the page's theme."""

    png: bytes
    svg: str


# Colours that stand for ink and paper, and what the page calls them.
THEMED = {
    "#ffffff": "--paper", "#000000": "--ink", "#333333": "--ink", "#555555": "--soft", "#666666": "--soft",
    "#777777": "--soft", "#888888": "--soft", "#dddddd": "--band", "#e2e2e2": "--band", "#e4e4e4": "--band",
    "#eeeeee": "--grid", GAIN.lower(): "--gain", LOSS.lower(): "--loss",
}  # fmt: skip


def drawn(figure: Figure, emulated: bool = False) -> Picture:
    """The drawing in both forms, marked where the device is emulated. The same study gives the same bytes."""
    import matplotlib

    if emulated:
        figure.text(0.992, 0.99, "EMULATED DEVICE", ha="right", va="top", fontsize=9, fontweight="bold", color=LOSS)
    content, text = io.BytesIO(), io.StringIO()
    _plain_text(figure)
    # Laid out once for both forms: a figure with a layout engine is laid out, and drawn twice, each time it is saved.
    figure.set_dpi(DPI)
    with matplotlib.rc_context({"text.parse_math": False}):  # of ticks that are made only now
        if (engine := figure.get_layout_engine()) is not None:
            engine.execute(figure)
    figure.set_layout_engine(None)
    # no version and no date in the files
    figure.savefig(content, format="png", dpi=DPI, metadata={"Software": None}, facecolor="white")
    with matplotlib.rc_context({"svg.hashsalt": "harness", "svg.fonttype": "path"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, facecolor="white")
    return Picture(content.getvalue(), _themed(text.getvalue()))


def _plain_text(figure: Figure) -> None:
    """Take every text as it is: a name with two dollar signs is no formula, and one that is a wrong one no error."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_text(visible_lines(text.get_text()))


def _themed(svg: str) -> str:
    """The <svg> element alone, with the page's colours for ink and paper."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"#[0-9a-fA-F]{6}\b", lambda found: _variable(found[0]), svg)
    svg = re.sub(r"\b([1-9]\d*\.\d\d)\d+", r"\1", svg)  # hundredths of a point are enough; scales are below 1
    width = re.search(r'viewBox="0 0 (\S+) ', svg)
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    return svg.replace("<svg ", f'<svg fill="currentColor" data-width="{width[1] if width else ""}" ', 1).strip()


def _variable(colour: str) -> str:
    name = THEMED.get(colour.lower())
    return f"var({name})" if name else colour
