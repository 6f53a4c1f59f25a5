"""The device ledger against timelines drawn by hand, and against what must hold for any timeline."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harness.study.contract import CAUSES, STAGES
from tests.harness.explain.by_hand import Fetch, device_columns
from trainer.telemetry import StageSpan


def ledger(*, steps: Any, kernels: Any, phases: Any = (), fetches: Any = (), launches: Any = None) -> dict[str, Any]:
    spans = [StageSpan(*phase) for phase in phases]
    return device_columns(steps, kernels, launches or [(start, start) for start, _ in kernels], spans, fetches)


def starved(columns: dict[str, Any], row: int = 0) -> dict[str, int]:
    return {cause: value for cause in CAUSES if (value := columns[f"starved_{cause}_ns"][row])}


def test_a_fetch_behind_queued_work_costs_nothing() -> None:
    """|fetch 0..30| while the optimizer runs until 50; the next kernel is queued at 40."""
    columns = ledger(
        steps=[(0, 100)],
        kernels=[(-20, 50), (50, 100)],
        launches=[(-20, -20), (40, 40)],
        phases=[("forward", 30, 45), ("sync", 45, 100)],
        fetches=[Fetch(0, 0, 30, [StageSpan("tokenize", 5, 25)])],
    )
    assert columns["device_busy_ns"] == [100]
    assert columns["device_starved_ns"] == [0]
    assert columns["device_slack_ns"] == [50]
    assert columns["work_tokenize_ns"] == [20]
    assert columns["exposed_tokenize_ns"] == [None]  # not without a replay, which needs the whole run


def test_starvation_is_named_by_what_the_host_did() -> None:
    """The queue drains at 10, in the middle of tokenize; the device gets work again at 60, after launching."""
    columns = ledger(
        steps=[(0, 100)],
        kernels=[(-20, 10), (60, 95)],
        launches=[(-20, -20), (60, 60)],
        phases=[("forward", 52, 62), ("log", 62, 100), ("sync", 70, 96)],
        fetches=[Fetch(0, 0, 50, [StageSpan("read", 0, 8), StageSpan("tokenize", 8, 30), StageSpan("pack", 30, 42)])],
    )
    # 10..30 tokenize, 30..42 pack, 42..50 hand-over, 50..60 python (52 on: launching), 95..96 sync, 96..100 log
    assert starved(columns) == {"tokenize": 20, "pack": 12, "transfer": 8, "python": 10, "sync": 1, "log": 4}
    assert columns["device_starved_ns"] == [55]
    assert columns["device_busy_ns"] == [45]
    assert columns["device_slack_ns"] == [10]


def test_a_worker_exposes_only_what_the_starved_device_waits_for() -> None:
    """The batch was read and half tokenized before anyone asked for it at 20."""
    columns = ledger(
        steps=[(0, 20), (20, 100)],
        kernels=[(0, 30), (70, 100)],
        launches=[(0, 0), (70, 70)],
        phases=[("sync", 5, 20), ("forward", 65, 71)],
        fetches=[Fetch(1, 20, 65, [StageSpan("read", -30, -10), StageSpan("tokenize", -10, 60)])],
    )
    assert starved(columns, 0) == {}
    assert starved(columns, 1) == {"tokenize": 30, "transfer": 5, "python": 5}
    assert columns["device_slack_ns"] == [None, 10]


def test_a_checkpoint_is_a_cause_and_what_was_not_recorded_is_null() -> None:
    saving = ledger(steps=[(0, 100)], kernels=[(0, 10)], phases=[("checkpoint", 10, 90)])
    assert starved(saving) == {"checkpoint": 80, "python": 10}
    columns = ledger(steps=[(0, 10)], kernels=[(6, 10)], fetches=[Fetch(0, 0, 5, None)])
    assert columns["exposed_tokenize_ns"] == columns["hidden_tokenize_ns"] == [None]
    assert columns["device_starved_ns"] == [6]
    unrecorded = ledger(steps=[(0, 10)], kernels=[], fetches=[Fetch(0, 0, 5, None)])
    assert unrecorded["device_starved_ns"] == unrecorded["device_busy_ns"] == [None]


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), min_size=1, max_size=12),
    st.data(),
)
def test_times_add_up(walls: list[int], work: list[tuple[int, int]], data: st.DataObject) -> None:
    """Busy and starved sum to the step, the causes to starved, and no stage has more work than its spans."""
    steps, kernels, clock = [], [], 0
    for wall in walls:
        steps.append((clock, clock + wall))
        clock += wall
    queued = free = -20
    for gap, duration in work:
        queued += gap
        start = max(queued, free)
        free = start + duration
        kernels.append((start, free))
    fetches = []
    for row, (start, end) in enumerate(steps):
        until = data.draw(st.integers(start, end))
        edges = sorted(data.draw(st.lists(st.integers(start - 30, until), min_size=2, max_size=6)))
        stages = [StageSpan(STAGES[i % 3], a, b) for i, (a, b) in enumerate(itertools.pairwise(edges))]
        fetches.append(Fetch(row, start, until, stages))
    columns = ledger(steps=steps, kernels=kernels, fetches=fetches)
    for row, (start, end) in enumerate(steps):
        total = columns["device_starved_ns"][row]
        assert columns["device_busy_ns"][row] + total == end - start
        assert sum(columns[f"starved_{cause}_ns"][row] for cause in CAUSES) == total
        done = sum(max(0, min(b, end) - max(a, start)) for a, b in kernels)
        assert columns["device_busy_ns"][row] == done
        for stage in STAGES[:3]:
            whole = sum(s.end_ns - s.start_ns for s in fetches[row].stages if s.name == stage)
            assert columns[f"work_{stage}_ns"][row] == whole
