"""Where stages ran: by hand-worked examples and by properties that must hold for any spans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.explain.derived import with_derived
from harness.explain.ledger import measure
from harness.explain.spans import COLUMNS, Stretches, read_spans
from harness.explain.waits import BatchWaits, StageSpans, stage_times
from harness.study.contract import SPAN_COLUMNS, STAGES, STEP_COLUMNS, arrow_schema
from tests.cuda_stream import record
from tests.examples import examples
from tests.harness.explain.by_hand import attribute, outside, span, split_wait
from tests.harness.explain.test_room import LONG
from trainer.telemetry import StageSpan

READ, TOKENIZE, PACK = StageSpan("read", 0, 10), StageSpan("tokenize", 10, 40), StageSpan("pack", 40, 45)
TIMES = st.integers(0, 1_000)
SPANS = st.lists(
    st.tuples(st.sampled_from(["read", "tokenize", "pack", "transfer", "elsewhere"]), TIMES, TIMES).map(
        lambda t: StageSpan(t[0], min(t[1:]), max(t[1:]))
    ),
    max_size=8,
)
WAITS = st.tuples(TIMES, TIMES).map(lambda t: (min(t), max(t)))


ALL = [READ, TOKENIZE, PACK]
HANDED_OVER = StageSpan("transfer", 45, 48)


@pytest.mark.parametrize(
    ("wait", "spans", "during", "beyond"),  # of read, tokenize, pack, transfer
    [
        ((30, 60), ALL, (0, 10, 5, 15), (10, 20, 0, 0)),  # begins in the middle of a stage
        ((100, 103), ALL, (0, 0, 0, 3), (10, 30, 5, 0)),  # the batch was ready
        ((-2, 50), ALL, (10, 30, 5, 7), (0, 0, 0, 0)),  # inline: gaps are transfer
        ((0, 100), [StageSpan("read", 0, 100), StageSpan("tokenize", 20, 50)], (70, 30, 0, 0), (0, 0, 0, 0)),  # nested
        ((100, 103), [*ALL, HANDED_OVER], (0, 0, 0, 3), (10, 30, 5, 0)),  # a hand-over outside of the wait is no work
        ((46, 50), [HANDED_OVER], (0, 0, 0, 4), (0, 0, 0, 0)),
    ],
)
def test_what_ran_during_a_wait_and_outside_of_it(wait, spans, during, beyond):
    assert tuple(split_wait(wait, spans).values()) == during
    assert tuple(outside(wait, spans).values()) == beyond


def test_a_hand_over_while_another_batch_is_waited_for_is_neither_hidden_nor_parallel():
    """Of transfer only what is within its own wait is known to be that: the rest is a queue that nobody works for."""
    waits = BatchWaits(np.array([0, 1]), np.array([0, 20]), np.array([10, 30]), np.array([True, True]))
    spans = StageSpans(np.array([1, 1]), np.array([STAGES.index("transfer")] * 2), np.array([2, 12]), np.array([8, 15]))
    steps = Stretches(np.array([0]), np.array([40]))
    times = stage_times(waits, spans, Stretches(np.array([0, 20]), np.array([10, 30])), steps, 2)
    transfer = STAGES.index("transfer")
    assert times.parallel[:, transfer].tolist() == times.outside[:, transfer].tolist() == [0, 0]
    assert times.work[:, transfer].tolist() == [10, 10]


def test_a_wait_cannot_end_before_it_starts():
    row, none = np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    waits = BatchWaits(row, row + 10, row + 9, row == 0)
    with pytest.raises(ValueError, match="cannot end"):
        stage_times(waits, StageSpans(none, none, none, none), Stretches(none, none), Stretches(none, none), 1)


@examples(50)
@given(WAITS, SPANS, st.integers(-500, 500))
def test_a_wait_and_the_spans_are_each_covered_once_wherever_the_clock_begins(wait, spans, shift):
    during, beyond = split_wait(wait, spans), outside(wait, spans)
    assert set(during) == set(STAGES)
    assert sum(during.values()) == wait[1] - wait[0]
    assert min(during.values()) >= 0
    known = [s for s in spans if s.name in ("read", "tokenize", "pack", "transfer")]
    covered = {t for s in known for t in range(s.start_ns, s.end_ns)}
    inside = sum(t in covered for t in range(*wait))
    own_transfer = during["transfer"] - (wait[1] - wait[0] - inside)  # a span named transfer, inside the wait
    assert sum(during[s] for s in ("read", "tokenize", "pack")) + own_transfer == inside
    assert sum(beyond.values()) <= len(covered) - inside
    if all(s.name != "transfer" for s in spans):
        assert sum(beyond.values()) == len(covered) - inside
    moved = [StageSpan(s.name, s.start_ns + shift, s.end_ns + shift) for s in spans]
    assert split_wait((wait[0] + shift, wait[1] + shift), moved) == during


def test_micro_batches_of_a_step_add_up():
    second = [StageSpan("tokenize", 60, 90)]
    columns = attribute([(1, 30, 60, 7), (1, 70, 95, 8)], {7: [READ, TOKENIZE, PACK], 8: second}, steps=3)
    assert columns["during_wait_tokenize_ns"] == [0, 30, 0]
    assert columns["work_tokenize_ns"] == [0, 60, 0]
    assert columns["during_wait_transfer_ns"] == [0, 20, 0]
    assert sum(columns[f"during_wait_{stage}_ns"][1] for stage in STAGES) == 30 + 25


def test_work_during_the_wait_for_another_batch_is_parallel():
    """Batch 8 is built from 15 to 90: behind compute from 20 to 40, while the step waits for batch 7 from 40 to 60."""
    columns = attribute([(0, 0, 20, 6), (1, 40, 60, 7), (2, 80, 95, 8)], {8: [StageSpan("tokenize", 15, 90)]}, steps=3)
    assert columns["work_tokenize_ns"][2] == 75
    assert columns["during_wait_tokenize_ns"][2] == 10
    assert columns["parallel_tokenize_ns"][2] == 5 + 20


def test_where_a_replay_is_needed_and_there_is_none_exposed_and_hidden_are_null():
    columns = attribute([(0, 0, 20, 0), (1, 40, 60, 1)], {0: [], 1: [StageSpan("tokenize", 30, 55)]}, steps=2)
    assert columns["exposed_tokenize_ns"] == columns["hidden_tokenize_ns"] == [None, None]
    assert columns["during_wait_tokenize_ns"] == [0, 15]


def test_a_batch_nobody_told_about_is_null_not_zero():
    columns = attribute([(0, 0, 10, 0), (1, 20, 25, 1)], {1: []}, steps=2)
    assert columns["exposed_tokenize_ns"] == [None, 0]
    assert columns["exposed_transfer_ns"] == [None, 5]


@pytest.mark.parametrize("known", [True, False])
def test_in_studies_without_the_mark_their_own_columns_tell_an_idle_builder_from_an_unknown_one(known):
    """A batch without stages: the column that such a study has is null where its builder reported nothing."""
    step = {"start_ns": 0, "wall_ns": 100, "fetch_ns": 30, "warmup": False, "exposed_transfer_ns": 5 if known else None}
    steps = pa.Table.from_pylist([step], schema=arrow_schema(STEP_COLUMNS))
    spans = pa.Table.from_pylist([span("main", "fetch", 0, 30, batch=0)], schema=arrow_schema(SPAN_COLUMNS))
    found = with_derived(steps, read_spans(spans.select(COLUMNS).to_batches()), None).table
    assert found["exposed_transfer_ns"].to_pylist() == [30 if known else None]
    assert found["exposed_tokenize_ns"].to_pylist() == [0 if known else None]


@pytest.mark.parametrize(("blocks", "hidden_ms"), [(True, 45 - 37.19), (False, 45 - 8.76)])
def test_what_is_hidden_and_what_is_exposed_are_all_of_the_work_also_where_the_host_runs_ahead(
    blocks: bool, hidden_ms: float
) -> None:
    """45 ms of data inline beside 37 ms of device work. Where no step blocks, all lies in other steps than it costs."""
    found = measure(record(replace(LONG, data_ms=45, check_finite=blocks, steps=60)).run)
    assert found.hidden_ms["tokenize"] == pytest.approx(hidden_ms, abs=0.1)
    assert found.hidden_ms["tokenize"] + found.exposed_ms["tokenize"] == pytest.approx(45, abs=0.1)
