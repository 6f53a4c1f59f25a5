"""Formats the crossover of a sweep as a sentence, and draws step time against the swept value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.explain.policy import CROSSING_SHARE
from harness.explain.replay.prediction import Prediction
from harness.explain.replay.whatif import Crossing, Sweep
from harness.explain.statistics import Estimate
from harness.show.drawing import (
    CURVES,
    INK,
    NARROW,
    RULE,
    SOFT,
    TEXT,
    WIDE,
    Picture,
    Sheet,
    drawn,
    fitted,
    legend_below,
    title,
    wrapped,
)
from harness.show.names import middle_out
from harness.show.policy import LOG_SPAN
from harness.show.words import ms, number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {
    "device": "how many times as fast the device is",
    "workers": "loader workers",
    "prefetch": "batches in flight per worker",
    "ranks": "ranks",
    "batch_size": "batch size",
    "cores": "cores",
}
RECORDED, FREE, MEASURED = CURVES[1], CURVES[0], INK


def sweep_sentence(sweep: Sweep) -> str:
    """Return a sentence on where the cost of tokenization passes :data:`CROSSING_SHARE` of the step, or its extreme."""
    if sweep.crossings:
        texts = "; ".join(crossing_text(sweep, crossing) for crossing in sweep.crossings)
        return f"crossover at {CROSSING_SHARE * 100:.0f} % of the step: {texts}"
    highest, lowest = max(sweep.shares), min(sweep.shares)
    span = f"{sweep.key} from {sweep.texts[0]} to {sweep.texts[-1]}"
    if highest > CROSSING_SHARE:
        return f"no crossover: tokenization costs at least {percent(lowest)} of the step for {span}"
    return f"no crossover: tokenization costs at most {percent(max(0.0, highest))} of the step for {span}"


def crossing_text(sweep: Sweep, crossing: Crossing) -> str:
    """Return a crossover as a clause: ``tokenization starts to matter between device=2x and 4x (about 2.07x)``."""
    verb = "stops mattering" if crossing.matters_below else "starts to matter"
    value = f"about {number(crossing.at)}x" if sweep.key == "device" else f"at {crossing.at:.0f}"
    return f"tokenization {verb} between {sweep.key}={crossing.between[0]} and {crossing.between[1]} ({value})"


def picture(sweep: Sweep, arm: str, unswept: Prediction, checks: Sequence[tuple[float, Estimate]] = ()) -> Picture:
    """Draw step time (ms) over the swept value. ``checks``: (value, measured step time in ms) of other arms."""
    wide, narrow = (sweep_figure(sweep, arm, unswept, checks, sheet) for sheet in (WIDE, NARROW))
    return drawn(wide, unswept.emulated, narrow)


def sweep_figure(
    sweep: Sweep, arm: str, unswept: Prediction, checks: Sequence[tuple[float, Estimate]], sheet: Sheet = WIDE
) -> Figure:
    """Draw the picture of :func:`picture`, with its parameters, on a wide or narrow ``sheet``."""
    from matplotlib.ticker import NullLocator

    figure, axes = sheet.plot(5.4, "both")
    curves = [(sweep.recorded, RECORDED, "o", "tokenization as recorded"), (sweep.without, FREE, "s", "tokenize=0")]
    medians = []
    for predictions, colour, marker, label in curves:
        times = [prediction.step_ms for prediction in predictions]
        medians.append([estimate.median for estimate in times])
        ends = [(estimate.ci_low or estimate.median, estimate.ci_high or estimate.median) for estimate in times]
        errors = [
            (estimate.median - low, high - estimate.median) for estimate, (low, high) in zip(times, ends, strict=True)
        ]
        axes.errorbar(sweep.values, medians[-1], yerr=[*zip(*errors, strict=True)], color=colour, marker=marker,
                      markersize=6, linewidth=2, elinewidth=1.2, capsize=3, label=label, zorder=3)  # fmt: skip
    band_label = "what tokenization costs"
    axes.fill_between(sweep.values, medians[1], medians[0], color=RECORDED, alpha=0.12, linewidth=0, label=band_label)
    log = sweep.values[0] > 0 and sweep.values[-1] / sweep.values[0] > LOG_SPAN
    if sweep.was > 0 or not log:
        note = ", without the other edits" if unswept.edits else ""
        _point(axes, sweep.was, unswept.measured_ms, "*", f"measured: {ms(unswept.measured_ms.median)}{note}")
    for index, (position, value) in enumerate(checks):
        _point(axes, position, value, "D", "measured by another arm" if index == 0 else None)
    for crossing in sweep.crossings:
        position = crossing.at
        axes.axvline(position, color=RULE, linewidth=1, linestyle="--", zorder=1)
        first, middle, last = (
            math.log(position_on_axis) if log else position_on_axis
            for position_on_axis in (sweep.values[0], position, sweep.values[-1])
        )
        align, shift = ("left", 4) if 2 * middle < first + last else ("right", -4)
        axes.annotate(f"tokenization costs\n1 % of the step:\n{number(position)}", (position, 0.97), (shift, 0),
                      xycoords=("data", "axes fraction"), textcoords="offset points", va="top", ha=align,
                      fontsize=TEXT, color=SOFT)  # fmt: skip
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sweep.values, sweep.texts)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("milliseconds per step (95 % intervals)")
    edits = f"  ({' '.join(unswept.edits.texts)})" if unswept.edits.texts else ""
    axes.set_xlabel(AXES[sweep.key] + edits)
    title(figure, _headline(sweep))
    replayed = f"{middle_out(arm)}, replayed from its recorded steps"
    axes.set_title(wrapped(replayed) if sheet.stacked else replayed, loc="left", fontsize=TEXT, color=SOFT)
    legend_below(figure, axes, 4)
    return fitted(figure, sheet)


def _point(axes: Axes, at: float, measured: Estimate, marker: str, label: str | None) -> None:
    if measured.ci_low is not None and measured.ci_high is not None:
        axes.plot([at, at], [measured.ci_low, measured.ci_high], color=MEASURED, linewidth=1, zorder=4)
    axes.plot(
        [at], [measured.median], linestyle="", marker=marker, markersize=11 if marker == "*" else 6, color=MEASURED,
        markerfacecolor="white", zorder=5, label=label,
    )  # fmt: skip


def _headline(sweep: Sweep) -> str:
    if sweep.crossings:
        return crossing_text(sweep, sweep.crossings[0])
    lowest, highest = (percent(max(0.0, end(sweep.shares))) for end in (min, max))
    return f"tokenization costs {lowest} to {highest} of the step"
