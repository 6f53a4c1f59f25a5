"""An arm that is compared with none: what it waits for, what it would gain, and what could not be seen of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from harness.explain.bounds import Bound
from harness.explain.ranks import GroupGain, RankSteps, group_gain, rank_steps
from harness.judge.policy import CORE_WAIT_SHARE_MAX, UNSEEN_SHARE_MAX
from harness.judge.report_types import ArmReport
from harness.judge.study import analyse
from harness.show.first_screen import FirstScreen, first_screen
from harness.show.lone_arms import group_lines, lone_lines
from harness.show.names import ArmNames
from harness.show.text.findings import cause_texts
from harness.study.contract import STEP_COLUMNS, arrow_schema
from harness.study.run_data import RunData
from tests.harness.synthetic import NOISE, Arm, build

SEEN = {"attached": "fetch: DataLoader without workers; backward", "step_ends": "the update of AdamW"}


def screen(*, spans: bool = True, **facts: Any) -> FirstScreen:
    return first_screen(analyse(*build([Arm("script", tokenize=4.0, facts=facts)], [], spans=spans)))


def test_graph_breaks_are_no_setting_that_was_left_on() -> None:
    rows = ({"kind": "breaks", "place": "a.py:1", "code": "print", "figures": {"breaks": 1.0}},)
    older = ({"kind": "setting", "place": "graph breaks", "called": "a.py:1", "figures": {"breaks": 1.0}},)
    (arm,) = analyse(*build([Arm("script", facts={**SEEN, "causes": rows + older})], [], spans=False)).arms
    ((subject, text, _),) = cause_texts(arm, 30.0)
    assert subject == "Graph breaks"
    assert text == "torch.compile broke graphs 1 time in functions that steps call, last at a.py:1 (print)"


@pytest.mark.parametrize(
    ("causes", "text"),
    [
        (
            [{"kind": "compiled", "times": n, "steps": n, "of": 20, "ms": 90.0 * n, "rest_ms": 600.0} for n in (1, 3)],
            "20 graphs compiled in 20 of 200 steps: such a step takes 56.7 ms longer than the others, mostly b.py:1",
        ),
        ([{"kind": "breaks", "figures": {"breaks": n}} for n in (1, 3)], "broke graphs 1 time in functions"),
        (
            [{"kind": "memory", "figures": {"bytes_per_step": 1e6 * n, "full_s": 90.0 / n}} for n in (1, 3)],
            "by 3 MB a step",
        ),
        ([{"kind": "start-up", "ms": 9e3 * n, "figures": {"skipped": 0}} for n in (1, 3)], "waits for it: 27.0 s"),
        (
            [
                {"kind": "growing", "ms": n, "low_ms": n, "figures": {"first_ms": 30.0, "last_ms": 40.0 + n}}
                for n in (3.0, 9.0)
            ],
            "from 30.0 ms to 49.0 ms",
        ),
    ],
)
def test_a_cause_whose_place_differs_between_processes_is_one_line(causes: list[dict[str, Any]], text: str) -> None:
    rows = tuple({**cause, "place": f"{name}.py:1"} for cause, name in zip(causes, "ab", strict=True))
    script = Arm("script", facts={**SEEN, "causes": rows, "program_ms": {"start-up": 3e4}})
    (arm,) = analyse(*build([script], [], spans=False)).arms
    (line,) = cause_texts(arm, 30.0)
    assert text in line[1]


def test_it_says_what_is_waited_for_and_what_no_data_work_would_give() -> None:
    (line,) = screen().headlines
    assert line.text.startswith("script: ")
    assert " ms of that for data (" in line.text
    assert "tokenize " in line.text
    assert "Without any data work it would be " in line.text


def test_of_an_attached_program_it_says_what_was_timed() -> None:
    _, timed = screen(spans=False, **SEEN, unseen_share=0.02, waiting_share=0.01).headlines
    assert timed.text == ("Timed: fetch: DataLoader without workers; backward. A step ends with the update of AdamW.")


def test_what_tokenizes_in_the_loop_itself_is_said_to_be_no_part_of_the_rest() -> None:
    """A loop that tokenizes what its loader gave: without its fetches it still does."""
    _, loose, _ = screen(spans=False, **SEEN, tokenizing_share=0.25).headlines
    assert loose.subject == "Tokenizing in the loop"
    assert "do not include it" in loose.text


def test_steps_with_an_evaluation_within_are_said_to_be_left_out() -> None:
    facts = {**SEEN, "evaluating_steps": 2, "evaluating_share": 0.341}
    first, *_ = screen(spans=False, **facts).headlines
    # 60 steps of 34.8 ms are 65.9 % of the time, in which 70 steps ran: 5 blocks hold 2 evaluations each.
    assert first.finding.startswith(
        "45.2 ms a step by the clock. 10 of 70 steps hold an evaluation and take 34 % of the"
    )
    assert first.finding.endswith("The others take 34.8 ms a step")
    arms = [Arm("a", facts={**facts, "evaluating_steps": 0}), Arm("b", facts=facts)]
    report = analyse(*build(arms, [("a", "b")], spans=False))
    assert report.compared[0].confounds == ()
    first, second = first_screen(report).headlines
    assert "evaluations" not in first.text
    assert second.text == "b: evaluations take 34 % of the time, in 10 steps that the other figures exclude."


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"unseen_share": UNSEEN_SHARE_MAX + 0.01, "unseen_place": "f.py:38 (get)"},
            "outside of all phases, mostly in f.py:38 (get)",
        ),
        ({"waiting_share": CORE_WAIT_SHARE_MAX + 0.01}, "waited for a core for 11 % of the time"),
    ],
)
def test_where_too_much_was_not_seen_it_promises_nothing(facts: dict[str, Any], words: str) -> None:
    found = screen(**SEEN, **facts)
    text = " ".join([*(line.text for line in found.headlines), found.next_steps.note, *found.next_steps.ranked])
    assert words in text
    assert "as fast" not in text


RANKS = {**SEEN, "ranks": 2}
COMPUTE = {"forward": 9.0, "backward": 17.0, "optimizer": 3.0}
EXACT = dict.fromkeys(NOISE, 0.0)


def test_of_ranks_that_wait_for_one_another_the_gain_of_all_is_said() -> None:
    """Rank 0 waits for rank 1 in its backward pass: together they take what rank 1 takes, and lose its data work."""
    waiting = {**COMPUTE, "backward": 17.0 + 8.8}
    arms = [
        Arm("rank-0", tokenize=0.2, compute=waiting, off_core={"backward": 8.8}, facts=RANKS),
        Arm("rank-1", tokenize=9.0, compute=COMPUTE, facts=RANKS),
    ]
    found = analyse(*build(arms, [], blocks=3, noise=EXACT))
    assert found.group is not None
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


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("more", [6.0, 8.0])
def test_nobody_waits_for_a_rank_that_fetches_while_the_other_computes(where: str, more: float) -> None:
    """Rank 0 fetches for 6 ms more, rank 1 computes for as long or longer: by then rank 0 has fetched, and waits."""
    late = {**COMPUTE, "backward": 17.0 + more - 6.0}
    arms = [
        Arm("rank-0", tokenize=6.2, compute=late, off_core={"backward": more - 6.0}, facts=RANKS),
        Arm("rank-1", tokenize=0.2, compute={**COMPUTE, where: COMPUTE[where] + more}, facts=RANKS),
    ]
    report = analyse(*build(arms, [], blocks=3, noise=EXACT))
    assert report.group is not None
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
    report = analyse(*build(arms, [], blocks=3, noise=EXACT))
    assert (report.group is not None) == known
    card = first_screen(report).card
    assert card is not None
    assert ("a step would be 1.327x as fast" in card.cost, "would be up to" in card.cost) == (known, not known)
    assert ("Without any data work all would be 1.327x as fast" in card.findings[0]) == known
    assert ("The steps of one rank do not show the gain of a change." in card.findings[0]) == (not known)


def test_a_wait_that_may_be_for_a_core_is_none_that_is_sure() -> None:
    """Rank 0 had no core for 6 ms of its backward pass, and was ready to run for as long: nobody made it wait."""
    waiting = {**COMPUTE, "backward": 17.0 + 6.0}
    ready = {**RANKS, "waiting_share": 6.0 / 35.5}
    arms = [
        Arm("rank-0", tokenize=0.2, compute=waiting, off_core={"backward": 6.0}, facts=RANKS),
        Arm("rank-1", tokenize=6.2, compute=COMPUTE, facts=RANKS),
    ]
    sure, unsure = (gain_of([replace(arms[0], facts=facts), arms[1]]) for facts in (RANKS, ready))
    assert sure is not None
    assert sure.slowest_alike.ci_low == pytest.approx(35.5 / 29.5, rel=0.002)
    assert unsure is not None
    assert unsure.slowest_alike.ci_low == pytest.approx(1.0, abs=0.002)
    report = analyse(*build(arms, [], blocks=3, noise=EXACT))
    (said,) = group_lines(report.arms, unsure, ArmNames([arm.name for arm in arms]))
    assert (
        "and then perhaps for rank-1. If rank-1 waited no longer than the next, "
        "all would be 1.203x as fast or no faster "
        "(1.000x to 1.203x)" in said.text
    )


def test_a_wait_that_was_not_seen_is_said_to_be_possible() -> None:
    """Rank 0 is blocked for 3 ms outside of all phases: in a barrier of its own loop, say."""
    blocked = {**RANKS, "unseen_share": 3.0 / 35.5}
    arms = [
        Arm("rank-0", tokenize=0.2, compute={**COMPUTE, "backward": 23.0}, facts=blocked),
        Arm("rank-1", tokenize=6.2, compute=COMPUTE, facts=RANKS),
    ]
    text = first_screen(analyse(*build(arms, [], blocks=3, noise=EXACT))).headlines[0].text
    assert "None was seen to wait for rank-1; the record is incomplete (at most 1.09" in text


def test_the_first_screen_is_that_of_the_rank_for_which_the_others_wait() -> None:
    """Rank 1 computes for 8.8 ms more, and each of two ranks has a thread for each of two cores."""
    facts = {**RANKS, "threads": 2, "cores": 2, "waiting_share": 0.0}
    arms = [
        Arm("rank-0", compute={**COMPUTE, "backward": 25.8}, off_core={"backward": 8.8}, facts=facts),
        Arm("rank-1", compute={**COMPUTE, "forward": 17.8}, facts=facts),
    ]
    found = analyse(*build(arms, [], blocks=3, noise=EXACT))
    assert [round(arm.wall.total("ranks"), 1) for arm in found.arms if arm.wall is not None] == [8.8, 0.0]
    assert [(arm.crowded, arm.spare_threads) for arm in found.arms] == [(True, 1)] * 2
    card = first_screen(found).card
    assert card is not None
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
        for arm in analyse(*build(arms, [], blocks=3, noise=EXACT)).arms
    ]
    assert all("fetch" not in arm.totals.phase_ms for arm in found)
    said = group_lines(found, None, ArmNames(["rank-0", "rank-1"]))
    assert [line.text.startswith("2 ranks: the others wait for rank-0, which works ") for line in said] == [
        True
    ] * is_late


def test_of_ranks_it_promises_nothing_where_it_is_not_known_who_waits() -> None:
    """These do not take as long as one another, so they do not wait in each step, or not for these."""
    arms = [Arm("rank-0", tokenize=0.2, facts=RANKS), Arm("rank-1", tokenize=9.0, facts=RANKS)]
    found = first_screen(analyse(*build(arms, [])))
    text = found.headlines[0].text
    assert text.startswith("2 ranks: rank-1 waits ")
    assert "ms at most. It is unknown whether they then wait for rank-1." in text
    everything = " ".join([*(line.text for line in found.headlines), found.next_steps.note, *found.next_steps.ranked])
    assert "as fast" not in everything
    alike = [Arm(f"rank-{rank}", tokenize=2.0, facts=RANKS) for rank in range(2)]
    assert (
        first_screen(analyse(*build(alike, [])))
        .headlines[0]
        .text.startswith("2 ranks: all wait about as long for data, ")
    )


def test_beside_a_device_that_nobody_recorded_a_wait_of_the_host_is_no_cost_of_the_step() -> None:
    found = screen(**SEEN, asynchronous=True, device="cuda")
    text = " ".join([*(line.text for line in found.headlines), found.next_steps.note, *found.next_steps.ranked])
    assert "The host waits " in text
    assert "The device was not recorded" in text
    assert "as fast" not in text
    assert "are waited for" not in text


def test_beside_a_recorded_device_it_says_how_long_that_was_idle_for_data_and_promises_nothing() -> None:
    report = analyse(*build([Arm("script", tokenize=4.0, facts={**SEEN, "asynchronous": True, "device": "cuda"})], []))
    (arm,) = report.arms
    seen = replace(arm.totals, device_starved_ms=5.0, starved_ms={"tokenize": 3.5, "python": 1.5})
    line, *_ = lone_lines(replace(arm, totals=seen), ArmNames([arm.name]))
    assert "idle for 5.00 ms of that, 3.50 ms while the host waits for data (tokenize 3.50 ms)" in line.text
    assert "No saving is predicted" in line.text
    assert "as fast" not in line.text
    hidden = replace(arm.totals, device_starved_ms=0.4, starved_ms={"tokenize": 0.0, "python": 0.4})
    line, *_ = lone_lines(replace(arm, totals=hidden), ArmNames([arm.name]))
    assert "while the device has work: the device is idle for 0.00 ms then, and for 0.40 ms in all" in line.text
    unknown = replace(hidden, device_launch_bound_ms=6.0)
    line, *_ = lone_lines(replace(arm, totals=unknown), ArmNames([arm.name]))
    assert "For 6.00 ms it worked or waited for launches" in line.text
    step_ms = arm.totals.mean_step_ms
    assert step_ms is not None
    closed = replace(unknown, device_busy_ms=step_ms - 0.4 - 5.6, busy_from="profiled window")
    line, *_ = lone_lines(replace(arm, totals=closed), ArmNames([arm.name]))
    assert f"It works for {step_ms - 6:.1f} ms and waits for launches for 5.60 ms, by the kernels" in line.text


SLOWED = {"forward": 12.85, "backward": 24.3, "optimizer": 4.3, "sync": 0.85}  # of COMPUTE and the sync


@pytest.mark.parametrize(
    ("arm", "without", "said"),
    [
        # A worker's data work is hidden, and takes cores from a step that lasts 42 ms with it and 30 ms without.
        (
            {"workers": 1, "tokenize": 9.0, "compute": SLOWED},
            30.0 / 42.3,
            "The two disagree: hidden data work can take cores and memory bandwidth from the step; or the few batches",
        ),
        # Nothing is hidden: inline data of next to nothing, in a step that lasts as much longer all the same.
        (
            {"tokenize": 0.0, "compute": SLOWED},
            30.0 / 42.3,
            "The two disagree: the few batches of the control may be faster to compute than others.",
        ),
        # Inline data is 9 ms of the step, which lasts 3 ms less without.
        (
            {"tokenize": 9.0, "compute": SLOWED},
            48.6 / 42.3,
            "The two disagree: part of the wait may have another cause than data work.",
        ),
        ({"tokenize": 9.0, "compute": SLOWED}, 1.0, ""),
        ({"workers": 1, "tokenize": 9.0, "compute": SLOWED}, 1.0, ""),
    ],
)
@pytest.mark.parametrize("blocks", [3, 2])
def test_a_control_and_a_replay_that_disagree_are_said_to(
    arm: dict[str, Any], without: float, said: str, blocks: int
) -> None:
    """``without``: what a phase takes without data work, of what it takes with it."""
    text = Arm("text", **arm)
    ideal = text.controls("ideal-data")[0]
    ideal = replace(ideal, compute={phase: ms * without for phase, ms in text.compute.items()})
    report = analyse(*build([text, ideal], [], blocks=blocks, noise={**EXACT, "block": 0.001}))
    (line,) = first_screen(report).headlines
    assert "as fast" in line.text
    assert "by replay." in line.text
    assert (said in line.text) if said else ("disagree" not in line.text)


def test_where_a_few_steps_are_long_the_parts_are_of_the_mean_and_both_are_said() -> None:
    """Parts of a step are means: of a typical step of 6 ms, 20 could be waited for."""
    report = analyse(*build([Arm("script", tokenize=4.0, facts=SEEN)], [], spans=False))
    (arm,) = report.arms
    assert arm.totals.step_ms is not None
    short = replace(arm.totals, step_ms=replace(arm.totals.step_ms, median=6.0), p50_ms=6.0)
    line, *_ = lone_lines(replace(arm, totals=short), ArmNames([arm.name]))
    mean_ms = sum(arm.totals.phase_ms.values())
    assert line.text.startswith(f"script: {mean_ms:.1f} ms a step on average, typically 6.00 ms.")


def slower(run: RunData, slow: Callable[[int, int], float]) -> RunData:
    """Its backward pass takes ``slow(block, place)`` times 30 ms more."""
    assert run.steps is not None
    columns = run.steps.to_pydict()
    for place in range(len(columns["step"])):
        for name in ("wall_ns", "backward_ns"):
            columns[name][place] += round(30_000_000 * slow(run.record.block, place))
    return RunData(run.record, pa.table(columns, schema=arrow_schema(STEP_COLUMNS)), run.spans, run.samples)


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
        (lambda *_: False, "31.0 ms a step."),
    ],
)
def test_steps_of_two_kinds_are_told_as_such(slow: Callable[[int, int], float], said: str) -> None:
    study, runs = build([Arm("text")], [], noise=EXACT, repetitions=1, steps=20, spans=False)
    (line,) = first_screen(analyse(study, [slower(run, slow) for run in runs])).headlines
    assert line.text.startswith(f"text: {said}")


def test_an_engine_in_place_of_the_tokenizers_own_is_said() -> None:
    assert not any("encodes with" in one.text for one in screen(spans=False, tokenizer_engine="tokenizers 1").headlines)
    *_, line = screen(spans=False, tokenizer_engine="gigatoken 2", tokenizer_proof="proved on all of it").headlines
    assert line.text == "script: encodes with gigatoken 2. Proved on all of it."


def test_skipped_optimizer_steps_are_said_of_all_that_there_were() -> None:
    """12 of 15 steps of each of five runs trained nothing: beside the number alone that could be a million."""
    *_, skipped = screen(spans=False, skipped_steps=12).headlines
    assert skipped.text.startswith("script: 60 of 75 optimizer steps skipped, because gradients overflowed")


def test_a_replay_alone_does_not_know_what_hidden_work_takes_from_the_step() -> None:
    cores = "by replay; hidden work may also take cores and memory bandwidth."
    hidden, inline = (analyse(*build([Arm("text", tokenize=4.0, workers=workers)], [])) for workers in (1, 0))
    assert cores in first_screen(hidden).headlines[0].text
    assert "as fast" in first_screen(inline).headlines[0].text
    assert cores not in first_screen(inline).headlines[0].text


def test_where_launches_limit_a_step_the_control_is_named() -> None:
    """On an H200 the host launched more slowly beside loader workers, although no step waited for them."""
    (hidden,), (inline,) = (
        analyse(*build([Arm("text", tokenize=4.0, workers=workers)], [])).arms for workers in (1, 0)
    )

    def said(arm: ArmReport, bound: Bound) -> bool:
        line, *_ = lone_lines(replace(arm, totals=replace(arm.totals, bounds={bound: 5})), ArmNames([arm.name]))
        return "measure with ideal-data" in line.text

    assert said(hidden, "launch")
    assert not said(hidden, "device")
    assert said(inline, "launch")
