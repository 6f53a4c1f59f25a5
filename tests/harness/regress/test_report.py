"""The page, the JSON and the JUnit file of a regression check."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.explain.statistics import Estimate
from harness.judge.confounds import Confound
from harness.judge.doubts import DoubtKind, doubt
from harness.regress import report as regression
from harness.regress.decision import Decision, Gate, HighBlocks, Limits, Outcome, StateComparison, Undecided
from harness.regress.gate import comparisons
from harness.regress.text import sentence
from harness.show.tables import safe
from harness.study.records import CodeRecord
from harness.study.store import StudyFolder
from tests.harness.regress.tables import HEAD, study

RARER = "Costs that come less often than every"  # 600 ms every 60th batch, never reached


def page(change: float, **settings: float | bool) -> str:
    return regression.markdown(comparisons(*study(change, **settings), Limits()))


def test_the_page_says_what_was_decided_with_its_figures() -> None:
    text = page(0.05)
    assert text.startswith("### Regression check: slower\n")
    row = next(line for line in text.splitlines() if line.startswith("| x: step"))
    assert "**slower**" in row
    assert "| +" in row
    assert "noise floor" in text
    assert len(text) < 3000  # a comment, not a report
    assert RARER not in text
    assert "same within 1.0 %" in page(0.0)
    assert RARER in page(0.0)


def test_a_hidden_regression_is_on_the_page_as_hidden() -> None:
    text = page(0.0, tokenize_ms=1.2, hidden=True)
    assert text.startswith("### Regression check: same\n")
    assert "stage tokenize is slower" in text
    assert "hidden" in text


def test_the_worst_contest_names_the_whole() -> None:
    slower, same = (comparisons(*study(change), Limits())[0] for change in (0.05, 0.0))
    assert regression.overall([same, slower]) == "slower"
    assert regression.overall([same]) == "same"
    assert regression.overall([]) == "undecided"


def test_everything_is_written_and_can_be_read(tmp_path: Path) -> None:
    found = comparisons(*study(0.05), Limits())
    regression.write(StudyFolder(tmp_path), found, ["a <note>"])
    content = json.loads((tmp_path / regression.JSON).read_text())
    assert content["verdict"] == "slower"
    assert content["contests"][0]["step"]["outcome"] == "slower"
    assert content["notes"] == ["a <note>"]
    suite = ElementTree.parse(tmp_path / regression.JUNIT).getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("1", "1", "0")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == sentence(found[0])
    assert "a \\<note>" in (tmp_path / regression.MARKDOWN).read_text()


def test_undecided_is_skipped_in_junit_and_says_how_many_blocks_more() -> None:
    found = comparisons(*study(0.03, blocks=4, spread=0.02, seed=3), Limits())
    assert found[0].verdict == "undecided"
    suite = ElementTree.fromstring(regression.junit(found)).find("testsuite")
    assert suite is not None
    assert suite.get("skipped") == "1"
    assert (found[0].cause, found[0].step.more_blocks) == ("both possible", 44)
    assert "44 more blocks" in sentence(found[0])


def test_a_contest_without_a_finished_block_has_a_line() -> None:
    record, runs = study()
    found = comparisons(record, [one for one in runs if one.record.arm != HEAD], Limits())
    assert (found[0].verdict, found[0].cause) == ("undecided", "no shared block")
    text = regression.markdown(found)
    assert safe(sentence(found[0])) in text
    assert len(text.splitlines()) == 3  # no table of dashes: the sentence has the reason and what to do


@pytest.mark.parametrize(
    ("change", "floor", "said"),
    [
        (Estimate(9.7, -0.5, 200.0, 4), 0.1, "this run was too noisy to see even a 2x change"),
        (Estimate(0.02, -0.1, 0.1, 4), 141.0, "this run was too noisy to see even a 2x change"),
        (Estimate(0.02, -0.1, 0.1, 4), 0.01, "the interval includes changes within"),
    ],
)
def test_a_change_that_does_not_exclude_2x_has_no_figure(change: Estimate, floor: float, said: str) -> None:
    (one,) = comparisons(*study(0.03, blocks=4, spread=0.02, seed=3), Limits())
    one = replace(one, step=replace(one.step, change=change, floor=floor))
    text = regression.markdown([one])
    assert said in sentence(one)
    assert ("+2.00 %" in text) == ("interval includes" in said)
    assert not {"+970.0 %", "14100 %"} & {*text.split("|"), *re.findall(r"[+-]?[\d.]+ %", text)}


def test_a_slowdown_above_2x_is_given_as_times_the_baseline() -> None:
    (one,) = comparisons(*study(1.5), Limits())
    assert one.verdict == "slower"
    assert "A step's time changed to 2.50x [2." in sentence(one)


def test_what_xml_cannot_carry_is_replaced() -> None:
    record, runs = study()
    odd = CodeRecord("", "", "odd\x1b[31m")
    record = replace(record, arms=[replace(arm, code=odd) for arm in record.arms])
    suite = ElementTree.fromstring(regression.junit(comparisons(record, runs, Limits()))).find("testsuite")
    assert suite is not None
    assert "odd?[31m" in (suite.findtext("testcase/system-out") or "")


def decided(outcome: Outcome, why: Undecided | None = None) -> Decision:
    median = {"slower": 0.2, "faster": -0.2, "same": 0.0, "undecided": 0.05}[outcome]
    reach = {"slower": 0.01, "faster": 0.01, "same": 0.005, "undecided": 0.3}[outcome]
    change = Estimate(median, median - reach, median + reach, 9)
    return Decision(outcome, 0.01, change, 0.95, 0.005, None, why if outcome == "undecided" else None)


STEPS = [*map(decided, ("slower", "faster", "same"))]
STEPS += [decided("undecided", why) for why in ("within the noise", "both possible", "at the limit", "scattered")]


@pytest.mark.parametrize(
    ("kind", "remedy"), [("no core", "Repeat when it has a free core"), ("too noisy", "Repeat on a quieter machine.")]
)
def test_the_doubt_that_bars_a_verdict_is_its_cause(kind: DoubtKind, remedy: str) -> None:
    c = StateComparison("x", "a", "b", 9, decided("same"), 48, 400.0, 10.0, 11.0, doubts=(doubt(kind, "x"),))
    assert c.cause == kind
    assert remedy in sentence(c)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("alternated", [True, False])
@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize("slow", [None, HighBlocks((1, 2), 0.3)])
def test_no_status_and_sentence_disagree(step: Decision, alternated: bool, busy: bool, slow: HighBlocks | None) -> None:
    """The exit code was that of "slower", the sentence said "undecided"."""
    outcomes: tuple[Outcome, ...] = ("slower", "faster", "same", "undecided")
    for total, gate, lead in product(outcomes, outcomes, (None, Confound("lead", ("x", "y")))):
        c = StateComparison(
            "x", "a", "b", 9, step, 48, 400.0, 10.0, 11.0, decided(total, "scattered"), alternated=alternated,
            gates=[Gate("peak memory", "MiB", 1.0, 1.0, decided(gate, "scattered"))], slow_blocks=slow, used_lead=lead,
            doubts=(doubt("no core", "x", share=0.3),) if busy else (),
        )  # fmt: skip
        verdict, _, _ = sentence(c).removeprefix("x: ").partition(". ")
        assert {
            "slower": "slower by more" in verdict or "grew by more" in verdict,
            "undecided": verdict.startswith("undecided, because "),
            "same": verdict.startswith("same within"),
            "faster": verdict == "faster",
        }[c.verdict]
        assert (c.cause is not None) == (c.verdict == "undecided")
        assert c.verdict in regression.markdown([c]).splitlines()[0]
