"""Reads columns of the steps table as integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harness.analysis.intervals import Int, Stretches

if TYPE_CHECKING:
    import pyarrow as pa


def bounds(steps: pa.Table) -> Stretches:
    """When each step began and ended."""
    starts = integers(steps, "start_ns")
    return Stretches(starts, starts + integers(steps, "wall_ns"))


def integers(table: pa.Table, name: str, null: int = 0) -> Int:
    """A column as int64, (rows,); ``null`` for what was not measured."""
    column = table.column(name)
    if column.null_count:
        column = column.fill_null(null)
    values: Int = column.to_numpy().astype(np.int64, copy=False)
    return values
