"""Converts the times of a rank on another machine to rank 0's clock, with a bound on the error.

The start of CLOCK_MONOTONIC is arbitrary on each machine. A rank asks rank 0 for its time, and notes the times of the
request and the answer. Rank 0 reads its clock in between. So, halfway between request and answer,

    offset = rank 0's time - (asked + answered) / 2,    wrong by at most (answered - asked) / 2

(Cristian, "Probabilistic clock synchronization", 1989). The quickest of several exchanges counts. The
clocks are compared when the run is ready and when it ends. In between, the offset is assumed to drift evenly, as quartz
clocks do over minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.study.contract import SPAN_COLUMNS, STEP_COLUMNS, rank_file
from harness.study.tables import TABLE_ROW_GROUP, TableFile

EXCHANGES = 20  # They take a few ms. The quickest one is rarely disturbed.
MOMENTS = ("start_ns", "end_ns")  # columns with moments; other columns are durations


@dataclass(frozen=True)
class ClockOffset:
    """Difference between rank 0's clock and this machine's, measured at ``own_ns`` (CLOCK_MONOTONIC here).

    ``offset_ns``: add it to a time here to get rank 0's time. ``error_ns``: its largest error.
    """

    own_ns: int
    offset_ns: int
    error_ns: int


def compare_clocks(ask: Callable[[], int], clock: Callable[[], int] = time.monotonic_ns) -> ClockOffset:
    """Measure the offset of this machine's clock to rank 0's in EXCHANGES exchanges, and return the most exact one.

    ``ask`` returns rank 0's time in ns.
    """
    best: ClockOffset | None = None
    for _ in range(EXCHANGES):
        asked_ns = clock()
        theirs_ns = ask()
        answered_ns = clock()
        middle_ns = (asked_ns + answered_ns) // 2
        offset = ClockOffset(middle_ns, theirs_ns - middle_ns, (answered_ns - asked_ns + 1) // 2)
        if best is None or offset.error_ns < best.error_ns:
            best = offset
    assert best is not None
    return best


def aligned(moments_ns: NDArray[np.int64], first: ClockOffset, last: ClockOffset) -> NDArray[np.int64]:
    """Return the times ``moments_ns`` of this machine converted to rank 0's clock.

    ``first`` and ``last``: offsets measured at the run's start and end. The offset drifts evenly between them.
    """
    between_ns = last.own_ns - first.own_ns
    drift = (last.offset_ns - first.offset_ns) / between_ns if between_ns > 0 else 0.0
    since_ns = (moments_ns - first.own_ns).astype(np.float64)
    return moments_ns + first.offset_ns + np.rint(drift * since_ns).astype(np.int64)


def align_tables(folder: Path, rank: int, first: ClockOffset, last: ClockOffset) -> None:
    """Rewrite the steps and spans tables of rank ``rank`` in ``folder`` with all times on rank 0's clock."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    for table, columns in (("steps", STEP_COLUMNS), ("spans", SPAN_COLUMNS)):
        path = folder / rank_file(table, rank)
        if not path.exists():
            continue
        written = TableFile(path, columns)
        try:
            with ParquetFile(path) as file:
                for batch in file.iter_batches(TABLE_ROW_GROUP):
                    rows: dict[str, Any] = {
                        name: batch.column(name) for name, _ in columns if name in batch.schema.names
                    }
                    for name in set(MOMENTS) & rows.keys():
                        moments = rows[name].to_numpy(zero_copy_only=False).astype(np.int64)
                        rows[name] = pa.array(aligned(moments, first, last), pa.int64())
                    written.append(rows)
            written.close()
        finally:
            written.discard()
