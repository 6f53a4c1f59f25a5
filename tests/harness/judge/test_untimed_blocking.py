"""Calls that block where nobody times them (``.item()`` in a model), and full queues: what may be said all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.explain.exposure import sync_audit
from harness.explain.ledger import RunLedger, measure
from harness.explain.policy import LAUNCH_TAIL_NS
from harness.explain.replay import parse_edits, predict
from harness.explain.replay.predict import Replays, unedited_error
from harness.judge.study import analyse
from harness.show.why import launch_bound_lines
from harness.study.records import ArmRecord, StudyRecord
from tests.cuda_stream import LAUNCH_BOUND, Declared, record
from tests.examples import examples
from tests.harness.explain.test_launch_bound import NO_DATA

MS = 1_000_000
# 10 ms of work each in forward and backward, launched in 2.5: the host waits for either before it goes on.
KERNELS = {"h2d": (1, 25, 8.0), "norm": (10, 25, 8.0), "optimizer": (50, 25, 160.0)}
KERNELS |= {"forward": (100, 25, 100.0), "backward": (100, 25, 100.0)}
LATE = Declared(KERNELS, data_ms=6, item={"forward": 99, "backward": 99})


def ledger_of(declared: Declared) -> RunLedger:
    return measure(record(declared).run)


@pytest.mark.parametrize("check_finite", [True, pytest.param(False, marks=(pytest.mark.slow, pytest.mark.nightly))])
def test_a_host_that_waits_in_a_phase_is_not_launch_bound(check_finite: bool) -> None:
    """8 ms of optimizer hide the 6 ms of data: without them a step is no shorter, and the device never waited."""
    declared = replace(LATE, check_finite=check_finite)
    found, truth = ledger_of(declared), ledger_of(replace(declared, data_ms=0))
    assert truth.mean_step_ms == pytest.approx(found.mean_step_ms, abs=0.1)
    assert not {"forward", "backward"} & set(found.launch_bound)
    assert found.bound != "launch"
    assert found.waited_ms == pytest.approx(0, abs=0.2)
    run = record(declared).run
    assert abs(unedited_error(run)) < 0.005
    without = predict([run], parse_edits(NO_DATA)).step_ms
    assert without.median == pytest.approx(truth.mean_step_ms, rel=0.01)
    assert without.ci_low < without.median  # nobody knows that the host did nothing but wait


def test_the_call_is_listed_although_it_was_seen_in_a_warm_up_step() -> None:
    run = record(LATE).run
    calls = [call for call in sync_audit(run) if call.site.endswith("unannounced")]
    assert [(call.calls_per_step, call.blocked_ms) for call in calls] == [(2, None)]  # one line of the code, twice
    report = analyse(StudyRecord("on-paper", "?", "done", arms=[ArmRecord("cuda")]), [run])
    (line,) = (one for one in launch_bound_lines(report.arms) if "still launching" in one)
    assert "ended them later, or an untimed call blocks within them" in line


def test_how_long_fetching_could_last_is_not_known_beside_such_a_call() -> None:
    room_ms = ledger_of(LATE).device_room_ms
    assert room_ms != room_ms  # NaN


ITEM = st.dictionaries(st.sampled_from(["forward", "backward"]), st.sampled_from([1, 40, 79, 80]), min_size=1)
DEVICE_US = st.sampled_from([4.0, 12.0, 30.0, 80.0])


@examples(10, derandomize=True)
@given(
    st.fixed_dictionaries(dict.fromkeys(("forward", "backward", "optimizer"), DEVICE_US)),
    ITEM,
    st.sampled_from([0.5, 2.0, 6.0]),
    st.booleans(),
)
def test_wherever_the_host_waits_the_truth_lies_in_what_is_said(
    device_us: dict[str, float], item: dict[str, int], data_ms: float, check_finite: bool
) -> None:
    kernels = {name: (80, 15.0, one) for name, one in device_us.items()}
    small = {"h2d": (1, 5.0, 5.0), "norm": (3, 5.0, 5.0)}
    declared = Declared(kernels | small, data_ms, item=item, check_finite=check_finite, steps=40)
    recorded = record(declared)
    found, truth_ms = measure(recorded.run), ledger_of(replace(declared, data_ms=0)).mean_step_ms
    close_ms = 4 * LAUNCH_TAIL_NS / MS + truth_ms / 40
    without = predict([recorded.run], parse_edits(NO_DATA)).step_ms
    assert without.ci_low - close_ms <= truth_ms <= without.ci_high + close_ms
    low, high = found.waited_range_ms or (found.waited_ms, found.waited_ms)
    assert low - close_ms <= found.mean_step_ms - truth_ms <= high + close_ms
    assert not set(item) & set(found.launch_bound)


HOST_PHASES = {"forward": ("forward",), "backward": ("backward",), "optimizer": ("norm", "optimizer")}


@pytest.mark.slow
@pytest.mark.nightly
@examples(6, derandomize=True)
@given(
    st.fixed_dictionaries(
        dict.fromkeys(
            ("forward", "backward", "optimizer"),
            st.tuples(st.integers(20, 250), st.sampled_from([5.0, 15.0, 40.0]), DEVICE_US),
        )
    ),
    st.sampled_from([0.5, 6.0]),
    st.sampled_from(["norm", "late", "off"]),
    st.sampled_from([None, 300]),
)
def test_without_the_launching_of_a_phase_the_truth_lies_in_what_its_removal_is_said_to_save(
    kernels: dict[str, tuple[int, float, float]], data_ms: float, reads: str, queue: int | None
) -> None:
    """The stream is really run with launches of that phase that take no time, and with kernels that take none."""
    small = {"h2d": (1, 5.0, 5.0), "norm": (3, 5.0, 5.0)}
    sync = "late" if reads == "late" else "norm"
    declared = Declared(kernels | small, data_ms, check_finite=reads != "off", sync=sync, queue=queue, steps=30)
    recorded = record(declared)
    found = measure(recorded.run)
    for one in Replays([recorded.run]).removals():
        every = declared.kernels
        if one.kind == "phase" and one.name in HOST_PHASES:
            own = {name: (every[name][0], 0.0, every[name][2]) for name in HOST_PHASES[one.name]}
        elif one.kind == "kernel":
            own = {one.name: (every[one.name][0], every[one.name][1], 0.0)}
        else:
            continue
        truth_ms = found.mean_step_ms - ledger_of(replace(declared, kernels=every | own)).mean_step_ms
        low = one.saved_ms.median if one.saved_ms.ci_low is None else one.saved_ms.ci_low
        high = one.saved_ms.median if one.saved_ms.ci_high is None else one.saved_ms.ci_high
        close_ms = 4 * LAUNCH_TAIL_NS / MS + found.mean_step_ms / 40
        assert low - close_ms <= truth_ms <= high + close_ms, (one, truth_ms)


def test_values_of_the_step_before_are_not_taken_to_wait_for_this_step() -> None:
    """The copy of this step is done as well when the host reads that of the one before, and it waits for neither."""
    kernels = {"h2d": (1, 5.0, 5.0), "norm": (3, 5.0, 5.0), "optimizer": (20, 5.0, 80.0)}
    kernels |= {"forward": (223, 40.0, 4.0), "backward": (144, 15.0, 4.0)}
    declared = Declared(kernels, data_ms=2, last_us={"forward": 1500.0}, sync="late")
    at_once = replace(declared, kernels={**kernels, "backward": (144, 0.0, 4.0)})
    saved_ms = ledger_of(declared).mean_step_ms - ledger_of(at_once).mean_step_ms
    assert saved_ms == pytest.approx(2.16, abs=0.01)
    found = Replays([record(declared).run]).removals()
    (one,) = (part for part in found if (part.kind, part.name) == ("phase", "backward"))
    assert one.saved_ms.ci_high == pytest.approx(saved_ms, abs=0.05)


def test_launch_bound_removals_hold_what_really_launching_at_once_gives() -> None:
    """Launched at once backward takes its 3 ms of kernels instead of 9.5, which no event tells."""
    recorded = record(LAUNCH_BOUND)
    (one,) = (one for one in Replays([recorded.run]).removals() if (one.kind, one.name) == ("phase", "backward"))
    count, _, device_us = LAUNCH_BOUND.kernels["backward"]
    at_once = replace(LAUNCH_BOUND, kernels={**LAUNCH_BOUND.kernels, "backward": (count, 0.0, device_us)})
    saved_ms = ledger_of(LAUNCH_BOUND).mean_step_ms - ledger_of(at_once).mean_step_ms
    assert saved_ms == pytest.approx(6.7, abs=0.1)
    assert one.saved_ms.ci_low < saved_ms < one.saved_ms.ci_high
