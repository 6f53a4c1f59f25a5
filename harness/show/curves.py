"""Draws curves over steps or tokens: losses and multiple-choice scores of one or several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import mul
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.explain.statistics import wilson
from harness.judge.learning import ArmCurves, ChoicePass, Learning
from harness.show.drawing import (
    CURVES,
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

MOST_RUNS = len(CURVES)  # maximum number of distinguishable runs in one picture
GUESS = 0.25  # chance of a correct answer: one of four endings
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
    """Values to draw of one run. Each curve has shape (2, points): completed optimizer steps, and values after them."""

    name: str
    training: Values
    validation: Values
    choices: tuple[ChoicePass, ...] = ()
    tokens: Values | None = None  # curve of the positions computed so far, padding included; None if unknown
    parameters: int | None = None
    seconds: float | None = None
    usd: float | None = None
    not_counted: tuple[str, ...] = ()  # parts of the run whose time is not recorded: path and reason

    def only(self, kind: LossKind | None) -> PlottedRun:
        """Return a copy with only the losses of ``kind``, without multiple choice. None: return the run unchanged."""
        if kind is None:
            return self
        nothing = curve([])
        return (
            replace(self, choices=(), validation=nothing)
            if kind == "training"
            else replace(self, choices=(), training=nothing)
        )

    def at(self, steps: Values, axis: Axis) -> Values:
        """Convert optimizer steps to positions on ``axis``: unchanged, or interpolated from known :attr:`tokens`."""
        if axis == "steps":
            return steps
        assert self.tokens is not None, "asked for before it was drawn"
        positions: Values = np.interp(steps, np.append(0, self.tokens[0]), np.append(0, self.tokens[1]))
        return positions


def curve(points: Sequence[tuple[float, float]]) -> Values:
    """Return (step, value) pairs as an array of shape (2, points)."""
    return np.array(points, dtype=np.float64).reshape(-1, 2).T


def of_arm(arm: ArmCurves, names: ArmNames) -> PlottedRun:
    """Return the values of an arm's first run that answered multiple-choice questions, else of its first run."""
    run = next((entry for entry in arm.runs if entry.choices), arm.runs[0])
    training, validation = (
        curve([(step + 1, loss) for step, loss in losses]) for losses in (run.training, run.validation)
    )
    return PlottedRun(names.short(arm.arm), training, validation, run.choices)


def best_measure(runs: Sequence[PlottedRun]) -> Measure:
    """Return ``acc_norm``, the usual measure. If a run lacks it (as an llm.c log does), return ``acc_tokens``."""
    has_norm = all(choice.acc_norm is not None for run in runs for choice in run.choices)
    return "acc_norm" if has_norm else "acc_tokens"


def loss_curves(found: Learning, names: ArmNames, sheet: Sheet = WIDE) -> Figure:
    """Draw the losses of each arm's first block. Later lines are thinner, so that equal curves all show."""
    figure, axes = sheet.plot(5.2, "both")
    for index, (arm, colour) in enumerate(zip(found.arms, CURVES, strict=False)):
        run, name = arm.runs[0], names.short(arm.arm)
        if run.training:
            width = max(1.2, 6.0 - 3.0 * index)
            axes.plot(*zip(*run.training, strict=True), color=colour, linewidth=width, label=f"{name}: training")
        if run.validation:
            size = max(3.0, 9.0 - 2.0 * index)
            axes.plot(*zip(*run.validation, strict=True), "o-", color=colour, linewidth=1.2, markersize=size,
                      label=f"{name}: validation")  # fmt: skip
    axes.set_xlabel("step")
    axes.set_ylabel("loss (mean over labels)")
    return _finished(figure, axes, "Loss by step, in the first block of each arm", len(found.arms), sheet, "arms")


def loss_curve(steps: Sequence[int], tokens: Sequence[int], losses: Sequence[float], name: str) -> Picture:
    """Draw losses and their moving mean over steps (``steps``: from 0) and ``tokens`` (total, padding included)."""
    curve = (np.asarray(steps) + 1, np.asarray(tokens), np.asarray(losses, dtype=float), name)
    return drawn(training_figure(*curve), narrow=training_figure(*curve, NARROW))


def training_figure(
    steps: np.ndarray, tokens: np.ndarray, losses: np.ndarray, name: str, sheet: Sheet = WIDE
) -> Figure:
    """Draw :func:`loss_curve` on a wide or narrow ``sheet``. ``steps``: completed optimizer steps at each loss."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    figure, axes = sheet.plot(4.6)
    axes.plot(*thinned(steps, losses), color=PARTS["other"], linewidth=0.9, label="each step")
    window = smoothed_steps(len(losses))
    if window > 1:
        mean = np.convolve(losses, np.full(window, 1 / window), mode="valid")
        axes.plot(*thinned(steps[window - 1 :], mean), color=CURVES[0], linewidth=1.8, label=f"mean of {window} steps")
        legend_below(figure, axes, 2)
    per_step = float(tokens[-1]) / float(steps[-1])
    tokens_axis = axes.secondary_xaxis("top", functions=(partial(mul, per_step), partial(mul, 1 / per_step)))
    tokens_axis.set_xlabel("tokens (padding included)")
    tokens_axis.xaxis.set_major_formatter(EngFormatter(sep=" "))
    for axis in (axes.xaxis, tokens_axis.xaxis) if sheet.stacked else ():
        axis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel("optimizer steps")
    axes.set_ylabel("training loss (nats per token)")
    axes.spines["top"].set_visible(True)
    title(figure, f"Training loss of {name}: {losses[-1]:.4f} after {int(steps[-1]):,} steps")
    return fitted(figure, sheet)


_HELD_OUT: dict[str, Any] = {"linewidth": 1.3, "markersize": 4.5, "markerfacecolor": "white"}


def smoothed_steps(steps: int) -> int:
    """Return the number of steps per point of the moving mean; 1 (no mean) if ``steps`` points are too few."""
    return max(1, min(SMOOTHED_STEPS_MAX, steps // SMOOTHED_FRACTION))


def loss_figure(runs: Sequence[PlottedRun], axis: Axis, sheet: Sheet = WIDE) -> Figure:
    """Draw the losses of several runs: training with its moving mean, validation, lowest and first broken losses."""
    figure, axes = _axes(axis, sheet)
    smoothed = _smoothed_steps(runs)
    for run, colour in zip(runs[:MOST_RUNS], CURVES, strict=False):
        finite, _ = _split(run.training)
        if finite.shape[1]:
            _draw_training(axes, run.at(finite[0], axis), finite[1], smoothed, colour)
        held_out, _ = _split(run.validation)
        if held_out.shape[1]:
            axes.plot(run.at(held_out[0], axis), held_out[1], "o--", color=colour, **_HELD_OUT)
        for values in (run.training, run.validation):
            _mark_lowest(axes, run, values, axis, colour, named=len(runs) <= BANDS_MAX)
            _mark_broken(axes, run, values, axis, colour)
        axes.plot([], [], color=colour, linewidth=2.5, label=_label(run.name))
    kinds = {"Training": [run.training for run in runs], "validation": [run.validation for run in runs]}
    drawn_kinds = [name for name, curves in kinds.items() if any(losses.shape[1] for losses in curves)]
    all_curves = [losses for curves in kinds.values() for losses in curves]
    if "Training" in drawn_kinds:
        mean_of = f"training: mean of {smoothed} steps, each step pale"
        axes.plot([], [], color=SOFT, linewidth=1.8, label=mean_of if smoothed > 1 else "training")
    if "validation" in drawn_kinds:
        axes.plot([], [], "o--", color=SOFT, label="validation", **_HELD_OUT)
    if any(len(_split(losses)[1]) for losses in all_curves):
        axes.plot([], [], "X", color=SOFT, markersize=8, label="first NaN or infinite loss")
    if any(minimum(losses) is not None for losses in all_curves):
        axes.plot([], [], "*", color=SOFT, markersize=10, linestyle="none", label="lowest loss")
    axes.set_ylabel("loss (nats per token)")
    return _finished(figure, axes, capitalised(f"{listing(drawn_kinds)} loss"), len(runs), sheet)


def _draw_training(axes: Axes, places: Values, losses: Values, smoothed: int, colour: str) -> None:
    """Draw a run's losses pale below their moving mean over ``smoothed`` steps; without it if the curve is short."""
    if smoothed > 1 and len(losses) >= SMOOTHED_FRACTION * smoothed:
        axes.plot(*thinned(places, losses), color=colour, linewidth=0.7, alpha=0.25)
        mean = np.convolve(losses, np.full(smoothed, 1 / smoothed), mode="valid")
        # Centred, because a mean of the preceding steps would lie above the curve.
        middle = places[smoothed // 2 : smoothed // 2 + len(mean)]
        axes.plot(*thinned(middle, mean), color=colour, linewidth=1.8)
    else:
        marker = "o" if len(places) == 1 else ""  # A line of one point is invisible.
        axes.plot(places, losses, color=colour, linewidth=1.5, marker=marker, markersize=4.5)


def _mark_lowest(axes: Axes, run: PlottedRun, values: Values, axis: Axis, colour: str, *, named: bool) -> None:
    """Draw a star at the lowest finite loss of ``values``, if any. ``named``: True to write that loss below it."""
    if (lowest := minimum(values)) is None:
        return
    position = run.at(np.array([lowest[0]]), axis)
    axes.plot(position, lowest[1:], "*", color=colour, markersize=12, markeredgecolor="white", zorder=4)
    if named:
        axes.annotate(f"{lowest[1]:.4g}", (position[0], lowest[1]), (0, -12), textcoords="offset points", ha="center",
                      fontsize=TEXT, color=INK)  # fmt: skip


def _mark_broken(axes: Axes, run: PlottedRun, values: Values, axis: Axis, colour: str) -> None:
    """Draw a cross at a curve's first NaN or infinite loss, if any, at the height of the last value before it."""
    finite, broken = _split(values)
    if not len(broken):
        return
    earlier = finite[:, finite[0] < broken[0]]
    height = float(earlier[1, -1]) if earlier.shape[1] else float(finite[1, 0]) if finite.shape[1] else 0.0
    position = run.at(broken[:1], axis)
    axes.plot(position, [height], "X", color=colour, markersize=9, markeredgecolor="white", zorder=5)


def minimum(values: Values) -> tuple[float, float] | None:
    """Return (completed steps, loss) at the lowest finite loss of a curve; None without a finite loss."""
    finite, _ = _split(values)
    if not finite.shape[1]:
        return None
    step, loss = finite[:, int(finite[1].argmin())]
    return float(step), float(loss)


def _smoothed_steps(runs: Sequence[PlottedRun]) -> int:
    """Return the window of the moving mean of all runs: that of the shortest run that has one; 1 if none has."""
    windows = [smoothed_steps(_split(run.training)[0].shape[1]) for run in runs[:MOST_RUNS]]
    return min((window for window in windows if window > 1), default=1)


def choices_figure(runs: Sequence[PlottedRun], measure: Measure, axis: Axis, sheet: Sheet = WIDE) -> Figure:
    """Draw the shares of right answers (%), with Wilson's 95 % intervals if the numbers of questions are known."""
    figure, axes = _axes(axis, sheet)
    numbers = {choice.questions for run in runs[:MOST_RUNS] for choice in run.choices}
    banded = False
    for run, colour in zip(runs[:MOST_RUNS], CURVES, strict=False):
        points = [(choice.step + 1, getattr(choice, measure), choice.questions) for choice in run.choices]
        finite = [point for point in points if point[1] is not None and np.isfinite(point[1])]
        if finite:
            places = run.at(np.array([step for step, _, _ in finite], dtype=np.float64), axis)
            counted = [wilson(round(share * number), number) for _, share, number in finite if number is not None]
            if len(counted) == len(finite):  # A log of llm.c lacks the number of questions.
                low, high = (100 * np.array(values) for values in zip(*counted, strict=True))
                if len(runs) > BANDS_MAX:  # More bands would hide one another.
                    axes.plot(places[[-1, -1]], [low[-1], high[-1]], "_-", color=colour, linewidth=1.2, markersize=9)
                else:
                    axes.fill_between(places, low, high, color=colour, alpha=0.12, linewidth=0)
                banded = True
            shares = [100 * share for _, share, _ in finite]
            axes.plot(places, shares, "o-", color=colour, linewidth=1.6, markersize=4.5)
        numbers_text = _questions({choice.questions for choice in run.choices})
        label = run.name if len(numbers) == 1 else f"{run.name} ({numbers_text})"
        axes.plot([], [], "o-", color=colour, linewidth=2, markersize=4.5, label=_label(label))
    axes.axhline(100 * GUESS, color=RULE, linewidth=1, linestyle=":", label="a guess")
    axes.set_ylabel(f"questions answered right (%)\n{MEASURES[measure]}")
    text = "Multiple choice" if len(numbers) > 1 else f"Multiple choice, {_questions(numbers)}"
    text += ", with 95 % intervals over questions" if banded else ""
    return _finished(figure, axes, text, len(runs), sheet)


def _label(name: str) -> str:
    """Return ``name`` for the legend: a leading underscore gets a space, else matplotlib omits the label."""
    return f" {name}" if name.startswith("_") else name


def _questions(numbers: set[int | None]) -> str:
    if None in numbers:
        return "of an unknown number of questions"
    return f"{listing([f'{number:,}' for number in sorted(count for count in numbers if count is not None)])} questions"


def _axes(axis: Axis, sheet: Sheet) -> tuple[Figure, Axes]:
    from matplotlib.ticker import EngFormatter

    figure, axes = sheet.plot(5.4, "both")
    axes.set_xlabel("optimizer steps" if axis == "steps" else "tokens (padding included)")
    if axis == "tokens":
        axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    return figure, axes


def _finished(figure: Figure, axes: Axes, text: str, count: int, sheet: Sheet, what: str = "runs") -> Figure:
    left_out = f" (the first {MOST_RUNS} of {count} {what})" if count > MOST_RUNS else ""
    title(figure, text + left_out)
    legend_below(figure, axes, 2)
    return fitted(figure, sheet)


def _split(values: Values) -> tuple[Values, Values]:
    """Return a curve's points with a finite value, shape (2, points), and the steps of NaN and infinite values."""
    finite = np.isfinite(values[1])
    return values[:, finite], values[0, ~finite]
