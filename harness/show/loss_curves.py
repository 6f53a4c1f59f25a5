"""Draws the losses of the arms over steps, one over the other: training as lines, held-out data as points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.judge.learning import Learning
from harness.show.colours import CURVES, GRID
from harness.show.drawing import TEXT, WIDE, Sheet, fitted, title
from harness.show.names import ArmNames

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
