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


def suite(junit: bytes) -> ElementTree.Element:
    return ElementTree.fromstring(junit).find("testsuite")


def test_the_page_says_what_was_decided_with_its_figures() -> None:
    text = page(0.05)
    assert text.startswith("### Regression check: slower\n")
    row = next(line for line in text.splitlines() if line.startswith("| x: step"))
    assert "**slower**" in row
    assert "| +" in row
    assert len(text) < 3000  # a comment, not a report
    assert (RARER in text, RARER in page(0.0)) == (False, True)
    hidden = page(0.0, tokenize_ms=1.2, hidden=True)
    assert hidden.startswith("### Regression check: same\n")
    assert "stage tokenize is slower" in hidden
    assert "it runs hidden behind the step" in hidden


def test_the_worst_contest_names_the_whole() -> None:
    slower, same = (comparisons(*study(change), Limits())[0] for change in (0.05, 0.0))
    assert regression.overall([same, slower]) == "slower"
    assert regression.overall([same]) == "same"
    assert regression.overall([]) == "undecided"


def test_everything_is_written_and_can_be_read(tmp_path: Path) -> None:
    found = comparisons(*study(0.05), Limits())
    regression.write(StudyFolder(tmp_path), found, ["a <note>"])
    content = json.loads((tmp_path / regression.JSON).read_text())
    assert (content["verdict"], content["notes"]) == ("slower", ["a <note>"])
    assert content["contests"][0]["step"]["outcome"] == "slower"
    cases = suite((tmp_path / regression.JUNIT).read_bytes())
    assert (cases.get("tests"), cases.get("failures"), cases.get("skipped")) == ("1", "1", "0")
    failure = cases.find("testcase/failure")
    assert failure.get("message") == sentence(found[0])
    assert "a \\<note>" in (tmp_path / regression.MARKDOWN).read_text()


def test_undecided_is_skipped_in_junit_and_says_how_many_blocks_more() -> None:
    found = comparisons(*study(0.03, blocks=4, spread=0.02, seed=3), Limits())
    assert suite(regression.junit(found)).get("skipped") == "1"
    assert (found[0].verdict, found[0].cause, found[0].step.more_blocks) == ("undecided", "both possible", 44)
    assert "44 more blocks" in sentence(found[0])


def test_a_contest_without_a_finished_block_has_a_line() -> None:
    record, runs = study()
    found = comparisons(record, [one for one in runs if one.record.arm != HEAD], Limits())
    assert (found[0].verdict, found[0].cause) == ("undecided", "no shared block")
    text = regression.markdown(found)
    assert safe(sentence(found[0])) in text
    assert len(text.splitlines()) == 3  # no table of dashes: the sentence has the reason and what to do


NOISY = "this run was too noisy to see even a 2x change"


@pytest.mark.parametrize(("change", "floor", "said"), [
    (Estimate(9.7, -0.5, 200.0, 4), 0.1, NOISY),
    (Estimate(0.02, -0.1, 0.1, 4), 141.0, NOISY),
    (Estimate(0.02, -0.1, 0.1, 4), 0.01, "the interval includes changes within"),
])  # fmt: skip
def test_a_change_that_does_not_exclude_2x_has_no_figure(change: Estimate, floor: float, said: str) -> None:
    (one,) = comparisons(*study(0.03, blocks=4, spread=0.02, seed=3), Limits())
    one = replace(one, step=replace(one.step, change=change, floor=floor))
    text = regression.markdown([one])
    assert said in sentence(one)
    assert ("+2.00 %" in text) == (said != NOISY)
    assert not {"+970.0 %", "14100 %"} & {*text.split("|"), *re.findall(r"[+-]?[\d.]+ %", text)}
    (one,) = comparisons(*study(1.5), Limits())  # above 2x it is times the baseline
    assert "A step's time changed to 2.50x [2." in sentence(one)


def test_what_xml_cannot_carry_is_replaced() -> None:
    record, runs = study()
    record = replace(record, arms=[replace(arm, code=CodeRecord("", "", "odd\x1b[31m")) for arm in record.arms])
    assert "odd?[31m" in suite(regression.junit(comparisons(record, runs, Limits()))).findtext("testcase/system-out")


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
def test_no_status_and_sentence_disagree(step: Decision, alternated: bool) -> None:
    """The exit code was that of "slower", the sentence said "undecided"."""
    outcomes: tuple[Outcome, ...] = ("slower", "faster", "same", "undecided")
    lead_or_none, slow_or_none = (None, Confound("lead", ("x", "y"))), (None, HighBlocks((1, 2), 0.3))
    for total, gate, lead, slow, busy in product(outcomes, outcomes, lead_or_none, slow_or_none, (True, False)):
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
