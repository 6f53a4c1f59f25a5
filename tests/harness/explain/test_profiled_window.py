"""Kernels of a profiled window close what events leave open: on a CUDA run made up on paper, whose truth is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from harness.explain.bounds import device_work_of, kernel_times_of
from harness.explain.ledger import RunLedger, measure
from harness.explain.probes.torch_profile import launched_work, read_events
from harness.explain.replay import parse_edits, predict
from harness.explain.spans import spans_of
from harness.judge.probes.results import ProfiledRun, probe_results, with_device_busy
from harness.judge.study import analyse
from harness.show.timeline.model import read_recorded
from harness.study.records import ArmRecord, StudyRecord
from harness.study.run_data import RunData
from tests.cuda_stream import ANY_RUN, LAUNCH_BOUND, Declared, Recorded, record
from tests.examples import examples
from tests.harness.show.timeline import tables
from tests.studies import unpacked

MS = 1_000_000
CLOSED = 0.05  # share of a step
NO_DATA = [f"{stage}=0" for stage in ("read", "tokenize", "pack", "transfer")]
SMALL = {"h2d": (1, 5.0, 5.0), "norm": (3, 5.0, 5.0)}
# The device waits in a phase for two thirds of it, and ends it well after its last launch.
LONG_LAST = Declared(
    SMALL | {"forward": (160, 25, 7.8), "backward": (200, 25, 7.8), "optimizer": (40, 25, 7.8)},
    data_ms=0.8,
    last_us={"forward": 1000, "backward": 1000, "optimizer": 1000},
)
SHAPES = {
    "launch-bound": LAUNCH_BOUND,
    "events that count early": replace(LAUNCH_BOUND, early=True),
    "without a check of the norm": replace(LAUNCH_BOUND, check_finite=False),
    "clocks that drift": replace(LAUNCH_BOUND, drift=40e-6),
    "a long last kernel": LONG_LAST,
    "a long last kernel, much data": replace(LONG_LAST, data_ms=6),
    "mixed": Declared(
        SMALL | {"forward": (250, 20, 6), "backward": (150, 20, 60), "optimizer": (50, 20, 12)}, data_ms=3
    ),
    "mixed, no check": Declared(
        SMALL | {"forward": (250, 20, 6), "backward": (150, 20, 60), "optimizer": (50, 20, 12)},
        data_ms=3,
        check_finite=False,
    ),
    "a full device": Declared(
        SMALL | {"forward": (200, 25, 60), "backward": (380, 25, 60), "optimizer": (50, 25, 300)}, data_ms=6
    ),
    "a CUDA graph before small kernels": Declared(
        SMALL | {"forward": (1, 20, 4000), "backward": (1, 20, 8000), "optimizer": (300, 15, 5)}, data_ms=4
    ),
    "kernels as long as their launches": Declared(
        SMALL | {"forward": (200, 15, 14), "backward": (300, 15, 14.5), "optimizer": (60, 15, 15.5)}, data_ms=2
    ),
}


def ledger_of(recorded: Recorded) -> RunLedger:
    return measure(recorded.run)


def waited_ms(found: RunLedger) -> tuple[float, float]:
    """The least and the most that data work may cost a step."""
    low, high = found.waited_range_ms or (found.waited_ms, found.waited_ms)
    return low, high


AT_NIGHT = (pytest.mark.slow, pytest.mark.nightly)
EVERY_DAY = ("launch-bound", "a long last kernel", "a full device")


@pytest.mark.parametrize("name", [one if one in EVERY_DAY else pytest.param(one, marks=AT_NIGHT) for one in SHAPES])
def test_a_window_closes_what_data_costs_and_how_long_the_device_idles(name: str, tmp_path: Path) -> None:
    declared = SHAPES[name]
    recorded, truth = record(declared, tmp_path), ledger_of(record(replace(declared, data_ms=0)))
    found = ledger_of(recorded)
    close_ms = CLOSED * found.mean_step_ms
    low, high = waited_ms(found)
    assert high - low <= close_ms
    costs_ms = found.mean_step_ms - truth.mean_step_ms
    assert low - close_ms <= costs_ms <= high + close_ms
    without = predict([recorded.run], parse_edits(NO_DATA)).step_ms
    assert without.median == pytest.approx(truth.mean_step_ms, rel=CLOSED)
    study = StudyRecord(scenario="on-paper", question="?", status="done", arms=[ArmRecord("cuda")])
    profiles = probe_results([recorded.run], [ProfiledRun(recorded.run, recorded.run.profiles()[0])]).profiles
    (arm,) = with_device_busy(analyse(study, [recorded.run]), profiles).arms
    assert arm.totals.device_busy_ms == pytest.approx(recorded.busy_ms, abs=close_ms)


@pytest.mark.parametrize("name", ["launch-bound", "a long last kernel", "a CUDA graph before small kernels"])
def test_kernels_belong_to_the_phase_that_launched_them(name: str, tmp_path: Path) -> None:
    """However late they run: of a CUDA graph long after the launch, in the bracket of the next phase's launches."""
    declared = replace(SHAPES[name], steps=8)
    found = kernel_times_of(record(declared, tmp_path).run)
    assert set(found) == set(declared.kernels)
    for phase, (count, _, kernel_us) in declared.kernels.items():
        last_us = declared.last_us.get(phase, kernel_us)
        assert found[phase].usual_ns == pytest.approx(((count - 1) * kernel_us + last_us) * 1000, abs=count)


def test_profiled_steps_that_differ_leave_as_much_open(tmp_path: Path) -> None:
    """Every second step has kernels of 15 instead of 5 us: the mean of three steps is not that of all."""
    declared = replace(LONG_LAST, scatter=1.0)
    recorded = record(declared, tmp_path)
    times = kernel_times_of(recorded.run)["forward"]
    assert times.most_ns > 2 * times.least_ns
    assert times.least_ns < times.usual_ns < times.most_ns
    found, truth = ledger_of(recorded), ledger_of(record(replace(declared, data_ms=0)))
    low, high = waited_ms(found)
    assert low - 0.2 <= found.mean_step_ms - truth.mean_step_ms <= high + 0.2


@pytest.fixture(scope="module")
def short() -> Declared:
    return replace(LONG_LAST, steps=8)


@pytest.mark.parametrize("lost", ["the file", "the kernels", "a step's mark", "some phase's kernels"])
def test_a_window_that_is_not_whole_closes_nothing(lost: str, tmp_path: Path, short: Declared) -> None:
    run = record(short, tmp_path).run
    (path,) = tmp_path.iterdir()
    text = path.read_text()
    if lost == "the file":
        path.unlink()
    elif lost == "the kernels":  # no permission to use the counters, say
        path.write_text(text.replace('"cat": "kernel"', '"cat": "overhead"'))
    elif lost == "a step's mark":
        path.write_text(text.replace('"name": "ProfilerStep#1"', '"name": "other"'))
    else:
        path.write_text(text.replace('"cat": "kernel"', '"cat": "overhead"', text.count('"cat": "kernel"') // 2))
    found = measure(run)
    if lost == "some phase's kernels":
        assert "forward" not in kernel_times_of(run)
    else:
        assert kernel_times_of(run) == {}
        low, high = waited_ms(found)
        assert high - low > CLOSED * found.mean_step_ms  # as it was without the window


def test_a_window_of_another_arm_says_nothing(tmp_path: Path, short: Declared) -> None:
    run = record(short, tmp_path).run
    assert kernel_times_of(run)
    other = RunData(replace(run.record, arm="other"), run.steps, run.spans, None, windows=run.windows)
    assert kernel_times_of(other) == {}
    again = RunData(replace(run.record, block=1), run.steps, run.spans, None, windows=run.windows)
    assert kernel_times_of(again) == kernel_times_of(run)  # in every block the same kernels run


@pytest.mark.slow
@pytest.mark.nightly
@examples(40, derandomize=True)
@given(*ANY_RUN)
def test_whatever_the_kernels_are_the_range_closes_around_the_truth(
    tmp_path_factory: pytest.TempPathFactory,
    kernels: dict[str, tuple[int, float, float]],
    last_us: dict[str, float],
    data_ms: float,
    check_finite: bool,
) -> None:
    declared = Declared(kernels | SMALL, data_ms, last_us, check_finite, steps=40)
    recorded = record(declared, tmp_path_factory.mktemp("window"))
    found, truth_ms = ledger_of(recorded), ledger_of(record(replace(declared, data_ms=0))).mean_step_ms
    # What is so short in a phase is taken as work. A host that runs ahead leaves its device a part of a step to do.
    close_ms = max(CLOSED * found.mean_step_ms, 0.4 + truth_ms / 40)
    low, high = waited_ms(found)
    assert high - low <= close_ms
    assert low - close_ms <= found.mean_step_ms - truth_ms <= high + close_ms


@pytest.mark.slow
@pytest.mark.nightly
def test_on_a_real_card_kernels_last_as_long_as_the_phases_of_other_steps_whose_work_is_known(tmp_path: Path) -> None:
    """Of an H200: the profiled run and the measured ones, a process each. Its device never idles."""
    study = unpacked("compile-gpu", tmp_path)
    runs = list(study.runs())
    measured = [run for run in runs if run.record.control is None and run.record.status == "done"]
    assert measured
    for run in measured:
        times, work, names = kernel_times_of(run), device_work_of(run), spans_of(run).names
        assert {"forward", "backward", "norm", "optimizer"} <= set(times)
        for name, found in times.items():
            known = (work.names == names.index(name)) & ~work.still_launching
            lasted = (work.ends - work.starts)[known]
            if len(lasted) > 10 and np.median(lasted) > 0.3 * MS:
                assert found.usual_ns == pytest.approx(np.median(lasted), rel=0.03)
    files = read_recorded(study, runs)
    step_ms = {run.record.arm: ledger.mean_step_ms for run in measured if (ledger := measure(run)) is not None}
    profiles = [one for one in probe_results(runs, files.profiled).profiles if one.arm in step_ms]
    assert profiles
    for profile in profiles:
        assert profile.launched_ms / profile.steps == pytest.approx(step_ms[profile.arm], rel=0.03)
        assert profile.operators.device_ms > 1.1 * profile.launched_ms  # those of the step before the window


def test_a_gap_before_a_queued_kernel_is_the_devices_own_and_one_before_a_late_launch_is_not() -> None:
    first, queued, late, graph, again = (
        ("kernel", name, 13, start, 10, "device", {"correlation": number})
        for name, start, number in (("a", 20, 1), ("b", 32, 2), ("c", 60, 3), ("d", 80, 4), ("e", 95, 4))
    )
    calls = [
        ("cuda_runtime", "cudaLaunchKernel", 7, start, lasts, "main", {"correlation": number})
        for start, lasts, number in ((10, 5, 1), (20, 9, 2), (40, 15, 3), (62, 5, 4))
    ]
    found = launched_work(read_events([tables.operators(*calls, first, queued, late, graph, again)]))
    assert found.launched.tolist() == [10, 20, 40, 62, 62]
    assert found.starts.tolist() == [20, 30, 60, 70, 90]  # the last two are of one graph
    assert found.ends.tolist() == [30, 42, 70, 90, 105]
