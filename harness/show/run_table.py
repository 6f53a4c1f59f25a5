"""Makes the table of plotted runs: lowest losses and their steps, multiple-choice scores, time and cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.show.cost import dollars, hours
from harness.show.run_curves import Measure, PlottedRun, Values, best_measure, minimum
from harness.show.tables import NOT_MEASURED
from trainer.json_types import Json

HEADER = ["run", "parameters", "lowest training loss", "at step", "lowest validation loss", "at step"]


def run_rows(runs: Sequence[PlottedRun], measure: Measure | None = None) -> list[list[str]]:
    """Return the header and a row for each run. Steps are completed steps; a loss is that of a single step.

    Multiple choice is the last share that is known, by ``measure``, or by the best one that all runs have.
    """
    asked = [run for run in runs if run.choices]
    by = measure or (best_measure(asked) if asked else None)
    header = [*HEADER, *([f"multiple choice, {by}"] if by else []), "hours", "USD"]
    rows = [header]
    for run in runs:
        cells = [run.name, NOT_MEASURED if run.parameters is None else f"{run.parameters:,}"]
        cells += [*_lowest(run.training), *_lowest(run.validation)]
        if by:
            share = last_share(run, by)
            cells.append(NOT_MEASURED if share is None else f"{share:.4f}")
        cells.append(NOT_MEASURED if run.seconds is None else hours(run.seconds))
        cells.append(NOT_MEASURED if run.usd is None else dollars(run.usd))
        rows.append(cells)
    return rows


def run_records(runs: Sequence[PlottedRun]) -> list[Json]:
    """Return the table as JSON: one object for each run, with every measure of multiple choice."""
    return [
        {
            "run": run.name,
            "parameters": run.parameters,
            "lowest_training": _record(run.training),
            "lowest_validation": _record(run.validation),
            "multiple_choice": {name: last_share(run, name) for name in ("acc", "acc_norm", "acc_tokens")},
            "seconds": run.seconds,
            "usd": run.usd,
        }
        for run in runs
    ]


def last_share(run: PlottedRun, measure: Measure) -> float | None:
    """Return the last finite share of right answers; None if there is none."""
    shares = [getattr(one, measure) for one in run.choices]
    known = [float(one) for one in shares if one is not None and np.isfinite(one)]
    return known[-1] if known else None


def _lowest(values: Values) -> list[str]:
    found = minimum(values)
    return [NOT_MEASURED, NOT_MEASURED] if found is None else [f"{found[1]:.4f}", f"{found[0]:,.0f}"]


def _record(values: Values) -> Json:
    found = minimum(values)
    return None if found is None else {"steps": round(found[0]), "loss": found[1]}
