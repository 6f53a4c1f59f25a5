"""Draws the pictures of a report: gain in isolation and in training, the chain between, verdicts, steps, memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.explain.probes.torch_profile import MemoryTimeline, TorchProfile
from harness.explain.statistics import Estimate
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
    INK,
    LOSS,
    NARROW,
    PARTS,
    ROUND,
    RULE,
    SOFT,
    TEXT,
    TICKS,
    WIDE,
    Picture,
    RowAxes,
    Sheet,
    drawn,
    fitted,
    legend_below,
    legend_of_all,
    plain,
    point,
    ratio_axis,
    ratio_ticks,
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
# Links that have a ratio, with their label on the axis.
STATIONS = {
    "isolated": "in isolation\n(data path alone)",
    "share of the step": "if all data work\nwere waited for",
    "ceiling": "ceiling\n(no data work)",
    "predicted": "predicted\n(replay)",
    "measured": "measured\n(time of a step)",
}
STEPS_HEIGHT = 3.0  # inches
LOG_RATIO = 8  # longest step / median; from this ratio on, the axis is logarithmic, as in the page's script
MOST_LINES = len(CURVES)  # maximum number of distinguishable lines


def pictures(report: StudyReport, names: ArmNames) -> dict[str, Picture]:
    """Draw all pictures of a report that have content, except those of steps and memory. Return them by file name."""
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
        if choosing := [of_arm(arm, names) for arm in report.learning.arms if arm.choice_passes > len(arm.answers)]:
            makers[learning.CHOICES_PICTURE] = partial(choices_figure, choosing, best_measure(choosing), "steps")
    drawings = {name: in_both(make, report.emulated) for name, make in makers.items()}
    return {name: picture for name, picture in drawings.items() if picture is not None}


def in_both(make: Callable[[Sheet], Figure | None], emulated: bool) -> Picture | None:
    """Return the picture that ``make`` draws on a wide and on a narrow sheet; None if ``make`` returns None."""
    if (wide := make(WIDE)) is None:
        return None
    return drawn(wide, emulated, make(NARROW))


def isolated(comparisons: Sequence[Comparison], names: ArmNames, sheet: Sheet = WIDE) -> Figure:
    """Draw three ratios per comparison: data paths alone, ceiling, and training; hollow: trained tokens/s too."""
    rows = row_axes(len(comparisons), 0.62, 2.0, sheet, lines=4)
    axes = rows.axes
    legend = {  # The first row with such a point uses the label.
        "isolated": "in isolation (data-only controls)",
        "ceiling": "ceiling: no data work at all",
        "training": "in training, tokens/s",
        "trained": "in training, trained tokens/s where padding differs",
    }
    estimates: list[Estimate] = []
    texts = []
    for index, c in enumerate(comparisons):
        m, row = c.measured, rows.at(index)
        training = None if m.figure is None else m.tokens_ratio or m.ratio
        named = {"isolated": m.isolated, "ceiling": m.ceiling, "training": training}
        shown = {name: value for name, value in named.items() if value is not None}
        if not shown:
            texts.append("too noisy")
            continue
        medians = [value.median for value in shown.values()]
        axes.plot([min(medians), max(medians)], [row] * 2, color=RULE, linewidth=1.5, zorder=1, solid_capstyle="butt")
        for name, estimate in shown.items():
            label = legend.pop(name, None)
            if name == "ceiling":
                axes.plot(
                    [estimate.median] * 2, [row - 0.32, row + 0.32], color="black", linewidth=2, zorder=3, label=label
                )
            elif name == "isolated":
                point(axes, estimate, row - 0.2, CURVES[4], "D", label)
            else:
                point(axes, estimate, row + 0.2, CURVES[0], "o", label)
        figures = [f"{name} {ratio(value.median)}" for name, value in shown.items()]
        estimates += shown.values()
        if training is not None and abs(math.log(m.ratio.median / training.median)) > SAME_TOKENS_WITHIN:
            estimates.append(m.ratio)
            point(axes, m.ratio, row + 0.2, CURVES[5], "s", legend.pop("trained", None), hollow=True)
            figures[-1] += f" ({ratio(m.ratio.median)} trained)"
        texts.append(", ".join(figures[:-1]) + f"\n{figures[-1]}" if len(figures) > 1 else figures[0])
    ratio_axis(axes, estimates, sheet=sheet)
    axes.set_xlabel("how many times as fast as the baseline (log scale, 95 % intervals)")
    title(rows.figure, "What isolation promises, what waiting allows, what training got")
    return _compared(rows, comparisons, names, texts, [INK] * len(texts), sheet)


def _compared(
    rows: RowAxes,
    comparisons: Sequence[Comparison],
    names: ArmNames,
    texts: Sequence[str],
    colours: Sequence[str],
    sheet: Sheet,
) -> Figure:
    """Label each row with its comparison and its text, add the legend, and return the fitted figure."""
    labels = [f"{names.short(c.candidate)}\nagainst {names.short(c.baseline)}" for c in comparisons]
    rows.label(labels, texts, colours, [False] * len(texts))
    if rows.axes.get_legend_handles_labels()[0]:
        legend_below(rows.figure, rows.axes, 4)
    return fitted(rows.figure, sheet)


def forest(comparisons: Sequence[Comparison], names: ArmNames, sheet: Sheet = WIDE) -> Figure:
    """Draw each comparison's measured ratio with its interval. A grey band behind it shows the noise floor."""
    rows = row_axes(len(comparisons), 0.5, 1.9, sheet, lines=4)
    axes = rows.axes
    band_label: str | None = "noise floor (an arm against itself)"
    texts = []
    for index, c in enumerate(comparisons):
        m, row, verdict = c.measured, rows.at(index), VERDICTS[c.measured.verdict]
        if m.figure is None:
            texts.append(f"{verdict}\ntoo noisy")
            continue
        if m.noise_floor is not None:
            low, high = max(1 - m.noise_floor, 1e-3), 1 + m.noise_floor
            axes.fill_betweenx([row - 0.5, row + 0.5], low, high, facecolor=BAND, edgecolor=RULE, linewidth=0.8,
                               label=band_label, zorder=0)  # fmt: skip
            band_label = None
        point(axes, m.figure, row, VERDICT_COLOURS[m.verdict], "o", None)
        if m.trained_per_step is not None and abs(m.trained_per_step - 1) > SAME_TOKENS_WITHIN:
            verdict += f", {ratio(m.trained_per_step)} tokens a step"
        texts.append(f"{verdict}\n{ratio(m.ratio.median)} ({interval(m.ratio)})")
    drawn = [c.measured for c in comparisons if c.measured.figure is not None]
    floors = [end for m in drawn if m.noise_floor for end in (1 - m.noise_floor, 1 + m.noise_floor) if end > 0]
    ratio_axis(axes, [m.ratio for m in drawn], floors, sheet)
    measures = dict.fromkeys(c.measured.measure for c in comparisons)
    axes.set_xlabel(f"{' or '.join(measures)}, candidate / baseline (log scale, 95 % intervals)")
    title(rows.figure, "Right of 1 the candidate is faster; inside the grey band an unchanged arm would look the same")
    return _compared(rows, comparisons, names, texts, [VERDICT_COLOURS[c.measured.verdict] for c in comparisons], sheet)


def ledger(arms: Sequence[ArmReport], names: ArmNames, sheet: Sheet = WIDE) -> Figure:
    """Draw a bar per arm: mean ms per step by phase; on an asynchronous device, by cause of its idleness."""
    rows = row_axes(len(arms), 0.36, 2.0, sheet, lines=2)
    figure, axes = rows.figure, rows.axes
    handles: dict[str, Any] = {}
    texts = []
    for row, arm in enumerate(arms):
        total_ms = 0.0
        for name, width, label in _parts(arm):
            bar = axes.barh(rows.at(row), width, left=total_ms, height=0.4 if arm.control else 0.8, color=PARTS[name],
                            edgecolor="white", linewidth=0.4)  # fmt: skip
            handles.setdefault(label, bar)
            total_ms += width
        waited = sum(arm.totals.exposed_ms.values()) if arm.totals.exposed_ms else arm.totals.phase_ms.get("fetch", 0.0)
        texts.append(
            f"{number(total_ms)} ms" + (f", {_share(arm, waited, total_ms)} waiting for data" if total_ms else "")
        )
    labels = [f"{names.short(arm.of or '')} + {arm.control}" if arm.control else names.short(arm.name) for arm in arms]
    rows.label(labels, texts, [INK] * len(arms), [bool(arm.control) for arm in arms])
    axes.set_xlim(0, max(sum(arm.totals.phase_ms.values()) for arm in arms) * 1.02)
    asynchronous = any(arm.totals.starved_ms for arm in arms)
    subject = "the device, where it is asynchronous" if asynchronous else "the host's main thread"
    axes.set_xlabel(f"mean milliseconds per step on {subject} (controls are thin)")
    title(figure, "Where each step's time goes: warm colours are waits for data")
    order = ["device busy", OPEN, *(f"idle: {cause}" for cause in CAUSES), *(f"wait: {stage}" for stage in STAGES)]
    listed = [label for label in (*order, "wait for data", *PHASES) if label in handles]
    legend_of_all(figure, [handles[label] for label in listed], listed, 6)
    return fitted(figure, sheet)


def _share(arm: ArmReport, waited_ms: float, step_ms: float) -> str:
    """Format the share (%) of a step spent in waits for data; a range if CUDA events leave it open."""
    ends = left_open(arm.totals.waited_range_ms, step_ms) or (waited_ms,)
    return " to ".join(percent(end / step_ms) for end in ends)


def steps(found: Sequence[StepTimes], names: ArmNames) -> Picture:
    """Draw each step's time (ms) over the study's time (s), a colour per arm; mark outliers and evaluations."""
    figure, axes = WIDE.plot(STEPS_HEIGHT)
    for index, arm in enumerate(dict.fromkeys(run.arm for run in found)):
        points = [point for run in found if run.arm == arm for point in zip(run.start_s, run.wall_ms, strict=True)]
        line = "-" if at_once(found) else ""
        axes.plot(*zip(*points, strict=True), linestyle=line, linewidth=0.6, marker=".", markersize=3,
                  color=CURVES[index % MOST_LINES], label=names.short(arm))  # fmt: skip
    for mark, (_, meaning) in marks(found).items():
        points = [
            (second, ms)
            for run in found
            for second, ms, step_mark in zip(run.start_s, run.wall_ms, run.mark, strict=True)
            if step_mark and (step_mark == "evaluation") is (mark == "evaluation")
        ]
        if points:
            face = "none" if mark == "outlier" else INK
            axes.plot(*zip(*points, strict=True), "o", markersize=6, markerfacecolor=face, color=INK, label=meaning)
    times = sorted(ms for run in found for ms in run.wall_ms)
    if times[-1] > LOG_RATIO * times[len(times) // 2]:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds since the first measured step")
    axes.set_ylabel("milliseconds")
    title(figure, "The time of each step")
    legend_below(figure, axes, 3)
    return drawn(figure)


OPEN = "device busy or waiting for launches"
_CAUSE_COLOURS = {"python": "other"}


def _parts(arm: ArmReport) -> list[tuple[str, float, str]]:
    """Return (colour key, ms, legend label) of an arm's bar in order: of an asynchronous device, else of the host."""
    if arm.totals.starved_ms:
        idle = [(_CAUSE_COLOURS.get(cause, cause), arm.totals.starved_ms.get(cause, 0.0), cause) for cause in CAUSES]
        upper = max(0.0, sum(arm.totals.phase_ms.values()) - sum(arm.totals.starved_ms.values()))
        busy_ms = arm.totals.device_busy_ms
        busy = ("backward", upper, OPEN) if busy_ms is None else ("backward", busy_ms, "device busy")
        return [busy, *((colour, value, f"idle: {cause}") for colour, value, cause in idle if value > 0)]
    fetch = [(stage, arm.totals.exposed_ms.get(stage, 0.0), f"wait: {stage}") for stage in STAGES]
    if not arm.totals.exposed_ms:
        fetch = [("fetch", arm.totals.phase_ms.get("fetch", 0.0), "wait for data")]
    phases = [(phase, arm.totals.phase_ms.get(phase, 0.0), phase) for phase in PHASES if phase != "fetch"]
    return [part for part in (*fetch, *phases) if part[1] > 0]


def why(comparisons: Sequence[Comparison], names: ArmNames, sheet: Sheet = WIDE) -> Figure | None:
    """Draw each comparison's chain of ratios as a line; None if no comparison has two ratios."""
    lines = []
    for c in comparisons:
        ratios = {link.name: link.ratio for link in chain(c) if link.ratio is not None and link.name in STATIONS}
        if len(ratios) >= 2:
            lines.append((c, ratios))
    if not lines:
        return None
    shown = lines[:MOST_LINES]
    figure, axes = sheet.plot(4.6 + 0.2 * len(shown), "x" if sheet.stacked else "y")
    places = {name: index for index, name in enumerate(STATIONS)}

    def line(at: Sequence[int], values: Sequence[float], **style: Any) -> None:
        axes.plot(*((values, at) if sheet.stacked else (at, values)), **style)

    for (c, ratios), colour in zip(shown, CURVES, strict=False):
        values = list(ratios.values())
        pair = f"{names.short(c.candidate)} against {names.short(c.baseline)}"
        label = f"{pair}: {ratio(values[0])} to {ratio(values[-1])}"
        line(
            [places[name] for name in ratios],
            values,
            marker="o",
            linewidth=1.8,
            markersize=6,
            color=colour,
            label=label,
        )
        speed = c.measured.step_time
        if speed is not None and speed.ci_low is not None and speed.ci_high is not None:
            marker = "|" if sheet.stacked else "_"
            ends = [speed.ci_low, speed.ci_high]
            line([places["measured"]] * 2, ends, marker=marker, linewidth=1.2, markersize=11, color=colour)
    _stations(axes, [value for _, by_station in shown for value in by_station.values()], sheet)
    left_out = f" (the first {MOST_LINES} of {len(lines)} comparisons)" if len(lines) > MOST_LINES else ""
    title(figure, f"From the gain in isolation to the gain in training{left_out}")
    legend_below(figure, axes, 1)
    return fitted(figure, sheet)


def _stations(axes: Axes, values: Sequence[float], sheet: Sheet) -> None:
    """Label one axis with :data:`STATIONS`, the other with ratios. ``values``: all drawn ratios."""
    low, high = min(0.9, *values) * 0.9, max(1.5, *values) * 1.1
    ends, text = (-0.3, len(STATIONS) - 0.7), "how many times as fast (log scale)"
    style: dict[str, Any] = {"color": RULE, "linewidth": 1, "linestyle": "--"}
    if sheet.stacked:
        axes.set(xscale="log", xlim=(low, high), ylim=ends[::-1], xlabel=text)
        axes.axvline(1, **style)
    else:
        axes.set(yscale="log", xlim=ends, ylim=(low, high), ylabel=text)
        axes.axhline(1, **style)
    stations, ratios = (axes.yaxis, axes.xaxis) if sheet.stacked else (axes.xaxis, axes.yaxis)
    ratio_ticks(
        ratios, [tick for tick in TICKS if low <= tick <= high and (not sheet.stacked or f"{tick:e}"[:3] in ROUND)]
    )
    stations.set_ticks(range(len(STATIONS)), list(STATIONS.values()), fontsize=TEXT)


def memory(profiles: Sequence[TorchProfile], sheet: Sheet = WIDE) -> Figure | None:
    """Draw the main processes' allocated memory over time, at most :data:`MEMORY_CURVES_MAX`; None if not recorded."""
    rows = [(profile.arm, curve) for profile in profiles for curve in profile.memory if curve.role == "main"]
    if not rows:
        return None
    shown = rows[:MEMORY_CURVES_MAX]
    figure = sheet.figure(1.0 + 2.1 * len(shown))
    for index, (arm, timeline) in enumerate(shown):
        _memory_row(plain(figure.add_subplot(len(shown), 1, index + 1), "y"), arm, timeline)
    figure.axes[-1].set_xlabel("ms since the first event (profiled steps shaded alternately)")
    left_out = f" (the first {MEMORY_CURVES_MAX} of {len(rows)})" if len(rows) > MEMORY_CURVES_MAX else ""
    title(figure, f"Allocated memory over the profiled steps{left_out}")
    return fitted(figure, sheet)


def _memory_row(axes: Axes, arm: str, one: MemoryTimeline) -> None:
    first = int(one.time_ns[0])
    for _, start, end in one.steps_ns[::2]:
        axes.axvspan((start - first) / 1e6, (end - first) / 1e6, color=BAND, linewidth=0)
    time, size = thinned(one.time_ns, one.allocated_bytes)
    axes.step((time - first) / 1e6, size / 2**20, where="post", color=CURVES[0], linewidth=1.1)
    peak_place = f"step {one.peak_step}" if one.peak_step is not None else "outside the steps"
    peak_phase = f", {one.peak_phase}" if one.peak_phase else ""
    axes.plot((one.peak_ns - first) / 1e6, one.peak_bytes / 2**20, "o", color=LOSS, markersize=5)
    peak = f"peak {number(one.peak_bytes / 2**20)} MiB: {peak_place}{peak_phase}"
    axes.set_title(peak, loc="right", fontsize=TEXT, color=LOSS)
    axes.set_ylabel(f"{middle_out(arm)}\n{one.device}, MiB", fontsize=TEXT)
    axes.set_ylim(bottom=min(0.0, float(size.min()) / 2**20))
