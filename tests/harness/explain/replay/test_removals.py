"""Removals against the oracle: each part of random pipelines is really taken out and simulated by processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.explain.ledger import measure
from harness.explain.replay import Replays, parse_edits
from harness.show.dose import assumption_lines
from tests.examples import examples
from tests.harness.explain.replay import oracle
from tests.harness.explain.replay.oracle import Truth
from tests.harness.explain.replay.test_oracle import pipelines, with_arrivals

ALL_STAGES = {"read": 0.0, "tokenize": 0.0, "pack": 0.0}


def without(truth: Truth, kind: str, name: str) -> Truth | None:
    """The pipeline without that part; None where the oracle cannot be told."""
    transfer = {"handover": 0.0, "receive": 0.0, "after": 0.0, "remainder": 0.0}
    if (kind, name) == ("cause", "data"):
        return truth.having(**ALL_STAGES, **transfer)
    if kind == "stage":
        return truth.having(**(transfer if name == "transfer" else {name: 0.0}))
    if kind == "kernel":
        return truth.having(device={**truth.device, name: 0.0})
    if (kind, name) == ("cause", "sync"):
        return truth.having(sync=False)
    if kind == "phase" and name in ("h2d", "forward", "backward"):
        return truth.having(host={**truth.host, name: 0.0})
    return None


@pytest.mark.slow
@examples(30, derandomize=True)
@given(truth=pipelines(), data=st.data())
def test_removing_a_part_does_to_the_oracle_what_it_does_to_the_replay(truth: Truth, data: st.DataObject) -> None:
    truth = truth.having(jitter=0.0, spread=0.0, steps=28)
    found = Replays([oracle.run(truth)]).removals()
    possible = [one for one in found if without(truth, one.kind, one.name) is not None]
    one = data.draw(st.sampled_from(possible))
    fewer = without(truth, one.kind, one.name)
    was, now = (oracle.step_ms(oracle.run(each)) for each in (truth, fewer))
    assert one.saved_ms.median == pytest.approx(was - now, abs=0.03 * was), (one.kind, one.name)


@pytest.mark.slow
@pytest.mark.nightly
@examples(60, derandomize=True)
@given(truth=with_arrivals(), spread=st.floats(0.1, 0.3), stage=st.sampled_from(list(ALL_STAGES)))
def test_the_steps_that_were_recorded_are_those_that_get_shorter(truth: Truth, spread: float, stage: str) -> None:
    """Documents vary, and forty steps have few. Once the steps were drawn anew: up to 3 % off where a wait ends."""
    truth = truth.having(spread=spread, steps=40, repetitions=1, warmup=4)
    run = oracle.run(truth)
    found = {(one.kind, one.name): one for one in Replays([run]).removals()}
    predicted = oracle.step_ms(run) / found["stage", stage].speedup.median
    assert predicted == pytest.approx(oracle.step_ms(oracle.run(truth.having(**{stage: 0.0}))), rel=0.01)


def test_where_no_batch_lay_ready_a_saving_holds_that_receiving_one_costs_nothing() -> None:
    """A batch travels for 9 ms, of which the main thread spends none: replay takes 6 ms of them to be its own."""
    truth = Truth(workers=1, prefetch=1, handover=9.0, tokenize=18.0, jitter=0.0, spread=0.0, steps=24)
    truth = truth.having(device={"h2d": 0.2, "forward": 7.0, "backward": 12.0, "norm": 0.5, "optimizer": 2.0})
    was, now = (oracle.step_ms(oracle.run(one)) for one in (truth, truth.having(tokenize=0.0)))
    replays = Replays([oracle.run(truth)])
    (one,) = (part for part in replays.removals() if (part.kind, part.name) == ("stage", "tokenize"))
    assert one.saved_ms.median < 0.5 * (was - now)
    assert one.saved_ms.ci_high == pytest.approx(was - now, abs=0.1)
    predicted = replays.predict(parse_edits(["tokenize=0"]))
    assert predicted.step_ms.ci_low == pytest.approx(now, rel=0.01)
    assert any("receiving one is assumed to cost" in line for line in assumption_lines(predicted.assumptions))


def test_less_compute_may_leave_workers_waiting_for_what_serves_one_of_them() -> None:
    """Two workers read in turn, 10 ms each, behind 20 ms of compute: without 16 of those a step still lasts 10.
    Once only the savings of stages held that, and of a faster device nothing was said."""
    truth = Truth(
        workers=2, read=10.0, tokenize=0.5, locked="read", asynchronous=False, jitter=0.0, spread=0.0, steps=30
    )
    truth = truth.having(host={**truth.host, "forward": 1.0, "backward": 16.0})
    was, now = (oracle.step_ms(oracle.run(one)) for one in (truth, truth.having(host={**truth.host, "backward": 0.0})))
    assert now == pytest.approx(10, abs=0.1)
    replays = Replays([oracle.run(truth)])
    (one,) = (part for part in replays.removals() if (part.kind, part.name) == ("phase", "backward"))
    assert one.saved_ms.ci_low < 1.01 * (was - now) < 0.7 * one.saved_ms.median
    said = {text: replays.predict(parse_edits([text])).assumptions for text in ("device=8x", "workers=4")}
    assert [any(one.kind == "side by side" for one in found) for found in said.values()] == [True, False]
    assert any("serves several workers at once" in line for line in assumption_lines(said["device=8x"]))


BURSTS = Truth(workers=2, prefetch=3, pack=45.0, tokenize=0.5, pattern=(1.0, 1.0, 1.0, 1.0, 4.0), jitter=0.0).having(
    read=0.3, spread=0.2, handover=2.0, receive=1.0, unpack=0.8
)


@pytest.mark.parametrize("pass_ms", [15.0, 400.0])
def test_workers_run_on_while_a_pass_over_held_out_data_stands_between_steps(pass_ms: float) -> None:
    """Once a longer one passed for a stop of the whole run: 3.7 of the 14.5 ms were waited for, and 16.5 saved."""
    truth = BURSTS.having(pass_every=7, pass_ms=pass_ms)
    run = oracle.run(truth)
    was, now = oracle.step_ms(run), oracle.step_ms(oracle.run(truth.having(pack=0.0)))
    (one,) = (part for part in Replays([run]).removals() if (part.kind, part.name) == ("stage", "pack"))
    assert one.saved_ms.median == pytest.approx(was - now, abs=0.02 * was)
    assert measure(run).exposed_ms["pack"] == pytest.approx(was - now, abs=0.03 * was)


def test_a_saving_is_held_against_the_step_that_was_measured() -> None:
    """A loader that is not as replay thinks, here with fewer batches ahead: its unedited replay takes longer."""
    run = oracle.run(BURSTS)
    was, now = (oracle.step_ms(one) for one in (run, oracle.run(BURSTS.having(pack=0.0))))
    run.record.config["data"]["prefetch"] = 1
    (one,) = (part for part in Replays([run]).removals() if (part.kind, part.name) == ("stage", "pack"))
    assert one.saved_ms.ci_low <= 1.01 * (was - now) < 0.95 * one.saved_ms.median


def test_savings_overlap_and_the_largest_comes_first() -> None:
    """Either of two stages of a worker that is too slow by less than each of them saves all of the wait."""
    found = Replays([oracle.run(Truth(workers=1, read=12.0, tokenize=12.0, asynchronous=True))]).removals()
    saved = {(one.kind, one.name): one.saved_ms.median for one in found}
    assert saved["stage", "read"] + saved["stage", "tokenize"] > 1.3 * saved["cause", "data"]
    assert [one.saved_ms.median for one in found] == sorted(saved.values(), reverse=True)
