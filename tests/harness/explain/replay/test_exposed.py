"""What each stage cost: hand-worked pipelines, and properties that hold for random ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.explain import policy
from harness.explain.ledger import RunLedger, derived_steps, measure
from harness.explain.replay.attribution import Split, split
from harness.explain.replay.predict import Replays
from harness.explain.replay.recording import record
from harness.study.contract import PLACES, STAGES
from harness.study.run_data import RunData
from tests.examples import examples
from tests.harness.explain.replay import oracle
from tests.harness.explain.replay.oracle import Truth

QUIET = {"spread": 0.0, "jitter": 0.0, "gap": 0.0, "after": 0.0, "wake": 0.0, "handover": 0.1, "receive": 0.05}
COMPUTE = {"h2d": 0.0, "forward": 12.0, "backward": 18.0, "optimizer": 2.5, "sync": 0.0, "log": 0.0}


def ledger(run: RunData) -> RunLedger:
    return measure(run)


def savings(run: RunData, kind: str) -> dict[str, float]:
    return {one.name: one.saved_ms.median for one in Replays([run]).removals() if one.kind == kind}


@pytest.mark.parametrize(("first", "second"), [("read", "tokenize"), ("tokenize", "read")])
def test_prefetching_does_not_hide_the_culprit(first: str, second: str) -> None:
    """Two workers, 98 ms a batch, 90 of it one stage; 35 ms of compute. It is named wherever it stands in the batch."""
    run = oracle.run(
        Truth(asynchronous=False, workers=2, host=COMPUTE, steps=100, pack=0.0, **{first: 90.0, second: 8.0}, **QUIET)
    )
    found = ledger(run)
    assert found.mean_step_ms == pytest.approx(49, abs=0.5)
    # 49 ms are half of 98; without the first 35 of compute are left, without the second half of 90.
    saved = savings(run, "stage")
    assert saved[first] == pytest.approx(14, abs=0.5)
    assert saved[second] == pytest.approx(4, abs=0.5)
    assert found.exposed_ms[first] == pytest.approx((14 + 14 - 4) / 2, abs=0.5)
    assert found.exposed_ms[second] == pytest.approx(4 / 2, abs=0.5)
    assert sum(found.exposed_ms.values()) == pytest.approx(found.phase_ms["fetch"] or found.waited_ms)


def test_a_fetch_that_delays_later_launches_is_exposed_though_the_device_never_waits_in_it() -> None:
    """10 ms of launching and 6 ms of data beside 8 ms of optimizer: the host is the critical path."""
    host = {"h2d": 0.1, "forward": 5.0, "backward": 5.0, "optimizer": 0.2, "sync": 0.05, "log": 0.1}
    device = {"h2d": 0.0, "forward": 2.0, "backward": 3.0, "norm": 0.1, "optimizer": 8.0}
    costs = {"read": 0.0, "pack": 0.0, "tokenize": 6.0, "remainder": 0.0} | QUIET | {"gap": 0.01}
    run = oracle.run(Truth(workers=0, host=host, device=device, steps=80, **costs))
    found = ledger(run)
    assert found.device_slack_ms > 6  # the fetch lies behind the optimizer
    saved = oracle.step_ms(run) - oracle.step_ms(
        oracle.run(Truth(workers=0, host=host, device=device, steps=80, **(costs | {"tokenize": 0.0})))
    )
    assert 4 < saved < 6  # the rest lies behind the optimizer
    assert found.exposed_ms["tokenize"] == pytest.approx(saved, abs=0.1)
    assert sum(found.hidden_ms.values()) == pytest.approx(6 - saved, abs=0.1)


def test_a_delay_that_is_caught_up_cost_nothing() -> None:
    """Beside a device that is never drained every delay of the host is made up for by the end of the repetition."""
    device = {"h2d": 0.0, "forward": 10.0, "backward": 10.0, "norm": 0.1, "optimizer": 8.0}
    run = oracle.run(Truth(workers=0, tokenize=5.0, device=device, sync=False, log_every=1000, steps=60))
    assert ledger(run).exposed_ms["tokenize"] < 0.5
    assert ledger(run).hidden_ms["tokenize"] == pytest.approx(5.0, abs=0.5)


@st.composite
def pipelines(draw: st.DrawFn) -> Truth:
    return Truth(
        read=draw(st.floats(0.1, 10)),
        tokenize=draw(st.floats(0.1, 60)),
        pack=draw(st.floats(0.1, 10)),
        workers=draw(st.integers(1, 4)),
        prefetch=draw(st.integers(1, 3)),
        asynchronous=draw(st.booleans()),
        sync=draw(st.booleans()),
        accumulation=draw(st.integers(1, 2)),
        repetitions=draw(st.sampled_from([1, 3])),
        pass_every=draw(st.sampled_from([0, 7])),
        pass_ms=50.0,
        steps=30,
        seed=draw(st.integers(0, 1000)),
    )


@examples(25, derandomize=True)
@given(pipelines())
def test_shares_are_whole_never_negative_and_sum_to_the_wait_of_a_synchronous_step(truth: Truth) -> None:
    run = oracle.run(truth)
    table = derived_steps(run).table
    rows = table.to_pylist()
    waits = {"fetch": [0] * len(rows)}
    for span in run.spans.to_pylist():
        if span["name"] == "fetch":
            row = next(i for i, one in enumerate(rows) if one["start_ns"] + one["wall_ns"] > span["start_ns"])
            waits["fetch"][row] += span["end_ns"] - span["start_ns"]
    for row, wait in zip(rows, waits["fetch"], strict=True):
        exposed = [row[f"exposed_{stage}_ns"] for stage in STAGES]
        assert min(exposed) >= 0
        assert sum(row[f"during_wait_{stage}_ns"] for stage in STAGES) == wait
        if not truth.asynchronous:
            assert sum(exposed) == wait
        for stage in STAGES[:3]:
            work, during, parallel, between = (row[f"{kind}_{stage}_ns"] for kind in PLACES)
            assert 0 <= row[f"hidden_{stage}_ns"] <= work - between - (0 if truth.asynchronous else during + parallel)
            assert 0 <= between <= work


def test_a_replay_that_is_off_or_impossible_gives_a_reason_and_no_figure() -> None:
    run = oracle.run(Truth(workers=1, asynchronous=False, tokenize=30.0))
    recording = record(run)
    waits = np.zeros(len(recording.measured), dtype=np.int64)
    assert isinstance(split(recording, waits), Split)
    assert split(replace(recording, wall_ns=recording.wall_ns * 1.2), waits) == "replay is off"
    assert split(replace(recording, device_not_recorded=True), waits) == "device not recorded"
    run.record.config["data"]["workers"] = 1
    alone = RunData(replace(run.record, facts=replace(run.record.facts, asynchronous=True)), run.steps, run.spans, None)
    assert derived_steps(alone).unsplit == "device not recorded"
    assert ledger(alone).exposed_ms == {}
    assert ledger(alone).during_wait_ms["tokenize"] > 0


def test_steps_beyond_what_is_replayed_are_not_derived_and_never_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "REPLAYED_STEPS_MAX", 20)
    run = oracle.run(Truth(asynchronous=False, workers=1, tokenize=60.0, steps=30, **QUIET))
    replayed, table = len(record(run).wall_ns), derived_steps(run).table
    assert replayed < len(table)
    for stage in STAGES:
        for kind in ("exposed", "hidden"):
            known = table.column(f"{kind}_{stage}_ns").is_valid().to_pylist()
            assert known == [place < replayed for place in range(len(table))], (kind, stage)
        assert not table.column(f"work_{stage}_ns").null_count
