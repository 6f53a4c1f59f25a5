"""The picture of the section "Why": how the gain in isolation melts on its way to the gain in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.analysis.comparisons import Comparison
from harness.report.drawing import TICKS, short, title
from harness.report.words import ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The links that have a ratio, and what the axis says about them.
STATIONS = {
    "isolated": "in isolation\n(data path alone)",
    "share of the step": "if all data work\nwere waited for",
    "ceiling": "ceiling\n(what is waited for)",
    "predicted": "predicted\n(replay)",
    "measured": "measured\n(time of a step)",
}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C510A", "#666666")
MOST = len(COLOURS)  # lines that can still be told apart


def why(comparisons: Sequence[Comparison]) -> Figure | None:
    """One line per comparison (the first few), from link to link; None where no chain has two ratios."""
    lines = []
    for c in comparisons:
        found = {link.name: link.ratio for link in c.chain if link.ratio is not None and link.name in STATIONS}
        if len(found) >= 2:
            lines.append((c, found))
    if not lines:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    shown = lines[:MOST]
    figure = Figure(figsize=(10.5, 4.6 + 0.2 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    places = {name: place for place, name in enumerate(STATIONS)}
    for (c, found), colour in zip(shown, COLOURS, strict=False):
        xs, ys = [places[name] for name in found], list(found.values())
        label = f"{short(c.candidate)} against {short(c.baseline)}: {ratio(ys[0])} to {ratio(ys[-1])}"
        axes.plot(xs, ys, "o-", color=colour, linewidth=1.8, markersize=6, label=label, alpha=0.9)
        if c.step_time is not None and c.step_time.ci_low is not None and c.step_time.ci_high is not None:
            axes.plot(
                [places["measured"]] * 2,
                [c.step_time.ci_low, c.step_time.ci_high],
                color=colour,
                linewidth=5,
                alpha=0.3,
            )
    values = [value for _, found in shown for value in found.values()]
    low, high = min(0.9, *values) * 0.9, max(1.5, *values) * 1.1
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in TICKS if low <= tick <= high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}x"))
    axes.axhline(1, color="#888888", linewidth=1, linestyle="--")
    axes.set_xticks(range(len(STATIONS)), STATIONS.values(), fontsize=9)
    axes.set_xlim(-0.3, len(STATIONS) - 0.7)
    axes.grid(axis="y", color="#EEEEEE")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_ylabel("how many times as fast (log scale)")
    left_out = f" (the first {MOST} of {len(lines)} comparisons)" if len(lines) > MOST else ""
    title(figure, f"From the gain in isolation to the gain in training{left_out}")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=1, fontsize=8.5, frameon=False)
    return figure
