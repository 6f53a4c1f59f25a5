"""Draws curves over steps or tokens: losses and multiple-choice scores of one or several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.explain.statistics import wilson
from harness.judge.learning import ArmCurves, ChoicePass, Learning
from harness.show.drawing import (
    CURVES,
    GRID,
    INK,
    NARROW,
    PARTS,
    RULE,
    SOFT,
    TEXT,
    WIDE,
    Picture,
    Sheet,
    drawn,
    fitted,
    legend_below,
    thinned,
    title,
)
from harness.show.names import ArmNames
from harness.show.policy import BANDS_MAX, SMOOTHED_FRACTION, SMOOTHED_STEPS_MAX
from harness.show.words import capitalised, listing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_RUNS = len(CURVES)  # that a reader can tell apart in one picture
GUESS = 0.25  # of four endings
Axis = Literal["steps", "tokens"]
LossKind = Literal["training", "validation"]
Measure = Literal["acc", "acc_norm", "acc_tokens"]
MEASURES: dict[Measure, str] = {
    "acc": "acc: log-likelihood of the ending",
    "acc_norm": "acc_norm: log-likelihood by character",
    "acc_tokens": "log-likelihood by token, llm.c's acc_norm",
}
Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PlottedRun:
    """What is drawn of one run. Curves are (2, points): optimizer steps that were done by then, and the value.

    ``tokens``: the same with positions computed by then (padding included); None where that is unknown.
    """

    name: str
    training: Values
    validation: Values
    choices: tuple[ChoicePass, ...] = ()
    tokens: Values | None = None
    parameters: int | None = None
    seconds: float | None = None
    usd: float | None = None
    not_counted: tuple[str, ...] = ()
    """Parts of the run whose time is not recorded: path and reason."""

    def only(self, kind: LossKind | None) -> PlottedRun:
        """Return the run with losses of ``kind`` alone and without multiple choice; unchanged for None."""
        if kind is None:
            return self
        nothing = curve([])
        return (
            replace(self, choices=(), validation=nothing)
            if kind == "training"
            else replace(self, choices=(), training=nothing)
        )

    def at(self, steps: Values, axis: Axis) -> Values:
        """Where on the axis something after so many steps is."""
        if axis == "steps":
            return steps
        assert self.tokens is not None, "asked for before it was drawn"
        found: Values = np.interp(steps, np.append(0, self.tokens[0]), np.append(0, self.tokens[1]))
        return found


def curve(points: Sequence[tuple[float, float]]) -> Values:
    """Pairs as a curve."""
    return np.array(points, dtype=np.float64).reshape(-1, 2).T


def of_arm(arm: ArmCurves, names: ArmNames) -> PlottedRun:
    """The first evaluated run of an arm of a study."""
    run = next((one for one in arm.runs if one.choices), arm.runs[0])
    training, validation = (curve([(step + 1, loss) for step, loss in one]) for one in (run.training, run.validation))
    return PlottedRun(names.short(arm.arm), training, validation, run.choices)


def best_measure(runs: Sequence[PlottedRun]) -> Measure:
    """acc_norm, as most tables have it; where it is not known of every run (an llm.c log, say), the one by token."""
    known = all(one.acc_norm is not None for run in runs for one in run.choices)
    return "acc_norm" if known else "acc_tokens"


def loss_curves(found: Learning, names: ArmNames, sheet: Sheet = WIDE) -> Figure:
    """The first block of each arm. A later arm is drawn thinner, so that an equal curve below it still shows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(sheet.width, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shown = found.arms[: len(CURVES)]
    for place, (arm, colour) in enumerate(zip(shown, CURVES, strict=False)):
        run, width = arm.runs[0], max(1.2, 6.0 - 3.0 * place)
        name = names.short(arm.arm)
        if run.training:
            steps, losses = zip(*run.training, strict=True)
            axes.plot(
                steps,
                losses,
                color=colour,
                linewidth=width,
                label=f"{name}: training",
            )
        if not run.validation:  # it was asked multiple-choice questions alone, until it was ended
            continue
        steps, losses = zip(*run.validation, strict=True)
        size = max(3.0, 9.0 - 2.0 * place)
        axes.plot(steps, losses, "o-", color=colour, linewidth=1.2, markersize=size, label=f"{name}: validation")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (mean over labels)")
    axes.grid(color=GRID)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    left_out = f" (the first {len(shown)} of {len(found.arms)} arms)" if len(found.arms) > len(shown) else ""
    title(figure, f"Loss by step, in the first block of each arm{left_out}")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=2, fontsize=TEXT, frameon=False)
    return fitted(figure, sheet)


def loss_curve(steps: Sequence[int], tokens: Sequence[int], losses: Sequence[float], name: str) -> Picture:
    """The loss of every step, and its mean over the last steps; an axis of steps below, of tokens above."""
    curve = (np.asarray(steps) + 1, np.asarray(tokens), np.asarray(losses, dtype=float), name)
    return drawn(training_figure(*curve), narrow=training_figure(*curve, NARROW))


def training_figure(
    steps: np.ndarray, tokens: np.ndarray, losses: np.ndarray, name: str, sheet: Sheet = WIDE
) -> Figure:
    """Return the figure of :func:`loss_curve`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator

    figure = Figure(figsize=(sheet.width, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(*thinned(steps, losses), color=PARTS["other"], linewidth=0.9, label="each step")
    window = smoothed_steps(len(losses))
    if window > 1:
        mean = np.convolve(losses, np.full(window, 1 / window), mode="valid")
        axes.plot(*thinned(steps[window - 1 :], mean), color=CURVES[0], linewidth=1.8, label=f"mean of {window} steps")
        legend_below(figure, axes, 2)
    per_step = float(tokens[-1]) / float(steps[-1])

    def to_tokens(at: Any) -> Any:
        return at * per_step

    def to_steps(at: Any) -> Any:
        return at / per_step

    above = axes.secondary_xaxis("top", functions=(to_tokens, to_steps))
    above.set_xlabel("tokens (padding included)")
    above.xaxis.set_major_formatter(EngFormatter(sep=" "))
    for axis in (axes.xaxis, above.xaxis) if sheet.stacked else ():
        axis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel("optimizer steps")
    axes.set_ylabel("training loss (nats per token)")
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    axes.spines["right"].set_visible(False)
    title(figure, f"Training loss of {name}: {losses[-1]:.4f} after {int(steps[-1]):,} steps")
    return fitted(figure, sheet)


def smoothed_steps(steps: int) -> int:
    """Return how many of a curve's ``steps`` each point of its mean covers; 1 if the curve is too short for a mean."""
    return max(1, min(SMOOTHED_STEPS_MAX, steps // SMOOTHED_FRACTION))


def loss_figure(runs: Sequence[PlottedRun], axis: Axis, sheet: Sheet = WIDE) -> Figure:
    """Training loss as it is (pale) and as a mean around each step (line), validation loss dashed with points.

    A cross marks the first loss of a curve that is NaN or infinite, at the height of the one before it. A star marks
    the lowest loss of each curve, of training that of a single step.
    """
    figure, axes = _axes(axis, sheet)
    smoothed = _smoothed_steps(runs)
    for run, colour in zip(runs[:MOST_RUNS], CURVES, strict=False):
        finite, broken = _split(run.training)
        window = smoothed if finite.shape[1] >= SMOOTHED_FRACTION * smoothed else 1
        if finite.shape[1]:
            places = run.at(finite[0], axis)
            if window > 1:
                axes.plot(*thinned(places, finite[1]), color=colour, linewidth=0.7, alpha=0.25)
                mean = np.convolve(finite[1], np.full(window, 1 / window), mode="valid")
                middle = places[window // 2 : window // 2 + len(mean)]  # a mean of the last steps would lie above
                axes.plot(*thinned(middle, mean), color=colour, linewidth=1.8)
            else:
                alone = "o" if len(places) == 1 else ""  # a line of one point is none
                axes.plot(places, finite[1], color=colour, linewidth=1.5, marker=alone, markersize=4.5)
        held_out, held_out_broken = _split(run.validation)
        if held_out.shape[1]:
            places = run.at(held_out[0], axis)
            axes.plot(places, held_out[1], "o--", color=colour, linewidth=1.3, markersize=4.5, markerfacecolor="white")
        for values, of in ((finite, broken), (held_out, held_out_broken)):
            if (lowest := minimum(values)) is not None:
                where = run.at(np.array([lowest[0]]), axis)
                axes.plot(where, lowest[1:], "*", color=colour, markersize=12, markeredgecolor="white", zorder=4)
                if len(runs) <= BANDS_MAX:
                    axes.annotate(f"{lowest[1]:.4g}", (where[0], lowest[1]), (0, -12), textcoords="offset points",
                                  ha="center", fontsize=TEXT, color=INK)  # fmt: skip
            if len(of):
                _mark(axes, run, values, of[0], axis, colour)
        axes.plot([], [], color=colour, linewidth=2.5, label=_label(run.name))
    if any(run.training.shape[1] for run in runs):
        mean_of = f"training: mean of {smoothed} steps, each step pale"
        axes.plot([], [], color=SOFT, linewidth=1.8, label=mean_of if smoothed > 1 else "training")
    if any(run.validation.shape[1] for run in runs):
        axes.plot([], [], "o--", color=SOFT, linewidth=1.3, markersize=4.5, markerfacecolor="white", label="validation")
    if any(len(_split(one)[1]) for run in runs for one in (run.training, run.validation)):
        axes.plot([], [], "X", color=SOFT, markersize=8, label="first NaN or infinite loss")
    if any(minimum(one) is not None for run in runs for one in (run.training, run.validation)):
        axes.plot([], [], "*", color=SOFT, markersize=10, linestyle="none", label="lowest loss")
    axes.set_ylabel("loss (nats per token)")
    kinds = [
        name
        for name, there in (
            ("Training", any(run.training.shape[1] for run in runs)),
            ("validation", any(run.validation.shape[1] for run in runs)),
        )
        if there
    ]
    _finish(figure, axes, capitalised(f"{listing(kinds)} loss"), len(runs))
    return fitted(figure, sheet)


def minimum(values: Values) -> tuple[float, float] | None:
    """Return (completed steps, loss) at the lowest finite loss of a curve; None without a finite loss."""
    finite, _ = _split(values)
    if not finite.shape[1]:
        return None
    step, loss = finite[:, int(finite[1].argmin())]
    return float(step), float(loss)


def _smoothed_steps(runs: Sequence[PlottedRun]) -> int:
    """Over how many steps the means are: as many for each run, or runs that are alike would look as if they were not.

    The shortest run decides, but for those that are too short for a mean.
    """
    windows = [smoothed_steps(_split(run.training)[0].shape[1]) for run in runs[:MOST_RUNS]]
    return min((one for one in windows if one > 1), default=1)


def choices_figure(runs: Sequence[PlottedRun], measure: Measure, axis: Axis, sheet: Sheet = WIDE) -> Figure:
    """Shares of right answers by ``measure``, with 95 % intervals over questions (Wilson's), and that of a guess."""
    figure, axes = _axes(axis, sheet)
    numbers = {one.questions for run in runs[:MOST_RUNS] for one in run.choices}
    counts = {run.name: {one.questions for one in run.choices} for run in runs}
    banded = 0
    for run, colour in zip(runs[:MOST_RUNS], CURVES, strict=False):
        found = [(one.step + 1, getattr(one, measure), one.questions) for one in run.choices]
        known = [one for one in found if one[1] is not None and np.isfinite(one[1])]
        if known:
            places = run.at(np.array([step for step, _, _ in known], dtype=np.float64), axis)
            counted = [wilson(round(share * of), of) for _, share, of in known if of is not None]
            if len(counted) == len(known):  # an llm.c log does not say how many questions there were
                low, high = (100 * np.array(values) for values in zip(*counted, strict=True))
                if len(runs) > BANDS_MAX:  # of more runs, bands hide one another
                    axes.plot(places[[-1, -1]], [low[-1], high[-1]], "_-", color=colour, linewidth=1.2, markersize=9)
                else:
                    axes.fill_between(places, low, high, color=colour, alpha=0.12, linewidth=0)
                banded += 1
            shares = [100 * share for _, share, _ in known]
            axes.plot(places, shares, "o-", color=colour, linewidth=1.6, markersize=4.5)
        label = run.name if len(numbers) == 1 else f"{run.name} ({_questions(counts[run.name])})"
        axes.plot([], [], "o-", color=colour, linewidth=2, markersize=4.5, label=_label(label))
    axes.axhline(100 * GUESS, color=RULE, linewidth=1, linestyle=":", label="a guess")
    axes.set_ylabel(f"questions answered right (%)\n{MEASURES[measure]}")
    text = "Multiple choice" if len(numbers) > 1 else f"Multiple choice, {_questions(numbers)}"
    _finish(figure, axes, text + (", with 95 % intervals over questions" if banded else ""), len(runs))
    return fitted(figure, sheet)


def _label(name: str) -> str:
    """What the legend says; matplotlib leaves out what begins with an underscore."""
    return f" {name}" if name.startswith("_") else name


def _questions(numbers: set[int | None]) -> str:
    if None in numbers:
        return "of a number of questions that is not known"
    return f"{listing([f'{one:,}' for one in sorted(one for one in numbers if one is not None)])} questions"


def _axes(axis: Axis, sheet: Sheet = WIDE) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(sheet.width, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_xlabel("optimizer steps" if axis == "steps" else "tokens (padding included)")
    if axis == "tokens":
        axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.grid(color=GRID)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _finish(figure: Figure, axes: Axes, text: str, count: int) -> None:
    left_out = f" (the first {MOST_RUNS} of {count} runs)" if count > MOST_RUNS else ""
    title(figure, text + left_out)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=2, fontsize=TEXT, frameon=False)


def _split(values: Values) -> tuple[Values, Values]:
    """The points with a finite value, and after how many steps the others are."""
    finite = np.isfinite(values[1])
    return values[:, finite], values[0, ~finite]


def _mark(axes: Axes, run: PlottedRun, finite: Values, first: float, axis: Axis, colour: str) -> None:
    """A cross where a curve is no number any more: at the height of the last value before it."""
    before = finite[:, finite[0] < first]
    height = float(before[1, -1]) if before.shape[1] else float(finite[1, 0]) if finite.shape[1] else 0.0
    where = run.at(np.array([first]), axis)
    axes.plot(where, [height], "X", color=colour, markersize=9, markeredgecolor="white", zorder=5)
