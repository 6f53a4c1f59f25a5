"""What hid data work and what each blocking call did, on timelines drawn by hand; interval arithmetic by property."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.explain import spans
from harness.explain.exposure import hidden_behind, sync_audit
from harness.explain.ledger import measure
from harness.explain.spans import Stretches, covered, difference, innermost, intersection, total, touches, union
from harness.study.contract import SPAN_COLUMNS, STEP_COLUMNS, arrow_schema
from harness.study.records import RunFacts, RunRecord
from harness.study.run_data import RunData

MS = 1_000_000
STRETCHES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(tuple), max_size=8)


def run(spans: list[tuple[Any, ...]], steps: list[tuple[int, int, bool]], workers: int = 0) -> RunData:
    """``spans``: role, name, start, end in ms, and of fetches and stages the batch; ``steps``: start, end, warmup."""
    rows = [
        {"role": role, "name": name, "start_ns": start * MS, "end_ns": end * MS, "rank": 0}
        | ({"batch": batch[0]} if batch else {})
        for role, name, start, end, *batch in spans
    ]
    table = [{"start_ns": a * MS, "wall_ns": (b - a) * MS, "warmup": warmup, "fetch_ns": 0} for a, b, warmup in steps]
    asynchronous = any(role == "device" for role, *_ in spans)
    record = RunRecord("a", 0, "done", config={"data": {"workers": workers}}, facts=RunFacts(asynchronous=asynchronous))
    return RunData(
        record,
        pa.Table.from_pylist(table, schema=arrow_schema(STEP_COLUMNS)),
        pa.Table.from_pylist(rows, schema=arrow_schema(SPAN_COLUMNS)),
        None,
    )


def test_inline_work_hides_behind_the_kernels_that_are_still_queued() -> None:
    """Without data work forward would begin at 8, when the optimizer is done, and end at 16: 4 of 12 ms are exposed."""
    spans = [
        ("main", "fetch", 0, 12, 0),
        ("main", "read", 0, 2, 0),
        ("main", "tokenize", 2, 12, 0),
        ("launch", "optimizer", -5, -5),
        ("launch", "forward", 12, 12),
        ("device", "optimizer", -5, 8),
        ("device", "forward", 12, 20),
        ("sync", "loop", 12, 20),
    ]
    found = run(spans, [(-10, 0, True), (0, 20, False)])
    assert hidden_behind(found) == {"optimizer": 7.0}  # 8 ran behind it; 1 of these is exposed, by read
    ledger = measure(found)
    # Without read 2 ms earlier, without tokenize 4 ms, without both 4 ms; the means over both orders of removal.
    assert ledger.exposed_ms == {"read": 1.0, "tokenize": 3.0, "pack": 0.0, "transfer": 0.0}
    assert ledger.work_ms == {"read": 2.0, "tokenize": 10.0, "pack": 0.0, "transfer": 0.0}
    assert ledger.hidden_ms == {"read": 1.0, "tokenize": 6.0, "pack": 0.0, "transfer": 0.0}


def test_a_workers_work_hides_behind_phases_where_there_is_no_device() -> None:
    """What it does while the step waits for the batch before is neither hidden nor exposed."""
    spans = [
        ("main", "fetch", 0, 5, 0),
        ("loader-0", "transfer", 5, 5, 0),
        ("main", "forward", 5, 15),
        ("main", "backward", 15, 30),
        ("loader-0", "tokenize", 2, 25, 1),
        ("loader-0", "pack", 25, 33, 1),
        ("main", "fetch", 40, 41, 1),
    ]
    found = run(spans, [(0, 40, False), (40, 60, False)], workers=1)
    assert hidden_behind(found) == {"backward": 7.5, "forward": 5.0, "other": 1.5}
    ledger = measure(found)
    assert ledger.hidden_ms == {"read": 0.0, "tokenize": 10.0, "pack": 4.0, "transfer": 0.0}
    assert ledger.parallel_ms["tokenize"] == 1.5
    assert ledger.exposed_ms["transfer"] == 3.0


def test_what_a_worker_does_between_steps_is_neither_hidden_nor_waited_for() -> None:
    """An evaluation from 40 to 90: of 72 ms 20 ran behind backward, 50 beside the evaluation, 2 were waited for."""
    spans = [
        ("main", "fetch", 0, 1, 0),
        ("loader-0", "transfer", 1, 1, 0),
        ("main", "backward", 1, 40),
        ("loader-0", "tokenize", 20, 92, 1),
        ("main", "evaluate", 40, 90),
        ("main", "fetch", 90, 95, 1),
        ("main", "backward", 95, 130),
    ]
    found = run(spans, [(0, 40, False), (90, 130, False)], workers=1)
    ledger = measure(found)
    assert hidden_behind(found) == {"backward": 10.0}
    assert ledger.hidden_ms == {"read": 0.0, "tokenize": 10.0, "pack": 0.0, "transfer": 0.0}
    assert ledger.between_steps_ms == {"read": 0.0, "tokenize": 25.0, "pack": 0.0, "transfer": 0.0}
    assert ledger.during_wait_ms["tokenize"] == 1.0
    assert ledger.work_ms["tokenize"] == 36.0


def test_a_wait_that_is_in_no_step_is_no_wait_of_a_step() -> None:
    """A batch that is fetched between two steps, 40 to 90: what a worker does meanwhile is not parallel to a wait."""
    spans = [
        ("main", "fetch", 0, 1, 0),
        ("main", "fetch", 40, 90, 1),
        ("main", "fetch", 90, 91, 2),
        *(("loader-0", "transfer", end, end, batch) for batch, end in enumerate((1, 90))),
        ("loader-0", "tokenize", 30, 80, 2),
    ]
    ledger = measure(run(spans, [(0, 40, False), (90, 130, False)], workers=2))
    assert (ledger.parallel_ms["tokenize"], ledger.between_steps_ms["tokenize"]) == (0.0, 20.0)


def test_workers_side_by_side_count_each() -> None:
    """Two workers tokenize behind the same backward, 10 ms each: 20 ms of work are hidden, as the ledger says."""
    spans = [("main", "fetch", start, start + 1, batch) for batch, start in enumerate((0, 20, 40))]
    spans += [(f"loader-{batch % 2}", "transfer", start, start, batch) for batch, start in ((0, 0), (1, 20))]
    spans += [("main", "backward", start, start + 19) for start in (1, 21, 41)]
    spans += [("loader-0", "tokenize", 5, 15, 1), ("loader-1", "tokenize", 5, 15, 2)]
    found = run(spans, [(0, 20, False), (20, 40, False), (40, 60, False)], workers=2)
    ledger = measure(found)
    assert sum(hidden_behind(found).values()) == pytest.approx(sum(ledger.hidden_ms.values()))
    assert hidden_behind(found) == {"backward": pytest.approx(20 / 3)}


def test_warmup_does_not_count() -> None:
    spans = [("main", "fetch", start, start + 1, batch) for batch, start in enumerate((0, 20, 30))]
    spans += [("loader-0", "transfer", 0, 0, batch) for batch in range(3)]
    spans += [("main", "forward", start, end) for start, end in ((1, 20), (21, 30), (31, 40))]
    spans += [("loader-0", "tokenize", 5, 28, 2)]
    found = run(spans, [(0, 20, True), (20, 30, False), (30, 40, False)], workers=1)
    assert hidden_behind(found) == {"forward": 3.5}


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


def test_a_batch_that_is_fetched_between_two_steps_is_in_none() -> None:
    """As while a run is suspended: what its stages took is no part of the step before."""
    spans = [("main", "fetch", start, start + 2, batch) for batch, start in enumerate((0, 12, 20))]
    spans += [("main", "tokenize", start, start + 1, batch) for batch, start in enumerate((0, 12, 20))]
    ledger = measure(run(spans, [(0, 10, False), (20, 30, False)]))
    assert (ledger.work_ms["tokenize"], ledger.exposed_ms["tokenize"]) == (1.0, 1.0)


def test_an_unannounced_call_has_no_known_cost_and_the_last_one_lasts_until_the_steps_end() -> None:
    assert sync_audit(run([("main", "fetch", 0, 5)], [(0, 10, False)])) == []
    last = [("sync", "loop.py:1: item", 10, 20), ("device", "forward", 0, 18), ("device", "optimizer", 25, 100)]
    (call,) = sync_audit(run(last, [(0, 40, False)]))
    assert (call.hid_ms, call.hid_behind, call.idle_ms) == (15, {"optimizer": 15}, 5)
    spans = [("sync", "models/llama.py:7: unannounced", 3, 3), ("device", "forward", 0, 5)]
    (call,) = sync_audit(run(spans, [(0, 10, False)]))
    assert call.blocked_ms is None
    assert call.calls_per_step == 1
    assert call.site == "models/llama.py:7: unannounced"


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
    assert (ours.starts < ours.ends).all()
    assert points(intersection(ours, theirs)) == points(first) & points(second)
    assert points(difference(ours, theirs)) == points(first) - points(second)
    assert total(ours) == len(points(first))
    parts = [set(range(start, end)) & points(theirs) for start, end in zip(*first, strict=True)]
    assert covered(*first, theirs).tolist() == [len(part) for part in parts]
    with patch.object(spans, "SPANS_AT_ONCE", 3):
        assert covered(*first, theirs).tolist() == [len(part) for part in parts]
    lasting = first[0] < first[1]
    assert touches(*first, theirs)[lasting].tolist() == [bool(part) for part in np.array(parts, object)[lasting]]


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
