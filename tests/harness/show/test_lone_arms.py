"""An arm that is compared with none: what it waits for, what it would gain, and what could not be seen of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.explain.bounds import Bound
from harness.explain.ranks import GroupGain, RankSteps, group_gain, rank_steps
from harness.judge.policy import CORE_WAIT_SHARE_MAX, UNSEEN_SHARE_MAX
from harness.judge.report_types import StudyReport
from harness.judge.study import analyse
from harness.show.first_screen import FirstScreen, first_screen
from harness.show.lone_arms import group_lines, lone_lines
from harness.show.names import ArmNames
from harness.show.text.findings import cause_texts
from tests.harness.show.studies import analysed, built
from tests.harness.show.test_situations import longer
from tests.harness.synthetic import NOISE, Arm, build

SEEN = {"attached": "fetch: DataLoader without workers; backward", "step_ends": "the update of AdamW"}


def screen(*, spans: bool = True, **facts: Any) -> FirstScreen:
    return first_screen(analysed(Arm("script", tokenize=4.0, facts=facts), blocks=3, spans=spans))


def advice_in(found: FirstScreen) -> str:
    return " ".join([*(line.text for line in found.headlines), found.next_steps.note, *found.next_steps.ranked])


def test_graph_breaks_are_no_setting_that_was_left_on() -> None:
    rows = ({"kind": "breaks", "place": "a.py:1", "code": "print", "figures": {"breaks": 1.0}},)
    older = ({"kind": "setting", "place": "graph breaks", "called": "a.py:1", "figures": {"breaks": 1.0}},)
    (arm,) = analysed(Arm("script", facts={**SEEN, "causes": rows + older}), spans=False).arms
    ((subject, text, _),) = cause_texts(arm, 30.0)
    assert subject == "Graph breaks"
    assert text == "torch.compile broke graphs 1 time in functions that steps call, last at a.py:1 (print)"


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (lambda n: {"kind": "compiled", "times": n, "steps": n, "of": 20, "ms": 90.0 * n, "rest_ms": 600.0},
         "20 graphs compiled in 20 of 200 steps: such a step takes 56.7 ms longer than the others, mostly b.py:1"),
        (lambda n: {"kind": "breaks", "figures": {"breaks": n}}, "broke graphs 1 time in functions"),
        (lambda n: {"kind": "memory", "figures": {"bytes_per_step": 1e6 * n, "full_s": 90.0 / n}}, "by 3 MB a step"),
        (lambda n: {"kind": "start-up", "ms": 9e3 * n, "figures": {"skipped": 0}}, "waits for it: 27.0 s"),
        (lambda n: {"kind": "growing", "ms": 3.0 * n, "low_ms": 3.0 * n,
                    "figures": {"first_ms": 30.0, "last_ms": 40.0 + 3 * n}}, "from 30.0 ms to 49.0 ms"),
    ],
)  # fmt: skip
def test_a_cause_whose_place_differs_between_processes_is_one_line(
    cause: Callable[[int], dict[str, Any]], text: str
) -> None:
    rows = ({**cause(1), "place": "a.py:1"}, {**cause(3), "place": "b.py:1"})
    script = Arm("script", facts={**SEEN, "causes": rows, "program_ms": {"start-up": 3e4}})
    (arm,) = analysed(script, spans=False).arms
    (line,) = cause_texts(arm, 30.0)
    assert text in line[1]


def test_it_says_what_is_waited_for_and_what_was_timed() -> None:
    (line,) = screen().headlines
    assert line.text.startswith("script: ")
    assert " ms of that for data (" in line.text
    assert "tokenize " in line.text
    assert "Without any data work it would be " in line.text
    _, timed = screen(spans=False, **SEEN, unseen_share=0.02, waiting_share=0.01).headlines
    assert timed.text == ("Timed: fetch: DataLoader without workers; backward. A step ends with the update of AdamW.")
    # A loop that tokenizes what its loader gave: without its fetches it still does.
    _, loose, _ = screen(spans=False, **SEEN, tokenizing_share=0.25).headlines
    assert loose.subject == "Tokenizing in the loop"
    assert "do not include it" in loose.text


def test_steps_with_an_evaluation_within_are_said_to_be_left_out() -> None:
    facts = {**SEEN, "evaluating_steps": 2, "evaluating_share": 0.341}
    first, *_ = screen(spans=False, **facts).headlines
    # 36 steps of 34.8 ms are 65.9 % of the time, in which 42 steps ran: 3 blocks hold 2 evaluations each.
    assert " ms a step by the clock. 6 of 42 steps hold an evaluation and take 34 % of the" in first.finding
    arms = [Arm("a", facts={**facts, "evaluating_steps": 0}), Arm("b", facts=facts)]
    report = analysed(*arms, blocks=3, spans=False)
    assert report.compared[0].confounds == ()
    first, second = first_screen(report).headlines
    assert "evaluations" not in first.text
    assert second.text == "b: evaluations take 34 % of the time, in 6 steps that the other figures exclude."


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"unseen_share": UNSEEN_SHARE_MAX + 0.01, "unseen_place": "f.py:38 (get)"}, "phases, mostly in f.py:38 (get)"),
        ({"waiting_share": CORE_WAIT_SHARE_MAX + 0.01}, "waited for a core for 11 % of the time"),
    ],
)
def test_where_too_much_was_not_seen_it_promises_nothing(facts: dict[str, Any], words: str) -> None:
    text = advice_in(screen(**SEEN, **facts))
    assert words in text
    assert "as fast" not in text


RANKS = {**SEEN, "ranks": 2}
COMPUTE = {"forward": 9.0, "backward": 17.0, "optimizer": 3.0}
EXACT = dict.fromkeys(NOISE, 0.0)


def ranks_of(*arms: Arm) -> StudyReport:
    record, runs = build([*arms], blocks=3, noise=EXACT)
    return analyse(record, runs)


def test_of_ranks_that_wait_for_one_another_the_gain_of_all_is_said() -> None:
    """Rank 0 waits for rank 1 in its backward pass: together they take what rank 1 takes, and lose its data work."""
    waiting = {**COMPUTE, "backward": 17.0 + 8.8}
    arms = [
        Arm("rank-0", tokenize=0.2, compute=waiting, off_core={"backward": 8.8}, facts=RANKS),
        Arm("rank-1", tokenize=9.0, compute=COMPUTE, facts=RANKS),
    ]
    found = ranks_of(*arms)
    assert found.group.slowest == "rank-1"
    step = 9.0 + 0.3 + 29.0  # reading and packing take 0.3
    assert found.group.without_data.median == pytest.approx(step / 29.0, rel=0.002)
    assert found.group.slowest_alike.median == pytest.approx(step / (step - 8.8), rel=0.002)
    text = first_screen(found).headlines[0].text
    assert text.startswith("2 ranks: rank-1 waits 9.30 ms of 38.3 ms a step for data, mostly to tokenize (9.00 ms).")
    assert (
        "The others wait 0.50 ms at most and then for rank-1. If rank-1 waited no longer than the next, "
        "all would be 1.298x as" in text
    )
    assert "Without any data work all would be 1.320x as fast" in text
    assert "or no faster" not in text


@pytest.mark.parametrize(("where", "more"), [("forward", 6.0), ("backward", 8.0)])
def test_nobody_waits_for_a_rank_that_fetches_while_the_other_computes(where: str, more: float) -> None:
    """Rank 0 fetches for 6 ms more, rank 1 computes for as long or longer: by then rank 0 has fetched, and waits."""
    late = {**COMPUTE, "backward": 17.0 + more - 6.0}
    arms = [
        Arm("rank-0", tokenize=6.2, compute=late, off_core={"backward": more - 6.0}, facts=RANKS),
        Arm("rank-1", tokenize=0.2, compute={**COMPUTE, where: COMPUTE[where] + more}, facts=RANKS),
    ]
    report = ranks_of(*arms)
    for one in (report.group.slowest_alike, report.group.without_data):
        assert one.ci_high is not None
        assert one.median == pytest.approx(1.0 if one is report.group.slowest_alike else 1.014, abs=0.002)
        assert one.ci_high < 1.015  # its 0.5 ms of data work are all that rank 1 could do without
    text = first_screen(report).headlines[0].text
    assert text.startswith("2 ranks: rank-0 waits 6.50 ms of ")
    assert "work while rank-0 still waits: none waits for it." in text
    assert "then for rank-0" not in text


def gain_of(arms: list[Arm]) -> GroupGain | None:
    """The gain of all ranks by their steps alone, whatever else is known of them."""
    steps: dict[str, dict[int, RankSteps]] = {}
    for run in build(arms, [], blocks=3, noise=EXACT)[1]:
        if (measured := rank_steps(run)) is not None:
            steps.setdefault(run.record.arm, {})[run.record.block] = measured
    return group_gain(steps)


@pytest.mark.parametrize(
    ("facts", "known"), [({}, True), ({"waiting_share": 0.2}, False), ({"unseen_share": 0.2}, False)]
)
def test_card_and_lines_agree_on_whether_the_gain_of_all_ranks_is_known(facts: dict[str, Any], known: bool) -> None:
    """On a busy machine the card gave a gain of all ranks, and the line below it said that none is known."""
    calm = {**RANKS, "waiting_share": 0.0}
    arms = [
        Arm("rank-0", tokenize=0.2, compute={**COMPUTE, "backward": 26.0}, off_core={"backward": 9.0}, facts=calm),
        Arm("rank-1", tokenize=9.2, compute=COMPUTE, facts={**calm, **facts}),
    ]
    assert gain_of(arms) is not None  # by the steps alone it can be computed
    report = ranks_of(*arms)
    assert (report.group is not None) == known
    card = first_screen(report).card
    assert ("a step would be 1.327x as fast" in card.cost, "would be up to" in card.cost) == (known, not known)
    assert ("Without any data work all would be 1.327x as fast" in card.findings[0]) == known
    assert ("The steps of one rank do not show the gain of a change." in card.findings[0]) == (not known)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, "and then for rank-1. If rank-1 waited no longer than the next, all would be 1.203x as fast (1.203x to"),
        # Rank 0 had no core for 6 ms of its backward pass, and was ready to run for as long: nobody made it wait.
        ({"waiting_share": 6.0 / 35.5}, "and then perhaps for rank-1. If rank-1 waited no longer than the next, all "
         "would be 1.203x as fast or no faster (1.000x to 1.203x)"),
    ],
)  # fmt: skip
def test_a_wait_that_may_be_for_a_core_is_none_that_is_sure(facts: dict[str, Any], said: str) -> None:
    arms = [
        Arm("rank-0", tokenize=0.2, compute={**COMPUTE, "backward": 23.0}, off_core={"backward": 6.0},
            facts={**RANKS, **facts}),
        Arm("rank-1", tokenize=6.2, compute=COMPUTE, facts=RANKS),
    ]  # fmt: skip
    (line,) = group_lines(ranks_of(*arms).arms, gain_of(arms), ArmNames([arm.name for arm in arms]))
    assert said in line.text


def test_a_wait_that_was_not_seen_is_said_to_be_possible() -> None:
    """Rank 0 is blocked for 3 ms outside of all phases: in a barrier of its own loop, say."""
    blocked = {**RANKS, "unseen_share": 3.0 / 35.5}
    found = ranks_of(
        Arm("rank-0", tokenize=0.2, compute={**COMPUTE, "backward": 23.0}, facts=blocked),
        Arm("rank-1", tokenize=6.2, compute=COMPUTE, facts=RANKS),
    )
    text = first_screen(found).headlines[0].text
    assert "None was seen to wait for rank-1; the record is incomplete (at most 1.09" in text


def test_the_first_screen_is_that_of_the_rank_for_which_the_others_wait() -> None:
    """Rank 1 computes for 8.8 ms more, and each of two ranks has a thread for each of two cores."""
    facts = {**RANKS, "threads": 2, "cores": 2, "waiting_share": 0.0}
    arms = [
        Arm("rank-0", compute={**COMPUTE, "backward": 25.8}, off_core={"backward": 8.8}, facts=facts),
        Arm("rank-1", compute={**COMPUTE, "forward": 17.8}, facts=facts),
    ]
    found = ranks_of(*arms)
    assert [round(arm.wall.total("ranks"), 1) for arm in found.arms if arm.wall is not None] == [8.8, 0.0]
    assert [(arm.crowded, arm.spare_threads) for arm in found.arms] == [(True, 1)] * 2
    card = first_screen(found).card
    assert "rank-1" in card.title
    assert card.findings[0].startswith("2 ranks: the others wait for rank-1, which works ")


@pytest.mark.parametrize(("forward_ms", "is_late"), [(17.8, True), (9.0, False)])
def test_ranks_without_a_loader_have_a_line_if_one_is_late(forward_ms: float, is_late: bool) -> None:
    """Rank 0 did more in each step, and nothing said that rank 1 waited: no rank had a DataLoader."""
    facts, none = {**RANKS, "waiting_share": 0.0}, {"read": 0.0, "tokenize": 0.0, "pack": 0.0}
    blocked_ms = forward_ms - 9.0
    arms = [
        Arm("rank-0", **none, compute={**COMPUTE, "forward": forward_ms}, facts=facts),
        Arm("rank-1", **none, compute={**COMPUTE, "backward": 17.0 + blocked_ms}, off_core={"backward": blocked_ms},
            facts=facts),
    ]  # fmt: skip
    found = [
        replace(arm, totals=replace(arm.totals, phase_ms={name: ms for name, ms in arm.totals.phase_ms.items() if ms}))
        for arm in ranks_of(*arms).arms
    ]
    assert all("fetch" not in arm.totals.phase_ms for arm in found)
    said = group_lines(found, None, ArmNames(["rank-0", "rank-1"]))
    assert [line.text.startswith("2 ranks: the others wait for rank-0, which works ") for line in said] == [
        True
    ] * is_late


def test_of_ranks_it_promises_nothing_where_it_is_not_known_who_waits() -> None:
    """These do not take as long as one another, so they do not wait in each step, or not for these."""
    arms = [Arm("rank-0", tokenize=0.2, facts=RANKS), Arm("rank-1", tokenize=9.0, facts=RANKS)]
    found = first_screen(analyse(*build(arms, blocks=3)))
    text = found.headlines[0].text
    assert text.startswith("2 ranks: rank-1 waits ")
    assert "ms at most. It is unknown whether they then wait for rank-1." in text
    assert "as fast" not in advice_in(found)
    alike = first_screen(ranks_of(*(Arm(f"rank-{rank}", tokenize=2.0, facts=RANKS) for rank in range(2))))
    assert alike.headlines[0].text.startswith("2 ranks: all wait about as long for data, ")


def test_beside_a_device_that_nobody_recorded_a_wait_of_the_host_is_no_cost_of_the_step() -> None:
    text = advice_in(screen(**SEEN, asynchronous=True, device="cuda"))
    assert "The host waits " in text
    assert "The device was not recorded" in text
    assert "as fast" not in text


def test_beside_a_recorded_device_it_says_how_long_that_was_idle_for_data_and_promises_nothing() -> None:
    (arm,) = analysed(Arm("script", tokenize=4.0, facts={**SEEN, "asynchronous": True, "device": "cuda"})).arms
    step_ms = arm.totals.mean_step_ms
    assert step_ms is not None
    seen = replace(arm.totals, device_starved_ms=5.0, starved_ms={"tokenize": 3.5, "python": 1.5})
    hidden = replace(arm.totals, device_starved_ms=0.4, starved_ms={"tokenize": 0.0, "python": 0.4})
    unknown = replace(hidden, device_launch_bound_ms=6.0)
    closed = replace(unknown, device_busy_ms=step_ms - 0.4 - 5.6, busy_from="profiled window")
    for totals, said in (
        (seen, "idle for 5.00 ms of that, 3.50 ms while the host waits for data (tokenize 3.50 ms)"),
        (hidden, "while the device has work: the device is idle for 0.00 ms then, and for 0.40 ms in all"),
        (unknown, "For 6.00 ms it worked or waited for launches"),
        (closed, f"It works for {step_ms - 6:.1f} ms and waits for launches for 5.60 ms, by the kernels"),
    ):
        line, *_ = lone_lines(replace(arm, totals=totals), ArmNames([arm.name]))
        assert said in line.text
        assert "No saving is predicted" in line.text
        assert "as fast" not in line.text


SLOWED = {"forward": 12.85, "backward": 24.3, "optimizer": 4.3, "sync": 0.85}  # of COMPUTE and the sync


@pytest.mark.parametrize(
    ("arm", "without", "said", "blocks"),
    [
        # A worker's data work is hidden, and takes cores from a step that lasts 42 ms with it and 30 ms without.
        ({"workers": 1, "tokenize": 9.0}, 30.0 / 42.3, "hidden data work can take cores and memory bandwidth", 3),
        # Nothing is hidden: inline data of next to nothing, in a step that lasts as much longer all the same.
        ({"tokenize": 0.0}, 30.0 / 42.3, "the few batches of the control may be faster to compute than others.", 2),
        # Inline data is 9 ms of the step, which lasts 3 ms less without.
        ({"tokenize": 9.0}, 48.6 / 42.3, "part of the wait may have another cause than data work.", 3),
        ({"tokenize": 9.0}, 1.0, "", 2),
        ({"workers": 1, "tokenize": 9.0}, 1.0, "", 3),
    ],
)
def test_a_control_and_a_replay_that_disagree_are_said_to(
    arm: dict[str, Any], without: float, said: str, blocks: int
) -> None:
    """``without``: what a phase takes without data work, of what it takes with it."""
    text = Arm("text", **arm, compute=SLOWED)
    ideal = text.variant("ideal-data", read=0.0, tokenize=0.0, pack=0.0, workers=0,
                         compute={phase: ms * without for phase, ms in SLOWED.items()})  # fmt: skip
    (line,) = first_screen(analysed(text, ideal, blocks=blocks, noise={**EXACT, "block": 0.001})).headlines
    assert "by replay." in line.text
    assert (f"The two disagree: {said}" in line.text) if said else ("disagree" not in line.text)


def test_where_a_few_steps_are_long_the_parts_are_of_the_mean_and_both_are_said() -> None:
    """Parts of a step are means: of a typical step of 6 ms, 20 could be waited for."""
    (arm,) = analysed(Arm("script", tokenize=4.0, facts=SEEN), spans=False).arms
    assert arm.totals.step_ms is not None
    short = replace(arm.totals, step_ms=replace(arm.totals.step_ms, median=6.0), p50_ms=6.0)
    line, *_ = lone_lines(replace(arm, totals=short), ArmNames([arm.name]))
    mean_ms = sum(arm.totals.phase_ms.values())
    assert line.text.startswith(f"script: {mean_ms:.1f} ms a step on average, typically 6.00 ms.")


@pytest.mark.parametrize(
    ("slow", "said"),
    [
        (
            lambda _, place: place % 2 == 0,
            "46.0 ms a step on average, although few steps are like that: 50 % take 31.0 ms on average and 50 % "
            "61.0 ms. ",
        ),
        (
            lambda block, _: block in (1, 3),
            "43.0 ms a step on average, although few steps are like that: 60 % take 31.0 ms on average and 40 % "
            "61.0 ms (the long ones in 2 of 5 blocks).",
        ),
        (
            # One step in ten is far longer than both kinds: the mean of all but the fast steps is no step's time.
            lambda _, place: 40 if place % 10 == 0 else 4 * (place % 2),
            "211 ms a step on average, although few steps are like that: 40 % take 31.0 ms on average, 50 % 151 ms "
            "and 10 % 1,230 ms. ",
        ),
        (lambda block, place: (block, place) == (1, 5), "31.3 ms a step."),
    ],
)
def test_steps_of_two_kinds_are_told_as_such(slow: Callable[[int, int], float], said: str) -> None:
    study, runs = built(Arm("text"), noise=EXACT, repetitions=1, steps=20, spans=False)
    edit = longer(lambda record, row, _: 30.0 * slow(record.block, row), "backward")
    (line,) = first_screen(analyse(study, [edit(run) for run in runs])).headlines
    assert line.text.startswith(f"text: {said}")


def test_another_engine_and_skipped_optimizer_steps_are_said() -> None:
    assert not any("encodes with" in one.text for one in screen(spans=False, tokenizer_engine="tokenizers 1").headlines)
    *_, line = screen(spans=False, tokenizer_engine="gigatoken 2", tokenizer_proof="proved on all of it").headlines
    assert line.text == "script: encodes with gigatoken 2. Proved on all of it."
    # 12 of 15 steps of each of three runs trained nothing: beside the number alone that could be a million.
    *_, skipped = screen(spans=False, skipped_steps=12).headlines
    assert skipped.text.startswith("script: 36 of 45 optimizer steps skipped, because gradients overflowed")


def test_what_hidden_work_and_launches_may_take_is_named() -> None:
    """On an H200 the host launched more slowly beside loader workers, although no step waited for them."""
    hidden, inline = (analysed(Arm("text", tokenize=4.0, workers=workers), blocks=3) for workers in (1, 0))
    cores = "by replay; hidden work may also take cores and memory bandwidth."
    assert cores in first_screen(hidden).headlines[0].text
    assert "as fast" in first_screen(inline).headlines[0].text
    assert cores not in first_screen(inline).headlines[0].text

    def said(report: StudyReport, bound: Bound) -> bool:
        (arm,) = report.arms
        line, *_ = lone_lines(replace(arm, totals=replace(arm.totals, bounds={bound: 5})), ArmNames([arm.name]))
        return "measure with ideal-data" in line.text

    assert said(hidden, "launch")
    assert not said(hidden, "device")
    assert said(inline, "launch")
