"""Makes the sentences about a projection: what the line through the optima predicts, or why it predicts nothing."""

from __future__ import annotations

import math

from harness.show.words import capitalised, count, listing
from harness.sweep.fit import LearningRateOptimum
from harness.sweep.messages import INTERVAL, rate
from harness.sweep.power_law import (
    FARTHEST,
    MIN_R2,
    MIN_SIZES,
    WIDEST,
    WIDEST_SLOPE,
    Extrapolation,
    NoExtrapolation,
    NoPowerLaw,
    PowerLaw,
    Projection,
)
from harness.sweep.projection import Unit

_OF: dict[Unit, str] = {
    "parameters": "parameters without embeddings and output projection",
    "tokens": "tokens",
    "width": "channels",
}

PREDICTED = (
    "That is an interval of the best rate: it adds the intervals of the searched sizes and their distance from the "
    "line. It assumes that the curves of all sizes have one shape."
)


def size_of(size: float, unit: Unit) -> str:
    """Format a size with its unit: ``1,327,104 parameters without embeddings and output projection``."""
    return f"{size:,.0f} {_OF[unit]}"


def conclusion(found: Projection) -> list[str]:
    """Return a projection's result as lines: the rate for the sweep's own size, or in bold why there is none."""
    if found.unit == "width":
        return [*_over_widths(found), *_bounds(found)]
    if isinstance(found.prediction, Extrapolation):
        return [_predicted(found.prediction, found.unit), *law_of(found), *_bounds(found)]
    lines = [f"**Nothing is extrapolated to {size_of(found.target, found.unit)}: {_why_not(found)}.**", *law_of(found)]
    if (largest := found.largest) is not None and isinstance(optimum := largest.optimum, LearningRateOptimum):
        best = rate(optimum.learning_rate)
        lines.append(f"Of the sizes with an optimum the largest is {largest.group}: its best rate is {best}.")
    return [*lines, *_bounds(found)]


def _bounds(found: Projection) -> list[str]:
    """Return warnings for sizes whose best rate, or only the minimum of the fit, may lie beyond the tried rates."""
    lines = []
    for edge, extreme, beyond in (("low", "lowest", "below"), ("high", "highest", "above")):
        hit = [point.group for point in found.points if point.edge == edge]
        if hit:
            lines.append(
                f"**At {listing(hit)} the optimum may not be inside the rates that were trained to the end: the best "
                f"rate may lie {beyond} the {extreme} of them. "
                f"Search again with another learning_rate.{edge}.**"
            )
        open_ends = [
            point.group
            for point in found.points
            if point.optimum is not None and point.optimum.at_edge == edge and point.edge is None
        ]
        if open_ends:
            lines.append(
                f"At {listing(open_ends)} the minimum of the fit lies {beyond} the {extreme} rate that was trained, "
                "where the loss is already higher: the best rate is unknown."
            )
    return lines


def law_of(found: Projection) -> list[str]:
    """Return a sentence on the power law of the best rate over sizes (exponent, interval, R2); empty without one."""
    law = found.law
    if not isinstance(law, PowerLaw):
        return []
    return [
        f"Over {law.sizes} sizes ({law.smallest:,.0f} to {size_of(law.largest, found.unit)}) the best rate changes as "
        f"the size to the power {law.slope:.3f} (95 % interval {law.slope_low:.3f} to {law.slope_high:.3f}; "
        f"R2 {law.r2:.3f})."
    ]


def hypothesis(found: Projection) -> str:
    """Return what must be true so that the chosen rate is the best one at the sweep's own size, as sentences."""
    if found.largest is None or (found.unit != "width" and not isinstance(found.prediction, Extrapolation)):
        return "No rate is chosen, so nothing is transferred."
    searched = any(point.size == found.target and point.optimum is not None for point in found.points)
    if found.unit == "width":
        mup = ", ".join(f"{key}: {value}" for key, value in (found.mup or {}).items())
        return (
            f"Transfer hypothesis: under maximal update parametrization the best rate at {found.target:,.0f} channels "
            f"is that of the narrow model. The wide one must be trained with `model.mup: {{{mup}}}`, and with the "
            "depth, batch size and steps of the trials: over these the best rate may change, also under mup."
        )
    kind = "models" if found.unit == "parameters" else "trainings"
    relation = "among" if isinstance(found.prediction, Extrapolation) and not found.prediction.beyond else "beyond"
    tested = "One of them has that size." if searched else "No trial has that size, so this sweep does not test it."
    return (
        f"Transfer hypothesis: the power law of the searched {kind} holds {relation} them, at "
        f"{size_of(found.target, found.unit)}. {tested}"
    )


def _predicted(one: Extrapolation, unit: Unit) -> str:
    beyond = ""
    if one.beyond:
        beyond = f", {one.beyond:.2g} times as far from the searched sizes as they span (in logarithms)"
    return (
        f"Chosen learning rate: {rate(one.learning_rate)}, projected to {size_of(one.size, unit)}{beyond} "
        f"(95 % prediction interval {rate(one.ci_low)} to {rate(one.ci_high)}). {PREDICTED}"
    )


def _why_not(found: Projection) -> str:
    law, refused = found.law, found.prediction
    if isinstance(law, NoPowerLaw):
        edge = "" if not law.left_out else f", {law.left_out} {_have(law.left_out)} one at an end of them"
        remedy = ". More trials or seeds, or a wider range, bound an optimum" if law.unbounded else ""
        return f"{_inside(law)}{edge}; a line needs {MIN_SIZES}{remedy}"
    assert isinstance(refused, NoExtrapolation)
    if refused.reason == "scatter":
        return (
            f"the optima follow no line (R2 {refused.figure:.2f}, below {MIN_R2:g}; they deviate from it by a factor "
            f"of {math.exp(law.residual):.2f})"
        )
    if refused.reason == "slope":
        return f"the power is uncertain by +-{refused.figure:.2f}; allowed: +-{WIDEST_SLOPE:g}"
    if refused.reason == "too-far":
        return (
            f"that is {refused.figure:.2g} times as far from the searched sizes as they span (in logarithms); allowed: "
            f"{FARTHEST:g}"
        )
    return (
        f"the prediction interval spans a factor of {refused.figure:.3g}; allowed: {WIDEST:g}. Closer rates, more "
        "seeds, or sizes nearer to it make it narrower"
    )


def _inside(law: NoPowerLaw) -> str:
    text = f"{count(law.sizes, 'size')} {_have(law.sizes)} an optimum with an interval inside the tried rates"
    return text + (f", {law.unbounded} {_have(law.unbounded)} one without" if law.unbounded else "")


def _have(number: int) -> str:
    return "has" if number == 1 else "have"


def _over_widths(found: Projection) -> list[str]:
    largest = found.largest
    if largest is None:
        return [
            "**Nothing is transferred: at no width do the trials show an optimum inside the rates that were tried.**"
        ]
    optimum = largest.optimum
    assert isinstance(optimum, LearningRateOptimum)
    within, note = "without an interval: the trials do not bound it", ""
    if optimum.ci_low is not None and optimum.ci_high is not None:
        within, note = f"95 % interval {rate(optimum.ci_low)} to {rate(optimum.ci_high)}", f" {INTERVAL}"
    lines = [
        f"Chosen learning rate: {rate(optimum.learning_rate)}, the optimum at {size_of(largest.size, found.unit)} "
        f"({within}), for the model of {size_of(found.target, found.unit)} with the same model.mup.{note}"
    ]
    law = found.law
    if isinstance(law, PowerLaw):
        level = law.slope_low <= 0 <= law.slope_high
        lines += law_of(found)
        if not level:
            lines.append(
                "**That interval excludes 0: the best rate depends on the width here, against the hypothesis.**"
            )
        elif law.meaningless == "slope":
            lines.append("That interval is too wide to decide if the best rate depends on the width.")
        else:
            lines.append("That interval includes 0: no dependence of the best rate on the width is seen.")
    else:
        reason = "One width was searched"
        if len(found.points) > 1:
            reason = f"{capitalised(_inside(law))} (of {len(found.points)}), and a test needs {MIN_SIZES}"
        lines.append(f"{reason}, so it was not tested if the best rate depends on the width.")
    return lines
