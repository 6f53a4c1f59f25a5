"""Studies of different times: what forbids comparing them, and what is decided where nothing does."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from statistics import stdev
from typing import Any

import numpy as np
import pytest

from harness.explain.statistics import student_t, widening
from harness.regress import report as regression
from harness.regress.across import common_move, compare_series
from harness.regress.decision import Limits
from harness.regress.series import BlockSeries, Days, Session, series_of, session_of
from harness.regress.text import sentence
from harness.study.records import RunFacts
from tests.harness.regress.tables import HEAD, recorded, study
from trainer.errors import InputError

LIMITS = Limits(step=0.05)
SERIES: dict[str, Any] = {
    "scenario": "tiny",
    "arm": "x",
    "blocks": list(range(7)),
    "config": {"data.sequence_length": 64, "data.batch_size": 2, "log_every": 10, "optimizer.fused": True},
    "environment": {"cpu": "X", "cores": 2, "cpu_governor": "performance", "torch": "2.13", "git_commit": "a"},
    "facts": RunFacts(device="cpu"),
    "useful_fraction": 0.5,
    "sm_clock_mhz": 1500.0,
    "other_cpu_cores": 0.01,
    "arms": 2,
    "probes": {"host": True},
}


def series(factor: float = 1.0, spread: float = 0.003, seed: int = 0, **changes: Any) -> BlockSeries:
    generator = np.random.default_rng(seed)
    step = list(10 * factor * np.exp(generator.normal(0, spread, 7)))
    settings: dict[str, Any] = {
        "created_utc": f"2026-01-0{seed + 1}",
        "part_ms": {"step": step, "forward": [value * 0.9 for value in step], "tokenize": [1.0] * 7},
        "twin_logs": list(generator.normal(0, spread, 7)),
    }
    return BlockSeries(**{**SERIES, **settings, **changes})


def days(*factors: float, level: int = 0, centred: bool = True) -> Days:
    """Sessions of so many times the usual."""
    parts = ("step", "forward", "tokenize", "startup")
    kept = (Session("", level, dict(zip(parts, (10 * one, 9 * one, 1.0, 1000 * one), strict=True))) for one in factors)
    return Days(tuple(kept), centred)


STEADY = days(1.0, 1.01, 0.99, 1.005, 0.995)


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "same"), (1.1, "slower"), (0.9, "faster"), (1.05, "undecided")])
def test_the_decision_within_what_can_be_compared(factor: float, verdict: str) -> None:
    found = compare_series(series(), series(factor, seed=1), LIMITS, days=STEADY)
    assert (found.comparison.verdict, found.refused) == (verdict, [])


@pytest.mark.parametrize("steps", [40, None])
def test_the_horizon_of_two_studies_is_that_of_the_shorter_blocks(steps: int | None) -> None:
    """ "Same within 1.0 %" was printed of +37 %: 600 ms every 60th batch, which no block reached."""
    found = compare_series(
        series(steps=steps, epoch_steps=200.0), series(seed=1, steps=60, epoch_steps=400.0), LIMITS, days=STEADY
    ).comparison
    assert found.verdict == "same"
    assert (found.steps, found.epoch_steps) == (steps or 0, 400.0)
    assert ("7 blocks of 40 steps (10 % of an epoch)" in sentence(found)) == (steps is not None)
    assert ("less often than every 40 steps" in sentence(found)) == (steps is not None)


def test_processes_of_two_kinds_are_neither_the_same_nor_faster() -> None:
    """One process in four is slower by 28 %. The medians agree, and no other figure of two studies shows it."""
    plain = [10.0 + 0.001 * block for block in range(16)]
    mixed = [12.8 if block % 4 == 3 else value for block, value in enumerate(plain)]

    def outcome(*sides: list[float]) -> tuple[str, str | None]:
        studies = (series(seed=k, blocks=[*range(16)], part_ms={"step": values}) for k, values in enumerate(sides))
        found = compare_series(*studies, LIMITS, days=STEADY).comparison
        return found.verdict, found.cause

    assert outcome(plain, mixed) == ("undecided", "slow blocks")
    assert outcome(plain, plain) == ("same", None)
    assert outcome(mixed, mixed)[1] != "slow blocks"  # both sides have them


@pytest.mark.parametrize("spread", [0.003, 3.0])
@pytest.mark.parametrize("kept", [Days(), days(1.2, 1.19, 1.21, 1.2)])
def test_a_study_is_the_same_as_itself(kept: Days, spread: float) -> None:
    """However its blocks scatter and whatever days do; failed runs and a busy machine are no difference either."""
    one = series(spread=spread, failed_runs=1, other_cpu_cores=2.0)
    found = compare_series(one, replace(one, interleave="slices"), LIMITS, days=kept)
    comparison = found.comparison
    assert (comparison.verdict, comparison.same_study, comparison.step.outcome) == ("same", True, "same")
    assert (comparison.step.change.ci_low, comparison.step.change.ci_high) == (0.0, 0.0)
    assert (found.refused, found.warned) == ([], [])
    for changes in ({"created_utc": "2026-02-01"}, {"arm": "y"}, {"part_ms": {"step": [10.0] * 7}}, {"scenario": "z"}):
        assert not compare_series(one, replace(one, **changes), LIMITS).comparison.same_study


def test_what_days_differ_by_is_assumed_until_enough_sessions_are_kept() -> None:
    found = [compare_series(series(), series(factor, seed=1), LIMITS).comparison for factor in (1.0, 1.1, 1.2, 1.5)]
    assert [one.verdict for one in found] == ["undecided", "undecided", "undecided", "slower"]
    assert found[2].step.why == "day to day"
    between = found[2].step.between
    assert (between.sessions, between.known, found[2].cause) == (0, False, "day to day")
    assert between.allowance == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(
    ("kept", "verdict"),
    [
        (days(1.0, 1.08, 0.93, 1.05), "undecided"),  # such days make 1.2 by themselves
        (days(1.2, 1.19, 1.21, 1.2), "same"),  # the newest of them was a quick one
        (Days((*days(2.0, 2.02, 1.98).sessions, *days(1.0, level=1).sessions), True), "slower"),  # --anew
        (days(1.2, 1.19, 1.21, 1.2, centred=False), "slower"),  # one study, not the sessions, is compared with
    ],
)
def test_sessions_kept_say_what_a_day_may_do(kept: Days, verdict: str) -> None:
    comparison = compare_series(series(), series(1.2, seed=1), LIMITS, days=kept).comparison
    assert comparison.verdict == verdict
    assert comparison.step.between.known


def test_a_new_day_is_one_more_draw_against_what_it_is_compared_with() -> None:
    """A prediction interval, not that of a mean; one study that is compared with is itself one day's draw."""
    factors = (1.0, 1.03, 0.98, 1.01, 0.99)
    logs = np.log(factors)
    for centred, means_of in ((True, 5), (False, 1)):
        drawn = stdev(logs) * sqrt(1 + 1 / means_of) * widening(logs) * student_t(0.975, 4)
        assert days(*factors, centred=centred).between("step", 0.95) == (pytest.approx(drawn), True)


def test_slow_blocks_of_the_baseline_leave_open_a_speedup_and_no_slowdown() -> None:
    """Their scatter reaches below the change, that of the candidate's above it."""
    even, slow = {"step": [10.0] * 7}, {"step": [10.0] * 4 + [11.0, 11.5, 12.0]}
    for baseline, candidate, ends in ((slow, even, (True, False)), (even, slow, (False, True))):
        sides = series(part_ms=baseline), series(part_ms=candidate)
        found = compare_series(*sides, LIMITS, days=STEADY).comparison.step.between.blocks_only
        assert (found.ci_low < -0.05, found.ci_high > 0.05) == ends


def test_a_series_of_blocks_has_no_seed_of_its_own() -> None:
    """Each block has its own: an arm of another seed did not change."""
    record, runs = study(blocks=4)
    runs = [recorded(one, config={"seed": one.record.block, "log_every": 5}) for one in runs]
    assert series_of(record, runs)[HEAD].config == {"log_every": 5}


def test_days_in_a_row_that_are_alike_say_less_than_as_many_others() -> None:
    drifting, shuffled = days(1, 1.01, 1.02, 1.03, 1.04, 1.05), days(1, 1.04, 1.01, 1.05, 1.02, 1.03)
    assert drifting.between("step", 0.95)[0] > 1.2 * shuffled.between("step", 0.95)[0]


def test_a_session_holds_medians() -> None:
    one = session_of(series(startup_ms=[1.0, 5.0, 2.0]), 3)
    assert (one.level, one.git_commit, one.ms["startup"]) == (3, "a", 2.0)
    assert one.ms["step"] == pytest.approx(10, rel=0.01)


ENVIRONMENT, CONFIG = SERIES["environment"], SERIES["config"]


@pytest.mark.parametrize(("key", "changes"), [
    ("environment.cpu", {"environment": {**ENVIRONMENT, "cpu": "Y"}}),
    ("environment.cores", {"environment": {**ENVIRONMENT, "cores": 4}}),
    ("environment.cpu_governor", {"environment": {**ENVIRONMENT, "cpu_governor": "powersave"}}),
    ("data.sequence_length", {"config": {**CONFIG, "data.sequence_length": 128}}),
    ("optimizer.fused", {"config": {**CONFIG, "optimizer.fused": False}}),
    ("device", {"facts": RunFacts(device="NVIDIA H100")}),
    ("useful tokens", {"useful_fraction": 0.6}),
    ("SM clock", {"sm_clock_mhz": 1300.0}),
    ("failed runs", {"failed_runs": 2}),
    ("waiting for a core", {"waiting_share": 0.2}),
])  # fmt: skip
def test_what_forbids_a_comparison(key: str, changes: dict[str, Any]) -> None:
    other = series(1.2, seed=1, **changes)
    found = compare_series(series(), other, LIMITS, days=STEADY)
    assert [one.key for one in found.refused] == [key]
    assert found.comparison.verdict == "undecided"
    assert [one.key for one in found.comparison.differences if one.forbids] == [key]
    allowed = compare_series(series(), other, LIMITS, [key], STEADY)
    assert allowed.comparison.verdict == "slower"
    assert [one.key for one in allowed.warned] == [key]


@pytest.mark.parametrize(("key", "changes"), [
    ("environment.torch", {"environment": {**ENVIRONMENT, "torch": "2.14"}}),
    ("log_every", {"config": {**CONFIG, "log_every": 5}}),
    ("load by other processes", {"other_cpu_cores": 0.9}),
    ("arms of the study", {"arms": 9}),
    ("probes.host", {"probes": {"host": False}}),
    (None, {"environment": {**ENVIRONMENT, "git_commit": "b"}}),  # what is compared
])  # fmt: skip
def test_what_is_said_beside_a_decision(key: str | None, changes: dict[str, Any]) -> None:
    found = compare_series(series(), series(1.2, seed=1, **changes), LIMITS, days=STEADY)
    assert [one.key for one in found.warned] == ([] if key is None else [key])
    assert found.comparison.verdict == "slower"
    lines = regression.as_json([found.comparison])["contests"][0]["confounds"]
    assert [line.partition(" is ")[0] for line in lines] == [one.key for one in found.warned]


def test_another_program_forbids_the_comparison_and_its_other_code_is_listed() -> None:
    """Two programs with one name of the arm were compared as two states of one. Older studies have neither key."""
    first, second = (
        {"config": {**CONFIG, "command": command}, "facts": RunFacts(device="cpu", program_fingerprint=code)}
        for command, code in (("python a.py", "1"), ("python b.py", "2"))
    )
    edited = {**first, "facts": second["facts"]}
    for ours, theirs, refused, warned in (
        (first, second, ["command"], ["program_fingerprint"]), (first, edited, [], ["program_fingerprint"]),
        ({}, second, [], ["command"]),
    ):  # fmt: skip
        found = compare_series(series(**ours), series(1.2, seed=1, **theirs), LIMITS, days=STEADY)
        assert ([one.key for one in found.refused], [one.key for one in found.warned]) == (refused, warned)
        assert found.comparison.verdict == ("undecided" if refused else "slower")


def test_a_baseline_from_before_there_was_a_key_means_what_it_meant() -> None:
    """compute.sync: without it the gradient norm was read in each step; on a CPU that makes no difference."""
    for device, sync, refused in (
        ("NVIDIA H100", "late", ["compute.sync"]),
        ("NVIDIA H100", "norm", []),
        ("cpu", "late", []),
    ):
        facts = RunFacts(device=device)
        newer = series(seed=1, facts=facts, config={**CONFIG, "compute.sync": sync})
        found = compare_series(series(facts=facts), newer, LIMITS, days=STEADY)
        assert ([one.key for one in found.refused], found.warned) == (refused, [])


def test_noise_of_the_baseline_hides_a_change_no_larger() -> None:
    noisy = replace(series(), twin_logs=[0.2, -0.1, 0.15, -0.2, 0.1, 0.05, -0.15])
    found = compare_series(noisy, series(1.1, seed=1), LIMITS, days=STEADY).comparison
    assert (found.verdict, found.step.why) == ("undecided", "within the noise")


def test_all_arms_moving_alike_points_at_the_machine() -> None:
    moved = [compare_series(series(), series(1.08, seed=k), LIMITS).comparison for k in range(3)]
    move = common_move(moved)
    assert (0.07 < move.least < 0.08 < move.most < 0.09, move.arms) == (True, 3)
    same = compare_series(series(), series(1.0, seed=5), LIMITS).comparison
    assert (common_move([*moved[:2], same]), common_move(moved[:2])) == (None, None)


def test_the_series_of_a_study() -> None:
    record, runs = study(0.05)
    found = series_of(record, runs)
    assert list(found) == ["x@base", HEAD]  # the A/A control is noise, no figure of its own
    base = found["x@base"]
    assert (base.blocks, len(base.twin_logs), len(base.part_ms["step"])) == (list(range(9)), 9, 9)
    assert base.peak_memory_bytes == [300 * 2**20] * 9
    assert base.startup_ms == [2000.0] * 9
    assert base.useful_fraction == pytest.approx(200 / 256)
    assert np.median(found[HEAD].part_ms["step"]) > np.median(base.part_ms["step"])


def test_startup_alone_is_not_held_against_startup_beside_others() -> None:
    ours, theirs = series(startup_ms=[1000.0] * 7), series(seed=1, startup_ms=[2000.0] * 7)
    (gate,) = compare_series(ours, theirs, LIMITS, days=STEADY).comparison.gates
    assert (gate.name, gate.decision.outcome) == ("startup", "slower")
    assert compare_series(ours, replace(theirs, started="one by one"), LIMITS).comparison.gates == []


def test_a_study_whose_environment_changed_has_no_series() -> None:
    record, runs = study()
    others = [recorded(one, environment={"torch": "2.13"}) for one in runs[:-1]]
    runs = [*others, recorded(runs[-1], environment={"torch": "2.14"})]
    with pytest.raises(InputError, match=r"block 8 ran in another environment than block 0 \(torch\)"):
        series_of(record, runs)


def test_another_model_of_the_users_own_forbids_the_comparison() -> None:
    """Its code is kept with the figures: `harness compare` and `baseline check` called the two the same."""
    found = []
    for code in ("a", "b"):
        one, runs = study()
        runs = [recorded(run, facts=RunFacts(device="cpu", model_fingerprint=code)) for run in runs]
        found.append(series_of(one, runs)[HEAD])
    assert found[0].facts.model_fingerprint == "a"
    refused = compare_series(*found, LIMITS, days=STEADY).refused
    assert [(one.key, one.baseline, one.candidate) for one in refused] == [("model_fingerprint", "a", "b")]
    assert compare_series(found[0], found[0], LIMITS, days=STEADY).refused == []
