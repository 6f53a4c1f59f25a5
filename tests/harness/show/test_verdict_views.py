"""Every view of a study gives each comparison the same verdict: pages, pictures, terminal and summary.json."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.explain.statistics import Estimate
from harness.explain.unusual_steps import LongSteps
from harness.judge.doubts import UNDECIDED_KINDS, doubt
from harness.judge.losses import Losses
from harness.judge.policy import COARSE_RESOLUTION
from harness.judge.report_types import StudyReport
from harness.judge.study import analyse
from harness.judge.verdicts import InTotal, Verdict
from harness.show import markdown, plots, terminal
from harness.show.build import html_page
from harness.show.first_screen import first_screen
from harness.show.sentences import sentence
from harness.show.summary import summary
from harness.show.text.verdicts import VERDICTS, undecided_because
from tests.examples import examples
from tests.harness.synthetic import Arm, build, judged

TEXT, TOKENS = Arm("text", tokenize=9.0), Arm("tokens", tokenize=0.0, declared={"data.path": "tokens-padded"})
STUDY = analyse(*build([TEXT, TOKENS, *TEXT.controls("a-a")], [("text", "tokens")], blocks=3))
OF_WORDS = {words: verdict for verdict, words in VERDICTS.items()}

SAVES = LongSteps(3, 600, 1500.0, 31.0, "log")
# A ratio, its noise floor and the losses, for every kind of verdict.
KINDS: Mapping[str, StudyReport] = {
    "gain": judged(STUDY, Estimate(1.2, 1.15, 1.25, 5), 0.01),
    "large gain": judged(STUDY, Estimate(4.2, 3.9, 4.4, 5), 0.01),
    "loss": judged(STUDY, Estimate(0.8, 0.75, 0.85, 5), 0.01),
    "loss that also diverged": judged(STUDY, Estimate(0.8, 0.75, 0.85, 5), 0.01, Losses(3.0, None, ("tokens",))),
    "none": judged(STUDY, Estimate(1.01, 0.98, 1.03, 5), 0.01),
    "none: below the floor": judged(STUDY, Estimate(1.02, 1.01, 1.03, 5), 0.04),
    "none: not for all together": judged(
        STUDY, Estimate(1.04, 1.01, 1.06, 5), 0.01, together=Estimate(1.04, 0.99, 1.09, 5)
    ),
    "too few blocks": judged(STUDY, Estimate(1.2, None, None, 2), 0.01),
    "no noise floor": judged(STUDY, Estimate(1.2, 1.15, 1.25, 5), None),
    "too noisy": judged(STUDY, Estimate(1.225, 0.088, 542.2, 4), 141.07),
    "too coarse": judged(STUDY, Estimate(1.1, 0.8, 1.4, 5), 0.01),
    "too coarse: below the floor": judged(STUDY, Estimate(1.2, 1.1, 1.3, 5), 0.25),
    "diverged": judged(STUDY, Estimate(1.2, 1.15, 1.25, 5), 0.01, Losses(3.0, None, ("tokens",))),
    "other loss": judged(STUDY, Estimate(1.2, 1.15, 1.25, 5), 0.01, Losses(3.0, 2.0, (), differ=True)),
    "repeated data": judged(STUDY, Estimate(1.2, 1.15, 1.25, 5), 0.01, repeated=(0.0, 0.75)),
    "no core": judged(STUDY, Estimate(1.2, 1.15, 1.25, 5), 0.01, doubts=[doubt("no core")]),
    "lead": judged(STUDY, Estimate(1.03, 1.02, 1.04, 5), 0.01, used_lead=(0.0, 0.05)),
    "a-a apart": judged(STUDY, Estimate(1.09, 1.07, 1.1, 5), 0.08, same_again=Estimate(1.07, 1.06, 1.08, 5)),
    "long steps": judged(
        STUDY, Estimate(1.2, 1.15, 1.25, 5), 0.01, in_total=InTotal(0.9, 0.95, "candidate", SAVES, 1, 2, 5)
    ),
    "long steps: that outweigh no difference": judged(
        STUDY, Estimate(1.0, 0.99, 1.01, 5), 0.01, in_total=InTotal(1.1, 1.1, "baseline", SAVES, 0, 2, 5)
    ),
    "loss that long steps make larger": judged(
        STUDY, Estimate(0.8, 0.75, 0.85, 5), 0.01, in_total=InTotal(0.5, 0.5, "candidate", SAVES, 0, 2, 5)
    ),
    "lead: that may hide as much": judged(STUDY, Estimate(1.0, 0.98, 1.02, 5), 0.01, used_lead=(0.05, 0.05)),
}


def of_finding(text: str) -> Verdict:
    """The verdict that a headline's finding says."""
    if text.startswith(("undecided", "no ")):
        return "undecided" if text.startswith("undecided") else "none"
    return "loss" if " slower " in text or " fewer " in text else "gain"


def of_sentence(text: str) -> Verdict:
    """The verdict that a full sentence says, also where markdown surrounds it."""
    found = re.findall(r"tokens against text: ([^(*]*)", text)
    assert found, text
    return of_finding(f"{found[-1]} ")


def of_row(text: str) -> Verdict:
    second = text.partition("tokens vs text")[2].strip("\n |")
    (verdict,) = {verdict for words, verdict in OF_WORDS.items() if second.startswith(words)}
    return verdict


def of_summary(one: Mapping[str, object]) -> Verdict:
    assert (one["undecided_because"] is None) is one["decided"]
    if not one["decided"]:
        assert one["verdict"] == "undecided"
    return one["verdict"]


def in_text(report: StudyReport) -> dict[str, Verdict]:
    """By view that is made of text: the verdict that a reader would take from it."""
    screen = first_screen(report)
    (c,), (headline,), (row,) = report.compared, screen.headlines, screen.rows
    told = json.loads(json.dumps(summary(report, screen)))["comparisons"][0]
    return {
        "analysis": c.measured.verdict,
        "sentence": of_sentence(sentence(c)),
        "headline": of_finding(headline.finding),
        "row": OF_WORDS[row[1]],
        "summary.json": of_summary(told),
        "its sentence": of_sentence(told["sentence"]),
        "terminal": of_row(next(line for line in terminal.lines(screen) if line.startswith("tokens vs text"))),
    }


def in_pages(report: StudyReport) -> dict[str, Verdict]:
    screen = first_screen(report)
    page = markdown.page(report, screen, [])
    shown = html_page(page, {}, (), screen.names)
    cells = re.search(r'<th scope="row"[^>]*>tokens vs text</th>(.*?)</tr>', shown, re.DOTALL)
    figure = plots.forest(report.compared, screen.names)
    label = next(text.get_text() for text in figure.axes[0].texts)
    return {
        "summary.md, table": of_row(next(li for li in page.markdown.splitlines() if li.startswith("| tokens vs text"))),
        "summary.md, in full": of_sentence(page.markdown),
        "summary.html, table": of_row(re.sub(r"<[^>]*>", " ", cells[0])),
        "summary.html, in full": of_sentence(re.sub(r"</?strong>", "", shown)),
        "picture": OF_WORDS[label.splitlines()[0].partition(",")[0]],
    }


@pytest.mark.parametrize("kind", KINDS)
def test_all_views_agree_on_every_kind_of_verdict(kind: str) -> None:
    report = KINDS[kind]
    found = in_text(report) | in_pages(report)
    expected = kind.partition(" that")[0].partition(":")[0].removeprefix("large ")
    if expected in UNDECIDED_KINDS:
        assert report.compared[0].measured.undecided == expected
        expected = "undecided"
    assert found == dict.fromkeys(found, expected)


def test_no_kind_is_forgotten() -> None:
    measured = [one.compared[0].measured for one in KINDS.values()]
    assert {m.verdict for m in measured} == set(get_args(Verdict))
    assert {m.undecided for m in measured} == {None, *UNDECIDED_KINDS}


def test_a_cause_without_words_of_its_own_is_stated_by_its_doubt_and_remedy() -> None:
    """A new kind in the table of doubts was printed as "undecided: None"."""
    gain = KINDS["gain"].compared[0].measured
    m = replace(gain, verdict="undecided", cause=doubt("host load", "text"))
    because = "text: other processes used cores during these runs"
    assert undecided_because(m) == f"{because}; repeat on a quieter machine"
    assert undecided_because(m, remedy=False) == because


def estimates() -> st.SearchStrategy[Estimate]:
    def made(median: float, below: float, above: float, n: int) -> Estimate:
        ends = (median / (1 + below), median * (1 + above)) if n > 2 else (None, None)
        return Estimate(median, *ends, n)

    widths = st.floats(0.0, 0.5)
    return st.builds(made, st.floats(0.3, 4.0), widths, widths, st.integers(2, 20))


def test_what_an_a_a_control_does_as_well_is_beside_the_finding_of_every_kind_that_stands() -> None:
    gain = judged(STUDY, Estimate(1.2, 1.15, 1.25, 5), 0.08, same_again=Estimate(1.07, 1.06, 1.08, 5))
    said = "The A/A control of text, the same program again, was 7.0 % faster (6.0 to 8.0 %): that much of"
    assert gain.compared[0].measured.verdict == "gain"
    assert said in first_screen(gain).headlines[0].text
    assert said in sentence(gain.compared[0])


@given(
    ratio=estimates(),
    floor=st.none() | st.floats(0.0, 0.5),
    losses=st.sampled_from([Losses(3.0, 3.0), Losses(3.0, None, ("tokens",)), Losses(3.0, 2.0, differ=True)]),
)
@examples(60)
def test_views_of_text_agree_whatever_was_measured(ratio: Estimate, floor: float | None, losses: Losses) -> None:
    report = judged(STUDY, ratio, floor, losses)
    found = in_text(report)
    assert len(set(found.values())) == 1, found
    measured = report.compared[0].measured
    if measured.verdict == "none":
        assert measured.resolution is not None
        assert measured.resolution <= COARSE_RESOLUTION
