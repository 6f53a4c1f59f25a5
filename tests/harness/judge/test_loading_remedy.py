"""The remedy of a wait for data follows its stage, what the stage's time is, and the loader."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from harness.explain.causes import slow_causes
from harness.explain.lead_use import Loading, LongReads, SlowWorker
from harness.explain.policy import CHEAP_ROW_US_MAX, MOSTLY_CPU_SHARE
from harness.judge.advice import advise
from harness.judge.diagnosis import loading_remedy, remedy_figures
from harness.judge.report_types import ArmReport
from harness.show.advice import next_steps
from harness.show.names import ArmNames
from harness.show.text.findings import diagnosis_remedy
from harness.study.records import RunFacts
from tests.harness.explain.replay import oracle
from tests.harness.explain.replay.oracle import Truth
from tests.harness.explain.replay.test_makers import SLOW
from tests.harness.explain.test_wall import rows, rows_of
from tests.harness.judge.test_diagnosis import arm_of, diagnosed

CHEAP = slow_causes([RunFacts(causes=rows(rows_of(0.9 * CHEAP_ROW_US_MAX)))])
ON_CORE, OFF_CORE = {"read": MOSTLY_CPU_SHARE * 1.1}, {"read": MOSTLY_CPU_SHARE * 0.9}
SLOW_0, LONG = SlowWorker(0, 33.1, 0.0), LongReads(40.0, 300.0)


@cache
def waiting_for(stage: str) -> ArmReport:
    """Return an arm that waits 40 % of its step for ``stage``."""
    return diagnosed(arm_of({"forward": 60.0}, **{stage: 40.0}))


def remedy(stage: str = "read", **changes: Any) -> str:
    """Return the remedy of an arm that waits 40 % of its step for ``stage``, without advice."""
    arm = replace(waiting_for(stage), **changes)
    part = next(one for one in arm.parts if one.name == stage)
    return loading_remedy(part, arm, None)


def test_a_slow_worker_is_named_with_equal_work_as_its_remedy() -> None:
    """Faster storage was advised where one of two workers slept."""
    loading = Loading(slow_worker=SLOW_0)
    assert remedy(workers=2, loading=loading) == "even workers"
    assert remedy("transfer", workers=2, loading=loading) == "fewer objects"
    arm = replace(waiting_for("read"), loading=loading)
    text = diagnosis_remedy("even workers", remedy_figures("even workers", arm))
    assert text.startswith("Loader worker 0 takes 33.1 ms for a batch, the others typically 0.00 ms: ")
    assert "equal work" in text


def test_a_rare_long_read_is_to_be_loaded_ahead() -> None:
    """Reading whole batches was advised where a shard was loaded every 40 steps."""
    loading = Loading(long_reads=LONG, on_core=OFF_CORE)
    assert remedy(loading=loading, causes=CHEAP) == "load ahead"
    assert remedy("pack", loading=loading) != "load ahead"
    arm = replace(waiting_for("read"), loading=loading)
    assert "A read of 300 ms comes about every 40 batches" in diagnosis_remedy(
        "load ahead", remedy_figures("load ahead", arm)
    )


def test_whole_batches_are_read_where_calls_for_rows_take_the_time() -> None:
    assert remedy(causes=CHEAP, loading=Loading(on_core=ON_CORE)) == "whole batches"
    assert remedy(causes=CHEAP, loading=Loading(on_core=OFF_CORE)) == "use workers"
    assert remedy("transfer", causes=CHEAP, workers=1) == "fewer objects"


@pytest.mark.parametrize(
    ("workers", "on_core", "free_cores", "iterable", "expected"),
    [
        (0, ON_CORE, 1, False, "use workers"),
        (0, ON_CORE, None, False, "use workers"),
        (0, ON_CORE, 0, False, "less work"),
        (0, OFF_CORE, 0, False, "use workers"),  # a wait needs no core
        (0, ON_CORE, 1, True, "use one worker"),
        (2, ON_CORE, 1, False, "less work"),
        (2, OFF_CORE, 1, False, "faster storage"),
    ],
)
def test_batches_that_take_long_to_make(
    workers: int, on_core: dict[str, float], free_cores: int | None, *, iterable: bool, expected: str
) -> None:
    """Faster storage was advised for a collate function that computes in the training process."""
    loading = Loading(on_core=on_core)
    assert remedy(workers=workers, loading=loading, free_cores=free_cores, iterable=iterable) == expected


@pytest.mark.parametrize(("cores", "free"), [(4, 3), (1, 0), (None, None)])
def test_cores_beside_the_main_thread_are_free_for_workers(cores: int | None, free: int | None) -> None:
    """Threads of torch compute while no batch is made."""
    found = diagnosed(arm_of({}, read=40.0, facts={"cores": cores, "threads": 4}))
    assert found.free_cores == free


SENT = Truth(
    read=1.0, tokenize=0.0, pack=0.5, spread=0.05, workers=1, asynchronous=False, warmup=8, handover=9.0, receive=8.0,
    host={"h2d": 0.1, "forward": 6.0, "backward": 3.0, "optimizer": 2.0, "sync": 0.05, "log": 0.2},
)  # fmt: skip


@pytest.mark.parametrize("read", [1.0, 12.0])
def test_loading_without_workers_is_advised_only_if_it_is_predicted_to_be_faster(read: float) -> None:
    """It was advised where the main process then read for longer than it had received: 30.9 ms became 37.6."""
    truth = SENT.having(read=read)
    runs = {
        "a": [
            oracle.run(truth.having(seed=block), block=block, attached="fetch: DataLoader with 1 worker")
            for block in range(3)
        ]
    }
    inline = [oracle.run(truth.having(seed=block, workers=0), block=block) for block in range(3)]
    found = advise("a", runs, lambda _: {}, noise_floor=0.01)
    option = next(one for one in found.options if one.change == "workers=0")
    real = sum(map(oracle.step_ms, runs["a"])) / sum(map(oracle.step_ms, inline))
    assert option.speedup.median == pytest.approx(real, rel=0.03)
    assert option.worth == (real > 1)
    ranked = next_steps([found], ArmNames(["a"])).ranked
    assert any(line.startswith("With no loader workers a would be") for line in ranked) == (real > 1)


def test_a_bar_has_the_worker_and_its_factor() -> None:
    """No division by an unknown: 0.000x was printed."""
    runs = {"a": [oracle.run(SLOW.having(pattern=(1.0, 3.0), seed=block), block=block) for block in range(3)]}
    note = next_steps([advise("a", runs, lambda _: {}, noise_floor=0.01)], ArmNames(["a"])).note
    assert "its loader worker 1 takes " in note
    assert "0.000x" not in note
