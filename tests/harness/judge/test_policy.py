"""Each threshold of the room decides: a figure on either side of it, with nothing taken from the policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
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


def measured() -> Measured:
    (c,) = analyse(*build([Arm("text"), Arm("tokens")], [("text", "tokens")], noise={"step": 0.0}, blocks=3)).compared
    return replace(c.measured, noise_floor=None)


def test_witnesses_and_ceilings_that_are_one_figure() -> None:
    found, wide = measured(), Estimate(1.2, 1.0, 1.5, 5)
    for ideal, are_apart in ((1.24, False), (1.28, True)):
        known = replace(found, from_waits=wide, ideal=Estimate(ideal, 1.0, 1.5, 5))
        assert (known.ceilings is not None) == are_apart
    one = Estimate(1.0, 1.0, 1.0, 5)
    assert found.agree(one, Estimate(1.007, 1.007, 1.007, 5))
    assert not found.agree(one, Estimate(1.015, 1.015, 1.015, 5))


def restarts_bar(share: float) -> str | None:
    runs = runs_of(INLINE, 1, **LOADER, restarting_share=share)
    return bar_of(parse_edits(["workers=2"]), runs, Replays(runs))


def useless(times: float) -> bool:
    """As an interval, and as a noise floor."""
    found = judge(Estimate(1.0, 0.97, 1.03, 5), times - 1)
    as_floor = "too noisy" in [one.kind for one in found.doubts]
    assert as_floor == is_useless(Estimate(1.0, 1 / times, times, 5))
    return as_floor


def control_stands(positions: float) -> bool:
    own, control = (
        {block: of_steps([10.0] * 4, block, tokens=count) for block in range(3)} for count in (1000.0, positions)
    )
    return isinstance(ideal_speed("a", own, Controls({("ideal-data", "a"): control}), None), Estimate)


def moves_the_total(more: float) -> bool:
    """A third of the time is slower by ``more``, so all of it by a third of that."""
    base = {block: of_steps([10.0] * 20, block) for block in range(3)}
    return in_total(base, {**base, 2: of_steps([10.0 * more] * 20, 2)}, 1.0, 1.0) is not None


def enough(epoch: float | None) -> int:
    """A cache of the data is full after an epoch."""
    base, other = ({0: of_steps([10.0] * steps)} for steps in (40, 50))
    record = replace(base[0].record, facts=RunFacts(epoch_steps=epoch))
    return _enough_steps({0: replace(base[0], record=record)}, other)


def drifts(later_and_steps: tuple[float, int]) -> bool:
    later, steps = later_and_steps
    base = {block: of_steps([10.0] * steps, block) for block in range(4)}
    half = steps // 2
    other = {block: of_steps([10.0] * half + [10.0 * later * (1 + block / 1e4)] * half, block) for block in range(4)}
    return drift(base, other, None) is not None


def uneven(waited_ms: tuple[float, ...]) -> bool:
    runs = [
        of_steps([10.0], block, phase_ms={"fetch": spent, "forward": 10.0 - spent}, exposed_ms={"read": spent})
        for block, spent in enumerate(waited_ms)
    ]
    return uneven_waits(runs) is not None


def other_steps(steps: int) -> bool:
    return bool(_other_steps(*({0: of_steps([10.0] * count)} for count in (100, steps)), ("a", "b")))


def other_batches(tokens: float) -> bool:
    sides = ({0: of_steps([10.0], tokens=count, trained_tokens=count)} for count in (1000.0, tokens))
    return bool(_other_batches(*sides, ("a", "b")))


def kept(four: float) -> list[str]:
    options = [
        Advice(f"workers={count}", Estimate(speed, 1.2, 1.4, 5), "processes", worth=True)
        for count, speed in ((2, 1.3), (4, four))
    ]
    return [one.change for one in _smallest(options) if one.worth]


def short_steps(trains: bool) -> int:
    config = TrainerConfig.model_validate({"data": {"workers": 0, "prefetch": 2}, "compute": {"device": "cpu"}})
    return short_config(config, trains).steps + 1


# What decides, and what is found on either side of its edge.
EDGES: dict[str, tuple[Callable[[Any], Any], dict[Any, Any]]] = {
    "time that was not recorded": (lambda share: Unseen(blocked=share).reason, {0.08: None, 0.12: "blocked"}),
    "waits for a core": (lambda share: Unseen(waiting=share).reason, {0.08: None, 0.12: "no core"}),
    "restarts of a loader": (restarts_bar, {0.007: None, 0.014: "restarts"}),
    "an A/A control that is not its arm": (
        lambda low: is_apart(Estimate(1.02, low, 1.04, 5)), {1.003: False, 1.008: True}
    ),
    "an interval that shows nothing": (useless, {1.8: False, 2.2: True}),
    "a control whose batches are not the arm's": (control_stands, {1020.0: True, 1045.0: False}),
    "a control of a wide interval contradicts no replay": (
        lambda high: without_data(Estimate(1.1, 1.05, 1.15, 5), Estimate(1.2, 0.9, high, 5)).median,  # type: ignore[union-attr]
        {1.3: 1.2, 1.45: 1.1},
    ),
    "a slow block that moves the total": (moves_the_total, {1.02: False, 1.05: True}),
    "enough steps to see where a change ends": (enough, {None: 160, 70.0: 160, 300.0: 600}),
    "a drift within runs": (drifts, {(1.02, 40): False, (1.05, 40): True, (1.05, 12): False}),
    "blocks of two kinds": (
        uneven,
        {
            (1.0, 1.0, 1.0, 1.0, 1.5): False,  # mean and median: 1 % of the step apart
            (1.0, 1.0, 1.0, 1.0, 2.5): True,
            (0.1, 0.1, 2.0, 2.0): True,  # two kinds, of which mean and median are alike
            (1.2, 1.2, 2.0, 2.0): False,  # the others wait for more than half as much
            (0.9, 1.0, 1.0, 1.1): False,
            (*[0.15] * 3, *[0.4] * 9): True,  # mean and median are near, and there are two kinds
            (*[0.1] * 11, 2.0): False,  # one block is no kind
        },
    ),
    "blocks of other lengths": (other_steps, {95: False, 85: True}),
    "steps of other batches": (other_batches, {1005.0: False, 1015.0: True}),
    "memory of one machine": (
        lambda size: alike_environment("memory_bytes", size, 100), {103: True, 108: False}
    ),
    "losses of other numbers of tokens": (
        lambda one: Losses(1.0, one[1], differ=True, tokens_ratio=one[0]).unlike,
        {
            (0.9999, 1.008): False, (0.9999, 1.015): True,  # as other kernels round
            (0.001, 1.4): False, (0.001, 1.6): True,  # no number of tokens explains more
            (2.0, 1.02): False, (2.0, 1.05): True,  # more tokens and a higher loss: other documents at most
        },
    ),
    "a global batch that grew with the ranks": (lambda batch: _is_weak(batch, 2), {2.1: True, 2.3: None}),
    "the smaller setting that is as good": (kept, {1.306: ["workers=2"], 1.32: ["workers=4"]}),
    "the steps that a cost is measured from": (short_steps, {False: 20, True: 26}),
    "blocks that would decide": (
        lambda times: blocks_to_decide(Estimate(1.0, 1 / times, times, 5), 0.0), {1.8: 98, 1.9: None}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_a_number_decides_at_its_edge(name: str) -> None:
    decide, sides = EDGES[name]
    assert {given: decide(given) for given in sides} == sides


def test_the_blocks_and_the_replays_that_are_asked_for() -> None:
    cause = judge(Estimate(1.2, None, None, 2), 0.01).cause
    assert cause.remedy.blocks == 5  # type: ignore[union-attr]
    assert inspect.signature(Replays).parameters["replicates"].default == 2 * policy.ADVICE_REPLICATES


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
        ("stolen cores", {"stolen_cpu_s": 0.07}, {"stolen_cpu_s": 0.14}),
        ("threads over quota", {"cgroup_quota_cores": 2.0}, {"cgroup_quota_cores": 1.5}),
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


def test_findings_about_cards() -> None:
    for share, is_found in ((0.007, False), (0.015, True)):
        missed = round(share * 1e3)
        for one in (
            card(throttled={"its power limit": share}, taken=1000, missed=0),
            card(taken=1000 - missed, missed=missed),
        ):
            assert bool([*_device_findings(one, None)]) == is_found
    for mhz, is_found in ((1007.0, False), (1015.0, True)):
        pair = [replace(card(arm), sm_clock_mhz=clock) for arm, clock in (("a", 1000.0), ("b", mhz))]
        assert bool(differences(pair, "a", "b")) == is_found
    for share, is_found in ((0.03, False), (0.08, True)):
        pair = [replace(card(arm), throttled={"heat": value}) for arm, value in (("a", 0.0), ("b", share))]
        assert bool(differences(pair, "a", "b")) == is_found
