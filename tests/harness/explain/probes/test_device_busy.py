"""How long a device worked where its events leave that open: at least its SM activity; a profiled window knows more."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields, replace
from typing import Any

import pytest

from harness.explain.probes.torch_profile import ProfiledOperators, TorchProfile
from harness.judge.probes.machine_load import DeviceHealth
from harness.judge.probes.results import with_device_busy
from harness.judge.report_types import StudyReport
from harness.judge.study import analyse
from harness.show.names import ArmNames
from harness.show.why import _device_table
from harness.study.records import ArmRecord, ComparisonRecord, StudyRecord
from tests.cuda_stream import LAUNCH_BOUND, Declared, record

# Each phase has more launching than work at first and more work than launching behind it, so that it ends behind them.
HOST_BEHIND = Declared(
    {
        "h2d": (1, 25, 25),
        "forward": (200, 25, 30),
        "backward": (300, 25, 30),
        "norm": (10, 25, 30),
        "optimizer": (40, 25, 30),
    },
    data_ms=0.3,
)


@pytest.fixture(scope="module")
def report() -> StudyReport:
    """Of a stream whose kernels take 5 of the 16 ms that its brackets show, in steps of 22 ms."""
    study = StudyRecord(scenario="on-paper", question="?", status="done", arms=[ArmRecord("cuda")])
    return analyse(study, [record(LAUNCH_BOUND).run])


def card(sm_active: float | None, **how: Any) -> DeviceHealth:
    figures = {field.name: None for field in fields(DeviceHealth) if field.default is MISSING}
    figures = {name: value for name, value in figures.items() if name not in ("traffic", "findings")}
    return DeviceHealth(
        **{**figures, "arm": "cuda", "device": 0, "taken": 40, "other_processes": 0.0, "sm_active": sm_active, **how}
    )


def test_sm_activity_is_the_least_that_the_device_worked(report: StudyReport) -> None:
    (was,) = report.arms
    wall_ms, shares = sum(was.totals.phase_ms.values()), was.totals.bound_shares
    most_ms = wall_ms - (was.totals.device_starved_ms or 0.0)
    (known,) = with_device_busy(report, [], [card(0.95 * most_ms / wall_ms)]).arms
    assert known.totals.device_busy_ms is None
    assert known.totals.busy_at_least_ms == pytest.approx(0.95 * most_ms)
    assert known.totals.bound_shares.launch == pytest.approx(min(shares.launch, 0.05 * most_ms / wall_ms))
    assert f"{0.95 * most_ms:.1f} by SM activity, to {most_ms:.1f}" in _device_table([known], ArmNames(["cuda"]))
    (full,) = with_device_busy(report, [], [card(1.0)]).arms  # it never idles longer than its events say
    assert full.totals.busy_at_least_ms == pytest.approx(most_ms)


@pytest.mark.parametrize(
    "cards",
    [
        [],
        [card(None)],
        [card(0.0)],
        [card(math.nan)],
        [card(1.2)],
        [card(0.001)],  # the events know more
        [card(0.9, arm="other")],
        [card(0.9, other_processes=1.0)],  # whose kernels are in it
        [card(0.9, other_processes=None)],  # who else computes there is not known
        [card(0.9, taken=2)],
        [card(0.9), card(0.9, device=1)],  # which of them it was is not known
    ],
)
def test_what_is_no_measure_of_this_device_changes_nothing(report: StudyReport, cards: list[DeviceHealth]) -> None:
    assert with_device_busy(report, [], cards) == report


def test_the_profiled_window_knows_better_than_sm_activity(report: StudyReport) -> None:
    kernels = [TorchProfile("cuda", ((0, 1, 1, 10),), ProfiledOperators((), (), 50.0), (), {}, ())]
    found = with_device_busy(report, kernels, [card(0.9)])
    assert found == with_device_busy(report, kernels)
    assert found.arms[0].totals.device_busy_ms == pytest.approx(5.0)


def test_a_window_of_steps_that_are_longer_than_the_typical_one_tells_nothing(report: StudyReport) -> None:
    """As of a program that compiled again within it: the mean of few long steps has room for its kernels."""
    (arm,) = report.arms
    rare = replace(report, arms=(replace(arm, totals=replace(arm.totals, p50_ms=4.0)),))
    kernels = [TorchProfile("cuda", ((0, 1, 1, 10),), ProfiledOperators((), (), 50.0), (), {}, ())]
    assert with_device_busy(rare, kernels) == rare


def test_what_a_comparison_says_of_its_arms_is_what_is_known_then() -> None:
    """Of kernels that take longer than their launches, and whose phases begin while the host launches them."""
    arms = [ArmRecord("cuda"), ArmRecord("same")]
    study = StudyRecord(
        scenario="on-paper", question="?", status="done", arms=arms, comparisons=[ComparisonRecord("cuda", "same")]
    )
    runs = [record(HOST_BEHIND).run, record(HOST_BEHIND).run]
    runs[1] = replace(runs[1], record=replace(runs[1].record, arm="same"))
    open_report = analyse(study, runs)
    (was,) = open_report.compared
    assert was.measured.baseline_waits.bound == "device or launch"
    wall_ms = sum(open_report.arms[0].totals.phase_ms.values())
    kernels = [TorchProfile("cuda", ((0, 1, 1, 10),), ProfiledOperators((), (), 10 * wall_ms), (), {}, ())]
    known = with_device_busy(open_report, kernels)
    (found,) = known.compared
    assert found.measured.baseline_waits.bound == known.arms[0].totals.bound != "device or launch"
    assert found.measured.candidate_waits == was.measured.candidate_waits
