"""Each limit of harness/show/policy.py decides what is said: just below and just above it the page differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from harness.explain.causes import SlowCause
from harness.explain.replay.attribution import Removal
from harness.explain.statistics import Estimate
from harness.judge.claims import JudgedClaim
from harness.judge.comparisons import Absent
from harness.judge.confounds import Confound
from harness.judge.doubts import ProbeProblem, Unseen, doubt
from harness.judge.report_types import (
    Advice,
    ArmAdvice,
    ArmExplained,
    ArmReport,
    ArmTotals,
    Comparison,
    Explained,
    ModelSpeed,
)
from harness.judge.waits import Waits
from harness.scenario.claims import CLAIMS
from harness.show import numbers, why
from harness.show.advice import next_steps
from harness.show.lone_arms import group_lines, lone_lines
from harness.show.names import ArmNames
from harness.show.sentences import _behind, left_open, sentence
from harness.show.text.doubts import confound_lines, doubt_text, probe_problem_lines
from harness.show.text.examples import measured
from harness.show.text.findings import cause_texts
from harness.show.text.verdicts import finding, undecided_because
from harness.show.why import launch_bound_lines
from harness.show.words import percent, percent_over

NAMES = ArmNames(["a", "b"])


def arm(name: str = "a", **changes: Any) -> ArmReport:
    """Return an arm with steps of 100 ms."""
    totals = ArmTotals(
        steps=90, step_ms=Estimate(100, 99, 101, 3), p50_ms=100, phase_ms={"fetch": 0.0, "forward": 100.0}
    )
    return replace(ArmReport(name, None, None, {}, 3, totals, ModelSpeed(), ArmExplained()), **changes)


def totals(**changes: Any) -> ArmTotals:
    return replace(arm().totals, **changes)


def compared(waited_ms: float) -> str:
    """Return the sentence on a comparison whose baseline waits ``waited_ms`` of each 100 ms step."""
    hidden = {"tokenize": 5.0 - waited_ms}
    waits = Waits(
        100.0, waited_ms, {"tokenize": 5.0}, exposed_ms={"tokenize": waited_ms}, hidden_ms=hidden, contended_ms=0.0
    )
    found = replace(measured("gain"), baseline_waits=waits, candidate_waits=waits)
    return sentence(Comparison("a", "b", found, Explained({}, (), Absent("no tables"), (), ()), ()))


def test_readings_that_hardly_differ_are_one() -> None:
    assert left_open((10.0, 10.9), 100.0) is None
    assert left_open((10.0, 11.1), 100.0) is not None


def test_a_short_wait_is_hardly_one() -> None:
    assert "waits for none of it" in compared(0.09)
    assert "waits for none of it" not in compared(0.11)


@pytest.mark.parametrize(("apart_ms", "alike"), [(4.8, True), (5.2, False)])
def test_ranks_wait_alike_or_one_waits_longer(apart_ms: float, alike: bool) -> None:
    ranks = [
        arm(name, unseen=Unseen(ranks=2), totals=totals(phase_ms={"fetch": 20.0 + more, "forward": 80.0 - more}))
        for name, more in (("a", 0.0), ("b", apart_ms))
    ]
    (line,) = group_lines(ranks, None, NAMES)
    assert line.finding.startswith("all wait about as long") == alike


@pytest.mark.parametrize(("typical_ms", "both"), [(96.0, False), (94.5, True)])
def test_a_mean_that_no_step_has_stands_beside_the_typical_step(typical_ms: float, both: bool) -> None:
    assert ("typically" in lone_lines(arm(totals=totals(p50_ms=typical_ms)), NAMES)[0].finding) == both


@pytest.mark.parametrize(
    ("behind_ms", "said"),
    [
        ({"forward": 76.0, "backward": 14.0}, "forward"),
        ({"forward": 74.0, "backward": 0.5}, "the step"),
        ({"forward": 40.0, "backward": 36.0, "log": 24.0}, "forward and backward"),
        ({"forward": 30.0, "backward": 30.0, "log": 30.0}, "the step"),
    ],
)
def test_phases_that_hide_most_of_the_work_are_named(behind_ms: Mapping[str, float], said: str) -> None:
    assert _behind(behind_ms, 100.0) == said


def test_device_time_of_unknown_use_is_reported_from_a_share_of_the_step_on() -> None:
    found = [launch_bound_lines([arm(totals=totals(device_open_ms=open_ms))]) for open_ms in (0.9, 1.1)]
    assert list(map(len, found)) == [0, 1]


def test_padding_in_model_flops_is_noted() -> None:
    noted = [
        "padding"
        in numbers.arms([arm(speed=ModelSpeed(flops_per_s=1e12), totals=totals(useful_fraction=share))], NAMES)
        for share in (0.91, 0.89)
    ]
    assert noted == [False, True]


def caused(*found: SlowCause) -> list[tuple[str, str, str]]:
    return [*cause_texts(arm(causes=found), 100.0)]


def spent(share: float, place: str = "train.py:1", kind: str = "code") -> SlowCause:
    return SlowCause(kind, place, of=100, spent_ms=share * 1e4, wall_ms=1e4)


def test_short_waits_and_little_own_code_are_left_out() -> None:
    assert not caused(SlowCause("device wait", "train.py:1", times=1.0, ms=0.4))
    assert caused(SlowCause("device wait", "train.py:1", times=1.0, ms=0.6))
    for kind in ("code", "gc"):
        assert not caused(spent(0.048, kind=kind))
        assert caused(spent(0.052, kind=kind))


def test_padding_has_a_remedy_for_where_it_is() -> None:
    def padding(ms: float | None, columns: float) -> SlowCause:
        return SlowCause("padding", ms=ms, figures={"share": 0.5, "column_share": columns})

    assert not caused(padding(4.8, 0.4))
    ((*_, shorter),), ((*_, alike),) = caused(padding(5.2, 0.26)), caused(padding(5.2, 0.24))
    assert shorter != alike
    assert caused(padding(None, 0.26))  # a device works while the host goes on: no time is known, the share is


def test_own_code_beside_waits_for_workers_promises_nothing() -> None:
    """Without it the step waited as much longer for the worker, and the line said "do it less often"."""
    alone, behind = (
        [*cause_texts(arm(causes=(spent(0.2),), workers=workers, totals=totals(exposed_ms={"read": waited})), 100.0)]
        for workers, waited in ((0, 30.0), (1, 30.0))
    )
    hidden = [*cause_texts(arm(causes=(spent(0.2),), workers=1, totals=totals(exposed_ms={"read": 1.0})), 100.0)]
    assert alone == hidden
    assert behind[0][:2] == alone[0][:2]
    assert behind[0][2] != alone[0][2]


def test_a_wait_for_another_thread_is_no_work() -> None:
    ((*_, waits),) = caused(replace(spent(0.2), called="queue.Queue.get"))
    ((*_, works),) = caused(replace(spent(0.2), called="torch.serialization.save"))
    assert waits != works


def test_the_longest_places_of_own_code_are_named() -> None:
    ((_, found, _),) = caused(*(spent(0.1 + place / 100, f"train.py:{place}") for place in range(1, 6)))
    assert [place for place in range(1, 6) if f"train.py:{place}" in found] == [3, 4, 5]


def test_nearly_every_step_is_every_step() -> None:
    for share, said in ((0.94, "in 94 % of the steps"), (0.96, "every step")):
        ((_, found, _),) = caused(SlowCause("device wait", "train.py:1", times=1.0, share=share, ms=6.0))
        assert said in found


def test_loads_that_hardly_differ_are_one() -> None:
    one, two = (confound_lines([Confound("host load", ("a", "b"), values=(1.0, other))])[0] for other in (1.09, 1.11))
    assert "during both" in one
    assert "during both" not in two


def test_a_resolution_beyond_twice_the_speed_has_no_figure() -> None:
    coarse = measured("undecided", "too coarse")
    assert "95 %" in (undecided_because(replace(coarse, resolution=0.95)) or "")
    assert "105 %" not in (undecided_because(replace(coarse, resolution=1.05)) or "")
    assert doubt_text(doubt("too coarse", share=1.58)) == "the runs varied too much to show even a 2x change"


@pytest.mark.parametrize(("ceiling", "said"), [(1.029, True), (1.031, False)])
def test_little_to_gain_is_no_reason_to_repeat(ceiling: float, said: bool) -> None:
    coarse = replace(measured("undecided", "too coarse"), ceiling=Estimate(ceiling, ceiling, ceiling, 5))
    assert (f"can gain {ceiling:.3f}x at most" in (undecided_because(coarse) or "")) == said


def test_an_undecided_packing_names_the_padding() -> None:
    other = replace(measured("undecided", "too coarse"), trained_per_step=6.1, measure="trained tokens/s")
    scattered = replace(other, ratio=Estimate(6.0, 0.9, 40.0, 5), together=None)
    assert "for less padding, a step trains 6.10x as many tokens" in (undecided_because(scattered) or "")


def test_a_gain_below_what_the_study_sees_is_named_as_such() -> None:
    found = ArmAdvice("a", (), within_tolerance=True, from_blocks=True, noise_floor=0.01, resolution=0.019)
    assert "smallest change that this study can see (1.9 %)" in next_steps([found], NAMES).note


@pytest.mark.parametrize(
    ("low", "high", "both"), [(0.96, 1.019, True), (0.96, 1.021, False), (0.979, 1.0, True), (0.981, 1.0, False)]
)
def test_both_limits_are_given_where_a_loss_may_be_far_larger_than_a_gain(low: float, high: float, both: bool) -> None:
    found = replace(measured("none"), ratio=Estimate(0.99, low, high, 6), noise_floor=0.0)
    assert ("between" in finding(found)) == both


def test_the_first_screen_has_five_changes_to_try() -> None:
    options = tuple(Advice(f"prefetch={n}", Estimate(1.2, 1.1, 1.3, 6), "memory", worth=True) for n in range(1, 8))
    found = next_steps([ArmAdvice("a", options, within_tolerance=True, from_blocks=True, noise_floor=0.01)], NAMES)
    assert len(found.ranked) == 5
    assert "2 more" in found.note


def test_the_largest_savings_are_listed_and_none_that_are_next_to_nothing() -> None:
    def rows(*speeds: float) -> int:
        saved = Estimate(2.0, 1.9, 2.1, 5)
        parts = tuple(Removal("phase", f"p{n}", saved, Estimate(one, one, one, 5)) for n, one in enumerate(speeds))
        return why.savings([arm(explained=ArmExplained(within_tolerance=True, removals=parts))], NAMES).count("| a |")

    assert rows(*[1.2] * 10) == 8
    assert (rows(1.0008), rows(1.0012)) == (0, 1)


def test_a_problem_of_many_runs_names_three() -> None:
    (line,) = probe_problem_lines(
        [ProbeProblem("no nvml", tuple(f"a/{block}" for block in range(5)), everywhere=False)]
    )
    assert line == "no nvml (a/0, a/1, a/2 and 2 more)"


def test_a_claim_names_four_other_settings_in_which_its_arms_differ() -> None:
    keys = tuple(f"data.key{n}" for n in range(6))
    claim = JudgedClaim("batching", "a", "b", None, "not measurable", CLAIMS["batching"], differs=keys)
    assert "data.key0, data.key1, data.key2, data.key3 and others as well" in numbers.claim_sentence(claim, NAMES)


def test_digits_of_small_shares_and_of_shares_above_a_limit() -> None:
    assert (percent(0.0004), percent(0.0006)) == ("under 0.1 %", "0.1 %")
    assert percent_over(0.100004, 0.1) == "10.0004 %"
    assert percent_over(0.1000000004, 0.1) == "10 %"
