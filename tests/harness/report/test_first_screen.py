"""What is read in ten seconds: the right words for each finding, nothing hidden, and narrow tables."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from harness.analysis.report_types import StudyReport
from harness.analysis.statistics import Estimate
from harness.analysis.study import analyse
from harness.report import markdown, terminal
from harness.report.first_screen import MOST_DIFFERENCES, FirstScreen, finding, first_screen
from tests.harness.synthetic import Arm, build, judged, page_of

TEXT = Arm("text-padded", tokenize=9.0, declared={"data.path": "text-padded"})
TOKENS = Arm("tokens-padded", tokenize=0.0, declared={"data.path": "tokens-padded"})
QUIET = {"day": 0.002, "block": 0.001}
PAGE = 100  # characters that a row of a table may take in a pull request


def analysed(*arms: Arm, **how: object) -> StudyReport:
    everything = [one for arm in arms for one in (arm, *arm.controls("a-a", "ideal-data", "data-only"))]
    return analyse(*build(everything, [(arms[0].name, arm.name) for arm in arms[1:]], **{"noise": QUIET, **how}))


def screen(*arms: Arm, **how: object) -> FirstScreen:
    return first_screen(analysed(*arms, **how))


@pytest.fixture(scope="module")
def gain() -> StudyReport:
    return analysed(TEXT, TOKENS)


def test_a_gain_is_said_as_a_person_would(gain: StudyReport) -> None:
    (headline,) = first_screen(gain).headlines
    assert headline.text.startswith("Pretokenizing (tokens-padded): 29 % faster (29 to 32 %). ")
    assert headline.text.endswith("Data costs 9.28 of 38.9 ms a step and is waited for.")


def test_hidden_work_is_no_gain_and_the_line_says_what_hides_it() -> None:
    arms = (replace(TEXT, workers=1), replace(TOKENS, workers=1))
    (headline,) = screen(*arms).headlines
    assert "no gain you could see (under " in headline.text
    assert headline.text.endswith("and is hidden behind forward.")


def test_more_tokens_a_step_are_not_called_faster() -> None:
    (headline,) = screen(Arm("padded", trained=900), Arm("packed", trained=1200)).headlines
    assert headline.finding.startswith("33 % more trained tokens/s (")
    assert headline.finding.endswith("training 1.333x as many in each step")


@pytest.mark.parametrize(
    ("ratio", "floor", "words"),
    [
        (Estimate(0.92, 0.90, 0.95, 5), 0.01, "8.0 % slower (5.0 to 10 %)"),
        (Estimate(4.2, 3.9, 4.4, 5), 0.01, "4.20x as fast (3.90x to 4.40x)"),
        (
            Estimate(1.02, None, None, 2),
            0.01,
            "undecided, 1.020x: fewer than 3 blocks give no interval; repeat with --repeats 5",
        ),
        (
            Estimate(1.1, 0.8, 1.4, 5),
            0.01,
            "undecided, 1.100x (0.800x to 1.400x): a difference of up to 40 % would not have shown; repeat with more "
            "than 5 blocks or on a quieter machine",
        ),
        (
            Estimate(1.2, 1.1, 1.3, 5),
            0.25,
            "undecided, 1.200x (1.100x to 1.300x): the median does not clear the noise floor of 25 %; repeat with more "
            "than 5 blocks or on a quieter machine",
        ),
        (Estimate(1.02, 1.01, 1.03, 5), 0.04, "no difference you could tell from noise (under 4.0 %)"),
        (Estimate(1.02, 0.98, 1.05, 5), 0.01, "no gain you could see (under 5.0 %)"),
    ],
)
def test_every_finding_has_its_words(gain: StudyReport, ratio: Estimate, floor: float, words: str) -> None:
    assert finding(judged(gain, ratio, floor).compared[0].measured) == words


def test_what_failed_and_what_differs_comes_first_and_many_are_counted() -> None:
    others = [
        Arm(f"arm-{place}", tokenize=0.0, environment={"torch": f"2.{place}"}, failed_blocks=(0,) if place == 1 else ())
        for place in range(MOST_DIFFERENCES + 1)
    ]
    report = analysed(TEXT, *others, blocks=3)
    found = first_screen(report)
    assert any("Partial study" in line for line in found.beware)
    assert f"Undeclared difference (environment) in {len(others)} comparisons: listed below" in found.beware
    lines = terminal.lines(found)
    assert all(line.startswith(("! ", "  ")) for line in lines[: len(found.beware)])
    page = page_of(report)
    for place in range(MOST_DIFFERENCES + 1):
        assert f"torch is '2.11.0' against '2.{place}'" in page


def test_a_missing_comparison_is_said() -> None:
    (headline,) = screen(TEXT, replace(TOKENS, failed_blocks=(0, 1, 2, 3, 4))).headlines
    assert "not measured (no finished run of tokens-padded" in headline.text


def test_sixteen_arms_fit_a_pull_request_and_a_terminal() -> None:
    arms, pairs = [], []
    for b, w, length in itertools.product((1, 4), (0, 2), (512, 1024)):
        config = {"data.batch_size": b, "data.workers": w, "data.sequence_length": length}
        point = f"batch_size={b},workers={w},sequence_length={length}"
        base, other = (replace(one, name=f"{one.name}@{point}", config=config) for one in (TEXT, TOKENS))
        arms += [base, other, *base.controls("a-a", "data-only"), *other.controls("data-only")]
        pairs.append((base.name, other.name))
    report = analyse(*build(arms, pairs, blocks=3, noise=QUIET))
    page = markdown.page(report, first_screen(report), [])
    for row in page.markdown.splitlines():
        if row.startswith("| ") and not row.startswith("| ---") and "exposed ms" not in row:
            assert len(row.strip("| ").replace(" | ", "  ")) <= PAGE, row
    found = first_screen(report)
    assert len(found.headlines) == len(found.rows) == 8
    assert "(tokens / text)-padded bs1 w0 sl512" in found.rows[0][0]
    assert max(map(len, terminal.lines(found))) <= PAGE
