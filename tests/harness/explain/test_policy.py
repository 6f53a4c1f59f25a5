"""Guards the numbers of ``explain.policy`` that no test of a whole study reaches: each sits at its edge here."""

from __future__ import annotations

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
from tests.harness.synthetic import Arm, build


@pytest.mark.parametrize(
    ("shares", "bound"),
    [
        (BoundShares(data=0.06, host=0.0, launch=0.0, room=0.0), "data"),
        (BoundShares(data=0.04, host=0.0, launch=0.0, room=0.0), "balanced"),
        (BoundShares(data=0.06, host=0.2, launch=0.0, room=0.0, loader=0.91), "data"),
        (BoundShares(data=0.06, host=0.2, launch=0.0, room=0.0, loader=0.89), "host"),
    ],
)
def test_a_limit_needs_a_share_of_the_step(shares: BoundShares, bound: str) -> None:
    assert shares.bound == bound


@pytest.mark.parametrize(("rows", "freed"), [(1_000_000, False), (1_000_001, True)])
def test_spans_of_a_long_run_are_freed(monkeypatch: pytest.MonkeyPatch, rows: int, freed: bool) -> None:
    forgotten: list[str] = []
    run: Any = SimpleNamespace(knows=lambda _: True, forget=forgotten.append)
    monkeypatch.setattr(exposure, "spans_of", lambda _: SimpleNamespace(rows=rows))
    exposure.release(run)
    assert bool(forgotten) is freed


def table_of(batch: int, role: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"role": [role], "rank": [0], "name": ["read"], "batch": [batch], "start_ns": [1], "end_ns": [2], "cpu_ns": [1]}
    )


@pytest.mark.parametrize(("role", "batch", "kept"), [("loader-3", 2**20 - 1, True), ("loader-3", 2**20, False)])
def test_makers_of_so_many_batches_are_kept(role: str, batch: int, kept: bool) -> None:
    assert bool(len(spans.read_spans([table_of(batch, role)]).makers)) is kept


@pytest.mark.parametrize(("role", "worker"), [("loader-9999", 9999), ("loader-10000", spans.NO_WORKER)])
def test_a_large_number_of_a_worker_is_a_damaged_record(role: str, worker: int) -> None:
    found = spans.read_spans([table_of(0, role)]).makers
    assert (int(found[0]) if len(found) else spans.NO_WORKER) == worker


@pytest.mark.parametrize(
    ("last", "diverged"), [(5.9, False), (6.1, True), (float("nan"), True)]
)  # of a loss that began at 3
def test_a_loss_that_doubled_has_diverged(last: float, diverged: bool) -> None:
    assert ledger._diverged(np.array([3.0] * 10 + [last] * 10)) is diverged


def test_a_small_loss_that_doubled_has_not_diverged() -> None:
    assert ledger._diverged(np.array([0.3] * 10 + [1.2] * 10)) is False
    assert ledger._diverged(np.array([0.3] * 10 + [1.4] * 10)) is True


def test_losses_are_compared_by_their_last_ten_steps() -> None:
    steps = np.arange(100)
    one, other = (
        SimpleNamespace(by_step=lambda losses=losses: (steps, losses)) for losses in (steps * 1.0, steps * 2.0)
    )
    assert ledger.at_common_steps(one, other) == (94.5, 189.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("above_ns", "found"), [(9, False), (11, True)])
def test_exposed_stages_above_their_work_are_no_split(above_ns: int, found: bool) -> None:
    exposed = np.zeros((1, len(STAGES)), dtype=np.int64)
    exposed[0, TRANSFER] = above_ns
    times: Any = SimpleNamespace(work=np.zeros_like(exposed))
    batch = SimpleNamespace(handover=np.zeros(1), usable=np.ones(1, dtype=np.bool_))
    run: Any = SimpleNamespace(measured=np.ones(1, dtype=np.bool_), wall_ns=np.array([1000.0]), batches=batch)
    assert derived._above_work(exposed, times, run) is found


def test_of_many_steps_a_hundred_thousand_are_drawn() -> None:
    assert sum(map(len, unusual_steps._drawn([np.ones(200_000)], 200_000))) == 100_000


@pytest.mark.parametrize(("collected_ms", "kinds"), [(199.0, {"code", "gc"}), (201.0, {"gc"})])
def test_a_place_only_collects_if_collections_take_twice_its_own_time(collected_ms: float, kinds: set[str]) -> None:
    rows = [
        {"kind": "code", "place": "a.py:1", "spent_ms": 100.0},
        {"kind": "gc", "place": "a.py:1", "spent_ms": collected_ms},
    ]
    facts: Any = SimpleNamespace(causes=rows)
    assert {one.kind for one in wall.slow_causes([facts])} == kinds


@pytest.mark.parametrize(("cpu_ns", "found"), [(60.0, 50.0), (40.0, 100.0)])
def test_cpu_time_gives_the_length_of_a_stage_that_mostly_computes(cpu_ns: float, found: float) -> None:
    clean, known = np.array([True, False]), np.array([True, True])
    wall, cpu = np.array([100.0, 900.0]), np.array([cpu_ns, cpu_ns / 2])
    mended = batches._mended(wall, cpu, clean, known, np.array([0, 0]))
    assert mended[1] == pytest.approx(found)


@pytest.mark.parametrize(("longer_ns", "found"), [(49.0, {}), (51.0, {2: 51.0})])
def test_a_step_is_held_up_by_half_of_its_work(longer_ns: float, found: dict[int, float]) -> None:
    event = SimpleNamespace(kind="host", duration=np.array([100.0, 100.0 + longer_ns]))
    one: Any = SimpleNamespace(steps=np.array([0, 1]), events=(event,))
    held = recording._held_up_ns([one], np.array([True, False]), np.array([False, True]))
    assert held == pytest.approx(found)


@pytest.mark.parametrize(("off", "within"), [(0.049, True), (0.051, False)])
def test_a_replay_that_is_off_predicts_nothing(off: float, within: bool) -> None:
    assert prediction.ReplayValidation({0: off}, {0: -off}).within_tolerance is within


@pytest.mark.parametrize(("share", "worth"), [(0.009, False), (0.011, True)])
def test_lead_that_is_worth_saying(share: float, worth: bool) -> None:
    assert LeadUse(share, share / 2, share * 2, 5).is_worth_saying is worth


def test_a_step_without_a_kernel_keeps_a_thousandth() -> None:
    event = SimpleNamespace(kind="launch", name="forward", phase="forward", duration=np.array([2e9]))
    one = SimpleNamespace(steps=np.array([0]), events=(event,))
    run: Any = SimpleNamespace(
        busy_workers=0, behind_full_queue=frozenset({"forward"}), classes=(one,), measured=np.array([True])
    )
    assert attribution._otherwise_ms(run, ("kernel", "forward"), 1000.0, 900.0) == pytest.approx(1.0)


def test_the_queue_before_the_first_step_is_cut() -> None:
    moments = np.arange(6001, dtype=np.int64)
    pieces = spans.Spans(np.zeros(6001, dtype=np.int32), moments, moments, moments.astype(np.int32), np.zeros(6001))
    none = pieces.where(slice(0))
    run = spans.RunSpans(("x",), none, none, pieces, pieces, none, none, none)
    steps = bounds.Stretches(np.array([6000]), np.array([6001]))
    assert len(bounds._near(steps, run).kernels) == 5001


@pytest.mark.parametrize(("usual", "usual_ns"), [(3, 40.0), (2, 60.0)])
def test_a_quarter_of_the_steps_may_be_long(usual: int, usual_ns: float) -> None:
    """Long steps count as typical ones; if they are more, none is an exception."""
    assert unusual_steps.without_long(np.array([10.0] * usual + [40.0])).sum() == usual_ns


@pytest.mark.parametrize(("apart", "alike"), [(0.069, True), (0.071, False)])
def test_runs_of_a_kind_are_nearly_equal(apart: float, alike: bool) -> None:
    typical = [np.float64(one) for one in (0.0, apart, 1.0, 1.0)]
    assert unusual_steps._alike(typical, 0.5, 1.0) is alike


@pytest.mark.parametrize(("recorded", "steps"), [(5_000, 5_000), (5_001, 5_000)])
def test_a_long_run_is_replayed_in_part(recorded: int, steps: int) -> None:
    _, (run,) = build([Arm("text")], blocks=1, repetitions=1, steps=recorded)
    assert int(recording.record(run).measured.sum()) == steps


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


@pytest.mark.parametrize(("arrived", "recorded"), [(2, False), (3, True)])
def test_arrivals_are_recorded_if_three_are(arrived: int, recorded: bool) -> None:
    moments = np.where(np.arange(8) < arrived, 1.0, np.nan)
    seen: Any = SimpleNamespace(measured=np.ones(8, dtype=np.bool_), arrived=moments)
    assert batches.arrivals_recorded(seen) is recorded


@pytest.mark.parametrize(("asked_ns", "receive_ns"), [(25.0, 1000.0), (15.0, 7.5)])
def test_a_batch_that_ended_two_hand_overs_before_its_fetch_lay_ready(asked_ns: float, receive_ns: float) -> None:
    zeros, known, unknown = np.zeros(8), np.ones(8, dtype=np.bool_), np.full(8, np.nan)
    waits = (zeros + asked_ns, zeros + asked_ns + 1000.0, known, ())
    seen = batches.Seen(zeros, zeros, known, *waits, unknown, unknown, ~known)
    parts, _ = batches._estimated(seen, 0, 10.0, 0.0)
    assert parts["receive"].tolist() == [receive_ns] * 8


@pytest.mark.parametrize(("steps", "kept"), [(48, 48), (47, 44)])
def test_a_tape_holds_four_rounds_and_nine_tenths_of_the_steps(steps: int, kept: int) -> None:
    """Of 47 steps a period of 12 has three rounds, and one of 6 leaves out a ninth."""
    assert len(pipeline._in_rounds(np.arange(steps), np.arange(steps), 1, 1, 1)) == kept


@pytest.mark.parametrize(("steps", "whole"), [(500, True), (501, False)])
def test_a_prediction_in_order_has_so_many_steps(monkeypatch: pytest.MonkeyPatch, steps: int, whole: bool) -> None:
    predict = import_module("harness.explain.replay.predict")  # the package has a function of that name
    monkeypatch.setattr(predict, "in_order", lambda *_: None)
    monkeypatch.setattr(predict, "simulate", lambda *_: "simulated")
    run: Any = SimpleNamespace(fills_its_queue=True, measured=np.ones(steps, dtype=np.bool_))
    assert (predict._in_order(run) is not None) is whole


def test_a_run_is_replayed_sixteen_times() -> None:
    _, runs = build([Arm("text")], blocks=1, repetitions=1, steps=8)
    assert Replays(runs)._runs[0].offsets.shape == (16, 1)


def test_of_a_long_run_parts_are_removed_in_four_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[int] = []

    def replayed(makes: list[Any], offsets: Any, *_: Any, **__: Any) -> list[Any]:
        shapes.append(len(offsets))
        return [SimpleNamespace(step_ms=np.ones(1))] * len(makes)

    monkeypatch.setattr(attribution, "consistent", replayed)
    _, (run,) = build([Arm("text")], blocks=1, repetitions=1, steps=501)
    attribution.removals([(recording.record(run), costs.Stretch())])
    assert shapes == [4]


def test_a_phase_under_a_thousandth_of_the_step_is_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    _, (run,) = build([Arm("text")], blocks=1, repetitions=1, steps=8)
    found = recording.record(run)
    spent = {"log": 0.9e-3 * found.measured_ms, "forward": 1.1e-3 * found.measured_ms}
    monkeypatch.setattr(attribution, "_lasting", lambda *_: spent)
    assert [name for (kind, name), _ in attribution._parts(found) if kind == "phase"] == ["forward"]


def test_an_interval_allows_for_three_times_an_assumed_hand_over() -> None:
    _, (run,) = build([Arm("text")], blocks=1, repetitions=1, steps=8)
    found = recording.record(run)
    count = len(found.batches)
    made = replace(
        found.batches,
        assumed=(batches.AssumedCost("hand-over", 1.0),),
        handover=np.full(count, 10.0),
        most_handover=np.full(count, np.inf),
    )
    longest = replace(found, batches=made).all_readings[recording.LONGEST]
    assert longest.batches.handover.tolist() == [30.0] * count
