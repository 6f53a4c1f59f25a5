"""What hid data work and what each blocking call did, on timelines drawn by hand; interval arithmetic by property."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.intervals import Stretches, covered, difference, innermost, intersection, total, union
from harness.analysis.overlap import hidden_behind, sync_audit
from harness.study.contract import SPAN_COLUMNS, STEP_COLUMNS, arrow_schema
from harness.study.records import RunRecord
from harness.study.run_data import RunData

MS = 1_000_000
STRETCHES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(tuple), max_size=8)


def run(spans: list[tuple[Any, ...]], steps: list[tuple[int, int, bool]]) -> RunData:
    """``spans``: role, name, start and end in ms; ``steps``: start and end in ms, warmup."""
    rows = [
        {"role": role, "name": name, "start_ns": start * MS, "end_ns": end * MS} for role, name, start, end in spans
    ]
    table = [{"start_ns": a * MS, "wall_ns": (b - a) * MS, "warmup": warmup} for a, b, warmup in steps]
    return RunData(
        RunRecord("a", 0, "done"),
        pa.Table.from_pylist(table, schema=arrow_schema(STEP_COLUMNS)),
        pa.Table.from_pylist(rows, schema=arrow_schema(SPAN_COLUMNS)),
        None,
    )


def test_inline_work_hides_behind_the_kernels_that_are_still_queued() -> None:
    spans = [
        ("main", "fetch", 0, 12),
        ("main", "read", 0, 2),
        ("main", "tokenize", 2, 12),
        ("device", "optimizer", -5, 8),
        ("device", "forward", 12, 20),
    ]
    assert hidden_behind(run(spans, [(0, 20, False)])) == {"optimizer": 8.0}


def test_a_workers_work_hides_behind_phases_where_there_is_no_device() -> None:
    spans = [
        ("main", "fetch", 0, 5),
        ("main", "forward", 5, 15),
        ("main", "backward", 15, 30),
        ("loader-0", "tokenize", 2, 25),
        ("loader-0", "pack", 25, 33),
    ]
    assert hidden_behind(run(spans, [(0, 40, False)])) == {"backward": 15.0, "forward": 10.0, "other": 3.0}


def test_warmup_does_not_count() -> None:
    spans = [("device", "forward", 0, 40), ("loader-0", "tokenize", 5, 35)]
    assert hidden_behind(run(spans, [(0, 20, True), (20, 30, False), (30, 40, False)])) == {"forward": 7.5}


def test_a_blocking_call_says_what_it_cost_and_what_it_left_exposed() -> None:
    """The norm's value is read 10..30; then the optimizer is queued (31..39) and the host tokenizes until 45."""
    spans = [
        ("sync", "trainer/loop.py:49: value of the gradient norm", 10, 30),
        ("device", "backward", 0, 30),
        ("device", "optimizer", 31, 39),
        ("main", "tokenize", 31, 45),
        ("device", "forward", 46, 60),
        ("sync", "trainer/loop.py:49: value of the gradient norm", 50, 60),
    ]
    (call,) = sync_audit(run(spans, [(0, 50, False), (50, 60, False)]))
    assert call.calls_per_step == 1
    assert call.blocked_ms == pytest.approx((20 + 10) / 2)
    assert call.hid_ms == pytest.approx((8 + 4) / 2)  # behind the optimizer 8, behind forward 46..50
    assert call.hid_behind == pytest.approx({"optimizer": 4, "forward": 2})
    assert call.idle_ms == pytest.approx((1 + 7) / 2)  # 30..31 and 39..46


def test_an_unannounced_call_has_no_known_cost() -> None:
    spans = [("sync", "models/llama.py:7: unannounced", 3, 3), ("device", "forward", 0, 5)]
    (call,) = sync_audit(run(spans, [(0, 10, False)]))
    assert call.blocked_ms is None
    assert call.calls_per_step == 1
    assert call.site == "models/llama.py:7: unannounced"


def test_without_blocking_calls_there_is_nothing_to_list() -> None:
    assert sync_audit(run([("main", "fetch", 0, 5)], [(0, 10, False)])) == []


def columns(stretches: Any) -> Stretches:
    rows = np.array(stretches, dtype=np.int64).reshape(-1, 2)
    return Stretches(rows[:, 0], rows[:, 1])


def points(stretches: Stretches) -> set[int]:
    return {t for start, end in zip(*stretches, strict=True) for t in range(start, end)}


@given(STRETCHES, STRETCHES)
def test_interval_arithmetic_is_that_of_sets(first: Any, second: Any) -> None:
    first, second = columns(first), columns(second)
    ours, theirs = union(*first), union(*second)
    assert points(ours) == points(first)
    assert (ours.ends[:-1] < ours.starts[1:]).all()
    assert points(intersection(ours, theirs)) == points(first) & points(second)
    assert points(difference(ours, theirs)) == points(first) - points(second)
    assert total(ours) == len(points(first))
    parts = [set(range(start, end)) & points(theirs) for start, end in zip(*first, strict=True)]
    assert covered(*first, theirs).tolist() == [len(part) for part in parts]


@given(STRETCHES)
def test_each_moment_belongs_to_the_span_that_started_last(spans: Any) -> None:
    starts, ends = columns(spans)
    found = innermost(starts, ends)
    owners = {}
    for owner, start, end in zip(*found, strict=True):
        owners |= dict.fromkeys(range(start, end), int(owner))
    expected = {}
    for moment in range(61):
        inside = [(start, i) for i, (start, end) in enumerate(spans) if start <= moment < end]
        if inside:
            expected[moment] = max(inside)[1]
    assert owners == expected
    assert len(owners) == sum(end - start for _, start, end in zip(*found, strict=True)), "nothing twice"
