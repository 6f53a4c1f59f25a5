"""Draws the pictures of a report: promise against result, the chain between them, all verdicts, steps and memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.explain.probes.torch_profile import MemoryTimeline, TorchProfile
from harness.explain.unusual_steps import StepTimes
from harness.judge.controls import is_probe_control
from harness.judge.policy import SAME_TOKENS_WITHIN
from harness.judge.report_types import ArmReport, Comparison, StudyReport
from harness.show import learning
from harness.show.chain import chain
from harness.show.curves import best_measure, choices_figure, loss_curves, of_arm
from harness.show.drawing import (
    BAND,
    CURVES,
    GAIN,
    GRID,
    INK,
    LOSS,
    NARROW,
    PARTS,
    RULE,
    SOFT,
    TEXT,
    TICKS,
    WIDE,
    Picture,
    Sheet,
    bounds,
    drawn,
    fitted,
    legend_below,
    point,
    ratio_axis,
    row_axes,
    thinned,
    title,
)
from harness.show.machine import at_once, marks
from harness.show.names import ArmNames, middle_out
from harness.show.policy import MEMORY_CURVES_MAX, PICTURE_ROWS_MAX
from harness.show.sentences import left_open
from harness.show.text.verdicts import VERDICTS
from harness.show.words import interval, number, percent, ratio
from harness.study.contract import CAUSES, PHASES, STAGES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ISOLATED, LEDGER, FOREST = "isolated-vs-end-to-end.png", "ledger.png", "comparisons.png"
WHY = "why.png"
NAMES = (ISOLATED, LEDGER, FOREST, WHY)
VERDICT_COLOURS = {"gain": GAIN, "loss": LOSS, "none": SOFT, "undecided": SOFT}
# The links that have a ratio, and what the axis says about them.
STATIONS = {
    "isolated": "in isolation\n(data path alone)",
    "share of the step": "if all data work\nwere waited for",
    "ceiling": "ceiling\n(no data work)",
    "predicted": "predicted\n(replay)",
    "measured": "measured\n(time of a step)",
}
STEPS_HEIGHT = 3.0  # inches
LOG_RATIO = 8  # of the longest step to the median, from which on the axis is logarithmic; the page's script has it too
MOST_LINES = len(CURVES)  # lines that can still be distinguished
_CURVE, _PEAK = CURVES[0], LOSS


def pictures(report: StudyReport, names: ArmNames) -> dict[str, Picture]:
    """{file name: picture} of the pictures that have something to show."""
    makers: dict[str, Callable[[Sheet], Figure | None]] = {}
    compared = report.compared[:PICTURE_ROWS_MAX]
    if compared:
        makers[ISOLATED] = partial(isolated, compared, names)
        makers[FOREST] = partial(forest, compared, names)
    makers[WHY] = partial(why, compared, names)
    shown = [arm for arm in report.arms if arm.control != "a-a" and not is_probe_control(arm.control)]
    arms = [arm for arm in shown if arm.blocks][:PICTURE_ROWS_MAX]
    if arms:
        makers[LEDGER] = partial(ledger, arms, names)
    if report.learning is not None:
        makers[learning.PICTURE] = partial(loss_curves, report.learning, names)
        if asked := [of_arm(arm, names) for arm in report.learning.arms if arm.choice_passes > len(arm.answers)]:
            makers[learning.CHOICES_PICTURE] = partial(choices_figure, asked, best_measure(asked), "steps")
    found = {name: in_both(make, report.emulated) for name, make in makers.items()}
    return {name: picture for name, picture in found.items() if picture is not None}


def in_both(make: Callable[[Sheet], Figure | None], emulated: bool) -> Picture | None:
    """Return the picture that ``make`` draws on a wide and on a narrow sheet; None where it has nothing to show."""
    if (wide := make(WIDE)) is None:
        return None
    return drawn(wide, emulated, make(NARROW))


def isolated(comparisons: Sequence[Comparison], names: ArmNames, sheet: Sheet = WIDE) -> Figure:
    """Per comparison: the ratio in isolation, the ceiling, and the ratio in training with its interval.

    All three are about speed, so training counts positions; where the arms train other shares of them, the ratio of
    trained tokens is drawn beside it, hollow.
    """
    rows = row_axes(len(comparisons), 0.62, 2.0, sheet, lines=4)
    figure, axes = rows.figure, rows.axes
    legend = {  # each label is taken by the first row that has such a point
        "isolated": "in isolation (data-only controls)",
        "ceiling": "ceiling: no data work at all",
        "training": "in training, tokens/s",
        "trained": "in training, trained tokens/s where padding differs",
    }
    values: list[float] = []
    texts = []
    for place, c in enumerate(comparisons):
        m, row = c.measured, rows.at(place)
        training = None if m.figure is None else m.tokens_ratio or m.ratio
        ceiling = m.ceiling
        shown = [one for one in (m.isolated, ceiling, training) if one is not None]
        if not shown:
            texts.append("too noisy")
            continue
        span = [min(one.median for one in shown), max(one.median for one in shown)]
        axes.plot(span, [row, row], color=RULE, linewidth=1.5, zorder=1, solid_capstyle="butt")
        if m.isolated is not None:
            point(axes, m.isolated, row - 0.2, CURVES[4], "D", legend.pop("isolated", None))
        if ceiling is not None:
            label = legend.pop("ceiling", None)
            axes.plot([ceiling.median] * 2, [row - 0.32, row + 0.32], color="black", linewidth=2, zorder=3, label=label)
        if training is not None:
            point(axes, training, row + 0.2, CURVES[0], "o", legend.pop("training", None))
        figures = [
            f"{name} {ratio(one.median)}"
            for name, one in (("isolated", m.isolated), ("ceiling", ceiling), ("training", training))
            if one is not None
        ]
        if training is not None and abs(math.log(m.ratio.median / training.median)) > SAME_TOKENS_WITHIN:
            shown.append(m.ratio)
            point(axes, m.ratio, row + 0.2, CURVES[5], "s", legend.pop("trained", None), hollow=True)
            figures[-1] += f" ({ratio(m.ratio.median)} trained)"
        values += [bound for one in shown for bound in bounds(one)]
        texts.append(", ".join(figures[:-1]) + f"\n{figures[-1]}" if len(figures) > 1 else figures[0])
    ratio_axis(axes, values or [0.5, 2.0], sheet)
    rows.label(_pairs(comparisons, names), texts, [INK] * len(texts), [False] * len(texts))
    axes.set_xlabel("how many times as fast as the baseline (log scale, 95 % intervals)")
    title(figure, "What isolation promises, what waiting allows, what training got")
    legend_below(figure, axes, 4)
    return fitted(figure, sheet)


def _pairs(comparisons: Sequence[Comparison], names: ArmNames) -> list[str]:
    return [f"{names.short(c.candidate)}\nagainst {names.short(c.baseline)}" for c in comparisons]


def forest(comparisons: Sequence[Comparison], names: ArmNames, sheet: Sheet = WIDE) -> Figure:
    """Every comparison's measured ratio with its interval, over the band that an unchanged arm reaches by itself."""
    rows = row_axes(len(comparisons), 0.5, 1.9, sheet, lines=4)
    figure, axes = rows.figure, rows.axes
    band_label: str | None = "noise floor (an arm against itself)"
    texts, colours = [], []
    for place, c in enumerate(comparisons):
        m, row = c.measured, rows.at(place)
        if m.noise_floor is not None and m.figure is not None:
            low, high = max(1 - m.noise_floor, 1e-3), 1 + m.noise_floor
            axes.fill_betweenx(
                [row - 0.5, row + 0.5],
                low,
                high,
                facecolor=BAND,
                edgecolor=RULE,
                linewidth=0.8,
                label=band_label,
                zorder=0,
            )
            band_label = None
        colour = VERDICT_COLOURS[m.verdict]
        verdict = VERDICTS[m.verdict]
        if m.figure is None:
            texts.append(f"{verdict}\ntoo noisy")
            colours.append(colour)
            continue
        point(axes, m.figure, row, colour, "o", None)
        if m.trained_per_step is not None and abs(m.trained_per_step - 1) > SAME_TOKENS_WITHIN:
            verdict += f", {ratio(m.trained_per_step)} tokens a step"
        texts.append(f"{verdict}\n{ratio(m.ratio.median)} ({interval(m.ratio)})")
        colours.append(colour)
    drawn = [c.measured for c in comparisons if c.measured.figure is not None]
    floors = [one for m in drawn if (one := m.noise_floor) is not None]
    reaches = [b for floor in floors for b in (1 - floor, 1 + floor) if b > 0]
    ratio_axis(axes, [b for m in drawn for b in bounds(m.ratio)] + reaches or [0.5, 2.0], sheet)
    rows.label(_pairs(comparisons, names), texts, colours, [False] * len(texts))
    measures = dict.fromkeys(c.measured.measure for c in comparisons)
    axes.set_xlabel(f"{' or '.join(measures)}, candidate / baseline (log scale, 95 % intervals)")
    title(figure, "Right of 1 the candidate is faster; inside the grey band an unchanged arm would look the same")
    if band_label is None:
        legend_below(figure, axes, 1)
    return fitted(figure, sheet)


def ledger(arms: Sequence[ArmReport], names: ArmNames, sheet: Sheet = WIDE) -> Figure:
    """Milliseconds per step by phase, stacked; the fetch is split into the stages that the step waited for."""
    rows = row_axes(len(arms), 0.36, 2.0, sheet, lines=2)
    figure, axes = rows.figure, rows.axes
    seen: set[str] = set()
    longest = max(sum(arm.totals.phase_ms.values()) for arm in arms)
    where = (
        "the host's main thread"
        if not any(arm.totals.starved_ms for arm in arms)
        else "the device, where it is asynchronous"
    )
    texts = []
    for row, arm in enumerate(arms):
        left = 0.0
        for name, width, label in _parts(arm):
            known = label in seen
            seen.add(label)
            axes.barh(
                rows.at(row), width, left=left, height=0.4 if arm.control else 0.8, color=PARTS[name],
                edgecolor="white", linewidth=0.4, label=None if known else label,
            )  # fmt: skip
            left += width
        waited = sum(arm.totals.exposed_ms.values()) if arm.totals.exposed_ms else arm.totals.phase_ms.get("fetch", 0.0)
        share = f", {_share(arm, waited, left)} waiting for data" if left else ""
        texts.append(f"{number(left)} ms{share}")
    rows.label([_label(arm, names) for arm in arms], texts, [INK] * len(arms), [bool(arm.control) for arm in arms])
    axes.set_xlim(0, longest * 1.02)
    axes.grid(axis="x", color=GRID, zorder=0)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"mean milliseconds per step on {where} (controls are thin)")
    title(figure, "Where each step's time goes: warm colours are waits for data")
    _order_legend(figure, axes)
    return fitted(figure, sheet)


def steps(found: Sequence[StepTimes], names: ArmNames) -> Picture:
    """The time of each step over the study, a colour for each arm, with the marks of :func:`machine.marks`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDE.width, STEPS_HEIGHT), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    arms = list(dict.fromkeys(one.arm for one in found))
    for place, arm in enumerate(arms):
        points = [point for one in found if one.arm == arm for point in zip(one.start_s, one.wall_ms, strict=True)]
        line = "-" if at_once(found) else ""
        axes.plot(*zip(*points, strict=True), linestyle=line, linewidth=0.6, marker=".", markersize=3,
                  color=CURVES[place % MOST_LINES], label=names.short(arm))  # fmt: skip
    for mark, (_, meaning) in marks(found).items():
        points = [
            (second, ms)
            for one in found
            for second, ms, what in zip(one.start_s, one.wall_ms, one.mark, strict=True)
            if what and (what == "evaluation") is (mark == "evaluation")
        ]
        if points:
            face = "none" if mark == "outlier" else INK
            axes.plot(*zip(*points, strict=True), "o", markersize=6, markerfacecolor=face, color=INK, label=meaning)
    times = sorted(ms for one in found for ms in one.wall_ms)
    if times[-1] > LOG_RATIO * times[len(times) // 2]:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=GRID, zorder=0)
    axes.set_xlabel("seconds since the first measured step")
    axes.set_ylabel("milliseconds")
    title(figure, "The time of each step")
    legend_below(figure, axes, 3)
    return drawn(figure)


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
    figure.legend(handles, labels, loc="outside lower left", ncols=6, fontsize=TEXT, frameon=False)


def why(comparisons: Sequence[Comparison], names: ArmNames, sheet: Sheet = WIDE) -> Figure | None:
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

    shown = lines[:MOST_LINES]
    figure = Figure(figsize=(sheet.width, 4.6 + 0.2 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    places = {name: place for place, name in enumerate(STATIONS)}
    for (c, found), colour in zip(shown, CURVES, strict=False):
        at, values = [places[name] for name in found], list(found.values())
        label = (
            f"{names.short(c.candidate)} against {names.short(c.baseline)}: {ratio(values[0])} to {ratio(values[-1])}"
        )
        _line(axes, at, values, sheet, marker="o", linewidth=1.8, markersize=6, color=colour, label=label)
        steps = c.measured.step_time
        if steps is not None and steps.ci_low is not None and steps.ci_high is not None:
            ends = [steps.ci_low, steps.ci_high]
            marker = "|" if sheet.stacked else "_"
            _line(
                axes, [places["measured"]] * 2, ends, sheet, marker=marker, linewidth=1.2, markersize=11, color=colour
            )
    _stations(axes, [value for _, found in shown for value in found.values()], sheet)
    left_out = f" (the first {MOST_LINES} of {len(lines)} comparisons)" if len(lines) > MOST_LINES else ""
    title(figure, f"From the gain in isolation to the gain in training{left_out}")
    legend_below(figure, axes, 1)
    return fitted(figure, sheet)


def _line(axes: Axes, at: Sequence[int], values: Sequence[float], sheet: Sheet, **style: Any) -> None:
    """Draw from link to link: to the right, or down a narrow sheet."""
    axes.plot(*((values, at) if sheet.stacked else (at, values)), **style)


def _stations(axes: Axes, values: Sequence[float], sheet: Sheet) -> None:
    """Name the links on one axis, and give the other plain ratios."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = min(0.9, *values) * 0.9, max(1.5, *values) * 1.1
    stations, ratios = (axes.yaxis, axes.xaxis) if sheet.stacked else (axes.xaxis, axes.yaxis)
    (axes.set_xscale if sheet.stacked else axes.set_yscale)("log")
    ticks = [tick for tick in TICKS if low <= tick <= high and (not sheet.stacked or f"{tick:e}"[:3] in ROUND)]
    ratios.set_major_locator(FixedLocator(ticks))
    ratios.set_minor_locator(NullLocator())
    ratios.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}x"))
    stations.set_ticks(range(len(STATIONS)), list(STATIONS.values()), fontsize=TEXT)
    ends = (-0.3, len(STATIONS) - 0.7)
    if sheet.stacked:
        axes.set(xlim=(low, high), ylim=ends[::-1], xlabel=HOW_MANY)
        axes.axvline(1, color=RULE, linewidth=1, linestyle="--")
    else:
        axes.set(xlim=ends, ylim=(low, high), ylabel=HOW_MANY)
        axes.axhline(1, color=RULE, linewidth=1, linestyle="--")
    axes.grid(axis="x" if sheet.stacked else "y", color=GRID)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


HOW_MANY = "how many times as fast (log scale)"
ROUND = ("1.0", "2.0", "5.0")


def memory(profiles: Sequence[TorchProfile], sheet: Sheet = WIDE) -> Figure | None:
    """The main processes' memory (the first few); None where none was recorded."""
    rows = [(profile.arm, one) for profile in profiles for one in profile.memory if one.role == "main"]
    if not rows:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = rows[:MEMORY_CURVES_MAX]
    figure = Figure(figsize=(sheet.width, 1.0 + 2.1 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (arm, one) in enumerate(shown):
        _memory_row(figure.add_subplot(len(shown), 1, place + 1), arm, one)
    figure.axes[-1].set_xlabel("ms since the first event (profiled steps shaded alternately)")
    left_out = f" (the first {MEMORY_CURVES_MAX} of {len(rows)})" if len(rows) > MEMORY_CURVES_MAX else ""
    title(figure, f"Allocated memory over the profiled steps{left_out}")
    return fitted(figure, sheet)


def _memory_row(axes: Axes, arm: str, one: MemoryTimeline) -> None:
    first = int(one.time_ns[0])
    for place, (_, start, end) in enumerate(one.steps_ns):
        if place % 2 == 0:
            axes.axvspan((start - first) / 1e6, (end - first) / 1e6, color=BAND, linewidth=0)
    time, size = thinned(one.time_ns, one.allocated_bytes)
    axes.step((time - first) / 1e6, size / 2**20, where="post", color=_CURVE, linewidth=1.1)
    where = f"step {one.peak_step}" if one.peak_step is not None else "outside the steps"
    during = f", {one.peak_phase}" if one.peak_phase else ""
    axes.plot((one.peak_ns - first) / 1e6, one.peak_bytes / 2**20, "o", color=_PEAK, markersize=5)
    peak = f"peak {number(one.peak_bytes / 2**20)} MiB: {where}{during}"
    axes.set_title(peak, loc="right", fontsize=TEXT, color=_PEAK)
    axes.set_ylabel(f"{middle_out(arm)}\n{one.device}, MiB", fontsize=TEXT)
    axes.set_ylim(bottom=min(0.0, float(size.min()) / 2**20))
    axes.grid(axis="y", color=GRID)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
