"""Each threshold of the room decides: a figure on either side of it, with nothing taken from the policy."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.explain.ledger import RepetitionTotals, RunLedger
from harness.explain.replay.predict import Replays
from harness.explain.statistics import Estimate
from harness.explain.unusual_steps import LeftOut
from harness.judge import policy
from harness.judge.advice import _smallest
from harness.judge.comparisons import Controls, Measured, ideal_speed, without_data
from harness.judge.confounds import _other_batches, _other_steps, alike_environment
from harness.judge.controls import _is_weak
from harness.judge.doubts import Unseen
from harness.judge.losses import Losses
from harness.judge.predictions import bar_of
from harness.judge.probes.machine_load import DeviceHealth, _device_findings, differences, host_load
from harness.judge.report_types import Advice
from harness.judge.study import _enough_steps, analyse
from harness.judge.verdicts import blocks_to_decide, drift, in_total, is_apart, is_useless, judge
from harness.judge.waits import uneven_waits
from harness.launch.costing import short_config
from harness.scenario.edits import parse_edits
from harness.study.records import RunFacts, RunRecord
from tests.harness.explain.probes.test_host_load import Rows, reading, run
from tests.harness.judge.test_predictions import INLINE, LOADER, runs_of
from tests.harness.synthetic import Arm, build
from tests.ledgers import ledger
from trainer.config import TrainerConfig


def of_steps(step_ms: Sequence[float], block: int = 0, **measured: Any) -> RunLedger:
    times = np.array(step_ms, dtype=np.float64)
    empty = {"left_out": LeftOut(), "longest": np.full(len(times), -1, dtype=np.int8), "exposed_ms": {}}
    whole = RepetitionTotals(len(times), float(times.sum()) * 1e6, float(times.sum()) * 1e6, None, None)
    known = {"repetitions": {0: whole}, "phase_ms": {}, **empty, **measured}
    return ledger(RunRecord("a", block, "done"), step_ms=times, **known)


@pytest.mark.parametrize(("share", "barred"), [(0.08, False), (0.12, True)])
def test_time_that_was_not_recorded_and_waits_for_a_core(share: float, barred: bool) -> None:
    assert (Unseen(blocked=share).reason == "blocked") == barred
    assert (Unseen(waiting=share).reason == "no core") == barred


@pytest.mark.parametrize(("share", "bar"), [(0.007, None), (0.014, "restarts")])
def test_restarts_of_a_loader(share: float, bar: str | None) -> None:
    runs = runs_of(INLINE, 1, **LOADER, restarting_share=share)
    assert bar_of(parse_edits(["workers=2"]), runs, Replays(runs)) == bar


def test_the_blocks_that_are_asked_for() -> None:
    cause = judge(Estimate(1.2, None, None, 2), 0.01).cause
    assert cause is not None
    assert cause.remedy is not None
    assert cause.remedy.blocks == 5
    assert 80 < (blocks_to_decide(Estimate(1.0, 1 / 1.8, 1.8, 5), 0.0) or 0) <= 100
    assert blocks_to_decide(Estimate(1.0, 1 / 1.9, 1.9, 5), 0.0) is None


@pytest.mark.parametrize(("low", "apart"), [(1.003, False), (1.008, True)])
def test_an_a_a_control_that_is_not_its_arm(low: float, apart: bool) -> None:
    assert is_apart(Estimate(1.02, low, 1.04, 5)) == apart


@pytest.mark.parametrize(("times", "useless"), [(1.8, False), (2.2, True)])
def test_an_interval_that_shows_nothing(times: float, useless: bool) -> None:
    assert is_useless(Estimate(1.0, 1 / times, times, 5)) == useless
    floor = times - 1
    found = judge(Estimate(1.0, 0.97, 1.03, 5), floor)
    assert ("too noisy" in [one.kind for one in found.doubts]) == useless


def measured() -> Measured:
    (c,) = analyse(*build([Arm("text"), Arm("tokens")], [("text", "tokens")], noise={"step": 0.0})).compared
    return replace(c.measured, noise_floor=None)


def test_witnesses_and_ceilings_that_are_one_figure() -> None:
    found, wide = measured(), Estimate(1.2, 1.0, 1.5, 5)
    for ideal, are_apart in ((1.24, False), (1.28, True)):
        known = replace(found, from_waits=wide, ideal=Estimate(ideal, 1.0, 1.5, 5))
        assert (known.ceilings is not None) == are_apart
    one = Estimate(1.0, 1.0, 1.0, 5)
    assert found.agree(one, Estimate(1.007, 1.007, 1.007, 5))
    assert not found.agree(one, Estimate(1.015, 1.015, 1.015, 5))


@pytest.mark.parametrize(("positions", "stands"), [(1020.0, True), (1045.0, False)])
def test_a_control_whose_batches_are_not_the_arms(positions: float, stands: bool) -> None:
    own, control = ({block: of_steps([10.0] * 4, block, tokens=count) for block in range(3)}
                    for count in (1000.0, positions))  # fmt: skip
    found = ideal_speed("a", own, Controls({("ideal-data", "a"): control}), None)
    assert isinstance(found, Estimate) == stands


@pytest.mark.parametrize(("high", "median"), [(1.3, 1.2), (1.45, 1.1)])
def test_a_control_of_a_wide_interval_contradicts_no_replay(high: float, median: float) -> None:
    found = without_data(Estimate(1.1, 1.05, 1.15, 5), Estimate(1.2, 0.9, high, 5))
    assert found is not None
    assert found.median == median


@pytest.mark.parametrize(("more", "noted"), [(1.02, False), (1.05, True)])
def test_a_slow_block_that_moves_the_total(more: float, noted: bool) -> None:
    """A third of the time is slower by ``more``, so all of it by a third of that."""
    base = {block: of_steps([10.0] * 20, block) for block in range(3)}
    other = {**base, 2: of_steps([10.0 * more] * 20, 2)}
    assert (in_total(base, other, 1.0, 1.0) is not None) == noted


@pytest.mark.parametrize(("epoch", "enough"), [(None, 160), (70.0, 160), (300.0, 600)])
def test_enough_steps_to_see_where_a_change_ends(epoch: float | None, enough: int) -> None:
    """A cache of the data is full after an epoch."""
    base, other = ({0: of_steps([10.0] * steps)} for steps in (40, 50))
    record = replace(base[0].record, facts=RunFacts(epoch_steps=epoch))
    assert _enough_steps({0: replace(base[0], record=record)}, other) == enough


@pytest.mark.parametrize(("later", "steps", "noted"), [(1.02, 40, False), (1.05, 40, True), (1.05, 12, False)])
def test_a_drift_within_runs(later: float, steps: int, noted: bool) -> None:
    base = {block: of_steps([10.0] * steps, block) for block in range(4)}
    other = {
        block: of_steps([10.0] * (steps // 2) + [10.0 * later * (1 + block / 1e4)] * (steps // 2), block)
        for block in range(4)
    }
    assert (drift(base, other, None) is not None) == noted


@pytest.mark.parametrize(
    ("waited_ms", "uneven"),
    [
        ([1.0, 1.0, 1.0, 1.0, 1.5], False),  # mean and median: 1 % of the step apart
        ([1.0, 1.0, 1.0, 1.0, 2.5], True),
        ([0.1, 0.1, 2.0, 2.0], True),  # two kinds, of which mean and median are alike
        ([1.2, 1.2, 2.0, 2.0], False),  # the others wait for more than half as much
        ([0.9, 1.0, 1.0, 1.1], False),
        ([0.15] * 3 + [0.4] * 9, True),  # mean and median are near, and there are two kinds
        ([0.1] * 11 + [2.0], False),  # one block is no kind
    ],
)
def test_blocks_of_two_kinds(waited_ms: list[float], uneven: bool) -> None:
    runs = [
        of_steps([10.0], block, phase_ms={"fetch": spent, "forward": 10.0 - spent}, exposed_ms={"read": spent})
        for block, spent in enumerate(waited_ms)
    ]
    assert (uneven_waits(runs) is not None) == uneven


@pytest.mark.parametrize(("steps", "listed"), [(95, False), (85, True)])
def test_blocks_of_other_lengths(steps: int, listed: bool) -> None:
    sides = ({0: of_steps([10.0] * count)} for count in (100, steps))
    assert bool(_other_steps(*sides, ("a", "b"))) == listed


@pytest.mark.parametrize(("tokens", "listed"), [(1005.0, False), (1015.0, True)])
def test_steps_of_other_batches(tokens: float, listed: bool) -> None:
    sides = ({0: of_steps([10.0], tokens=count, trained_tokens=count)} for count in (1000.0, tokens))
    assert bool(_other_batches(*sides, ("a", "b"))) == listed


def test_memory_of_one_machine() -> None:
    assert alike_environment("memory_bytes", 103, 100)
    assert not alike_environment("memory_bytes", 108, 100)


@pytest.mark.parametrize(
    ("tokens_ratio", "loss", "unlike"),
    [
        (0.9999, 1.008, False), (0.9999, 1.015, True),  # as other kernels round
        (0.001, 1.4, False), (0.001, 1.6, True),  # no number of tokens explains more
        (2.0, 1.02, False), (2.0, 1.05, True),  # more tokens and a higher loss: other documents at most
    ],
)  # fmt: skip
def test_losses_of_other_numbers_of_tokens(tokens_ratio: float, loss: float, unlike: bool) -> None:
    assert Losses(1.0, loss, differ=True, tokens_ratio=tokens_ratio).unlike == unlike


def test_a_global_batch_that_grew_with_the_ranks() -> None:
    assert _is_weak(2.1, 2) is True
    assert _is_weak(2.3, 2) is None


@pytest.mark.parametrize(("four", "kept"), [(1.306, "workers=2"), (1.32, "workers=4")])
def test_the_smaller_setting_that_is_as_good(four: float, kept: str) -> None:
    options = [
        Advice(f"workers={count}", Estimate(speed, 1.2, 1.4, 5), "processes", worth=True)
        for count, speed in ((2, 1.3), (4, four))
    ]
    assert [one.change for one in _smallest(options) if one.worth] == [kept]


def test_advice_replays_half_as_often_as_a_prediction() -> None:
    assert inspect.signature(Replays).parameters["replicates"].default == 2 * policy.ADVICE_REPLICATES


@pytest.mark.parametrize(("trains", "steps"), [(False, 20), (True, 26)])
def test_the_steps_that_a_cost_is_measured_from(trains: bool, steps: int) -> None:
    config = TrainerConfig.model_validate({"data": {"workers": 0, "prefetch": 2}, "compute": {"device": "cpu"}})
    short = short_config(config, trains)
    assert short.steps + 1 == steps


@pytest.mark.parametrize(
    ("kind", "below", "above"),
    [
        ("waited for a core", {"main__run_queue_delay_s": 0.03}, {"main__run_queue_delay_s": 0.08}),
        ("read from disk", {"main__disk_read_bytes": 7e5}, {"main__disk_read_bytes": 1.6e6}),
        ("page faults", {"main__major_faults": 0.6}, {"main__major_faults": 1.6}),
        ("waited for the disk", {"io_pressure_s": 0.03}, {"io_pressure_s": 0.08}),
        ("waited for memory", {"memory_pressure_s": 0.007}, {"memory_pressure_s": 0.015}),
        (
            "near the memory limit",
            {"cgroup_memory_limit_bytes": 100.0, "cgroup_memory_bytes": 85.0},
            {"cgroup_memory_limit_bytes": 100.0, "cgroup_memory_bytes": 95.0},
        ),
        (
            "quota throttled",
            {"cgroup_quota_cores": 2.0, "cgroup_periods": 1000.0, "cgroup_throttled_periods": 7.0},
            {"cgroup_quota_cores": 2.0, "cgroup_periods": 1000.0, "cgroup_throttled_periods": 14.0},
        ),
        ("other processes", {"others_cpu_s": 0.07}, {"others_cpu_s": 0.14}),
    ],
)
def test_findings_about_the_host(kind: str, below: dict[str, float], above: dict[str, float]) -> None:
    for metrics, is_found in ((below, False), (above, True)):
        (load,) = host_load({"arm": [run(reading(main__cpu_s=1.0, **metrics))]})
        assert (kind in [one.kind for one in load.findings]) == is_found


def test_readings_that_were_missed() -> None:
    for missed, is_found in ((7, False), (15, True)):
        probes = {"taken_samples": {"host": 1000 - missed}, "missed_samples": {"host": missed}}
        (load,) = host_load({"arm": [run(reading(main__cpu_s=1.0), probes=probes)]})
        assert ("missed readings" in [one.kind for one in load.findings]) == is_found


def test_others_are_counted_over_half_a_second_and_only_if_all_are() -> None:
    def others(*readings: Rows) -> tuple[float | None, float | None]:
        (load,) = host_load({"arm": [run(*readings)]})
        return load.other_cores, load.other_cores_max

    used = others(*(reading(length_s, others_cpu_s=0.2) for length_s in (0.3, 0.7)))
    assert used == (pytest.approx(0.4), pytest.approx(0.2 / 0.7))
    assert others(reading(main__cpu_s=1.0, others_cpu_s=-0.07))[0] == 0.0
    assert others(reading(main__cpu_s=1.0, others_cpu_s=-0.15)) == (None, None)


def card(arm: str = "a", **known: Any) -> DeviceHealth:
    return DeviceHealth(arm, 0, *[None] * 14, **known)


@pytest.mark.parametrize(("share", "is_found"), [(0.007, False), (0.015, True)])
def test_findings_about_a_card(share: float, is_found: bool) -> None:
    slowed = card(throttled={"its power limit": share}, taken=1000, missed=0)
    assert bool([*_device_findings(slowed, None)]) == is_found
    assert bool([*_device_findings(card(taken=1000 - round(share * 1e3), missed=round(share * 1e3)), None)]) == is_found


def test_cards_of_two_arms() -> None:
    for mhz, is_found in ((1007.0, False), (1015.0, True)):
        pair = [replace(card(arm), sm_clock_mhz=clock) for arm, clock in (("a", 1000.0), ("b", mhz))]
        assert bool(differences(pair, "a", "b")) == is_found
    for share, is_found in ((0.03, False), (0.08, True)):
        pair = [replace(card(arm), throttled={"heat": value}) for arm, value in (("a", 0.0), ("b", share))]
        assert bool(differences(pair, "a", "b")) == is_found
