"""Predictions: what is known in closed form, intervals, validation errors, reasons and assumptions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from harness.explain.replay import Prediction, Replays, parse_edits, predict, replace_data
from harness.explain.replay.prediction import Assumption, ReplayValidation
from harness.show.dose import assumption_lines
from harness.study.run_data import RunData
from tests.harness.explain.replay import oracle
from tests.harness.explain.replay.oracle import Truth
from trainer.errors import InputError

# On the host alone, nothing hidden: a step is data + 10 ms.
SERIAL = Truth(
    asynchronous=False, workers=0, read=0.0, pack=0.0, remainder=0.0, gap=0.0, jitter=0.0, log_every=1000, sync=False,
    host={"h2d": 0.0, "forward": 3.0, "backward": 5.0, "optimizer": 1.0, "sync": 0.0, "log": 0.0},
)  # fmt: skip
COMPUTE_MS = 10.0


def ask(truth: Truth, *texts: str) -> Prediction:
    return predict([oracle.run(truth)], parse_edits(texts))


def with_stage(run: RunData, name: str, milliseconds: np.ndarray) -> RunData:
    """``run`` (inline, serial) with other durations of one stage, every later time moved along."""
    steps, spans = run.steps.to_pydict(), run.spans.to_pydict()
    rows = [
        i
        for i, (role, what) in enumerate(zip(spans["role"], spans["name"], strict=True))
        if (role, what) == ("main", name)
    ]
    assert len(rows) == len(milliseconds)
    starts = np.array([spans["start_ns"][i] for i in rows])
    change = np.array(
        [
            round(ms * 1e6) - (spans["end_ns"][i] - spans["start_ns"][i])
            for i, ms in zip(rows, milliseconds, strict=True)
        ]
    )
    moved = np.concatenate([[0], np.cumsum(change)])

    def at(time: int) -> int:
        return int(time + moved[np.searchsorted(starts, time, side="left")])

    ends = [at(start + wall) for start, wall in zip(steps["start_ns"], steps["wall_ns"], strict=True)]
    steps["start_ns"] = [at(time) for time in steps["start_ns"]]
    steps["wall_ns"] = [end - start for start, end in zip(steps["start_ns"], ends, strict=True)]
    for column in ("start_ns", "end_ns"):
        spans[column] = [at(time) for time in spans[column]]
    return replace(run, steps=pa.table(steps, schema=run.steps.schema), spans=pa.table(spans, schema=run.spans.schema))


@pytest.mark.parametrize(("ranks", "log_every"), [(2, 7), (16, 5)])
def test_every_step_waits_for_the_slowest_rank(ranks: int, log_every: int) -> None:
    """The mean of the largest of N uniform draws from [a, b] is a + (b - a) N / (N + 1). Of 400 steps of which every
    seventh logs there is one place alone from which each meets its own kind: where all ranks began there, none waited
    for another."""
    truth = SERIAL.having(tokenize=1.0, spread=0.0, steps=400, warmup=0, log_every=log_every)
    run = oracle.run(truth)
    draws = np.random.default_rng(7).permutation(np.linspace(2.0, 12.0, run.steps.num_rows))
    found = predict([with_stage(run, "tokenize", draws)], parse_edits([f"ranks={ranks}"]))
    assert found.step_ms.median == pytest.approx(COMPUTE_MS + 2 + 10 * ranks / (ranks + 1), rel=0.01)
    assert found.tokens_per_s.median == pytest.approx(ranks * 128 * 1e3 / found.step_ms.median, rel=0.01)


@pytest.mark.parametrize(
    ("text", "step_ms"),
    [
        ("tokenize=0", 10.0),
        ("tokenize=0.5x", 12.0),
        ("tokenize=7ms", 17.0),
        ("device=2x", 9.0),
        ("device=0.5x", 24.0),
        ("batch_size=4", 2 * (4 + 8) + 2),  # the optimizer's two phases of 1 ms do not grow
        ("batch_size=1", (4 + 8) / 2 + 2),
        ("transfer=3ms", 17.0),
        ("sync=off", 14.0),
        ("cores=1", 14.0),
        ("workers=1", 10.0 + 2.025),  # hidden, but for the assumed cost of receiving three tensors
    ],
)
def test_serial_work_adds_up(text: str, step_ms: float) -> None:
    assert ask(SERIAL.having(spread=0.0, steps=20), text).step_ms.median == pytest.approx(step_ms, abs=0.01)


def test_the_rows_of_a_batch_are_counted_where_no_configuration_says_them() -> None:
    run = oracle.run(SERIAL.having(spread=0.0))
    config = {**run.record.config, "data": {"workers": 0, "prefetch": 2}}
    samples = pa.array([2] * run.steps.num_rows, run.steps.schema.field("samples").type)
    place = run.steps.schema.get_field_index("samples")
    steps = run.steps.set_column(place, run.steps.schema.field(place), samples)
    counted = replace(run, record=replace(run.record, config=config), steps=steps)
    as_it_is, twice = (predict([counted], parse_edits([f"batch_size={rows}"])).step_ms.median for rows in (2, 4))
    assert as_it_is == pytest.approx(14.0, abs=0.01)
    assert twice == pytest.approx(2 * (4 + 8) + 2, abs=0.01)


def test_an_interval_holds_what_the_edited_replay_is_off_if_it_is_off_as_the_unedited_one() -> None:
    """One batch in 50 takes 400 ms longer: drawn again, it comes up more often or less often than it did."""
    truth = SERIAL.having(workers=2, prefetch=2, pattern=(1.0,) * 49 + (100.0,), spread=0.0, steps=200, warmup=10)
    found = predict([oracle.run(truth, block=block) for block in range(3)], parse_edits(["prefetch=4"]))
    assert found.speedup.median == pytest.approx(1 / found.ratio.median, rel=1e-9)
    corrected = found.step_ms.median / (1 + found.validation.resampled_median)
    assert found.step_ms.ci_low <= corrected * 1.001
    assert corrected <= found.step_ms.ci_high * 1.001


def test_long_documents_stay_together_when_batches_grow() -> None:
    """Jointly: a batch of twice the size is two consecutive ones, so that its spread is what theirs adds up to."""
    truth = SERIAL.having(tokenize=6.0, spread=0.0, steps=400, warmup=0)
    run = oracle.run(truth)
    long = np.arange(run.steps.num_rows) // 4 % 2 * 10.0 + 1.0  # four short ones, four long ones, ...
    found = predict([with_stage(run, "tokenize", long)], parse_edits(["batch_size=4", "ranks=2"]))
    # Two ranks at offsets of their own: short with short in a quarter of the steps, else the long one is waited for.
    assert found.step_ms.median == pytest.approx(2 * 8 + 2 + 0.25 * 2 + 0.75 * 22, rel=0.08)


def test_a_device_bound_step_hides_data_up_to_the_slack() -> None:
    """The host blocks on the gradient norm, then fetches while the optimizer runs for 8 ms."""
    kernels = {"h2d": 0.0, "forward": 4.0, "backward": 8.0, "norm": 0.0, "optimizer": 8.0}
    host = dict.fromkeys(SERIAL.host, 0.001)
    truth = SERIAL.having(asynchronous=True, sync=True, latency=0.0, device=kernels, host=host, spread=0.0, steps=60)
    assert ask(truth, "tokenize=7.9ms").step_ms.median == pytest.approx(20.0, abs=0.04)
    exposed = ask(truth, "tokenize=11ms")
    assert exposed.step_ms.median == pytest.approx(23.0, abs=0.04)
    assert exposed.waits_ms == pytest.approx({"read": 0, "tokenize": 3.0, "pack": 0, "transfer": 0}, abs=0.04)
    assert exposed.starved_ms == pytest.approx(3.0, abs=0.04)
    assert ask(truth, "tokenize=11ms", "sync=off").step_ms.median == pytest.approx(20.0, abs=0.3)


@pytest.mark.parametrize(("slice_steps", "edit"), [(4, "sync=off"), (4, "sync=late"), (20, "sync=off")])
def test_a_host_that_runs_ahead_does_so_in_slices_of_any_length(slice_steps: int, edit: str) -> None:
    """It was predicted to find an empty device in each slice: 18.7 ms in slices of 4, where steps took 16."""
    device = {"h2d": 0.0, "forward": 5.0, "backward": 8.0, "norm": 0.5, "optimizer": 2.5}
    truth = Truth(workers=0, tokenize=3.0, device=device, log_every=1000, spread=0.1, warmup=3, steps=slice_steps * 8)
    off = oracle.run(truth.having(sync=False, late=edit == "sync=late", steps=200))
    found = ask(truth.having(repetitions=8), edit)
    assert found.measured_ms.median > 1.1 * oracle.step_ms(off)
    assert found.step_ms.median == pytest.approx(oracle.step_ms(off), rel=0.015)


def test_what_the_step_waits_for_is_told_by_stage() -> None:
    found = ask(SERIAL.having(read=1.0, tokenize=4.0, pack=0.5, remainder=0.25, spread=0.0), "tokenize=0.5x")
    assert found.was_waits_ms == pytest.approx({"read": 1, "tokenize": 4, "pack": 0.5, "transfer": 0.25}, abs=1e-3)
    assert found.waits_ms == pytest.approx({"read": 1, "tokenize": 2, "pack": 0.5, "transfer": 0.25}, abs=1e-3)
    assert found.starved_ms is None


def test_three_blocks_give_an_interval_over_blocks_and_fewer_one_over_replicates() -> None:
    runs = [oracle.run(SERIAL.having(seed=block, tokenize=4.0 + block), block=block) for block in range(3)]
    many, few = predict(runs, parse_edits(["tokenize=0.5x"])), predict(runs[:2], parse_edits(["tokenize=0.5x"]))
    assert (many.interval_from, few.interval_from) == ("blocks", "replicates")
    assert sorted(many.block_ms) == [0, 1, 2]
    assert many.step_ms.median == pytest.approx(np.median(list(many.block_ms.values())))
    for found in (many, few):
        assert found.step_ms.ci_low < found.step_ms.median < found.step_ms.ci_high
    assert many.speedup.median == pytest.approx(1 / many.ratio.median)


def test_a_replay_that_cannot_repeat_the_past_has_no_licence() -> None:
    run = oracle.run(SERIAL)
    assert ask(SERIAL, "tokenize=0").validation.within_tolerance
    index = run.steps.column_names.index("wall_ns")
    longer = pa.array([round(wall * 1.0) + 2_000_000 for wall in run.steps.column("wall_ns").to_pylist()], pa.int64())
    starts = pa.array([start + 2_000_000 * row for row, start in enumerate(run.steps.column("start_ns").to_pylist())])
    # Steps that claim to be longer than what their spans account for, and do not touch one another.
    torn = replace(run, steps=run.steps.set_column(index, "wall_ns", longer).set_column(3, "start_ns", starts))
    assert not predict([torn], parse_edits(["tokenize=0"])).validation.within_tolerance


def test_a_seed_makes_predictions_repeat_themselves() -> None:
    run = oracle.run(Truth(workers=2, steps=20))
    again = replace(run)
    Replays([again], 8)  # advice asks with fewer replicates
    first, second = (predict([one], parse_edits(["ranks=4"])) for one in (run, again))
    assert first == second


SAID = [
    (SERIAL, "workers=1", "0.9 ms for each of its 3 tensors"),
    (Truth(), "workers=0", "with no hand-over"),
    (SERIAL, "batch_size=4", "gradient norm and optimizer do not"),
    (Truth(), "device=2x", "all work on the device changes speed alike"),
    (SERIAL, "device=2x", "forward, backward and optimizer are all of it"),
    (SERIAL, "sync=off", "there is no queue to wait for"),
    (Truth(), "sync=off", "queue is assumed to be deep enough"),
    (SERIAL, "ranks=4", "the communication itself takes no time"),
    (Truth(), "cores=1", "shared fairly among 1 compute threads and 1 workers"),
    (SERIAL, "prefetch=4", "no effect without workers"),
]


def test_what_is_taken_for_granted_is_reported() -> None:
    runs = {id(truth): oracle.run(truth.having(steps=10)) for truth, *_ in SAID}
    for truth, text, says in SAID:
        edited, other = (predict([runs[id(truth)]], parse_edits([one])).assumptions for one in (text, "read=0"))
        assert any(says in line for line in assumption_lines(edited)), text
        assert not any(says in line for line in assumption_lines(other)), text


def test_costs_that_were_not_observed_are_reported_with_their_figure() -> None:
    found = assumption_lines(
        [Assumption("receive not observed", cost_ms=1.52), Assumption("hand-over not observed", cost_ms=0.5)]
    )
    assert found == [
        "no batch was ready early: receiving one is assumed to cost 1.5 ms, and intervals cover from nothing to a "
        "whole hand-over",
        "no batch was awaited: its hand-over is assumed to take 0.5 ms, and intervals cover from the time of "
        "receiving the batch to 3 times the assumed time, as far as the recorded order allows",
    ]


def test_fewer_cores_stretch_what_the_workers_hide() -> None:
    """One always busy worker beside a busy main thread: on one core each takes twice as long."""
    truth = SERIAL.having(workers=1, tokenize=9.0, spread=0.0, handover=0.0, receive=0.0, after=0.0, wake=0.0)
    assert ask(truth, "cores=2").step_ms.median == pytest.approx(10.0, abs=0.01)
    assert 17 < ask(truth, "cores=1").step_ms.median < 20


def test_no_pair_of_blocks_and_too_many_batches_in_flight_are_input_errors() -> None:
    with pytest.raises(InputError, match="no block has both"):
        replace_data([oracle.run(SERIAL, block=0)], [oracle.run(SERIAL, block=1)])
    with pytest.raises(InputError, match="no run of this arm"):
        Replays([])
    with pytest.raises(InputError, match="workers x prefetch is 262144; at most 4096"):
        ask(SERIAL.having(steps=10), "workers=256", "prefetch=1024")


def test_a_replay_is_judged_by_how_far_each_run_is_off() -> None:
    odd = ReplayValidation({0: 0.01, 1: -0.04, 2: 0.02}, {0: 0.0})
    assert (odd.median, odd.worst) == (0.01, -0.04)
    apart = ReplayValidation({0: 0.08, 1: -0.08}, {0: 0.01, 1: -0.01})  # errors of both signs do not make it right
    assert (apart.median, apart.typical) == (0.0, pytest.approx(0.08))
    assert not apart.within_tolerance
