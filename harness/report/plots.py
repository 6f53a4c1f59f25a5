"""Draws the pictures of a report: promise against result, the chain between them, all verdicts, steps and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.analysis.comparisons import SAME
from harness.analysis.probes.memory_timeline import MemoryTimeline
from harness.analysis.probes.probe_cost import is_probe_control
from harness.analysis.probes.torch_profile import TorchProfile
from harness.analysis.report_types import ArmReport, Comparison, StudyReport
from harness.report import choices, learning
from harness.report.chain import chain
from harness.report.drawing import (
    GAIN,
    LOSS,
    TICKS,
    Picture,
    bounds,
    drawn,
    legend_below,
    point,
    ratio_axis,
    row_axes,
    row_labels,
    text_right_of,
    thinned,
    title,
)
from harness.report.first_screen import VERDICTS, could_gain
from harness.report.loss_curves import loss_curves
from harness.report.names import ArmNames, middle_out
from harness.report.run_curves import best_measure, choices_figure, of_arm
from harness.report.sentences import left_open
from harness.report.words import interval, number, percent, ratio
from harness.study.contract import CAUSES, PHASES, STAGES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ISOLATED, LEDGER, FOREST = "isolated-vs-end-to-end.png", "ledger.png", "comparisons.png"
WHY = "why.png"
NAMES = (ISOLATED, LEDGER, FOREST, WHY)
MAX_ROWS = 60  # a taller picture cannot be read; the tables have every row
# Okabe and Ito's palette, safe for colour-blind readers: warm for the input side, cool and grey for the rest.
COLOURS = {
    "read": "#F0E442",
    "tokenize": "#D55E00",
    "pack": "#E69F00",
    "transfer": "#8C510A",
    "fetch": "#D55E00",
    "h2d": "#CC79A7",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "optimizer": "#009E73",
    "sync": "#8FD3BF",
    "log": "#666666",
    "checkpoint": "#6A3D9A",
    "other": "#BBBBBB",
}
VERDICT_COLOURS = {"gain": GAIN, "loss": LOSS, "none": "#555555", "undecided": "#555555"}
# The links that have a ratio, and what the axis says about them.
STATIONS = {
    "isolated": "in isolation\n(data path alone)",
    "share of the step": "if all data work\nwere waited for",
    "ceiling": "ceiling\n(no data work)",
    "predicted": "predicted\n(replay)",
    "measured": "measured\n(time of a step)",
}
LINE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C510A", "#666666")
MOST_LINES = len(LINE_COLOURS)  # lines that can still be distinguished
MOST_CURVES = 8
_CURVE, _PEAK, _STEP = "#0072B2", "#D55E00", "#DDDDDD"


def pictures(report: StudyReport, names: ArmNames) -> dict[str, Picture]:
    """{file name: picture} of the pictures that have something to show."""
    found: dict[str, Picture] = {}
    compared = report.compared[:MAX_ROWS]
    if compared:
        found[ISOLATED] = drawn(isolated(compared, names), report.emulated)
        found[FOREST] = drawn(forest(compared, names), report.emulated)
    if (figure := why(compared, names)) is not None:
        found[WHY] = drawn(figure, report.emulated)
    shown = [arm for arm in report.arms if arm.control != "a-a" and not is_probe_control(arm.control)]
    arms = [arm for arm in shown if arm.blocks][:MAX_ROWS]
    if arms:
        found[LEDGER] = drawn(ledger(arms, names), report.emulated)
    if report.learning is not None:
        found[learning.PICTURE] = drawn(loss_curves(report.learning, names), report.emulated)
        if asked := [of_arm(arm, names) for arm in report.learning.arms if arm.choice_passes > len(arm.answers)]:
            found[choices.PICTURE] = drawn(choices_figure(asked, best_measure(asked), "steps"), report.emulated)
    return found


def isolated(comparisons: Sequence[Comparison], names: ArmNames) -> Figure:
    """Per comparison: the ratio in isolation, the ceiling, and the ratio in training with its interval.

    All three are about speed, so training counts positions; where the arms train other shares of them, the ratio of
    trained tokens is drawn beside it, hollow.
    """
    figure, axes = row_axes(len(comparisons), 0.62, 2.0)
    legend = {  # each label is taken by the first row that has such a point
        "isolated": "in isolation (data-only controls)",
        "ceiling": "ceiling: no data work at all",
        "training": "in training, tokens/s",
        "trained": "in training, trained tokens/s where padding differs",
    }
    values: list[float] = []
    for row, c in enumerate(comparisons):
        m = c.measured
        training = m.tokens_ratio or m.ratio
        ceiling = could_gain(m)
        shown = [one for one in (m.isolated, ceiling, training) if one is not None]
        span = [min(one.median for one in shown), max(one.median for one in shown)]
        axes.plot(span, [row, row], color="#E2E2E2", linewidth=6, zorder=1, solid_capstyle="butt")
        if m.isolated is not None:
            point(axes, m.isolated, row - 0.2, "#E69F00", "D", legend.pop("isolated", None))
        if ceiling is not None:
            label = legend.pop("ceiling", None)
            axes.plot([ceiling.median] * 2, [row - 0.32, row + 0.32], color="black", linewidth=2, zorder=3, label=label)
        point(axes, training, row + 0.2, "#0072B2", "o", legend.pop("training", None))
        figures = [
            f"{name} {ratio(one.median)}"
            for name, one in (("isolated", m.isolated), ("ceiling", ceiling), ("training", training))
            if one is not None
        ]
        if abs(math.log(m.ratio.median / training.median)) > SAME:
            shown.append(m.ratio)
            point(axes, m.ratio, row + 0.2, "#56B4E9", "s", legend.pop("trained", None), hollow=True)
            figures[-1] += f" ({ratio(m.ratio.median)} trained)"
        values += [bound for one in shown for bound in bounds(one)]
        text_right_of(
            axes, row, ", ".join(figures[:-1]) + f"\n{figures[-1]}" if len(figures) > 1 else figures[0], "#333333"
        )
    ratio_axis(axes, values)
    row_labels(axes, [f"{names.short(c.candidate)}\nagainst {names.short(c.baseline)}" for c in comparisons])
    axes.set_xlabel("how many times as fast as the baseline (log scale, 95 % intervals)")
    title(figure, "What isolation promises, what waiting allows, what training got")
    legend_below(figure, axes, 4)
    return figure


def forest(comparisons: Sequence[Comparison], names: ArmNames) -> Figure:
    """Every comparison's measured ratio with its interval, over the band that an unchanged arm reaches by itself."""
    figure, axes = row_axes(len(comparisons), 0.5, 1.9)
    band_label: str | None = "noise floor (an arm against itself)"
    for row, c in enumerate(comparisons):
        m = c.measured
        if m.noise_floor is not None:
            low, high = max(1 - m.noise_floor, 1e-3), 1 + m.noise_floor
            axes.fill_betweenx([row - 0.5, row + 0.5], low, high, color="#E4E4E4", label=band_label, zorder=0)
            band_label = None
        colour = VERDICT_COLOURS[m.verdict]
        point(axes, m.ratio, row, colour, "o", None)
        verdict = VERDICTS[m.verdict]
        if m.trained_per_step is not None and abs(m.trained_per_step - 1) > SAME:
            verdict += f", {ratio(m.trained_per_step)} tokens a step"
        text_right_of(axes, row, f"{verdict}\n{ratio(m.ratio.median)} ({interval(m.ratio)})", colour)
    floors = [one for c in comparisons if (one := c.measured.noise_floor) is not None]
    reaches = [b for floor in floors for b in (1 - floor, 1 + floor) if b > 0]
    ratio_axis(axes, [b for c in comparisons for b in bounds(c.measured.ratio)] + reaches)
    row_labels(axes, [f"{names.short(c.candidate)}\nagainst {names.short(c.baseline)}" for c in comparisons])
    measures = dict.fromkeys(c.measured.measure for c in comparisons)
    axes.set_xlabel(f"{' or '.join(measures)}, candidate / baseline (log scale, 95 % intervals)")
    title(figure, "Right of 1 the candidate is faster; inside the grey band an unchanged arm would look the same")
    if band_label is None:
        legend_below(figure, axes, 1)
    return figure


def ledger(arms: Sequence[ArmReport], names: ArmNames) -> Figure:
    """Milliseconds per step by phase, stacked; the fetch is split into the stages that the step waited for."""
    figure, axes = row_axes(len(arms), 0.36, 2.0)
    seen: set[str] = set()
    longest = max(sum(arm.totals.phase_ms.values()) for arm in arms)
    where = (
        "the host's main thread"
        if not any(arm.totals.starved_ms for arm in arms)
        else "the device, where it is asynchronous"
    )
    for row, arm in enumerate(arms):
        left = 0.0
        for name, width, label in _parts(arm):
            known = label in seen
            seen.add(label)
            axes.barh(
                row, width, left=left, height=0.74, color=COLOURS[name], edgecolor="white", linewidth=0.4,
                label=None if known else label, alpha=0.55 if arm.control else 1.0,
            )  # fmt: skip
            left += width
        waited = sum(arm.totals.exposed_ms.values()) if arm.totals.exposed_ms else arm.totals.phase_ms.get("fetch", 0.0)
        share = f", {_share(arm, waited, left)} waiting for data" if left else ""
        axes.text(left + 0.01 * longest, row, f"{number(left)} ms{share}", va="center", fontsize=8, color="#333333")
    row_labels(axes, [_label(arm, names) for arm in arms])
    for tick, arm in zip(axes.get_yticklabels(), arms, strict=True):
        tick.set_color("#777777" if arm.control else "black")
    axes.set_xlim(0, longest * 1.3)
    axes.grid(axis="x", color="#EEEEEE", zorder=0)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"mean milliseconds per step on {where} (controls are pale)")
    title(figure, "Where each step's time goes: warm colours are waits for data")
    _order_legend(figure, axes)
    return figure


def _label(arm: ArmReport, names: ArmNames) -> str:
    return f"{names.short(arm.of or '')} + {arm.control}" if arm.control else names.short(arm.name)


OPEN = "device busy or waiting for launches"
_CAUSE_COLOURS = {"python": "other"}


def _parts(arm: ArmReport) -> list[tuple[str, float, str]]:
    """(colour key, milliseconds, legend label) from left to right; of the device where it runs by itself."""
    if arm.totals.starved_ms:
        idle = [(_CAUSE_COLOURS.get(cause, cause), arm.totals.starved_ms.get(cause, 0.0), cause) for cause in CAUSES]
        most = max(0.0, sum(arm.totals.phase_ms.values()) - sum(arm.totals.starved_ms.values()))
        known = arm.totals.device_busy_ms
        busy = ("backward", most, OPEN) if known is None else ("backward", known, "device busy")
        return [busy, *((colour, value, f"idle: {cause}") for colour, value, cause in idle if value > 0)]
    fetch = [(stage, arm.totals.exposed_ms.get(stage, 0.0), f"wait: {stage}") for stage in STAGES]
    if not arm.totals.exposed_ms:
        fetch = [("fetch", arm.totals.phase_ms.get("fetch", 0.0), "wait for data")]
    rest = [(phase, arm.totals.phase_ms.get(phase, 0.0), phase) for phase in PHASES if phase != "fetch"]
    return [part for part in (*fetch, *rest) if part[1] > 0]


def _share(arm: ArmReport, waited_ms: float, step_ms: float) -> str:
    """Of a step in waits for data: a range where events leave open when the device worked."""
    open_ms = left_open(arm.totals.waited_range_ms, step_ms)
    if open_ms is None:
        return percent(waited_ms / step_ms)
    return f"{percent(open_ms[0] / step_ms)} to {percent(open_ms[1] / step_ms)}"


def _order_legend(figure: Figure, axes: Axes) -> None:
    """Legend entries in the order of the stack, whatever arm showed them first."""
    order = ["device busy", OPEN, *(f"idle: {cause}" for cause in CAUSES), *(f"wait: {stage}" for stage in STAGES)]
    order += ["wait for data", *PHASES]
    pairs = sorted(zip(*axes.get_legend_handles_labels(), strict=True), key=lambda pair: order.index(pair[1]))
    handles: list[Any] = [handle for handle, _ in pairs]
    labels = [label for _, label in pairs]
    figure.legend(handles, labels, loc="outside lower left", ncols=6, fontsize=8.5, frameon=False)


def why(comparisons: Sequence[Comparison], names: ArmNames) -> Figure | None:
    """One line per comparison (the first few), from link to link; None where no chain has two ratios."""
    lines = []
    for c in comparisons:
        found = {one.name: one.ratio for one in chain(c) if one.ratio is not None and one.name in STATIONS}
        if len(found) >= 2:
            lines.append((c, found))
    if not lines:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    shown = lines[:MOST_LINES]
    figure = Figure(figsize=(10.5, 4.6 + 0.2 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    places = {name: place for place, name in enumerate(STATIONS)}
    for (c, found), colour in zip(shown, LINE_COLOURS, strict=False):
        xs, ys = [places[name] for name in found], list(found.values())
        label = f"{names.short(c.candidate)} against {names.short(c.baseline)}: {ratio(ys[0])} to {ratio(ys[-1])}"
        axes.plot(xs, ys, "o-", color=colour, linewidth=1.8, markersize=6, label=label, alpha=0.9)
        steps = c.measured.step_time
        if steps is not None and steps.ci_low is not None and steps.ci_high is not None:
            at = [places["measured"]] * 2
            axes.plot(at, [steps.ci_low, steps.ci_high], color=colour, linewidth=5, alpha=0.3)
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
    left_out = f" (the first {MOST_LINES} of {len(lines)} comparisons)" if len(lines) > MOST_LINES else ""
    title(figure, f"From the gain in isolation to the gain in training{left_out}")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=1, fontsize=8.5, frameon=False)
    return figure


def memory(profiles: Sequence[TorchProfile]) -> Figure | None:
    """The main processes' memory (the first few); None where none was recorded."""
    rows = [(profile.arm, one) for profile in profiles for one in profile.memory if one.role == "main"]
    if not rows:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = rows[:MOST_CURVES]
    figure = Figure(figsize=(10.5, 1.0 + 2.1 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (arm, one) in enumerate(shown):
        _memory_row(figure.add_subplot(len(shown), 1, place + 1), arm, one)
    figure.axes[-1].set_xlabel("ms since the first event (profiled steps shaded alternately)")
    left_out = f" (the first {MOST_CURVES} of {len(rows)})" if len(rows) > MOST_CURVES else ""
    title(figure, f"Allocated memory over the profiled steps{left_out}")
    return figure


def _memory_row(axes: Axes, arm: str, one: MemoryTimeline) -> None:
    first = int(one.time_ns[0])
    for place, (_, start, end) in enumerate(one.steps_ns):
        if place % 2 == 0:
            axes.axvspan((start - first) / 1e6, (end - first) / 1e6, color=_STEP, alpha=0.5, linewidth=0)
    time, size = thinned(one.time_ns, one.allocated_bytes)
    axes.step((time - first) / 1e6, size / 2**20, where="post", color=_CURVE, linewidth=1.1)
    where = f"step {one.peak_step}" if one.peak_step is not None else "outside the steps"
    during = f", {one.peak_phase}" if one.peak_phase else ""
    axes.plot((one.peak_ns - first) / 1e6, one.peak_bytes / 2**20, "o", color=_PEAK, markersize=5)
    peak = f"peak {number(one.peak_bytes / 2**20)} MiB: {where}{during}"
    axes.set_title(peak, loc="right", fontsize=8.5, color=_PEAK)
    axes.set_ylabel(f"{middle_out(arm)}\n{one.device}, MiB", fontsize=8.5)
    axes.set_ylim(bottom=min(0.0, float(size.min()) / 2**20))
    axes.grid(axis="y", color="#EEEEEE")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
