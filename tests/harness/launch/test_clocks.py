"""The clock of another machine: offsets are found within their bound, and tables are put onto rank 0's clock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.launch.ranks import EXCHANGES, ClockOffset, align_tables, aligned, compare_clocks
from harness.study.contract import SPAN_COLUMNS, STEP_COLUMNS
from harness.study.tables import write_table

DELAYS = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=EXCHANGES, max_size=EXCHANGES)


@given(offset_ns=st.integers(-(10**15), 10**15), delays=DELAYS)
def test_an_offset_is_within_its_bound_however_unequal_the_ways_are(
    offset_ns: int, delays: list[tuple[int, int]]
) -> None:
    """There and back take different times; the truth is known, as this test moves the clock itself."""
    now = 10**12
    left = list(delays)

    def ask() -> int:
        nonlocal now
        there, back = left.pop(0)
        now += there
        theirs = now + offset_ns
        now += back
        return theirs

    found = compare_clocks(ask, lambda: now)
    assert abs(found.offset_ns - offset_ns) <= found.error_ns + 1
    assert found.error_ns == (min(map(sum, delays)) + 1) // 2


@given(drift_ppm=st.floats(-500, 500), moments=st.lists(st.integers(0, 10**12), min_size=1, max_size=5))
def test_moments_between_two_readings_follow_an_even_drift(drift_ppm: float, moments: list[int]) -> None:
    def offset(own_ns: int) -> int:
        return 7_000_000_000 + round(own_ns * drift_ppm / 1e6)

    first, last = (ClockOffset(own, offset(own), 0) for own in (0, 10**12))
    found = aligned(np.array(moments, dtype=np.int64), first, last)
    assert np.abs(found - np.array([own + offset(own) for own in moments])).max() <= 2


@pytest.mark.parametrize("rank", [1, 12])
def test_tables_are_put_onto_the_other_clock_and_durations_stay(tmp_path: Path, rank: int) -> None:
    folder = tmp_path / "runs" / "one" / "0"
    steps = {"step": [0, 1], "start_ns": [100, 200], "wall_ns": [90, 80], "fetch_ns": [None, 5]}
    spans = {"name": ["forward"], "start_ns": [110], "end_ns": [120], "cpu_ns": [9]}
    write_table(folder / f"steps.rank-{rank}.parquet", STEP_COLUMNS, steps)
    write_table(folder / f"spans.rank-{rank}.parquet", SPAN_COLUMNS, spans)
    before = pq.read_table(folder / f"steps.rank-{rank}.parquet")
    align_tables(folder, rank, ClockOffset(100, 1000, 3), ClockOffset(200, 1100, 4))
    after = pq.read_table(folder / f"steps.rank-{rank}.parquet")
    assert after.schema == before.schema
    assert after.column("start_ns").to_pylist() == [1100, 1300]
    assert after.drop_columns("start_ns") == before.drop_columns("start_ns")
    moved = pq.read_table(folder / f"spans.rank-{rank}.parquet").to_pylist()[0]
    assert (moved["start_ns"], moved["end_ns"], moved["cpu_ns"], moved["arm"]) == (1120, 1140, 9, "one")
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
