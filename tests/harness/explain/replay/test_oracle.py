"""The replay against another simulation of the same loop, over randomised pipelines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.explain.replay import Replays, parse_edits, predict, replace_data, unedited_error
from tests.examples import examples
from tests.harness.explain.replay import oracle
from tests.harness.explain.replay.oracle import Truth

# Between a worker and the main thread a replay must assume what it did not see; here that is true.
UNSEEN = {"handover": 2.8, "receive": 2.0, "after": 0.3, "wake": 0.0}


@st.composite
def pipelines(draw: st.DrawFn) -> Truth:
    def cost(low: float, high: float) -> float:
        return draw(st.floats(low, high, allow_nan=False))

    asynchronous = draw(st.booleans())
    launching = (0.2, 2.0) if asynchronous else (3.0, 9.0)
    return Truth(
        read=cost(0.1, 2),
        tokenize=cost(0.5, 25),
        pack=cost(0.1, 1),
        spread=cost(0, 0.2),
        workers=draw(st.integers(0, 4)),
        prefetch=draw(st.integers(1, 3)),
        handover=cost(2.5, 2.9),
        receive=cost(1.9, 2.15),
        after=cost(0.1, 0.3),
        wake=cost(0, 0.1),
        asynchronous=asynchronous,
        host={"h2d": 0.1, "forward": cost(*launching), "backward": cost(*launching), "optimizer": cost(0.1, 1.5)}
        | {"sync": 0.05, "log": 0.2},
        device={"h2d": cost(0.1, 0.5), "forward": cost(1, 8), "backward": cost(2, 12), "norm": cost(0.1, 1)}
        | {"optimizer": cost(1, 8)},
        jitter=cost(0, 0.1),
        sync=draw(st.booleans()),
        accumulation=draw(st.integers(1, 2)),
        log_every=draw(st.integers(2, 7)),
        repetitions=draw(st.sampled_from([1, 4])),
        steps=100,
        seed=draw(st.integers(0, 10_000)),
    )


def changes(truth: Truth) -> dict[str, dict[str, object]]:
    """Edits by their text, and what the oracle calls them."""
    from_inline = UNSEEN if not truth.workers else {}
    found: dict[str, dict[str, object]] = {
        "tokenize=0": {"tokenize": 0.0},
        "tokenize=0.5x": {"tokenize": truth.tokenize / 2},
        "tokenize=3x": {"tokenize": truth.tokenize * 3},
        "device=2x": {"speed": 2.0},
        "device=0.5x": {"speed": 0.5},
        "workers=1": {"workers": 1, **from_inline},
        "workers=4": {"workers": 4, **from_inline},
        "workers=0": {"workers": 0, **({"remainder": 0.0} if truth.workers else {})},
        "prefetch=3": {"prefetch": 3},
        "batch_size=6": {"batch_size": 6},
        "ranks=4": {"ranks": 4},
    }
    if truth.asynchronous:
        found["sync=off"] = {"sync": False}
        if truth.sync:  # replay takes what the wait lasts beyond its end from the waits that were recorded
            found["sync=late"] = {"sync": False, "late": True}
    return found


@st.composite
def with_arrivals(draw: st.DrawFn) -> Truth:
    """Pipelines of workers whose recordings say when each batch arrived, and any cost of handing over and receiving."""
    receive = draw(st.floats(0.0, 3.0))
    sending, part = draw(st.floats(0.2, 3.0)), draw(st.floats(0.0, 1.0))
    truth = draw(pipelines())
    return truth.having(
        workers=max(1, truth.workers), handover=receive + sending, receive=receive, unpack=part * receive
    )


@pytest.mark.slow
@pytest.mark.nightly
@examples(40, derandomize=True)
@given(truth=with_arrivals(), gone=st.sampled_from(["tokenize", "read", "pack"]))
def test_where_arrivals_are_recorded_no_cost_of_receiving_is_assumed(truth: Truth, gone: str) -> None:
    run = oracle.run(truth)
    assert abs(unedited_error(run)) < 0.002
    predicted = predict([run], parse_edits([f"{gone}=0"]))
    assert "receive not observed" not in {one.kind for one in predicted.assumptions}
    assert predicted.step_ms.median == pytest.approx(oracle.step_ms(oracle.run(truth.having(**{gone: 0.0}))), rel=0.03)


@pytest.mark.slow
@examples(40, derandomize=True)
@given(truth=pipelines(), data=st.data())
def test_an_edited_replay_predicts_the_oracle_of_the_edited_pipeline(truth: Truth, data: st.DataObject) -> None:
    options = changes(truth)
    chosen = data.draw(st.lists(st.sampled_from(sorted(options)), min_size=1, max_size=3, unique_by=_key))
    edited = truth
    for text in chosen:
        edited = edited.having(**options[text])
    run = oracle.run(truth)
    assert abs(unedited_error(run)) < 0.001
    assert abs(predict([run], parse_edits([])).validation.resampled_median) < 0.02
    predicted = predict([run], parse_edits(chosen)).step_ms.median
    assert predicted == pytest.approx(oracle.step_ms(oracle.run(edited)), rel=0.03)


@pytest.mark.slow
@pytest.mark.nightly
@examples(20, derandomize=True)
@given(truth=pipelines(), other=pipelines())
def test_the_loader_of_another_run_predicts_the_pair(truth: Truth, other: Truth) -> None:
    names = ["read", "tokenize", "pack", "spread", "workers", "prefetch", "handover", "after", "wake", "receive"]
    both = truth.having(**{name: getattr(other, name) for name in names})
    no_step = {"host": dict.fromkeys(other.host, 0.0), "asynchronous": False, "gap": 0.0}
    alone = other.having(**no_step, seed=truth.seed, accumulation=truth.accumulation)
    found = replace_data([oracle.run(truth)], [oracle.run(alone)])
    assert found.step_ms.median == pytest.approx(oracle.step_ms(oracle.run(both)), rel=0.03)
    assert found.speedup.median == pytest.approx(1 / found.ratio.median, rel=0.01)


@pytest.mark.parametrize(
    ("slow", "within"),
    [({"workers": 1, "tokenize": 35.0}, True), ({"workers": 2, "tokenize": 70.0, "prefetch": 1}, False)],
    ids=["within a step that does not count", "between steps"],
)
def test_what_is_predicted_of_slow_workers_holds_where_held_out_data_is_evaluated(
    slow: dict[str, float], within: bool
) -> None:
    """Workers go on meanwhile, and fill the queue. Which batches meet a pass decides how long steps wait: once steps
    were drawn in any order, and a pass within a step was left out, so that predictions were refused."""
    host = {"h2d": 0.1, "forward": 8.0, "backward": 8.0, "optimizer": 0.5, "sync": 0.05, "log": 0.2}
    truth = Truth(spread=0.1, asynchronous=False, host=host, pass_every=6, pass_ms=120.0, pass_within=within, **slow)
    run = oracle.run(truth)
    measured = oracle.step_ms(run)
    assert measured > 1.4 * sum(host.values())
    unedited = predict([run], parse_edits([]))
    assert unedited.validation.typical < 0.02
    assert unedited.step_ms.median == pytest.approx(measured, rel=0.02)
    for edit, change in (
        ("tokenize=0.5x", {"tokenize": truth.tokenize / 2}),
        ("prefetch=3", {"prefetch": 3}),
        ("device=2x", {"speed": 2.0}),
    ):
        predicted = predict([run], parse_edits([edit])).step_ms.median
        drawn = "prefetch" in change  # not in the order recorded
        now = oracle.step_ms(oracle.run(truth.having(**change)))
        assert predicted == pytest.approx(now, rel=0.05 if drawn else 0.01), edit


def test_what_the_device_starved_for_is_named() -> None:
    truth = Truth(tokenize=20.0, workers=1, spread=0.0, jitter=0.0, steps=40)
    found = Replays([oracle.run(truth)]).predict(parse_edits([]))
    exposed = oracle.step_ms(oracle.run(truth)) - sum(truth.device.values())
    assert found.starved_ms == pytest.approx(exposed, abs=0.3)
    assert found.waits_ms["tokenize"] > 0.5 * exposed
    assert sum(found.waits_ms.values()) <= found.starved_ms + 1e-9


def _key(text: str) -> str:
    return text.partition("=")[0]


def test_where_one_worker_makes_all_slow_batches_a_deeper_queue_does_not_help() -> None:
    """Every other batch is slow. Once replay handed the slow ones to the other worker at each seam: 1.27x, of 1.00x."""
    host = {"h2d": 0.1, "forward": 10.0, "backward": 10.0, "optimizer": 0.5, "sync": 0.05, "log": 0.2}
    truth = Truth(tokenize=34, spread=0.1, pattern=(1.6, 0.4), workers=2, asynchronous=False, host=host)
    truth = truth.having(steps=60, repetitions=4)
    run = oracle.run(truth)
    for edit, change in (("prefetch=8", {"prefetch": 8}), ("workers=4", {"workers": 4})):
        predicted = predict([run], parse_edits([edit])).step_ms.median
        assert predicted == pytest.approx(oracle.step_ms(oracle.run(truth.having(**change))), rel=0.03)


def test_a_batch_that_is_slow_to_make_is_trained_by_the_step_that_is_slow_because_of_it() -> None:
    """Long documents, as with padding to each batch's longest. Once the two were drawn apart: 1.32x, of 1.12x."""
    truth = Truth(read=0.1, tokenize=16, pack=0.1, spread=0.05, pattern=(2, 1, 0.5, 0.5), dynamic=True, prefetch=1)
    truth = truth.having(steps=120, log_every=3)
    run = oracle.run(truth)
    for edit, change in (("prefetch=2", {"prefetch": 2}), ("workers=2", {"workers": 2})):
        predicted = predict([run], parse_edits([edit])).step_ms.median
        assert predicted == pytest.approx(oracle.step_ms(oracle.run(truth.having(**change))), rel=0.01)
