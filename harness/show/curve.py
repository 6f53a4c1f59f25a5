"""Draws the curve of a training: its loss over steps and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.launch.training_files import LOSSES, read_losses
from harness.show.colours import CURVES, GRID, PARTS
from harness.show.drawing import (
    NARROW,
    WIDE,
    Picture,
    Sheet,
    drawn,
    fitted,
    legend_below,
    thinned,
    title,
    write_picture,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMOOTHED_STEPS = 50  # the mean is over a twentieth of the curve, but over no more steps than these
LEAST_SMOOTHED = 20  # times the steps of a mean, a curve has at least


def smoothed_steps(steps: int) -> int:
    """Over how many steps the mean of a curve of so many is; 1 of one that is too short for a mean."""
    return max(1, min(SMOOTHED_STEPS, steps // LEAST_SMOOTHED))


_EACH, _MEAN = PARTS["other"], CURVES[0]


def loss_curve(steps: Sequence[int], tokens: Sequence[int], losses: Sequence[float], name: str) -> Picture:
    """The loss of every step, and its mean over the last steps; an axis of steps below, of tokens above."""
    curve = (np.asarray(steps) + 1, np.asarray(tokens), np.asarray(losses, dtype=float), name)
    return drawn(loss_figure(*curve), narrow=loss_figure(*curve, NARROW))


def draw_losses(folder: Path, name: str) -> None:
    """Write loss.png of what losses.csv in ``folder`` holds, where it holds anything."""
    rows = read_losses(folder / LOSSES) if (folder / LOSSES).exists() else []
    if rows:
        picture = loss_curve([row.step for row in rows], [row.tokens for row in rows], [row.loss for row in rows], name)
        write_picture(folder / "loss.png", picture)


def loss_figure(steps: np.ndarray, tokens: np.ndarray, losses: np.ndarray, name: str, sheet: Sheet = WIDE) -> Figure:
    """Return the figure of :func:`loss_curve`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator

    figure = Figure(figsize=(sheet.width, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(*thinned(steps, losses), color=_EACH, linewidth=0.9, label="each step")
    window = smoothed_steps(len(losses))
    if window > 1:
        mean = np.convolve(losses, np.full(window, 1 / window), mode="valid")
        axes.plot(*thinned(steps[window - 1 :], mean), color=_MEAN, linewidth=1.8, label=f"mean of {window} steps")
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
    for side in ("right",):
        axes.spines[side].set_visible(False)
    title(figure, f"Training loss of {name}: {losses[-1]:.4f} after {int(steps[-1]):,} steps")
    return fitted(figure, sheet)
