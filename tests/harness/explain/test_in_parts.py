"""Long runs are worked through some steps at a time: for any run and any number of steps the result is the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.explain import spans
from harness.explain.bounds import device_work
from harness.explain.derived import stage_spans, waits_of, with_derived
from harness.explain.exposure import hidden_behind, sync_audit
from harness.explain.spans import COLUMNS, RunSpans, bounds, read_spans
from harness.explain.waits import activities, busy, idle_per_step, idle_time
from harness.study.contract import CAUSES, SPAN_COLUMNS, STEP_COLUMNS, arrow_schema
from harness.study.records import RunFacts, RunRecord
from harness.study.run_data import RunData
from tests.examples import examples
from tests.harness.explain.by_hand import DEVICE_COLUMNS, STAGE_COLUMNS

KINDS = [
    ("main", "fetch"), ("main", "forward"), ("main", "sync"), ("main", "log"), ("main", "tokenize"), ("main", "read"),
    ("loader-0", "tokenize"), ("loader-1", "pack"), ("loader-1", "transfer"), ("device", "forward"), ("device", "norm"),
    ("launch", "forward"), ("sync", "loop.py:1: item"), ("sync", "loop.py:9: wait"), ("receive", "awaited"),
]  # fmt: skip
TIME = st.integers(-10, 150)
SPAN = st.tuples(st.sampled_from(KINDS), st.tuples(TIME, TIME).map(sorted), st.integers(-1, 12), st.integers(0, 1))
STEPS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 20), st.booleans()), min_size=1, max_size=12)


@contextmanager
def at_once(steps: int, rows: int) -> Iterator[None]:
    """Work through so many steps at a time, and know the times of so many spans together."""
    with patch.object(spans, "STEPS_AT_ONCE", steps), patch.object(spans, "BLOCK_ROWS", rows):
        yield


def tables(steps: list[tuple[int, int, bool]], recorded: list[Any]) -> tuple[pa.Table, pa.Table]:
    rows, now = [], 0
    for gap, wall, warmup in steps:
        rows.append({"start_ns": now + gap, "wall_ns": wall, "fetch_ns": 0, "warmup": warmup, "turn": 0})
        now += gap + wall
    found = [
        {"role": role, "name": name, "start_ns": start, "end_ns": end, "batch": batch, "rank": 0 if rank == 0 else 1}
        for (role, name), (start, end), batch, rank in recorded
    ]
    return (
        pa.Table.from_pylist(rows, schema=arrow_schema(STEP_COLUMNS)),
        pa.Table.from_pylist(found, schema=arrow_schema(SPAN_COLUMNS)),
    )


def read(table: pa.Table, rows_at_once: int = 1 << 20) -> RunSpans:
    return read_spans(table.select(COLUMNS).to_batches(max_chunksize=rows_at_once))


@pytest.mark.parametrize("ranks", [(0, 1), (1, 0)])
def test_spans_of_other_ranks_are_left_out(ranks: tuple[int, int]) -> None:
    """The first one's are read: an attached program has a table for each rank."""
    recorded = [(kind, (1, 2), 0, rank) for kind in KINDS for rank in ranks]
    found, first = (read(tables([(0, 1, False)], some)[1]) for some in (recorded, recorded[::2]))
    assert found.rows == first.rows == len(KINDS)


def worked_out(steps: Any, spans: RunSpans, asynchronous: bool) -> Any:
    return with_derived(steps, spans, device_work(spans) if asynchronous else None).table


@examples(50)
@given(STEPS, st.lists(SPAN, max_size=60), st.integers(1, 12), st.integers(1, 20), st.booleans())
def test_any_number_of_steps_at_a_time_gives_the_same_columns(
    steps: Any, recorded: Any, size: int, rows: int, asynchronous: bool
) -> None:
    step_table, span_table = tables(steps, recorded)
    with at_once(10_000, 4096):
        whole = worked_out(step_table, read(span_table), asynchronous)
    with at_once(size, rows):
        parts = worked_out(step_table, read(span_table, rows), asynchronous)
    for name in (*DEVICE_COLUMNS, *STAGE_COLUMNS):
        assert parts.column(name).to_pylist() == whole.column(name).to_pylist(), name


@examples(50)
@given(STEPS, st.lists(SPAN, max_size=60), st.integers(1, 12), st.integers(1, 20))
def test_idle_time_is_the_sum_of_the_pieces_that_one_sweep_over_the_whole_run_finds(
    steps: Any, recorded: Any, size: int, rows: int
) -> None:
    step_table, span_table = tables(steps, recorded)
    found = read(span_table)
    waits, stages = waits_of(step_table, found), stage_spans(found)
    pieces = idle_time(bounds(step_table), busy(found), activities(found, waits, stages))
    expected = np.zeros((len(step_table), len(CAUSES)), dtype=np.int64)
    np.add.at(expected, (pieces.rows, pieces.causes), pieces.ends - pieces.starts)
    with at_once(size, rows):
        idle = idle_per_step(bounds(step_table), read(span_table, rows), waits, stages)
    assert (idle == expected).all()


# A launch whose work was not recorded any more.
@example(
    [(0, 1, False)],
    [
        *[(("main", "fetch"), [0, 0], 0, 0)] * 3,
        (("device", "forward"), [0, 0], 0, 0),
        *[(("launch", "forward"), [0, 0], 0, 0)] * 2,
    ],
    1,
    1,
    True,
)
@examples(50)
@given(STEPS, st.lists(SPAN, max_size=60), st.integers(1, 12), st.integers(1, 20), st.booleans())
def test_any_number_of_steps_at_a_time_finds_the_same_overlap(
    steps: Any, recorded: Any, size: int, rows: int, asynchronous: bool
) -> None:
    made = tables(steps, recorded)

    def found() -> tuple[dict[str, float], list[dict[str, Any]]]:
        run = RunData(RunRecord("a", 0, "done", facts=RunFacts(asynchronous=asynchronous)), *made, None)
        calls = [asdict(call) for call in sync_audit(run)]
        return hidden_behind(run), [{**call, "hid_behind": [*call["hid_behind"].items()]} for call in calls]

    with at_once(10_000, 4096):
        whole = found()
    with at_once(size, rows):
        assert found() == whole


@examples(50)
@given(st.lists(SPAN, max_size=60), TIME, st.integers(0, 80), st.integers(1, 20))
def test_spans_between_two_moments_are_those_that_overlap_them(
    recorded: Any, since: int, length: int, rows: int
) -> None:
    found = read(tables([(0, 1, False)], recorded)[1])
    with at_once(1, rows):
        near = found.between(since, since + length)
    for all_of, chosen in zip(
        (found.phases, found.stages, found.kernels, found.launches, found.blocking),
        (near.phases, near.stages, near.kernels, near.launches, near.blocking),
        strict=True,
    ):
        inside = (all_of.ends > since) & (all_of.starts < since + length)
        assert chosen.starts.tolist() == all_of.starts[inside].tolist()
        assert chosen.names.tolist() == all_of.names[inside].tolist()
        assert chosen.batches.tolist() == all_of.batches[inside].tolist()
