"""A replay has each batch made by the worker that made it: known truth of a stream with fewer shards than workers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.explain.lead_use import makers_of, round_robin
from harness.explain.ledger import measure
from harness.explain.replay.attribution import PathLink
from harness.explain.replay.predict import Replays, unedited_error
from harness.explain.replay.recording import record
from harness.explain.spans import NO_WORKER
from harness.judge.advice import advise
from harness.judge.predictions import bar_of
from harness.judge.study import analyse
from harness.scenario.edits import parse_edits
from harness.show.advice import next_steps
from harness.show.first_screen import first_screen
from harness.show.names import ArmNames
from harness.study.contract import STAGES
from harness.study.records import ArmRecord, StudyRecord
from harness.study.run_data import RunData
from tests.harness.explain.replay import oracle
from tests.harness.explain.replay.oracle import Truth

# One shard and four workers: worker 0 reads 120 ms a batch, in front of a step of 30.
SHARDS = Truth(
    read=120.0, tokenize=0.0, pack=0.5, spread=0.05, workers=4, idle=3, asynchronous=False, warmup=8,
    host={"h2d": 0.1, "forward": 25.0, "backward": 3.0, "optimizer": 2.0, "sync": 0.05, "log": 0.2},
)  # fmt: skip
WITHOUT_DATA = parse_edits([f"{stage}=0" for stage in STAGES])


def runs_of(truth: Truth, blocks: int = 3) -> list[RunData]:
    return [oracle.run(truth.having(seed=block), block=block) for block in range(blocks)]


@pytest.fixture(scope="module")
def shards() -> list[RunData]:
    return runs_of(SHARDS)


def test_a_stream_with_one_shard_waits_for_reading_and_not_for_transfer(shards: list[RunData]) -> None:
    run = shards[0]
    ledger = measure(run)
    assert ledger.idle_workers == 3
    assert unedited_error(run) == pytest.approx(0, abs=0.005)
    assert ledger.mean_step_ms == pytest.approx(120.6, rel=0.03)
    assert ledger.exposed_ms["read"] == pytest.approx(ledger.mean_step_ms - 31, rel=0.05)
    assert ledger.exposed_ms["transfer"] < 2
    for stage in ("read", "tokenize", "pack"):
        assert ledger.exposed_ms[stage] <= ledger.work_ms[stage] * 1.01
    path = Replays(shards).critical_path_ms()
    assert next(iter(path)) == PathLink("stage", "read")
    assert path[PathLink("stage", "read")].likely_ms == pytest.approx(120, rel=0.05)


@pytest.mark.parametrize(("idle", "unpack"), [(3, None), (2, 0.1), (0, None)])
def test_without_data_work_replay_predicts_what_the_program_then_does(idle: int, unpack: float | None) -> None:
    truth = SHARDS.having(idle=idle, unpack=unpack)
    free = truth.having(read=0.0, pack=0.0, handover=0.0, receive=0.0, unpack=None, after=0.0, wake=0.0)
    runs = runs_of(truth)
    found = Replays(runs).predict(WITHOUT_DATA)
    assert found.validation.within_tolerance
    real = sum(map(oracle.step_ms, runs)) / sum(map(oracle.step_ms, runs_of(free)))
    assert found.speedup.median == pytest.approx(real, rel=0.02)


def test_a_quicker_read_of_the_only_worker_is_predicted(shards: list[RunData]) -> None:
    """By a quarter of the reading the queue fills: how many batches are on their way decides what the step waits."""
    found = Replays(shards).predict(parse_edits(["read=0.25x"]))
    real = sum(map(oracle.step_ms, runs_of(SHARDS.having(read=30.0)))) / len(shards)
    assert found.step_ms.median == pytest.approx(real, rel=0.02)


BY_PROGRAM = {"attached": "fetch: DataLoader with 4 workers; backward"}


@pytest.mark.parametrize(
    ("facts", "bar"),
    [
        ({"iterable": True}, "no items"),
        ({"iterable": False}, "unequal"),
        (BY_PROGRAM | {"iterable": True, "empty_workers": 3}, "no items"),
        (BY_PROGRAM | {"iterable": True}, "unequal"),
    ],
)
def test_more_workers_are_barred_where_some_make_nothing(
    facts: dict[str, object], bar: str, shards: list[RunData]
) -> None:
    """Only torch's message that a worker ran out of items shows why it made no batch; a slow one made none either."""
    runs = [replace_facts(run, workers=4, cores=64, **facts) for run in shards]
    assert bar_of(parse_edits(["workers=8"]), runs, Replays(shards)) == bar


def test_workers_that_make_nothing_are_named(shards: list[RunData]) -> None:
    runs = [replace_facts(run, workers=4, cores=64, iterable=True) for run in shards]
    found = advise("a", {"a": runs}, lambda _: {}, None)
    assert not any(one.worth for one in found.options)
    assert {one.bar for one in found.options if one.change.startswith("workers=")} == {"no items"}
    note = next_steps([found], ArmNames(["a"])).note
    assert "gave them" in note
    assert "No further change" not in note
    report = analyse(StudyRecord("shards", "Why?", "done", arms=[ArmRecord("a")]), runs)
    (arm,) = report.arms
    assert (arm.idle_workers, arm.workers) == (3, 4)
    text = " ".join(line.text for line in first_screen(report).headlines)
    assert "3 of the 4 loader workers of a made no batch: the dataset gave them too few items" in text
    assert "shards" in text


def replace_facts(run: RunData, **facts: object) -> RunData:
    record_ = replace(run.record, facts=replace(run.record.facts, **facts))  # type: ignore[arg-type]
    return RunData(record_, run.steps, run.spans, run.samples)


def test_a_split_by_a_replay_that_is_not_the_run_is_no_fact() -> None:
    """The batches of one worker, recorded as if four had made them in turn."""
    runs = [in_order(run) for run in runs_of(SHARDS, 1)]
    report = analyse(StudyRecord("shards", "Why?", "done", arms=[ArmRecord(runs[0].record.arm)]), runs)
    totals = report.arms[0].totals
    assert totals.exposed_ms == {}
    assert totals.unsplit in ("replay is off", "above its work")


def in_order(run: RunData) -> RunData:
    columns = run.spans.to_pydict()
    columns["role"] = [
        f"loader-{batch % 4}" if role.startswith("loader") else role
        for role, batch in zip(columns["role"], columns["batch"], strict=True)
    ]
    import pyarrow as pa

    return RunData(run.record, run.steps, pa.table(columns, schema=run.spans.schema), run.samples)


@given(st.integers(1, 6), st.lists(st.integers(0, 5), max_size=60))
def test_makers_are_those_recorded_and_the_batch_before_is_of_the_same_one(workers: int, recorded: list[int]) -> None:
    worker = np.array([one if one < workers else NO_WORKER for one in recorded], dtype=np.int16)
    found = makers_of(worker, len(worker), workers)
    known = worker != NO_WORKER
    assert (found.worker[known] == worker[known]).all()
    assert ((found.worker >= 0) & (found.worker < workers)).all()
    before = found.before()
    for place, earlier in enumerate(before.tolist()):
        same = np.flatnonzero(found.worker[:place] == found.worker[place])
        assert earlier == (same[-1] if len(same) else -1)
    assert 1 <= found.busy <= workers
    assert found.busy <= found.in_flight(2) <= 2 * workers


def test_workers_that_were_not_recorded_make_batches_in_turn() -> None:
    assert makers_of(np.zeros(0, dtype=np.int16), 7, 3).worker.tolist() == [0, 1, 2, 0, 1, 2, 0]
    partly = np.array([NO_WORKER, 2, NO_WORKER, NO_WORKER], dtype=np.int16)
    assert makers_of(partly, 4, 3).worker.tolist() == [1, 2, 0, 1]
    assert round_robin(7, 3).is_round_robin
    assert not makers_of(np.array([0, 1, 0, 0], dtype=np.int16), 4, 2).is_round_robin
    assert record(runs_of(SHARDS.having(idle=0), 1)[0]).batches.makers.is_round_robin


SLOW = Truth(
    read=40.0, tokenize=0.0, pack=0.5, spread=0.3, workers=2, asynchronous=False, warmup=8,
    host={"h2d": 0.1, "forward": 6.0, "backward": 3.0, "optimizer": 2.0, "sync": 0.05, "log": 0.2},
)  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "factor", "count"),
    [
        ((1.8, 1.0), 1.8, 2),
        ((1.0, 1.5, 1.5, 1.0), 1.3, 4),  # several are slow
        ((), None, 2),
        ((1.0, 1.0, 1.0, 6.0, 1.0), None, 2),
    ],
)
def test_other_numbers_of_workers_are_not_predicted_where_one_worker_is_slow(
    pattern: tuple[float, ...], factor: float | None, count: int
) -> None:
    """What-if promised 43 ms for 1 worker where it took 80.9, and 16.3 for 3 where it took 27.2."""
    runs = runs_of(SLOW.having(pattern=pattern, workers=count))
    replays = Replays(runs)
    if factor is None:
        assert replays.slow_worker is None
    else:
        assert pattern[replays.slow_worker.number] == max(pattern)
        assert replays.slow_worker.factor == pytest.approx(factor, rel=0.15)
    for workers in (1, 3, 4):
        bar = bar_of(parse_edits([f"workers={workers}"]), runs, replays)
        assert bar == (None if factor is None or workers == count else "slow worker")
    assert bar_of(parse_edits(["read=0.5x"]), runs, replays) is None
