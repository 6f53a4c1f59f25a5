"""The three pictures of a report, as PNG bytes: promise against result, where each step's time goes, all verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.analysis.comparisons import SAME, Comparison
from harness.analysis.probes.probe_cost import is_probe_control
from harness.analysis.report_types import ArmReport, StudyReport
from harness.report.drawing import (
    beside,
    bounds,
    legend_below,
    png,
    point,
    ratio_axis,
    row_axes,
    row_labels,
    short,
    title,
)
from harness.report.why_plot import why
from harness.report.words import interval, number, percent, ratio
from harness.study.store import CAUSES, PHASES, STAGES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ISOLATED, LEDGER, FOREST = "isolated-vs-end-to-end.png", "ledger.png", "comparisons.png"
WHY = "why.png"
NAMES = (ISOLATED, LEDGER, FOREST, WHY)
MAX_ROWS = 60  # a taller picture is read by nobody; the tables have every row
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
    "other": "#BBBBBB",
}
VERDICT_COLOURS = {"gain": "#009E73", "loss": "#D55E00", "none": "#555555"}


def pictures(report: StudyReport) -> dict[str, bytes]:
    """{file name: PNG} of the pictures that have something to show."""
    found: dict[str, bytes] = {}
    measured = [c for c in report.comparisons if c.measured is not None][:MAX_ROWS]
    if measured:
        found[ISOLATED] = png(isolated(measured), report.emulated)
        found[FOREST] = png(forest(measured), report.emulated)
    if (chain := why(measured)) is not None:
        found[WHY] = png(chain, report.emulated)
    shown = [arm for arm in report.arms if arm.control != "a-a" and not is_probe_control(arm.control)]
    arms = [arm for arm in shown if arm.blocks][:MAX_ROWS]
    if arms:
        found[LEDGER] = png(ledger(arms), report.emulated)
    return found


def isolated(comparisons: Sequence[Comparison]) -> Figure:
    """Per comparison: the ratio in isolation, the ceiling from waiting, and the ratio in training with its interval.

    All three are about speed, so training counts positions; where the arms train other shares of them, the ratio of
    trained tokens is drawn beside it, hollow.
    """
    figure, axes = row_axes(len(comparisons), 0.62, 2.0)
    legend = {  # each label is taken by the first row that has such a point
        "isolated": "in isolation (data-only controls)",
        "ceiling": "ceiling: no wait for data at all",
        "training": "in training, tokens/s",
        "trained": "in training, trained tokens/s where padding differs",
    }
    values: list[float] = []
    for row, c in enumerate(comparisons):
        training = c.tokens_ratio or c.measured
        assert training is not None
        shown = [one for one in (c.isolated, c.ceiling, training) if one is not None]
        span = [min(one.median for one in shown), max(one.median for one in shown)]
        axes.plot(span, [row, row], color="#E2E2E2", linewidth=6, zorder=1, solid_capstyle="butt")
        if c.isolated is not None:
            point(axes, c.isolated, row - 0.2, "#E69F00", "D", legend.pop("isolated", None))
        if c.ceiling is not None:
            label = legend.pop("ceiling", None)
            axes.plot(
                [c.ceiling.median] * 2, [row - 0.32, row + 0.32], color="black", linewidth=2, zorder=3, label=label
            )
        point(axes, training, row + 0.2, "#0072B2", "o", legend.pop("training", None))
        words = [
            f"{name} {ratio(one.median)}"
            for name, one in (("isolated", c.isolated), ("ceiling", c.ceiling), ("training", training))
            if one is not None
        ]
        if c.measured is not None and abs(math.log(c.measured.median / training.median)) > SAME:
            shown.append(c.measured)
            point(axes, c.measured, row + 0.2, "#56B4E9", "s", legend.pop("trained", None), hollow=True)
            words[-1] += f" ({ratio(c.measured.median)} trained)"
        values += [bound for one in shown for bound in bounds(one)]
        beside(axes, row, ", ".join(words[:-1]) + f"\n{words[-1]}" if len(words) > 1 else words[0], "#333333")
    ratio_axis(axes, values)
    row_labels(axes, [f"{short(c.candidate)}\nagainst {short(c.baseline)}" for c in comparisons])
    axes.set_xlabel("how many times as fast as the baseline (log scale, 95 % intervals)")
    title(figure, "What isolation promises, what waiting allows, what training got")
    legend_below(figure, axes, 4)
    return figure


def forest(comparisons: Sequence[Comparison]) -> Figure:
    """Every comparison's measured ratio with its interval, over the band that an unchanged arm reaches by itself."""
    figure, axes = row_axes(len(comparisons), 0.5, 1.9)
    band_label: str | None = "noise floor (an arm against itself)"
    for row, c in enumerate(comparisons):
        assert c.measured is not None
        if c.noise_floor is not None:
            low, high = max(1 - c.noise_floor, 1e-3), 1 + c.noise_floor
            axes.fill_betweenx([row - 0.5, row + 0.5], low, high, color="#E4E4E4", label=band_label, zorder=0)
            band_label = None
        colour = VERDICT_COLOURS[c.verdict]
        point(axes, c.measured, row, colour, "o", None)
        undecided = c.measured.ci_low is None
        verdict = "undecided" if undecided else {"none": "no detectable difference"}.get(c.verdict, c.verdict)
        if c.trained_per_step is not None and abs(c.trained_per_step - 1) > SAME:
            verdict += f", {ratio(c.trained_per_step)} tokens a step"
        beside(axes, row, f"{verdict}\n{ratio(c.measured.median)} ({interval(c.measured)})", colour)
    floors = [b for c in comparisons if c.noise_floor is not None for b in (1 - c.noise_floor, 1 + c.noise_floor)]
    ratio_axis(axes, [b for c in comparisons for b in bounds(c.measured)] + [b for b in floors if b > 0])
    row_labels(axes, [f"{short(c.candidate)}\nagainst {short(c.baseline)}" for c in comparisons])
    measures = dict.fromkeys(c.measure for c in comparisons)
    axes.set_xlabel(f"{' or '.join(measures)}, candidate / baseline (log scale, 95 % intervals)")
    title(figure, "Right of 1 the candidate is faster; inside the grey band an unchanged arm would look the same")
    if band_label is None:
        legend_below(figure, axes, 1)
    return figure


def ledger(arms: Sequence[ArmReport]) -> Figure:
    """Milliseconds per step by phase, stacked; the fetch is split into the stages that the step waited for."""
    figure, axes = row_axes(len(arms), 0.36, 2.0)
    seen: set[str] = set()
    longest = max(sum(arm.phase_ms.values()) for arm in arms)
    where = (
        "the host's main thread" if not any(arm.starved_ms for arm in arms) else "the device, where it is asynchronous"
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
        waited = sum(arm.exposed_ms.values()) if arm.exposed_ms else arm.phase_ms.get("fetch", 0.0)
        share = f", {percent(waited / left)} waiting for data" if left else ""
        axes.text(left + 0.01 * longest, row, f"{number(left)} ms{share}", va="center", fontsize=8, color="#333333")
    row_labels(axes, [short(arm.name) for arm in arms])
    for tick, arm in zip(axes.get_yticklabels(), arms, strict=True):
        tick.set_color("#777777" if arm.control else "black")
    axes.set_xlim(0, longest * 1.3)
    axes.grid(axis="x", color="#EEEEEE", zorder=0)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"mean milliseconds per step on {where} (controls are pale)")
    title(figure, "Where each step's time goes: warm colours are waits for data")
    _order_legend(figure, axes)
    return figure


_CAUSE_COLOURS = {"python": "other", "checkpoint": "optimizer"}


def _parts(arm: ArmReport) -> list[tuple[str, float, str]]:
    """(colour key, milliseconds, legend label) from left to right; of the device where it runs by itself."""
    if arm.starved_ms:
        starved = [(_CAUSE_COLOURS.get(cause, cause), arm.starved_ms.get(cause, 0.0), cause) for cause in CAUSES]
        busy = ("backward", arm.device_busy_ms or 0.0, "device busy")
        return [busy, *((colour, value, f"starved: {cause}") for colour, value, cause in starved if value > 0)]
    fetch = [(stage, arm.exposed_ms.get(stage, 0.0), f"wait: {stage}") for stage in STAGES]
    if not arm.exposed_ms:
        fetch = [("fetch", arm.phase_ms.get("fetch", 0.0), "wait for data")]
    rest = [(phase, arm.phase_ms.get(phase, 0.0), phase) for phase in PHASES if phase != "fetch"]
    return [part for part in (*fetch, *rest) if part[1] > 0]


def _order_legend(figure: Figure, axes: Axes) -> None:
    """Legend entries in the order of the stack, whatever arm showed them first."""
    order = ["device busy", *(f"starved: {cause}" for cause in CAUSES), *(f"wait: {stage}" for stage in STAGES)]
    order += ["wait for data", *PHASES]
    pairs = sorted(zip(*axes.get_legend_handles_labels(), strict=True), key=lambda pair: order.index(pair[1]))
    handles: list[Any] = [handle for handle, _ in pairs]
    labels = [label for _, label in pairs]
    figure.legend(handles, labels, loc="outside lower left", ncols=6, fontsize=8.5, frameon=False)
