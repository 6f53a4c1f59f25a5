"""The first screen of a program that nobody here wrote: one card from records."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from harness.explain.unusual_steps import StepTimes
from harness.explain.wall import WAITING
from harness.judge.report_types import StudyReport
from harness.judge.study import analyse
from harness.show import terminal
from harness.show.build import build_report
from harness.show.first_screen import REST_OF_PARTS, VerdictCard, first_screen
from harness.show.machine import at_once
from harness.show.policy import BAR_PARTS_MAX, COMMAND_LONGEST, FINDINGS_SHOWN
from harness.study.store import StudyFolder
from tests.harness.explain.test_wall import EXACT, named, spent
from tests.harness.judge.test_diagnosis import CASES, GROWTH, arm_of
from tests.harness.show.studies import analysed, built
from tests.harness.synthetic import Arm, build, write

LINES = 16  # of a first screen
MANY = arm_of(
    {"other": 50.0, "backward": 8.0, "optimizer": 6.0}, named("", "train.py:31", 12.0, code="torch.save(model, path)"),
    named("", "train.py:88", 16.0, code="log(loss)"), spent("gc", 10.0), tokenize=9.0, read=4.0,
    facts={"evaluating_steps": 1, "evaluating_share": 0.1, "program_ms": {"start-up": 2300.0, "end": 700.0}},
)  # fmt: skip


def report_of(arm: Arm, command: str = "train.py", *, spans: bool = False, **how: Any) -> StudyReport:
    study, runs = built(arm, noise=EXACT, spans=spans, **how)
    return analyse(replace(study, command=["harness", "exec", "--", "/usr/bin/python", command]), runs)


def card_of(arm: Arm, command: str = "train.py", *, spans: bool = False) -> VerdictCard:
    card = first_screen(report_of(arm, command, spans=spans)).card
    assert card is not None
    return card


def test_the_first_screen_fits_sixteen_lines_whatever_there_is_to_say() -> None:
    report = report_of(MANY, spans=True)
    (arm,) = report.arms
    assert len(arm.diagnoses) > 1 + FINDINGS_SHOWN
    screen = first_screen(report)
    assert (len(screen.card.findings), len(screen.card.bar)) == (FINDINGS_SHOWN, BAR_PARTS_MAX)
    assert screen.card.bar[-1].label == REST_OF_PARTS
    lines = terminal.card_lines(screen.card)
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= terminal.WIDTH


def test_growth_is_told_once() -> None:
    growing = {"kind": "growing", "phase": "backward", "ms": 20.0, "low_ms": 18.0, "figures": GROWTH}
    below = card_of(arm_of({"other": 40.0, "backward": 25.0}, named("", "train.py:88", 40.0), growing))
    first = card_of(arm_of({"backward": 60.0}, {**growing, "ms": 45.0, "low_ms": 40.0, "high_ms": 50.0}))
    for card, kind in ((below, "own code"), (first, "growing")):
        assert card.kind == kind
        (one,) = [one for one in card.findings if "get longer" in one]
    assert "from 60.0 ms to 150 ms" in one
    assert "45.0 ms" in first.cost
    assert "costs" not in one


def test_shares_are_of_the_step_that_the_title_names() -> None:
    arm = arm_of({"other": 60.0}, named("", "a.py:3", 60.0), facts={"waiting_share": 0.4}, off_core={"forward": 40.0})
    card = card_of(arm, spans=True)
    assert "100 ms a step by the clock; shares are of the 60.0 ms without waits for a core" in card.title
    assert "100 %" not in card_of(CASES["own code"][0]).title
    shown = {one.label: one.percent for one in card.bar}
    assert shown["waiting for a core"] == "–"
    assert sum(one.share or 0.0 for one in card.bar) == pytest.approx(1.0)
    assert f"({shown['own code: a.py:3']})" in card.cost


def test_a_short_wait_for_a_core_is_not_in_the_rest_whose_share_leaves_it_out() -> None:
    """ "Everything else 3.76 ms 11 %" was printed of a step of 25.8 ms."""
    report = report_of(
        replace(MANY, facts={**MANY.facts, "waiting_share": 0.03}, off_core={"forward": 5.0}), spans=True
    )
    (arm,), card = report.arms, first_screen(report).card
    assert len(card.bar) == BAR_PARTS_MAX
    rest, waits = (next(part for part in card.bar if part.label == label) for label in (REST_OF_PARTS, WAITING))
    assert waits.share is None
    assert rest.share is not None
    assert rest.share == pytest.approx(rest.length * arm.wall.step_ms.median / arm.wall.on_cores_ms, rel=1e-3)


def test_stretches_of_the_bar_follow_one_another() -> None:
    rows = [line for line in terminal.card_lines(card_of(MANY)) if terminal.BLOCK in line]
    ends = [(row.index(terminal.BLOCK), len(row)) for row in rows]
    assert all(start <= end for (_, end), (start, _) in pairwise(ends))
    assert ends[-1][1] <= terminal.WIDTH


def test_a_long_command_loses_its_beginning() -> None:
    title = card_of(MANY, "a" * COMMAND_LONGEST + "/train.py").title
    assert title.startswith("...a")
    assert title.index(": ") == COMMAND_LONGEST
    assert "a/train.py: " in title


@pytest.mark.parametrize(("seconds", "shown"), [(0.1, False), (1.0, True)])
def test_what_takes_much_of_the_program_and_what_was_not_kept_are_in_the_title(seconds: float, shown: bool) -> None:
    program = {"start-up": 2000.0, "warm-up steps": 1000 * seconds, "measured steps": 5000.0, "end": 700.0}
    title = card_of(arm_of({"other": 50.0}, facts={"program_ms": program, "thinned_steps": 1000})).title
    assert ("start-up 2.00 s, warm-up steps 1.00 s, end 0.70 s" in title) is shown
    assert ": 1060 steps, of which 60 were kept" in title


def test_a_comparison_of_two_programs_is_on_the_card_of_the_candidate() -> None:
    facts = {"attached": "backward"}
    screen = first_screen(analysed(Arm("a", facts=facts), Arm("b", facts=facts), spans=False))
    assert (screen.card.diagnosis, screen.card.cost) == (screen.headlines[0].subject, screen.headlines[0].finding_text)
    assert "b against a" in screen.card.diagnosis
    assert any("BOUND: " in one for one in screen.card.findings)
    assert any(line.startswith("b vs a") for line in terminal.lines(screen))


def test_several_comparisons_and_runs_of_this_trainer_have_no_card() -> None:
    arms = [Arm(name, facts={"attached": "backward"}) for name in "abc"]
    assert first_screen(analysed(*arms, spans=False)).card is None
    assert first_screen(analysed(Arm("ours"), spans=False)).card is None
    # The ceiling that a control measured is a finding.
    arm = arm_of({"other": 50.0}, read=20.0)
    card = first_screen(analysed(arm, *arm.controls("ideal-data"), noise=EXACT, spans=False)).card
    assert re.match(r"Without data work \(ideal-data\) it is 1\.\d+x as fast", card.findings[0])


def test_the_card_of_a_program(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    study, runs = build([MANY])
    folder = StudyFolder(tmp_path)
    write(folder, replace(study, command=["harness", "exec", "--", "python", "train.py"]), runs)
    screen = build_report(tmp_path)
    assert "\n".join(terminal.lines(screen)) == snapshot(name="terminal")
    page = (tmp_path / "summary.md").read_text()
    assert page[page.index("## Verdict") : page.index("## Waits")] == snapshot(name="summary.md")
    html = (tmp_path / "summary.html").read_text()
    (bar,) = re.findall(r'<svg class="step-bar".*?</svg>', html)
    assert bar.count("<rect") == BAR_PARTS_MAX
    # The bar and the time of each step are first, and there once.
    assert html.count('id="steps"') == 1
    assert html.index('class="step-bar"') < html.index('id="steps"') < html.index("<details")
    assert "steps with an evaluation" in html
    assert page.index("plots/steps.png") < page.index("## Waits and timed phases")
    assert (tmp_path / "plots" / "steps.png").is_file()


@pytest.mark.parametrize(("starts", "lines"), [((0.0, 0.1), True), ((0.0, 5.0), False), ((0.0,), False)])
def test_lines_connect_the_steps_of_arms_that_ran_at_once(starts: tuple[float, ...], lines: bool) -> None:
    found = [
        StepTimes(f"rank-{place}", 0, 2, 0, 1.0, (start, start + 1), (1.0, 1.0), (0, 1), (0, 0), ("", ""))
        for place, start in enumerate(starts)
    ]
    assert at_once(found) is lines


@pytest.mark.parametrize(
    ("facts", "blocks"),
    [({}, 5), ({}, 2), ({"waiting_share": 0.4}, 5), ({"ranks": 2}, 5), ({"asynchronous": True}, 5)],
)
def test_a_card_names_its_share_of_an_epoch_whatever_limits_its_trust(facts: dict[str, Any], blocks: int) -> None:
    arm = replace(CASES["own code"][0], facts={**CASES["own code"][0].facts, "epoch_steps": 600.0, **facts})
    screen = first_screen(report_of(arm, "x.py", blocks=blocks))
    share = {5: "10 %", 2: "4.0 %"}[blocks]
    assert f"x.py: {12 * blocks} steps ({share} of an epoch), " in screen.card.title
    assert screen.horizon == ""  # once is enough


@pytest.mark.parametrize(("steps", "few"), [(2, True), (4, False)])
def test_the_card_names_what_so_few_steps_do_not_show(steps: int, few: bool) -> None:
    """5 blocks of 3 repetitions; growth is found from 40 steps on."""
    card = first_screen(report_of(MANY, steps=steps)).card
    assert f"Trust: {15 * steps} steps of one run, " in card.trust
    assert card.trust.endswith("Steps that get longer are found from 40 steps on.") == few
