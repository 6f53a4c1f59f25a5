"""Writes the section "Steps over time": the slowest steps in a table; summary.html also draws all of them."""

from __future__ import annotations

from collections.abc import Sequence

from harness.explain.step_times import FAR_OUT, StepTimes
from harness.show.names import ArmNames
from harness.show.tables import table
from harness.show.words import number, ratio

MOST = 10
TITLE = "Steps over time"


def section(found: Sequence[StepTimes], names: ArmNames) -> str:
    """The slowest outliers; empty where no steps were measured."""
    if not found:
        return ""
    slow = [
        (wall / one.median_ms, one, place)
        for one in found
        for place, (wall, outlier) in enumerate(zip(one.wall_ms, one.outlier, strict=True))
        if outlier
    ]
    slow.sort(key=lambda entry: -entry[0])
    rows = [
        [
            names.short(one.arm),
            str(one.block),
            str(one.repetition[place]),
            str(one.step[place]),
            number(one.wall_ms[place]),
            ratio(times),
        ]
        for times, one, place in slow[:MOST]
    ]
    steps = sum(one.steps for one in found)
    outliers = sum(one.outliers for one in found)
    note = (
        f"{outliers:,} of {steps:,} measured steps are outliers: more than {FAR_OUT:g} quartile ranges above the upper "
        "quartile of their run. `summary.html` draws every step over the time of the study."
    )
    header = ["arm", "block", "repetition", "step", "ms", "times its run's median"]
    return "\n\n".join([*([table(header, rows)] if rows else []), note])


def thinned(found: Sequence[StepTimes]) -> str:
    """How many steps a picture of ``found`` shows, where not all."""
    steps, shown = sum(one.steps for one in found), sum(len(one.step) for one in found)
    return (
        f"{shown:,} of {steps:,} measured steps: every outlier, of the others every so many." if shown < steps else ""
    )
