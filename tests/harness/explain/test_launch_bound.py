"""Launch-bound work: the rule against brackets drawn by hand, and all figures of a CUDA run made up on paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from harness.explain.bounds import device_work, launch_bound_shares, per_step
from harness.explain.exposure import sync_audit
from harness.explain.ledger import RunLedger, derived_steps, measure
from harness.explain.policy import LAUNCH_TAIL_NS
from harness.explain.probes.torch_profile import ProfiledOperators, TorchProfile
from harness.explain.replay import parse_edits, predict
from harness.explain.replay.predict import Replays, unedited_error
from harness.explain.spans import COLUMNS, RunSpans, Stretches, begun_when_launched, read_spans
from harness.judge.probes.results import with_device_busy
from harness.judge.study import analyse
from harness.show.dose import assumption_lines
from harness.show.sentences import either_way
from harness.show.why import launch_bound_lines
from harness.study.contract import SPAN_COLUMNS, arrow_schema
from harness.study.records import ArmRecord, StudyRecord
from tests.cuda_stream import ANY_RUN, LAUNCH_BOUND, Declared, Recorded, record
from tests.examples import examples
from tests.harness.explain.by_hand import span
from tests.studies import unpacked

MS = 1_000_000
NO_DATA = [f"{stage}=0" for stage in ("read", "tokenize", "pack", "transfer")]


def drawn(*pieces: tuple[str, float, float, float, float], blocked: tuple[float, float] | None = None) -> RunSpans:
    """``pieces``: name, launching from and to, on the device from and to, in milliseconds."""
    rows = []
    for name, *times in pieces:
        begun, launched, start, end = (round(one * MS) for one in times)
        rows += [span("launch", name, begun, launched), span("device", name, start, end)]
    if blocked:
        rows.append(span("sync", "here", *(round(one * MS) for one in blocked)))
    table = pa.Table.from_pylist(rows, schema=arrow_schema(SPAN_COLUMNS))
    return begun_when_launched(read_spans(table.select(COLUMNS).to_batches()))


@pytest.mark.parametrize(
    ("piece", "bound", "known_from"),
    [
        (("forward", 0, 5, 0, 5.02), True, 5),  # ends with its launches
        (("forward", 0, 5, 0, 6), False, 5),  # works on after them: many kernels that it is behind with, or a long one
        (("forward", 0, 5, 4, 5.02), True, 5),  # behind at first, and done with the last launch
        (("forward", 0, 5, 5, 9), False, 5),  # all was queued when the device came to it
        (("forward", 0, 0, 0, 3), False, 0),  # one kernel
        (("forward", 0, 5, 0, 4.99), True, 4.99),  # the clocks are off by a little
    ],
)
def test_a_bracket_that_ends_with_its_launches(
    piece: tuple[str, float, float, float, float], bound: bool, known_from: float
) -> None:
    work = device_work(drawn(piece))
    assert work.launch_bound.tolist() == [bound]
    assert work.known_from.tolist() == [round(known_from * MS)]


def test_of_a_program_that_nobody_here_wrote_only_what_came_after_the_launches_is_surely_work() -> None:
    """It may compute on the host for 20 ms before its one launch, of a kernel of 4 ms, also where that blocks."""
    late = drawn(("h2d", 0, 20.1, 0, 24), ("forward", 21, 22, 24, 30), blocked=(19, 20))
    assert (device_work(late).known_from / MS).tolist() == [0, 24]
    work = device_work(late, attached=True)
    assert work.still_launching.tolist() == [True, False]  # the second was launched while the device was at the first
    assert (work.known_from / MS).tolist() == [20.1, 24]


def test_work_whose_launching_blocks_on_the_device_did_not_wait_for_launches() -> None:
    assert device_work(drawn(("h2d", 0, 5, 0, 5), blocked=(1, 5))).launch_bound.tolist() == [False]
    behind = device_work(drawn(("h2d", 0, 5, 0, 5), blocked=(5, 9)))
    assert behind.launch_bound.tolist() == [True]
    unannounced = device_work(drawn(("h2d", 0, 5, 0, 5), blocked=(2, 2)))  # it blocks, nobody knows for how long
    assert (unannounced.launch_bound.tolist(), unannounced.still_launching.tolist()) == ([False], [True])


def test_short_launching_that_adds_up_is_no_work() -> None:
    """32 pieces of 80 us a step, launched all the while: one of them makes no difference, all of them are the step."""
    pieces = [("forward", 0.1 * k, 0.1 * k + 0.08, 0.1 * k, 0.1 * k + 0.085) for k in range(32)]
    assert device_work(drawn(*pieces)).launch_bound.all()
    turns = [
        (name, *(one + (1000 if since >= 1.6 else 0) for one in (since, *times))) for name, since, *times in pieces
    ]
    assert device_work(drawn(*turns)).launch_bound.all()  # whatever others do between two turns of an arm
    few = [("forward", 0, 0.08, 0, 0.085), ("backward", 0.1, 0.1, 0.1, 10)]
    assert device_work(drawn(*few)).launch_bound.tolist() == [False, False]


def test_nothing_runs_before_it_is_launched() -> None:
    """An event that counts as reached when the work before it was done: 6 ms of fetching are no work."""
    work = device_work(drawn(("optimizer", 0, 1, 0, 3), ("h2d", 9, 9.01, 3, 9.02)))
    assert (work.starts / MS).tolist() == [0, 9]


def test_what_is_open_within_steps_and_how_often() -> None:
    first = [("forward", 0, 5, 0, 5), ("backward", 5, 8, 5, 12)]
    spans = drawn(*first, ("forward", 20, 25, 20, 28), ("norm", 29, 30, 29, 30))
    steps = Stretches(*(pa.array(column).to_numpy() * MS for column in ([0, 4, 20], [4, 20, 30])))
    work = device_work(spans)
    assert (per_step(steps, work.open) / MS).tolist() == [4, 4, 6]
    assert (per_step(steps, work.launch_bound_open) / MS).tolist() == [4, 1, 1]
    whole = Stretches(*(pa.array(column).to_numpy() * MS for column in ([0, 20], [20, 30])))
    assert launch_bound_shares(whole, work, spans.names) == {"norm": 1.0, "forward": 0.5}
    apart = Stretches(*(pa.array(column).to_numpy() * MS for column in ([20, 40], [28, 50])))  # norm: between steps
    assert launch_bound_shares(apart, work, spans.names) == {}


AT_NIGHT = (pytest.mark.slow, pytest.mark.nightly)
VARIANTS = [
    {}, {"early": True, "check_finite": False}, pytest.param({"early": True}, marks=AT_NIGHT),
    pytest.param({"check_finite": False}, marks=AT_NIGHT), pytest.param({"drift": 40e-6}, marks=AT_NIGHT),
]  # fmt: skip


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def launch_bound(request: pytest.FixtureRequest) -> Recorded:
    return record(replace(LAUNCH_BOUND, **request.param))


def ledger_of(recorded: Recorded) -> RunLedger:
    return measure(recorded.run)


def test_busy_is_unknown_idle_known_in_part_and_the_bound_is_launching(launch_bound: Recorded) -> None:
    found = ledger_of(launch_bound)
    assert found.mean_step_ms == pytest.approx(22, abs=0.1)
    assert launch_bound.busy_ms == pytest.approx(5, abs=0.1)
    assert found.device_busy_ms is None
    assert found.device_starved_ms == pytest.approx(6, abs=0.3)
    assert found.starved_ms["tokenize"] == pytest.approx(6, abs=0.1)
    assert found.device_launch_bound_ms == pytest.approx(16, abs=0.3)
    assert found.launch_bound == dict.fromkeys(("forward", "backward", "norm", "optimizer"), 1.0)
    assert found.bound == "launch"
    assert found.bound_shares.data == pytest.approx(6 / 22, abs=0.01)
    steps = derived_steps(launch_bound.run).table
    assert steps.column("device_busy_ns").null_count == len(steps)


def test_launching_counts_neither_as_hidden_nor_as_idle(launch_bound: Recorded) -> None:
    """After a blocking call the host launches for 16 ms and fetches for 6; only the 6 ms are known to be idle."""
    calls = sync_audit(launch_bound.run)
    assert calls
    assert sum(call.hid_ms for call in calls) < 0.1
    idle_ms = [call.idle_ms for call in calls if call.site.endswith("value of the gradient norm")]
    assert idle_ms == ([pytest.approx(6, abs=0.4)] if launch_bound.run.record.config["compute"]["check_finite"] else [])


def test_replay_moves_the_launches_forward(launch_bound: Recorded) -> None:
    """Against the same stream, really run without its data work: 22.05 / 16.05 ms."""
    without = predict([launch_bound.run], parse_edits(NO_DATA))
    assert abs(unedited_error(launch_bound.run)) < 0.005
    assert without.speedup.median == pytest.approx(1.374, abs=0.005)
    truth = ledger_of(record(replace(LAUNCH_BOUND, data_ms=0))).mean_step_ms
    assert without.step_ms.median == pytest.approx(truth, rel=0.005)
    (line,) = (one for one in assumption_lines(without.assumptions) if "launch" in one)
    assert line.startswith("while forward, backward, norm and optimizer were still being launched")
    assert "longer" not in line


def test_another_device_speed_is_known_in_part() -> None:
    """A faster device changes nothing, as it waits. 2 ms of launching beside 300 ms of data may be all its work."""
    faster = predict([record(LAUNCH_BOUND).run], parse_edits(["device=4x"]))
    assert faster.speedup.median == pytest.approx(1, abs=0.01)
    assert any("may take longer than this" in one for one in assumption_lines(faster.assumptions))
    kernels = {name: (max(1, count // 10), 25.0, 7.8) for name, (count, *_) in LAUNCH_BOUND.kernels.items()}
    slower = predict([record(Declared(kernels, data_ms=300)).run], parse_edits([*NO_DATA, "device=0.2x"])).step_ms
    longer = {name: (count, 25.0, 5 * 7.8) for name, (count, *_) in kernels.items()}
    truth = ledger_of(record(Declared(longer, data_ms=0))).mean_step_ms
    assert slower.median < truth < slower.ci_high


def test_the_same_launches_before_longer_kernels_are_no_launch_bound_work() -> None:
    """60 us of work for each 25 us of launching: the device falls behind, and little is open."""
    kernels = {name: (count, 25.0, 60.0) for name, (count, *_) in LAUNCH_BOUND.kernels.items()}
    kernels["optimizer"] = (50, 25.0, 300.0)  # the host fetches meanwhile
    recorded = record(Declared(kernels, data_ms=6))
    found = ledger_of(recorded)
    assert found.device_starved_ms == pytest.approx(found.mean_step_ms - recorded.busy_ms, abs=0.1)
    assert found.device_open_ms < 0.03 * found.mean_step_ms
    assert found.launch_bound == {}
    assert found.bound == "device"
    without = predict([recorded.run], parse_edits(NO_DATA))
    assert without.speedup.median == pytest.approx(1, abs=0.01)
    assert without.speedup.ci_high < 1.03
    (unknown,) = (one for one in without.assumptions if one.kind == "busy not known")
    assert unknown.names == ("optimizer",)  # it follows the norm, which the host waits for


def test_brackets_with_a_long_last_kernel_are_held_to_be_either() -> None:
    """400 kernels of 7.8 us, launched every 25 us, and one of 1 ms: the device waits for two thirds of the bracket, and
    ends it well after its last launch, as one would that is behind."""
    declared = Declared(
        {"h2d": (1, 25, 7.8), "forward": (160, 25, 7.8), "backward": (200, 25, 7.8), "norm": (4, 25, 7.8)}
        | {"optimizer": (40, 25, 7.8)},
        data_ms=0.8,
        last_us={"forward": 1000, "backward": 1000, "optimizer": 1000},
    )
    recorded = record(declared)
    found, truth = ledger_of(recorded), ledger_of(record(replace(declared, data_ms=0)))
    assert found.bound == "device or launch"
    assert found.device_busy_ms is None
    without = predict([recorded.run], parse_edits(NO_DATA))
    assert without.step_ms.ci_low <= truth.mean_step_ms * 1.005
    assert truth.mean_step_ms <= without.step_ms.ci_high * 1.005
    assert without.step_ms.ci_low < 0.99 * without.step_ms.ci_high
    study = StudyRecord(scenario="on-paper", question="?", status="done", arms=[ArmRecord("cuda")])
    report = analyse(study, [recorded.run])
    (arm,) = report.arms
    (line,) = launch_bound_lines([arm])
    assert "at phases that the host was still launching, and ended them later" in line
    unknown = either_way(arm.totals.waited_range_ms, found.mean_step_ms)
    assert unknown.startswith("A step waits between ")
    assert unknown in line
    (known,) = with_device_busy(report, [profiled("cuda", recorded.busy_ms)]).arms
    assert known.totals.bound == "launch"
    assert launch_bound_lines([known]) == []


def test_blocks_with_different_likely_readings_are_held_by_the_same_one() -> None:
    """One block is taken for waiting and the other for working: all waiting, and all working, must lie within."""
    short = {name: (count, 25.0, 7.8) for name, (count, *_) in LAUNCH_BOUND.kernels.items()}
    runs = []
    for block, last_us in enumerate(({}, {"forward": 1000.0, "backward": 1000.0, "optimizer": 1000.0})):
        run = record(Declared(short, data_ms=6, last_us=last_us)).run
        runs.append(replace(run, record=replace(run.record, block=block)))
    replays = Replays(runs)
    alone = [[one.recording for one in reading] for reading in replays._by_reading]
    assert len(alone) == 3  # likely, waiting, working
    for reading, name in zip(alone[1:], ("waiting", "working"), strict=True):
        for one, likely in zip(reading, alone[0], strict=True):
            classes, step_class = likely.other_classes.get(name, (likely.classes, likely.step_class))
            assert one.classes is classes
            assert one.step_class is step_class


@pytest.mark.slow
@pytest.mark.nightly
def test_each_reading_of_a_real_device_has_classes_of_its_own_for_the_steps(tmp_path: Path) -> None:
    """Of an H200 whose host blocks at times: which steps are alike depends on the reading."""
    run = next(run for run in unpacked("h200-8b", tmp_path).runs() if run.record.control is None)
    readings = Replays([run])._by_reading
    assert len(readings) > 2
    for reading in readings:
        for one in reading:
            recording = one.recording
            assert set(recording.step_class.tolist()) == set(range(len(recording.classes)))
            for number, found in enumerate(recording.classes):
                assert np.flatnonzero(recording.step_class == number).tolist() == found.steps.tolist()


@examples(20, derandomize=True)
@given(*ANY_RUN)
def test_whatever_the_kernels_are_the_truth_lies_in_what_is_said(
    kernels: dict[str, tuple[int, float, float]], last_us: dict[str, float], data_ms: float, check_finite: bool
) -> None:
    """The stream is really run without its data work. Nothing but the record of the first run is known."""
    small = {"h2d": (1, 5.0, 5.0), "norm": (3, 5.0, 5.0)}
    declared = Declared(kernels | small, data_ms, last_us, check_finite, steps=40)
    recorded = record(declared)
    found, truth_ms = ledger_of(recorded), ledger_of(record(replace(declared, data_ms=0))).mean_step_ms
    # What is so short in a phase is taken as work. A host that runs ahead leaves its device a part of a step to do.
    close_ms = 4 * LAUNCH_TAIL_NS / MS + truth_ms / 40
    without = predict([recorded.run], parse_edits(NO_DATA)).step_ms
    assert without.ci_low - close_ms <= truth_ms <= without.ci_high + close_ms
    low, high = found.waited_range_ms or (found.waited_ms, found.waited_ms)
    assert low - close_ms <= found.mean_step_ms - truth_ms <= high + close_ms
    if found.bound == "device":
        assert recorded.busy_ms + close_ms > 0.9 * found.mean_step_ms
    if found.device_busy_ms is not None:
        assert abs(found.device_busy_ms - recorded.busy_ms) < close_ms + 0.01 * found.mean_step_ms


def profiled(arm: str, kernel_ms: float, steps: int = 10) -> TorchProfile:
    return TorchProfile(arm, ((0, 1, 1, steps),), ProfiledOperators((), (), kernel_ms * steps), (), {}, ())
