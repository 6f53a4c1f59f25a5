"""Reads columns of the steps table as integers, and what the order of its steps says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.explain.intervals import Int, Stretches

if TYPE_CHECKING:
    import pyarrow as pa


def bounds(steps: pa.Table) -> Stretches:
    """When each step began and ended."""
    starts = integers(steps, "start_ns")
    return Stretches(starts, starts + integers(steps, "wall_ns"))


def held_up(steps: Stretches, measured: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Steps that do not count although one before them did and the loop has not paused since, (steps,).

    Something else than training lay within them: an evaluation, a profiler, a stop of the program. Warm-up steps come
    first, or after a pause.
    """
    begins = np.append(True, steps.starts[1:] > steps.ends[:-1])[: len(measured)] & ~measured
    counted = np.cumsum(measured)
    before = np.maximum.accumulate(np.where(begins, counted, 0))  # how many counted when these steps began
    found: NDArray[np.bool_] = ~measured & (counted > before)
    return found


def integers(table: pa.Table, name: str, null: int = 0) -> Int:
    """A column as int64, (rows,); ``null`` for what was not measured."""
    column = table.column(name)
    if column.null_count:
        column = column.fill_null(null)
    values: Int = column.to_numpy().astype(np.int64, copy=False)
    return values
