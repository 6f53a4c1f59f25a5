"""Draws the losses of the arms over steps, one over the other: training as lines, held-out data as points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.analysis.learning import Learning
from harness.report.drawing import title
from harness.report.names import ArmNames

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, safe for colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C510A", "#666666")


def loss_curves(found: Learning, names: ArmNames) -> Figure:
    """The first block of each arm. A later arm is drawn thinner, so that an equal curve below it still shows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shown = found.arms[: len(COLOURS)]
    for place, (arm, colour) in enumerate(zip(shown, COLOURS, strict=False)):
        run, width = arm.runs[0], max(1.2, 6.0 - 3.0 * place)
        name, alpha = names.short(arm.arm), 0.9 if place else 0.45
        if run.training:
            steps, losses = zip(*run.training, strict=True)
            axes.plot(
                steps,
                losses,
                color=colour,
                linewidth=width,
                alpha=alpha,
                label=f"{name}: training",
            )
        if not run.validation:  # it was asked multiple-choice questions alone, until it was ended
            continue
        steps, losses = zip(*run.validation, strict=True)
        size = max(3.0, 9.0 - 2.0 * place)
        axes.plot(steps, losses, "o-", color=colour, linewidth=1.2, markersize=size, label=f"{name}: validation")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (mean over labels)")
    axes.grid(color="#EEEEEE")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    left_out = f" (the first {len(shown)} of {len(found.arms)} arms)" if len(found.arms) > len(shown) else ""
    title(figure, f"Loss by step, in the first block of each arm{left_out}")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=2, fontsize=8.5, frameon=False)
    return figure
