"""What rank 0 makes of what the other ranks report, and of the clocks of their machines: no torch, no trainer."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.launch import ranks
from harness.launch.channel import Channel
from harness.launch.diagnosis import RANK_NAME
from harness.launch.protocol import StartMessage
from harness.launch.ranks import (
    EXCHANGES,
    ClockOffset,
    OtherRanks,
    RankFailedError,
    _Other,
    align_tables,
    aligned,
    compare_clocks,
)
from harness.study.contract import SPAN_COLUMNS, STEP_COLUMNS
from harness.study.tables import write_table
from trainer.ranks import Rank


def heard(monkeypatch: pytest.MonkeyPatch, *events: Any) -> OtherRanks:
    """Rank 0 once it has heard all that rank 1 says, which has ended meanwhile."""
    monkeypatch.setattr(ranks, "STUCK_S", 0.0)
    ours, theirs = socket.socketpair()
    for event in events:
        Channel(theirs).send(event)
    theirs.close()
    others = OtherRanks({}, 1, 5.0, lambda *_: 0, -1)  # type: ignore[typeddict-item]
    others._others.append(_Other(1, os.getpid(), Channel(ours), ours))  # no child of this process: it is gone
    others._read(others._others[0])
    ours.close()
    return others


def test_a_rank_that_was_done_before_it_was_asked_for_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    heard(monkeypatch, {"event": "ready"}, {"event": "done"}).wait("done")


@pytest.mark.slow  # forks
def test_each_rank_says_in_its_process_which_it_is() -> None:
    def serve(_start: StartMessage, channel: Channel, _rank: Rank) -> int:
        channel.send({"event": "failed", "error": Path("/proc/self/comm").read_text().strip()})
        return 0

    others = OtherRanks({}, 2, 5.0, serve, os.open("/dev/null", os.O_RDONLY))  # type: ignore[typeddict-item]
    (other,) = others._others
    assert other.channel.receive_event(30)["error"] == f"{RANK_NAME}1"
    assert os.waitpid(other.pid, 0)[1] == 0


def test_a_rank_that_ends_without_a_word_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RankFailedError, match=r"^rank 1: its process is gone$"):
        heard(monkeypatch, {"event": "ready"}).wait("done")


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


def test_tables_are_put_onto_the_other_clock_and_durations_stay(tmp_path: Path) -> None:
    rank, folder = 12, tmp_path / "runs" / "one" / "0"
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
