"""What is read in ten seconds: the right words for each finding, nothing hidden, and narrow tables."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from harness.explain.statistics import Estimate
from harness.judge.report_types import PredictedRatio, StudyReport
from harness.judge.study import analyse
from harness.show import terminal
from harness.show.chain import chain
from harness.show.first_screen import HEADER, FirstScreen, first_screen
from harness.show.policy import DIFFERENCES_SHOWN, REMEDY_REPEATS
from harness.show.summary import summary
from harness.show.tables import NOT_MEASURED
from harness.show.text.verdicts import finding
from harness.show.words import percent, ratio
from harness.study.run_data import RunData
from tests.harness.show.studies import QUIET, TEXT, TOKENS, analysed, built, gain, with_controls
from tests.harness.synthetic import NOISE, Arm, build, judged, page_of

PREDICTED = HEADER.index("predicted")
PAGE = 100  # characters that a row of a table may take in a pull request


def screen(*arms: Arm, controls: bool = True, **how: object) -> FirstScreen:
    everything = with_controls(*arms) if controls else [*arms, *arms[0].controls("a-a")]
    return first_screen(analysed(*everything, noise=QUIET, **how))


@pytest.fixture(scope="module", name="gain")
def _gain() -> StudyReport:
    return gain()


def test_a_gain_is_said_as_a_person_would(gain: StudyReport) -> None:
    (headline,) = first_screen(gain).headlines
    assert headline.text.startswith("Pretokenizing (tokens): 29 % faster (29 to 32 %). ")
    assert headline.text.endswith("Data work takes 9.28 of 38.9 ms a step; the step waits for all of it.")


def test_hidden_work_is_no_gain_and_the_line_says_what_hides_it() -> None:
    (headline,) = screen(replace(TEXT, workers=1), replace(TOKENS, workers=1), controls=False).headlines
    assert "no detectable difference (under " in headline.text
    assert headline.text.endswith("the step waits for none of it: it is hidden behind forward.")


def test_more_tokens_a_step_are_not_called_faster() -> None:
    (headline,) = screen(Arm("padded", trained=900), Arm("packed", trained=1200), spans=False).headlines
    assert headline.finding.startswith("33 % more trained tokens/s (")
    assert headline.finding.endswith("training 1.333x as many in each step")


COARSE = "a change of up to 40 % could not be seen; repeat with more than 5 blocks, or on a quieter machine"


@pytest.mark.parametrize(
    ("ratio", "floor", "words"),
    [
        (Estimate(0.92, 0.90, 0.95, 5), 0.01, "8.0 % slower (5.0 to 10 %)"),
        (Estimate(4.2, 3.9, 4.4, 5), 0.01, "4.20x as fast (3.90x to 4.40x)"),
        (Estimate(1.02, None, None, 2), 0.01, "undecided, 1.020x: an interval needs 3 blocks; repeat with --repeats 5"),
        (Estimate(1.1, 0.8, 1.4, 5), 0.01, f"undecided, 1.100x (0.800x to 1.400x): {COARSE}"),
        (Estimate(1.02, 1.01, 1.03, 5), 0.04, "no detectable difference (under 4.0 %)"),
        (Estimate(1.02, 0.98, 1.05, 5), 0.01, "no detectable difference (under 5.0 %)"),
    ],
)
def test_every_finding_has_its_words(gain: StudyReport, ratio: Estimate, floor: float, words: str) -> None:
    assert finding(judged(gain, ratio, floor).compared[0].measured) == words


def test_an_interval_that_only_all_comparisons_together_make_too_wide_is_shown(gain: StudyReport) -> None:
    """Its own leaves 1 out: beside it, "undecided" would contradict itself."""
    coarse = judged(gain, Estimate(1.249, 0.949, 1.421, 10), 0.02).compared[0].measured
    among_three = replace(
        coarse, ratio=Estimate(1.249, 1.011, 1.380, 10), together=Estimate(1.249, 0.949, 1.421, 10), comparisons=3
    )
    assert finding(among_three) == (
        "undecided, 1.249x (1.011x to 1.380x): the interval for all 3 comparisons together includes no change "
        "(0.949x to 1.421x); "
        "repeat with more than 10 blocks, or on a quieter machine"
    )


def test_of_many_comparisons_that_ask_for_more_blocks_it_is_said_once(gain: StudyReport) -> None:
    coarse = judged(gain, Estimate(1.1, 0.8, 1.4, 5), 0.01)
    asks = "repeat with more than 5 blocks, or on a quieter machine"
    for times, said in ((REMEDY_REPEATS, REMEDY_REPEATS), (REMEDY_REPEATS + 1, 1)):
        found = [line.text for line in first_screen(replace(coarse, comparisons=coarse.comparisons * times)).headlines]
        assert sum(asks in line for line in found) == said
    assert found[-1] == f"To decide the {REMEDY_REPEATS + 1} undecided comparisons: {asks}."


def test_what_failed_and_what_differs_comes_first_and_many_are_counted() -> None:
    others = [
        Arm(f"arm-{place}", tokenize=0.0, environment={"torch": f"2.{place}"}, failed_blocks=(0,) if place == 1 else ())
        for place in range(DIFFERENCES_SHOWN + 1)
    ]
    report = analysed(TEXT, *others, *TEXT.controls("a-a"), Arm("gone", failed_blocks=(0, 1, 2)), blocks=3, spans=False)
    found = first_screen(report)
    assert any("Partial study" in line for line in found.beware)
    assert f"The arms also differ (environment) in {len(others)} comparisons: see the details" in found.beware
    assert all(line.startswith(("! ", "  ")) for line in terminal.lines(found)[: len(found.beware)])
    page = page_of(report)
    assert all(f"torch is '2.11.0' against '2.{place}'" in page for place in range(DIFFERENCES_SHOWN + 1))
    assert "not measured (no finished run of gone" in found.each[-1].text


def test_sixteen_arms_fit_a_pull_request_and_a_terminal() -> None:
    arms, pairs = [], []
    for b, w, length in itertools.product((1, 4), (0, 2), (512, 1024)):
        config = {"data.batch_size": b, "data.workers": w, "data.sequence_length": length}
        point = f"batch_size={b},workers={w},sequence_length={length}"
        base, other = (replace(one, name=f"{one.name}@{point}", config=config) for one in (TEXT, TOKENS))
        arms += [base, other, *base.controls("a-a")]
        pairs.append((base.name, other.name))
    study, runs = build(arms, pairs, blocks=3, noise=dict.fromkeys(NOISE, 5e-4))
    runs = [  # The replays of one point have each kind of row.
        run if point in run.record.arm else RunData(run.record, run.steps, None, run.samples) for run in runs
    ]
    report = analyse(study, runs)
    for row in page_of(report).splitlines():
        if row.startswith("| ") and not row.startswith("| ---") and "exposed ms" not in row:
            assert len(row.strip("| ").replace(" | ", "  ")) <= PAGE, row
    found = first_screen(report)
    assert "tokens vs text, bs1 w0 sl512" in {row[0] for row in found.rows}
    ratios = [c.measured.ratio.median for c in report.compared]
    assert [row[-1] for row in found.rows] == [ratio(one) for one in sorted(ratios, reverse=True)]
    tally, best, worst = found.headlines
    assert tally.finding == "8 gain"
    assert best.finding.startswith(percent(max(ratios) - 1))
    assert worst.finding.startswith(percent(min(ratios) - 1))
    assert max(map(len, terminal.lines(found))) <= PAGE


HIDDEN, REST = "the step waits for none of it", "the rest is hidden behind the step."


@pytest.mark.parametrize(
    ("step_ms", "waited", "parallel", "hidden", "between", "said"),
    [
        # Several workers, whose work together is longer than a step
        (8.5, 6.3, 260.0, 52.0, 0.0, "Data work is 318 ms for each 8.50 ms step; the step waits 6.30 for it, while 260 "
         "of it run in parallel, 52.0 are hidden behind the step."),
        # The work of other workers during a wait is not hidden
        (40.0, 18.0, 18.0, 0.5, 0.0, "36.5 of 40.0 ms a step; the step waits 18.0 for it, while 18.0 of it run in "
         "parallel."),
        (40.0, 0.0, 0.0, 20.0, 12.0, f"{HIDDEN}, 12.0 run between training steps, {REST}"),
        (40.0, 0.0, 0.0, 0.0, 12.0, f"{HIDDEN}, 12.0 run between training steps."),
        (40.0, 10.0, 0.0, 20.0, 12.0, f"the step waits 10.0 for it, 12.0 run between training steps, {REST}"),
        (40.0, 10.0, 0.0, 0.0, 12.0, "the step waits 10.0 for it, 12.0 run between training steps."),
        (40.0, 8.0, 8.0, 9.0, 12.0, "9.00 are hidden behind the step, 12.0 run between training steps."),
        # Hidden is what costs nothing: beside "could gain 1.030x" it would be false, however much of the work it is
        (33.5, 1.0, 0.0, 32.0, 0.0, f"the step waits 1.00 for it, {REST}"),
        (30.6, 0.22, 0.0, 9.6, 0.0, f"the step waits 0.22 for it, {REST}"),
        (30.6, 0.02, 0.0, 9.6, 0.0, f"{HIDDEN}: it is hidden behind the step."),  # under 0.1 % of the step
    ],
)  # fmt: skip
def test_what_is_waited_for_runs_beside_or_is_hidden_is_told_apart(
    gain: StudyReport, step_ms: float, waited: float, parallel: float, hidden: float, between: float, said: str
) -> None:
    (c,) = gain.compared
    waits = replace(
        c.measured.baseline_waits, step_ms=step_ms, waited_ms=waited, exposed_ms={"tokenize": waited},
        hidden_ms={"tokenize": hidden}, parallel_ms={"tokenize": parallel}, between_steps_ms={"tokenize": between},
        stage_work_ms={"tokenize": waited + parallel + hidden + between},
    )  # fmt: skip
    explained = replace(c.explained, hidden_behind_ms={})
    other = replace(c, measured=replace(c.measured, baseline_waits=waits), explained=explained)
    (headline,) = first_screen(replace(gain, comparisons=(other,))).headlines
    assert headline.support.endswith(said)


def test_hidden_work_that_takes_cores_is_not_only_called_hidden() -> None:
    base, other = (Arm(name, tokenize=9.0, workers=1, contended=5.0) for name in ("base", "other"))
    report = analysed(base, other, *base.controls("a-a"), noise=QUIET, blocks=3)
    (headline,) = first_screen(report).headlines
    assert headline.support.endswith("it is hidden behind forward; a step waits 5.00 ms for a core.")
    assert "would be no faster, except for cores and memory bandwidth that hidden work takes (1.000x" in page_of(report)


def without(columns: tuple[str, ...], base: Arm, other: Arm) -> StudyReport:
    """A study whose trainer did not count what ``columns`` hold."""
    study, runs = built(base, other, *base.controls("a-a"), noise=QUIET, spans=False)
    uncounted = []
    for run in runs:
        assert run.steps is not None
        steps = run.steps
        for name in columns:
            field = steps.schema.field(name)
            steps = steps.set_column(steps.column_names.index(name), field, pa.nulls(len(steps), field.type))
        uncounted.append(RunData(run.record, steps, run.spans, run.samples))
    return analyse(study, uncounted)


def test_what_a_step_holds_is_no_speed_where_it_was_not_counted() -> None:
    report = without(("trained_tokens",), Arm("base"), Arm("twice", tokens=4096))
    (headline,) = first_screen(report).headlines
    assert headline.finding.endswith(", computing 2.00x as many in each step")
    assert " more tokens/s (" in headline.finding
    page = page_of(report)
    assert "computing 2.00x as many in each step** (" in page
    assert "that part is the size of a step, not time" in page
    (c,) = report.compared
    assert c.measured.steps.verdict == "none"
    half = {"forward": 4.5, "backward": 8.5, "optimizer": 3.0}
    (headline,) = first_screen(without(("tokens", "trained_tokens"), Arm("base"), Arm("half", compute=half))).headlines
    assert " % more steps/s (" in headline.finding
    assert headline.finding.endswith(", trained tokens were not counted")


def test_a_prediction_outside_tolerance_is_not_shown_as_one(gain: StudyReport) -> None:
    (c,) = gain.compared
    predicted = c.explained.predicted
    assert isinstance(predicted, PredictedRatio)
    assert first_screen(gain).rows[0][PREDICTED] != NOT_MEASURED
    off = replace(c, explained=replace(c.explained, predicted=replace(predicted, error=0.3, within_tolerance=False)))
    report = replace(gain, comparisons=(off,))
    assert first_screen(report).rows[0][PREDICTED] == NOT_MEASURED
    assert "outside tolerance, do not rely on it" in page_of(report)
    (link,) = (one for one in chain(off) if one.name == "predicted")
    assert link.ratio is None  # nor is it a bar of the picture


def test_what_could_be_gained_is_said_to_be_by_data_where_arms_differ_in_more() -> None:
    compiled = Arm("compiled", compute={"forward": 20.0}, declared={"model.compile": True})
    (row,) = screen(Arm("eager"), compiled, controls=False).rows
    assert row[HEADER.index("could gain")].endswith("x by data")
    assert row[PREDICTED] == NOT_MEASURED


def test_advice_that_promises_more_than_no_data_work_gave_says_so() -> None:
    """The loop is slower beside its ideal data: whatever its waits are, they are not for data work."""
    base = Arm("base", tokenize=4.0)
    ideal = base.variant("ideal-data", read=0.0, tokenize=0.0, pack=0.0, compute={"forward": 36.0})
    arms = [base, *base.controls("a-a"), ideal, Arm("other", tokenize=3.9)]
    found = first_screen(analysed(*arms, noise=QUIET, blocks=3))
    assert found.next_steps.ranked
    assert all("do not rely on it: without any data work, 0.9" in line for line in found.next_steps.ranked)


def test_savings_of_a_replay_outside_tolerance_are_not_said(gain: StudyReport) -> None:
    assert "| text | tokenize (stage) |" in page_of(gain)
    first, *others = gain.arms
    off = replace(first, explained=replace(first.explained, replay_error=-0.3, within_tolerance=False))
    page = page_of(replace(gain, arms=(off, *others)))
    assert "| text | tokenize (stage) |" not in page
    assert "Not shown for text: the unedited replay is off by more than 5.0 %." in page


def test_the_json_of_many_comparisons_has_each_of_them_with_its_own_headline() -> None:
    base = Arm("a", tokenize=9.0)
    others = [Arm(f"b{cost:g}", tokenize=cost) for cost in (7.0, 1.0, 5.0, 3.0, 13.0, 0.0)]
    report = analysed(base, *others, *base.controls("a-a"), spans=False)
    found = first_screen(report)
    assert len(found.headlines) < len(others)
    written: Any = summary(report, found)["comparisons"]
    assert [one["headline"].partition(" against a: ")[0] for one in written] == [arm.name for arm in others]


def test_a_column_without_any_figure_is_left_out(gain: StudyReport) -> None:
    """A comparison of a program has nothing in isolation, no ceiling and no prediction: three columns of dashes."""
    full = first_screen(gain)
    assert full.columns == (HEADER, [*full.rows])
    row = (*full.rows[0][:2], NOT_MEASURED, NOT_MEASURED, NOT_MEASURED, "1.2x")
    assert replace(full, rows=(row,)).columns == (("comparison", "verdict", "measured"), [(*row[:2], "1.2x")])
    other = (*row[:2], NOT_MEASURED, "1.3x", NOT_MEASURED, NOT_MEASURED)
    header, rows = replace(full, rows=(row, other)).columns
    assert header == ("comparison", "verdict", "could gain", "measured")
    assert rows == [(*row[:2], NOT_MEASURED, "1.2x"), (*row[:2], "1.3x", NOT_MEASURED)]
    assert not any("in isolation" in line for line in terminal.lines(replace(full, rows=(row,))))
