"""An arm that is compared with none: what it waits for, what it would gain, and what could not be seen of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.analysis.study import analyse
from harness.analysis.unseen import MOST_UNSEEN, MOST_WAITING
from harness.report.first_screen import FirstScreen, first_screen
from harness.report.lone_arms import lone_lines
from harness.report.names import ArmNames
from tests.harness.synthetic import NOISE, Arm, build

SEEN = {"attached": "fetch: DataLoader without workers; backward", "step_ends": "the update of AdamW"}


def screen(**facts: Any) -> FirstScreen:
    return first_screen(analyse(*build([Arm("script", tokenize=4.0, facts=facts)], [])))


def test_it_says_what_is_waited_for_and_what_no_data_work_would_give() -> None:
    (line,) = screen().headlines
    assert line.text.startswith("script: ")
    assert " ms of them are waited for data (" in line.text
    assert "tokenize " in line.text
    assert "Without the data work of its fetches it would be " in line.text


def test_of_an_attached_program_it_says_what_was_timed() -> None:
    _, timed = screen(**SEEN, unseen_share=0.02, waiting_share=0.01).headlines
    assert timed.text == ("Timed: fetch: DataLoader without workers; backward. A step ends with the update of AdamW.")


def test_what_tokenizes_in_the_loop_itself_is_said_to_be_no_part_of_the_rest() -> None:
    """A loop that tokenizes what its loader gave: without its fetches it still does."""
    _, _, loose = screen(**SEEN, tokenizing_share=0.25).headlines
    assert loose.subject == "In the loop itself"
    assert "part of no fetch" in loose.text


def test_steps_with_an_evaluation_within_are_said_to_be_left_out() -> None:
    facts = {**SEEN, "evaluating_steps": 2, "evaluating_share": 0.341}
    *_, left_out = screen(**facts).headlines
    assert left_out.text == "script: 10 steps with an evaluation within (34 % of the time) are left out."  # 5 blocks
    arms = [Arm("a", facts={**facts, "evaluating_steps": 0}), Arm("b", facts=facts)]
    report = analyse(*build(arms, [("a", "b")]))
    assert report.compared[0].confounds == ()
    first, second = first_screen(report).headlines
    assert "left out" not in first.text
    assert second.text == "b: 10 steps with an evaluation within (34 % of the time) are left out."


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"unseen_share": MOST_UNSEEN + 0.01, "unseen_place": "f.py:38 (get)"},
            "blocked outside of what is timed, mostly in f.py:38 (get)",
        ),
        ({"waiting_share": MOST_WAITING + 0.01}, "ready but had no core for 11 % of the time"),
    ],
)
def test_where_too_much_was_not_seen_it_promises_nothing(facts: dict[str, Any], words: str) -> None:
    found = screen(**SEEN, **facts)
    text = " ".join([*(line.text for line in found.headlines), found.next_steps.note, *found.next_steps.ranked])
    assert words in text
    assert "as fast" not in text


def test_of_ranks_that_wait_for_one_another_the_gain_of_all_is_said() -> None:
    """Rank 0 waits for rank 1 in its backward pass: together they take what rank 1 takes, and lose its data work."""
    facts = {**SEEN, "ranks": 2}
    compute = {"forward": 9.0, "backward": 17.0, "optimizer": 3.0}
    waiting = {**compute, "backward": 17.0 + 8.8}
    arms = [
        Arm("rank-0", tokenize=0.2, compute=waiting, facts=facts),
        Arm("rank-1", tokenize=9.0, compute=compute, facts=facts),
    ]
    found = analyse(*build(arms, [], noise=dict.fromkeys(NOISE, 0.0)))
    assert found.group is not None
    assert found.group.slowest == "rank-1"
    step = 9.0 + 0.3 + 29.0  # reading and packing take 0.3
    assert found.group.without_data.median == pytest.approx(step / 29.0, rel=0.002)
    assert found.group.slowest_alike.median == pytest.approx(step / (step - 8.8), rel=0.002)
    text = first_screen(found).headlines[0].text
    assert text.startswith("2 ranks: rank-1 waits 9.30 ms of 38.3 ms a step for data, mostly to tokenize (9.00 ms).")
    assert "If all wait for the last of them in each step, they would together be 1.298x as fast" in text
    assert "with rank-1 waiting no longer than the next, and 1.320x as fast" in text


def test_a_rank_that_computes_longer_gives_the_other_time_to_fetch() -> None:
    """Rank 0 fetches for 6 ms more, rank 1 computes for 8 ms more before its backward pass: nothing is to be gained."""
    facts = {**SEEN, "ranks": 2}
    arms = [
        Arm("rank-0", tokenize=6.2, compute={"forward": 9.0, "backward": 19.0}, facts=facts),
        Arm("rank-1", tokenize=0.2, compute={"forward": 17.0, "backward": 17.0}, facts=facts),
    ]
    found = analyse(*build(arms, [], noise=dict.fromkeys(NOISE, 0.0))).group
    assert found is not None
    assert found.slowest_alike.ci_low == pytest.approx(1.0)  # rank 1 is the last, by the backward pass
    assert found.slowest_alike.ci_high is not None
    assert found.slowest_alike.ci_high > 1.1  # where they wait is not known


def test_of_ranks_it_names_the_one_that_the_others_wait_for_and_promises_nothing() -> None:
    """What rank 0 would gain without its own data work says nothing: it waits for rank 1 in its backward pass."""
    facts = {**SEEN, "ranks": 2}
    arms = [Arm("rank-0", tokenize=0.2, facts=facts), Arm("rank-1", tokenize=9.0, facts=facts)]
    found = first_screen(analyse(*build(arms, [])))
    text = found.headlines[0].text
    assert text.startswith("2 ranks: rank-1 waits ")
    assert "The others wait " in text
    everything = " ".join([*(line.text for line in found.headlines), found.next_steps.note, *found.next_steps.ranked])
    assert "as fast" not in everything
    alike = [Arm(f"rank-{rank}", tokenize=2.0, facts=facts) for rank in range(2)]
    assert (
        first_screen(analyse(*build(alike, [])))
        .headlines[0]
        .text.startswith("2 ranks: they wait about as long for data, ")
    )


def test_beside_a_device_that_nobody_recorded_a_wait_of_the_host_is_no_cost_of_the_step() -> None:
    found = screen(**SEEN, asynchronous=True, device="cuda")
    text = " ".join([*(line.text for line in found.headlines), found.next_steps.note, *found.next_steps.ranked])
    assert "The host waits " in text
    assert "what the device did meanwhile was not recorded" in text
    assert "as fast" not in text
    assert "are waited for" not in text


def test_beside_a_recorded_device_it_says_how_long_that_was_idle_for_data_and_promises_nothing() -> None:
    report = analyse(*build([Arm("script", tokenize=4.0, facts={**SEEN, "asynchronous": True, "device": "cuda"})], []))
    (arm,) = report.arms
    seen = replace(arm.totals, device_starved_ms=5.0, starved_ms={"tokenize": 3.5, "python": 1.5})
    line, *_ = lone_lines(replace(arm, totals=seen), ArmNames([arm.name]))
    assert (
        "nothing to do for 5.00 ms of them, 3.50 ms of them while the host waits for data (tokenize 3.50 ms)"
        in line.text
    )
    assert "nothing is promised" in line.text
    assert "as fast" not in line.text
    hidden = replace(arm.totals, device_starved_ms=0.4, starved_ms={"tokenize": 0.0, "python": 0.4})
    line, *_ = lone_lines(replace(arm, totals=hidden), ArmNames([arm.name]))
    assert "the device has work meanwhile: it is idle for 0.00 ms then, and for 0.40 ms in all" in line.text
    unknown = replace(hidden, device_launch_bound_ms=6.0)
    line, *_ = lone_lines(replace(arm, totals=unknown), ArmNames([arm.name]))
    assert "For 6.00 ms it worked or waited for launches" in line.text


def test_where_a_few_steps_are_long_the_parts_are_of_the_mean_and_both_are_said() -> None:
    """Parts of a step are means: of a typical step of 6 ms, 20 could be waited for."""
    report = analyse(*build([Arm("script", tokenize=4.0, facts=SEEN)], []))
    (arm,) = report.arms
    assert arm.totals.step_ms is not None
    short = replace(arm.totals, step_ms=replace(arm.totals.step_ms, median=6.0), p50_ms=6.0)
    line, *_ = lone_lines(replace(arm, totals=short), ArmNames([arm.name]))
    mean_ms = sum(arm.totals.phase_ms.values())
    assert line.text.startswith(f"script: {mean_ms:.1f} ms a step on average, typically 6.00 ms.")


def test_an_engine_in_place_of_the_tokenizers_own_is_said() -> None:
    assert not any("encodes with" in one.text for one in screen(tokenizer_engine="tokenizers 1").headlines)
    *_, line = screen(tokenizer_engine="gigatoken 2", tokenizer_proof="proved on all of it").headlines
    assert line.text == "script: encodes with gigatoken 2. Proved on all of it."


def test_skipped_optimizer_steps_are_said_of_all_that_there_were() -> None:
    """12 of 15 steps of each of five runs trained nothing: beside the number alone that could be a million."""
    *_, skipped = screen(skipped_steps=12).headlines
    assert skipped.text.startswith("script: 60 of the 75 optimizer steps of its runs skipped, as gradients overflowed")
