"""Job g: at which model and batch size tokenizing begins to cost; predicted from one arm, then measured at each point.

The prediction replays the smallest model's run with another batch size, on a device that is slower by as much as the
other model has more FLOPs a token, with and without data work: what reading stored tokens takes is next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from harness.explain.replay import Replays, parse_edits
from harness.study.run_data import RunData
from tests.gpu.jobs.studies import Study, add_figures, attempt, run_scenario, with_even_documents
from tests.gpu.lease.place import Place
from trainer.config import recorded_config

BLOCKS = 3
REPLAYED = ("gpt2-small", 16)  # model and rows of the arm that every point is predicted from
TOLERANCE = 0.03  # of the ratio
MATTERS = 1.02  # a gain from which tokenizing matters
PREDICTING_S = 15.0
NO_DATA_WORK = ("read=0", "tokenize=0", "pack=0")
SIZES = 8  # steps of the search for the largest model that tokenizing slows down


class Point(NamedTuple):
    """One model and batch size."""

    model: str
    rows: int
    baseline: str
    flops_per_token: float


def run(place: Place) -> None:
    reserve_s = 0 if place.emulated else PREDICTING_S
    study = run_scenario(place, "crossover-gpu", *with_even_documents(), reserve_s=reserve_s)
    if study is None:
        return
    runs = list(study.folder.runs())
    points = sorted(_points(runs), key=lambda one: (one.flops_per_token, one.rows))
    replayed, replays = next((one for one in points if (one.model, one.rows) == REPLAYED), None), None
    if replayed is not None:
        with attempt(place, "replay of the predicting arm"):
            replays = Replays([one for one in runs if one.record.arm == replayed.baseline])
            error = 100 * replays.validation.typical
            place.add("unedited replay of the predicting arm is off by", error, "%", asked="under 5 %", holds=error < 5)
    for point in points:
        with attempt(place, f"{point.model}, {point.rows} rows"):
            predicted = None if replays is None or replayed is None else gain(replays, point, replayed)
            _add_point(place, study, point, predicted)
    if replays is not None and replayed is not None:
        for rows in sorted({one.rows for one in points}):
            with attempt(place, f"crossover, {rows} rows"):
                add_crossover(place, study, [one for one in points if one.rows == rows], replays, replayed)
    with attempt(place, "speeds"):
        add_figures(place, study, BLOCKS)


def gain(replays: Replays, point: Point, replayed: Point) -> float:
    """Return how many times as fast a step would be without data work, at ``point``, from the run of ``replayed``."""
    slower = replayed.flops_per_token / point.flops_per_token
    edits = [f"batch_size={point.rows}", f"device={slower:.6f}x"]
    before, after = (replays.predict(parse_edits(texts)).step_ms.median for texts in (edits, [*edits, *NO_DATA_WORK]))
    return before / after


def _points(runs: list[RunData]) -> Iterator[Point]:
    """Yield each point whose on-the-fly arm has run."""
    for run in {one.record.arm: one for one in runs if one.record.control is None}.values():
        config, facts = recorded_config(run.record.config), run.record.facts
        if config.data.path == "text-stream" and facts.flops_per_token is not None:
            model = config.model.preset or ""
            yield Point(model, config.data.batch_size, run.record.arm, facts.flops_per_token)


def _add_point(place: Place, study: Study, point: Point, predicted: float | None) -> None:
    name = f"{point.model}, {point.rows} rows: pretokenized / on the fly"
    ratio = measured(study, point)
    if ratio is None:
        place.add(name, None, "x")
        return
    median, low, high = ratio
    asked, holds = "", None
    if predicted is not None:
        asked = f"{predicted:.3f}x as predicted, within {100 * TOLERANCE:g} %"
        holds = abs(median / predicted - 1) <= TOLERANCE
    place.add(name, median, "x", low=low, high=high, asked=asked, holds=holds)


def measured(study: Study, point: Point) -> tuple[float, float | None, float | None] | None:
    """Return the measured gain of a step at ``point``: median and interval."""
    for one in study.comparisons:
        if one["baseline"] == point.baseline and (found := one["step_time_ratio"]) is not None:
            return found["median"], found["ci_low"], found["ci_high"]
    return None


def add_crossover(place: Place, study: Study, points: list[Point], replays: Replays, replayed: Point) -> None:
    """Record the largest model that tokenizing slows down: of the measured ones, and by replay between them."""
    slowed = [one.model for one in points if (found := measured(study, one)) is not None and found[0] >= MATTERS]
    rows, text = points[0].rows, f"tokenizing costs {100 * (MATTERS - 1):.0f} % or more"
    place.add(f"{text}, {points[0].rows} rows, up to", slowed[-1] if slowed else "no model")
    low, high = math.log(points[0].flops_per_token), math.log(points[-1].flops_per_token)
    if gain(replays, points[0], replayed) < MATTERS or gain(replays, points[-1], replayed) >= MATTERS:
        return
    for _ in range(SIZES):
        middle = (low + high) / 2
        slows = gain(replays, Point("", rows, "", math.exp(middle)), replayed) >= MATTERS
        low, high = (middle, high) if slows else (low, middle)
    place.add(f"{text}, {rows} rows, by replay up to", math.exp(low) / 1e9, "GFLOPs a token")
