"""Guards the numbers of ``explain.policy`` that no test of a whole study reaches: each sits at its edge here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from harness.explain import bounds, derived, exposure, ledger, spans, unusual_steps, wall
from harness.explain.bounds import BoundShares
from harness.explain.lead_use import LeadUse
from harness.explain.replay import attribution, batches, costs, pipeline, prediction, recording
from harness.explain.replay.predict import Replays
from harness.explain.waits import TRANSFER
from harness.study.contract import STAGES
from harness.study.run_data import RunData
from tests.harness.synthetic import Arm, build

ONE, TWO = np.ones(1, dtype=np.bool_), np.array([True, False])


def maker(role: str, batch: int = 0) -> int | None:
    """The worker that is kept as the maker of a batch."""
    columns = {"role": [role], "rank": [0], "name": ["read"], "batch": [batch], "start_ns": [1], "end_ns": [2]}
    makers = spans.read_spans([pa.RecordBatch.from_pydict({**columns, "cpu_ns": [1]})]).makers
    return next((one for one in makers[batch:].tolist() if one != spans.NO_WORKER), None)


def above_work(above_ns: int) -> bool:
    exposed = np.zeros((1, len(STAGES)), dtype=np.int64)
    exposed[0, TRANSFER] = above_ns
    batch = SimpleNamespace(handover=np.zeros(1), usable=ONE)
    run = SimpleNamespace(measured=ONE, wall_ns=np.array([1000.0]), batches=batch)
    return derived._above_work(exposed, SimpleNamespace(work=np.zeros_like(exposed)), run)  # type: ignore[arg-type]


def causes(collected_ms: float) -> set[str]:
    rows = [{"kind": kind, "place": "a.py:1", "spent_ms": ms} for kind, ms in (("code", 100.0), ("gc", collected_ms))]
    return {one.kind for one in wall.slow_causes([SimpleNamespace(causes=rows)])}  # type: ignore[list-item]


def mended(cpu_ns: float) -> float:
    times = np.array([100.0, 900.0]), np.array([cpu_ns, cpu_ns / 2])
    return float(batches._mended(*times, TWO, np.ones(2, dtype=np.bool_), np.array([0, 0]))[1])


def held_up(longer_ns: float) -> dict[int, float]:
    event = SimpleNamespace(kind="host", duration=np.array([100.0, 100.0 + longer_ns]))
    one: Any = SimpleNamespace(steps=np.array([0, 1]), events=(event,))
    return recording._held_up_ns([one], TWO, ~TWO)


def arrivals(arrived: int) -> bool:
    moments = np.where(np.arange(8) < arrived, 1.0, np.nan)
    return batches.arrivals_recorded(SimpleNamespace(measured=np.ones(8, dtype=np.bool_), arrived=moments))  # type: ignore[arg-type]


def received_ns(asked_ns: float) -> float:
    """Ready two hand-overs before its fetch."""
    zeros, known, unknown = np.zeros(8), np.ones(8, dtype=np.bool_), np.full(8, np.nan)
    waits = (zeros + asked_ns, zeros + asked_ns + 1000.0, known, ())
    parts, _ = batches._estimated(batches.Seen(zeros, zeros, known, *waits, unknown, unknown, ~known), 0, 10.0, 0.0)
    (found,) = set(parts["receive"].tolist())
    return float(found)


def queued_pieces(count: int) -> int:
    moments = np.arange(count + 1, dtype=np.int64)
    pieces = spans.Spans(
        np.zeros(count + 1, dtype=np.int32), moments, moments, moments.astype(np.int32), np.zeros(count + 1)
    )
    none = pieces.where(slice(0))
    run = spans.RunSpans(("x",), none, none, pieces, pieces, none, none, none)
    return len(bounds._near(bounds.Stretches(np.array([count]), np.array([count + 1])), run).kernels) - 1


def runs_alike(apart: float) -> bool:
    return unusual_steps._alike([np.float64(one) for one in (0.0, apart, 1.0, 1.0)], 0.5, 1.0)


def usual_ns(usual: int) -> float:
    """Long steps count as typical ones; if they are more than a quarter, none is an exception."""
    return float(unusual_steps.without_long(np.array([10.0] * usual + [40.0])).sum())


def diverged(losses: tuple[float, float]) -> bool:
    return ledger._diverged(np.array([losses[0]] * 10 + [losses[1]] * 10))


# What decides, and what is found on either side of its edge.
EDGES: dict[str, tuple[Callable[[Any], Any], dict[Any, Any]]] = {
    "the largest share above the limit names the bound": (
        lambda shares: BoundShares(*shares).bound,
        {
            (0.3, 0.1, 0.2, -0.1): "data",
            (0.1, 0.3, 0.2, 0.2): "host",
            (0.1, 0.1, 0.7, 0.2): "launch",
            (0.04, 0.04, 0.04, 0.2): "device",
            (0.04, 0.0, 0.0, 0.04): "balanced",
            (0.06, 0.0, 0.0, 0.0): "data",
            (0.04, 0.04, 0.04, 0.2, 0.1): "device or launch",
            (0.06, 0.2, 0.0, 0.0, 0.0, 0.91): "data",  # workers that never rest limit a step that waits for them
            (0.06, 0.2, 0.0, 0.0, 0.0, 0.89): "host",
            (0.02, 0.0, 0.87, 0.0, 0.0, 1.0): "launch",
        },
    ),
    "makers of so many batches are kept": (lambda batch: maker("loader-3", batch), {2**20 - 1: 3, 2**20: None}),
    "a large number of a worker is a damaged record": (maker, {"loader-9999": 9999, "loader-10000": None}),
    "a loss that doubled and rose by a nat has diverged": (
        diverged,
        {(3, 5.9): False, (3, 6.1): True, (3, float("nan")): True, (3, float("inf")): True}
        | {(0.3, 1.2): False, (0.3, 1.4): True},
    ),
    "exposed stages above their work are no split": (above_work, {9: False, 11: True}),
    "steps that are drawn of many": (
        lambda of: sum(map(len, unusual_steps._drawn([np.ones(of)], of))), {200_000: 100_000}
    ),
    "a place only collects": (causes, {199.0: {"code", "gc"}, 201.0: {"gc"}}),
    "a stage that mostly computes has the length of its CPU time": (mended, {60.0: 50.0, 40.0: 100.0}),
    "a step is held up by half of its work": (held_up, {49.0: {}, 51.0: {2: 51.0}}),
    "a replay that is off predicts nothing": (
        lambda off: prediction.ReplayValidation({0: off}, {0: -off}).within_tolerance, {0.049: True, 0.051: False}
    ),
    "lead that is worth saying": (
        lambda use: LeadUse(*use, 5).is_worth_saying,
        {(0.009, 0.005, 0.02): False, (0.011, 0.005, 0.02): True, (0.05, -0.01, 0.11): False},
    ),
    "the queue before the first step is cut": (queued_pieces, {4_000: 4_000, 6_000: 5_000}),
    "a quarter of the steps may be long": (usual_ns, {3: 40.0, 2: 60.0}),
    "runs of a kind are nearly equal": (runs_alike, {0.069: True, 0.071: False}),
    "arrivals are recorded if three are": (arrivals, {2: False, 3: True}),
    "a batch lay ready": (received_ns, {25.0: 1000.0, 15.0: 7.5}),
    # Of 47 steps a period of 12 has three rounds, and one of 6 leaves out a ninth.
    "a tape holds four rounds and nine tenths of the steps": (
        lambda steps: len(pipeline._in_rounds(np.arange(steps), np.arange(steps), 1, 1, 1)), {48: 48, 47: 44}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_a_number_decides_at_its_edge(name: str) -> None:
    decide, sides = EDGES[name]
    assert {given: decide(given) for given in sides} == sides


@pytest.mark.parametrize(("rows", "freed"), [(1_000_000, False), (1_000_001, True)])
def test_spans_of_a_long_run_are_freed(monkeypatch: pytest.MonkeyPatch, rows: int, freed: bool) -> None:
    forgotten: list[str] = []
    run: Any = SimpleNamespace(knows=lambda _: True, forget=forgotten.append)
    monkeypatch.setattr(exposure, "spans_of", lambda _: SimpleNamespace(rows=rows))
    exposure.release(run)
    assert bool(forgotten) is freed


@pytest.mark.parametrize(("recorded", "steps"), [(5_000, 5_000), (5_001, 5_000)])
def test_a_long_run_is_replayed_in_part(recorded: int, steps: int) -> None:
    _, (run,) = build([Arm("text")], blocks=1, repetitions=1, steps=recorded)
    assert int(recording.record(run).measured.sum()) == steps


def test_losses_are_compared_by_their_last_ten_steps() -> None:
    steps = np.arange(100)
    one, other = (
        SimpleNamespace(by_step=lambda losses=losses: (steps, losses)) for losses in (steps * 1.0, steps * 2.0)
    )
    assert ledger.at_common_steps(one, other) == (94.5, 189.0)  # type: ignore[arg-type]


def test_a_step_without_a_kernel_keeps_a_thousandth() -> None:
    event = SimpleNamespace(kind="launch", name="forward", phase="forward", duration=np.array([2e9]))
    one = SimpleNamespace(steps=np.array([0]), events=(event,))
    run: Any = SimpleNamespace(busy_workers=0, behind_full_queue=frozenset({"forward"}), classes=(one,), measured=ONE)
    assert attribution._otherwise_ms(run, ("kernel", "forward"), 1000.0, 900.0) == pytest.approx(1.0)


def test_of_a_long_run_the_room_is_that_of_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []
    monkeypatch.setattr(bounds, "_room_ns", lambda part, *_: parts.append(len(part.starts)))
    starts = np.arange(2_500)
    run: Any = SimpleNamespace(blocks_untimed=False)
    assert bounds.room_ns(bounds.Stretches(starts, starts + 1), run, run) is None
    assert parts == [1_000, 1_000]


def test_a_ready_batch_costs_three_quarters_of_a_hand_over() -> None:
    recorded: Any = type("Batches", (list,), {"receive": np.zeros(2)})([0, 0])
    inline: Any = SimpleNamespace(
        batches=recorded, workers=0, transport=SimpleNamespace(after_ms=0.0), usual_handover_ms=4.0
    )
    assert costs._between(inline, 1)["receive"].tolist() == [3e6, 3e6]


@pytest.mark.parametrize(("steps", "whole"), [(500, True), (501, False)])
def test_a_prediction_in_order_has_so_many_steps(monkeypatch: pytest.MonkeyPatch, steps: int, whole: bool) -> None:
    predict = import_module("harness.explain.replay.predict")  # the package has a function of that name
    monkeypatch.setattr(predict, "in_order", lambda *_: None)
    monkeypatch.setattr(predict, "simulate", lambda *_: "simulated")
    run: Any = SimpleNamespace(fills_its_queue=True, measured=np.ones(steps, dtype=np.bool_))
    assert (predict._in_order(run) is not None) is whole


def synthetic_run(steps: int = 8) -> RunData:
    return build([Arm("text")], blocks=1, repetitions=1, steps=steps)[1][0]


def test_a_run_is_replayed_sixteen_times_and_parts_of_a_long_one_are_removed_in_four_stretches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Replays([synthetic_run()])._runs[0].offsets.shape == (16, 1)
    shapes: list[int] = []

    def replayed(makes: list[Any], offsets: Any, *_: Any, **__: Any) -> list[Any]:
        shapes.append(len(offsets))
        return [SimpleNamespace(step_ms=np.ones(1))] * len(makes)

    monkeypatch.setattr(attribution, "consistent", replayed)
    attribution.removals([(recording.record(synthetic_run(501)), costs.Stretch())])
    assert shapes == [4]


def test_a_short_phase_is_not_removed_and_an_assumed_hand_over_may_last_three_times_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = recording.record(synthetic_run())
    spent = {"log": 0.9e-3 * found.measured_ms, "forward": 1.1e-3 * found.measured_ms}
    monkeypatch.setattr(attribution, "_lasting", lambda *_: spent)
    assert [name for (kind, name), _ in attribution._parts(found) if kind == "phase"] == ["forward"]
    count = len(found.batches)
    made = replace(
        found.batches,
        assumed=(batches.AssumedCost("hand-over", 1.0),),
        handover=np.full(count, 10.0),
        most_handover=np.full(count, np.inf),
    )
    longest = replace(found, batches=made).all_readings[recording.LONGEST]
    assert longest.batches.handover.tolist() == [30.0] * count
