"""Verdicts against studies whose truth is known."""

from __future__ import annotations

import math
from dataclasses import replace

import pyarrow as pa
import pytest

from harness.explain.ledger import measure
from harness.judge.comparisons import Controls, Measured, compare
from harness.judge.report_types import Comparison, NotCompared
from harness.judge.study import analyse
from harness.show.chain import chain
from harness.show.first_screen import HEADER, first_screen
from harness.show.sentences import ceiling_text, sentence
from harness.show.summary import summary
from harness.show.text.doubts import confound_lines
from harness.show.words import ratio
from tests.harness.synthetic import Arm, build, page_of

QUIET = {"block": 0.003, "repetition": 0.004, "step": 0.01}
BASE = Arm("text-padded")
FASTER_DATA = Arm("tokens-padded", tokenize=0.0, read=0.05, pack=0.05, declared={"data.path": "tokens-padded"})
PAIR = ("text-padded", "slower")


def slower(factor, name="slower"):
    compute = {phase: cost * factor for phase, cost in BASE.compute.items()}
    return Arm(name, compute=compute, read=0.1 * factor, tokenize=factor, pack=0.2 * factor)


def reported(arms, pairs, **how):
    study, runs = build(arms, pairs, **{"spans": False, **how})
    return analyse(study, runs)


def compared(arms, pair, **how):
    (comparison,) = reported(arms, [pair], **how).comparisons
    assert isinstance(comparison, Comparison)
    return comparison


def not_compared(arms, pair, **how):
    (comparison,) = reported(arms, [pair], **how).comparisons
    assert isinstance(comparison, NotCompared)
    return comparison


def verdict_alone(candidate, **how):
    """What `analyse` measures of BASE and ``candidate``, without its replays and advice: for claims of many studies."""
    _, runs = build([BASE, candidate, *BASE.controls("a-a")], spans=False, **how)
    blocks = {}
    for run in runs:
        blocks.setdefault(run.record.arm, {})[run.record.block] = measure(run)
    controls = Controls({("a-a", BASE.name): blocks[f"{BASE.name}+a-a"]})
    found = compare(BASE.name, candidate.name, blocks, controls, comparisons=1, allowance=None)
    assert isinstance(found, Measured)
    return found


@pytest.mark.nightly
@pytest.mark.slow
def test_a_slowdown_of_five_percent_is_called_a_loss_and_covered():
    results = [verdict_alone(slower(1.05), seed=seed, noise=QUIET) for seed in range(40)]
    assert sum(one.verdict == "loss" for one in results) >= 38
    assert sum(one.ratio.ci_low <= 1 / 1.05 <= one.ratio.ci_high for one in results) >= 36
    arms = [BASE, slower(1.05), *BASE.controls("a-a")]
    first = compared(arms, PAIR, seed=0, noise=QUIET)
    assert (first.measured.verdict, first.measured.ratio) == (results[0].verdict, results[0].ratio)
    assert "% slower" in sentence(first)


@pytest.mark.nightly
@pytest.mark.slow
def test_no_change_is_called_none_in_at_least_95_percent_of_the_studies():
    verdicts = [verdict_alone(slower(1.0), seed=seed).verdict for seed in range(100)]
    assert verdicts.count("none") >= 95


def test_gains_and_losses_change_places_with_the_arms_and_another_arms_control_is_named():
    arms = [BASE, slower(1.2), *BASE.controls("a-a")]
    forward, back = (compared(arms, pair) for pair in (PAIR, PAIR[::-1]))
    assert (forward.measured.verdict, back.measured.verdict) == ("loss", "gain")
    assert forward.measured.ratio.median == pytest.approx(1 / back.measured.ratio.median)
    assert back.measured.noise_floor_of == "text-padded"
    assert "measured on text-padded" in sentence(back)


def test_an_isolated_speedup_that_is_not_waited_for_is_no_gain_and_the_sentence_says_why():
    """The founding case: the data path alone is 13 times as fast, the step is not."""
    hidden = Arm("text", workers=1, tokenize=4.0)
    quick = Arm("tokens", workers=1, tokenize=0.0, read=0.3, pack=0.02)
    controls = [*hidden.controls("a-a", "ideal-data", "data-only"), *quick.controls("data-only")]
    c = compared([hidden, quick, *controls], ("text", "tokens"), spans=True, blocks=3, noise=QUIET)
    assert c.measured.verdict == "none"
    assert c.measured.isolated.median == pytest.approx(4.3 / 0.32, rel=0.1)
    assert c.measured.from_waits.median == pytest.approx(1.0, abs=0.001)
    assert c.measured.ceiling.ci_low <= 1.0 <= c.measured.ceiling.ci_high
    assert c.measured.ideal.ci_low <= 1.0 <= c.measured.ideal.ci_high
    assert "In isolation the data path of tokens is" in sentence(c)
    assert "the step waits for none of it: it is hidden behind" in sentence(c)
    assert "disagree" not in sentence(c)


def test_an_exposed_cost_shows_in_ceiling_ideal_and_measured_alike():
    base = Arm("slow-data", tokenize=10.0)
    arms = [base, FASTER_DATA, *base.controls("a-a", "ideal-data")]
    c = compared(arms, ("slow-data", "tokens-padded"), spans=True, blocks=3, noise=QUIET)
    truth = (29.72 + 10.3) / 29.72
    assert c.measured.ceiling.median == pytest.approx(truth, rel=0.02)
    assert c.measured.ideal.median == pytest.approx(truth, rel=0.02)
    assert c.measured.ratio.median == pytest.approx(40.02 / 29.82, rel=0.02)
    assert c.measured.verdict == "gain"
    assert "the step waits for all of it" in sentence(c)
    assert "disagree" not in sentence(c)


def test_ideal_data_of_another_length_is_no_ceiling_and_the_page_says_why():
    """Batches of any length, of which the control repeats a short one: 1.19x by replay, and 2.5x by the control."""
    base = Arm("slow-data", tokenize=5.0, tokens=2048)
    ideal = base.variant("ideal-data", tokenize=0.0, read=0.0, pack=0.0, compute={"forward": 14.0}, tokens=700)
    report = reported([base, FASTER_DATA, ideal], [("slow-data", "tokens-padded")])
    (c,) = report.compared
    assert c.measured.ideal is None
    assert c.measured.ceiling == c.measured.from_waits
    assert c.measured.ceiling.median < 1.3
    why = "Without *ideal data*: the ideal-data control of slow-data computes 0.342x as many positions a step, so "
    assert page_of(report).count(f"{why}it does not show the cost of data work.") == 1
    alone = first_screen(reported([base, ideal], [])).headlines[0].text
    assert "ideal-data) it is" not in alone
    assert "The ideal-data control of slow-data computes 0.342x as many positions a step" in alone
    near = replace(base.variant("ideal-data", tokenize=0.0, read=0.0, pack=0.0), tokens=2090)
    assert compared([base, FASTER_DATA, near], ("slow-data", "tokens-padded")).measured.ideal is not None


@pytest.mark.parametrize(("compute_ms", "apart"), [(26.0, True), (29.7, False)])
def test_a_ceiling_of_which_the_witnesses_disagree_is_said_with_both(compute_ms, apart):
    """ "Could gain 1.154x" was said of 1.023x: the control repeats a batch on which the model computes less."""
    base = Arm("text", tokenize=0.4)
    ideal = base.variant("ideal-data", tokenize=0.0, read=0.0, pack=0.0, compute={"forward": compute_ms})
    report = reported([base, FASTER_DATA, *base.controls("a-a"), ideal], [("text", "tokens-padded")], noise=QUIET)
    (c,) = report.compared
    shown = first_screen(report).rows[0][HEADER.index("could gain")]
    assert ("Estimates disagree" in sentence(c)) == apart
    if not apart:
        assert c.measured.ceilings is None
        assert shown == ceiling_text(c.measured) == ratio(c.measured.ceiling.median)
        return
    low, high = c.measured.ceilings
    assert (low, high) == (c.measured.from_waits.median, c.measured.ideal.median)
    assert low == pytest.approx(30.42 / 29.72, rel=0.01)
    assert high > 1.15
    assert shown == f"{ratio(low)} to {ratio(high)}"
    assert any(f"would be {shown} as fast" in link.text for link in chain(c))


def test_padding_and_a_larger_batch_are_told_apart_from_speed():
    packed, padded = Arm("stream", trained=2040), Arm("padded", trained=850)
    c = compared([padded, packed, *padded.controls("a-a")], ("padded", "stream"))
    assert c.measured.verdict == "gain"
    assert c.measured.ratio.median == pytest.approx(2.4, rel=0.03)
    assert c.measured.tokens_ratio.ci_low <= 1 <= c.measured.tokens_ratio.ci_high
    assert "the trained tokens/s, training 2.40x as many in each step (2.40x the trained tokens/s, 95 %" in sentence(c)
    assert c.measured.steps.verdict == "none"
    assert any("useful tokens" in line for line in confound_lines(c.confounds))
    c = compared([BASE, Arm("batch-2", tokens=4096, trained=3800)], ("text-padded", "batch-2"))
    assert "with 2.00x as many of them per step" in sentence(c)
    assert c.measured.steps.undecided == "no noise floor"
    both = compared([BASE, Arm("both", tokens=4096, trained=1900), *BASE.controls("a-a")], ("text-padded", "both"))
    assert both.measured.verdict == "none"
    assert "for 2.00x as many positions, padding included" in sentence(both)


def test_contention_and_a_gain_above_the_ceiling_are_named():
    base = Arm("busy", workers=1, contended=6.0, compute={"forward": 36.0})
    ideal = base.variant("ideal-data", tokenize=0.0, read=0.0, pack=0.0, compute={"forward": 30.0})
    c = compared([base, FASTER_DATA, ideal], ("busy", "tokens-padded"))
    assert c.measured.ideal.median == pytest.approx(1.2, rel=0.02)
    assert "Estimates disagree: busy with ideal data is" in sentence(c)
    assert "waiting for a core: 6.00 ms per step" in sentence(c)
    c = compared([BASE, Arm("smaller-model", compute={"forward": 10.0})], ("text-padded", "smaller-model"))
    assert "more than the data work changed" in sentence(c)


def test_the_noise_floor_silences_a_difference_that_the_control_shows_too():
    control = BASE.variant("a-a", compute={"forward": 9.0, "backward": 20.0, "optimizer": 3.0})
    noise = {"block": 0.0, "repetition": 0.0, "step": 0.001}
    c = compared([BASE, slower(1.03), control], PAIR, noise=noise)
    assert c.measured.ratio.ci_high < 1
    assert c.measured.noise_floor > 0.03
    assert c.measured.verdict == "none"
    assert "is smaller than the noise floor" in sentence(c)


def test_without_a_control_nothing_is_decided_and_the_sentence_says_what_to_ask_for():
    c = compared([BASE, slower(1.5)], PAIR)
    assert (c.measured.verdict, c.measured.undecided) == ("undecided", "no noise floor")
    assert "undecided: no A/A control on this device; add controls: [a-a]" in sentence(c)
    few = BASE.variant("a-a", failed_blocks=(0, 1, 2))
    c = compared([BASE, slower(1.5), few], PAIR)
    assert c.measured.verdict == "undecided"
    assert "the a-a control needs 3 blocks and has 2; let more of its blocks finish" in sentence(c)
    other = Arm("other", facts={"device": "another"})  # a control on another device is no floor
    assert compared([BASE, slower(1.5), other, *other.controls("a-a")], PAIR).measured.undecided == "no noise floor"


def with_floor(arms, floors):
    """The comparison under each declared floor."""
    study, runs = build(arms, [PAIR], spans=False)
    return [
        analyse(replace(study, scenario_text={**study.scenario_text, "noise_floor": floor}), runs).compared[0]
        for floor in floors
    ]


def test_a_declared_floor_serves_where_no_control_ran_and_is_called_declared():
    small, large = with_floor([BASE, slower(1.2)], (0.02, 0.3))
    assert (small.measured.verdict, large.measured.undecided) == ("loss", "too coarse")
    assert "the change is smaller than the noise floor of 30 %; repeat with more than 5 blocks" in sentence(large)
    assert "noise floor 2.0 %, declared in the scenario and not measured" in sentence(small)
    (measured,) = with_floor([BASE, slower(1.2), *BASE.controls("a-a")], [0.3])
    assert measured.measured.noise_floor_of == "text-padded"
    assert measured.measured.verdict == "loss"  # what was measured counts


def test_what_is_no_fraction_is_no_floor():
    """The scenario's checks refuse these; another program's study.json may hold them."""
    for c in with_floor([BASE, slower(1.2)], [1, 2.0, 0, -0.1, "0.02", True, None, [0.02], math.nan]):
        assert c.measured.undecided == "no noise floor"


def test_all_comparisons_of_a_study_share_one_chance_in_twenty():
    times = [1.0 + k / 150 for k in (0, 1, 2, 3, 4, 5, 9)]
    arms = [BASE, *(slower(one, f"c{k}") for k, one in enumerate(times)), *BASE.controls("a-a")]
    found = reported(arms, [("text-padded", f"c{k}") for k in range(7)], noise=QUIET).compared
    for c in found:
        assert c.measured.comparisons == 7
        assert c.measured.together.ci_low < c.measured.ratio.ci_low
        assert c.measured.together.ci_high > c.measured.ratio.ci_high
        assert "for all 7 comparisons together" in sentence(c)
    assert found[-1].measured.verdict == "loss"
    undecided = [c for c in found if c.measured.ratio.ci_high < 1 <= c.measured.together.ci_high]
    assert undecided
    assert all(c.measured.verdict == "none" for c in undecided)


FAST = {"compute": {"forward": 6.0}, "tokenize": 1.0}


def test_a_loss_that_is_nan_in_the_second_half_bars_the_gain_and_comes_first():
    """Its last finite losses are as they should be: their mean would look healthy."""
    base, broken = Arm("base"), Arm("broken", nan_from=9, **FAST, config={"data.batch_size": 16})
    report = reported([base, broken, *base.controls("a-a")], [("base", "broken")])
    (c,) = report.compared
    assert c.measured.ratio.ci_low > 1
    assert (c.measured.verdict, c.measured.undecided) == ("undecided", "diverged")
    assert confound_lines(c.confounds)[0].startswith("loss of broken diverged")
    assert (report.arm("broken").totals.diverged, report.arm("broken").totals.loss) == (5, None)
    assert (report.arm("base").totals.diverged, report.arm("base").totals.loss) == (0, pytest.approx(3.8, abs=0.2))
    page = page_of(report)
    assert "| **diverged** |" in page
    assert page.index("- **loss of broken diverged") < page.index("## Comparisons in numbers")
    one = summary(report, first_screen(report))["comparisons"][0]
    assert (one["verdict"], one["decided"]) == ("undecided", False)
    assert one["undecided_because"].startswith("the loss of broken diverged")


@pytest.mark.parametrize(
    ("changes", "verdict", "lines"),
    [
        ({"loss": 3.5, **FAST}, "undecided", 1),
        ({"loss": 2.5, **FAST}, "undecided", 1),  # learning more is no better a sign
        ({"loss": 3.01, **FAST}, "gain", 0),  # other kernels round otherwise
        ({"loss": 3.5, **FAST, "trained": 1000, "tokens": 1024}, "gain", 1),  # it trains on other tokens, as declared
        ({"loss": 3.5, "compute": {"forward": 60.0}}, "loss", 1),
    ],
)
def test_losses_that_differ_bar_a_gain(changes, verdict, lines):
    candidate = Arm("other", **changes)
    c = compared([BASE, candidate, *BASE.controls("a-a")], ("text-padded", "other"))
    assert c.measured.verdict == verdict
    assert sum("losses differ" in line for line in confound_lines(c.confounds)) == lines


def test_noise_names_the_cores_that_others_used():
    """Blocks that scatter by a factor of three either way, on 2 cores of which others used 1.6."""
    known = {"other_cpu_cores": 1.6, "facts": {"cores": 2}}
    text, tokens = Arm("text", tokenize=3.0, **known), Arm("tokens", tokenize=0.5, **known)
    measured = compared([text, *text.controls("a-a"), tokens], ("text", "tokens"), noise={"block": 1.2}).measured
    assert (measured.undecided, measured.figure) == ("too noisy", None)
    assert measured.cause.cores == (pytest.approx(1.6), 2.0)


def test_two_blocks_leave_it_undecided_and_say_what_to_do():
    c = compared([BASE, slower(1.5)], PAIR, blocks=2)
    assert (c.measured.verdict, c.measured.undecided) == ("undecided", "too few blocks")
    assert c.measured.ratio.ci_low is None
    assert "--repeats" in sentence(c)


def test_arms_without_a_shared_finished_block_are_present_with_their_reason():
    c = not_compared([BASE, Arm("gone", failed_blocks=tuple(range(5)))], ("text-padded", "gone"))
    assert c.missing.kind == "no finished run"
    assert sentence(c).startswith("gone against text-padded: not measured (no finished run of gone")
    assert "killed by signal 9" in sentence(c)
    first, second = Arm("first", failed_blocks=(1, 2)), Arm("second", failed_blocks=(0,))
    c = not_compared([first, second], ("first", "second"), blocks=3)
    assert "no block in which both finished" in sentence(c)


def test_runs_one_after_the_other_are_paired_by_block():
    c = compared([BASE, slower(1.3), *BASE.controls("a-a")], PAIR, interleave="runs", noise=QUIET)
    assert c.measured.verdict == "loss"
    assert c.measured.ratio.median == pytest.approx(1 / 1.3, rel=0.02)


@pytest.mark.parametrize("stored", [None, 0])
def test_a_trainer_that_counts_no_tokens_is_compared_by_steps(stored):
    study, runs = build([BASE, slower(1.2), *BASE.controls("a-a")], [PAIR], spans=False)
    for place, run in enumerate(runs):
        steps = run.steps
        for name in ("tokens", "trained_tokens"):
            index, field = steps.schema.get_field_index(name), steps.schema.field(name)
            steps = steps.set_column(index, field, pa.array([stored] * len(steps), field.type))
        runs[place] = replace(run, steps=steps)
    (c,) = analyse(study, runs).compared
    assert (c.measured.measure, c.measured.verdict) == ("steps/s", "loss")
    assert c.measured.ratio.median == pytest.approx(1 / 1.2, rel=0.02)


def test_only_a_study_that_saw_no_difference_bars_gains_below_what_it_can_see():
    found = {}
    base = Arm("text", tokenize=3.0)
    for name, tokenize in (("same", 3.0), ("faster", 0.5)):
        arms = [base, *base.controls("a-a"), Arm(name, tokenize=tokenize)]
        report = reported(arms, [("text", name)], spans=True, blocks=3, noise=QUIET)
        (c,), (advice,) = report.compared, report.advice
        found[c.measured.verdict] = (advice.resolution, c.measured.resolution)
        least = advice.resolution or 0.0
        assert all(one.speedup.median - 1 > least for one in advice.options if one.worth)
    assert found["none"][0] == found["none"][1] is not None
    assert found["gain"][0] is None
