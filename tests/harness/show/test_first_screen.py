"""What is read in ten seconds: the right words for each finding, nothing hidden, and narrow tables."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pyarrow as pa
import pytest

from harness.explain.statistics import Estimate
from harness.judge.report_types import PredictedRatio, StudyReport
from harness.judge.study import analyse
from harness.show import markdown, terminal
from harness.show.chain import chain
from harness.show.first_screen import HEADER, FirstScreen, first_screen
from harness.show.policy import DIFFERENCES_SHOWN, REMEDY_REPEATS
from harness.show.summary import summary
from harness.show.tables import NOT_MEASURED
from harness.show.text.verdicts import finding
from harness.show.words import percent, ratio
from harness.study.run_data import RunData
from tests.harness.synthetic import Arm, build, judged, page_of

TEXT = Arm("text-padded", tokenize=9.0, declared={"data.path": "text-padded"})
TOKENS = Arm("tokens-padded", tokenize=0.0, declared={"data.path": "tokens-padded"})
QUIET = {"day": 0.002, "block": 0.001}
PREDICTED = HEADER.index("predicted")
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
    assert headline.text.endswith("Data work takes 9.28 of 38.9 ms a step; the step waits for all of it.")


def test_hidden_work_is_no_gain_and_the_line_says_what_hides_it() -> None:
    arms = (replace(TEXT, workers=1), replace(TOKENS, workers=1))
    (headline,) = screen(*arms).headlines
    assert "no detectable difference (under " in headline.text
    assert headline.text.endswith("the step waits for none of it: it is hidden behind forward.")


def test_more_tokens_a_step_are_not_called_faster() -> None:
    (headline,) = screen(Arm("padded", trained=900), Arm("packed", trained=1200), spans=False).headlines
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
            "undecided, 1.020x: an interval needs 3 blocks; repeat with --repeats 5",
        ),
        (
            Estimate(1.1, 0.8, 1.4, 5),
            0.01,
            "undecided, 1.100x (0.800x to 1.400x): a change of up to 40 % could not be seen; repeat with more "
            "than 5 blocks, or on a quieter machine",
        ),
        (
            Estimate(1.126, 0.474, 626.0, 3),
            0.01,
            "undecided: this run was too noisy to see even a 2x change; repeat on a quieter machine",
        ),
        (
            Estimate(1.2, 1.1, 1.3, 5),
            0.25,
            "undecided, 1.200x (1.100x to 1.300x): the change is smaller than the noise floor of 25 %; repeat "
            "with more than 5 blocks, or on a quieter machine",
        ),
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
    (one,) = coarse.comparisons
    asks = "repeat with more than 5 blocks, or on a quieter machine"
    for times, said in ((REMEDY_REPEATS, REMEDY_REPEATS), (REMEDY_REPEATS + 1, 1)):
        found = [line.text for line in first_screen(replace(coarse, comparisons=(one,) * times)).headlines]
        assert sum(asks in line for line in found) == said
    assert found[-1] == f"To decide the {REMEDY_REPEATS + 1} undecided comparisons: {asks}."
    assert found[0].startswith("Pretokenizing (tokens-padded): undecided, 1.100x (0.800x to 1.400x): a change ")


def test_what_failed_and_what_differs_comes_first_and_many_are_counted() -> None:
    others = [
        Arm(f"arm-{place}", tokenize=0.0, environment={"torch": f"2.{place}"}, failed_blocks=(0,) if place == 1 else ())
        for place in range(DIFFERENCES_SHOWN + 1)
    ]
    report = analysed(TEXT, *others, blocks=3, spans=False)
    found = first_screen(report)
    assert any("Partial study" in line for line in found.beware)
    assert f"The arms also differ (environment) in {len(others)} comparisons: see the details" in found.beware
    lines = terminal.lines(found)
    assert all(line.startswith(("! ", "  ")) for line in lines[: len(found.beware)])
    page = page_of(report)
    for place in range(DIFFERENCES_SHOWN + 1):
        assert f"torch is '2.11.0' against '2.{place}'" in page


def test_a_missing_comparison_is_said() -> None:
    (headline,) = screen(TEXT, replace(TOKENS, failed_blocks=(0, 1, 2, 3, 4)), spans=False).headlines
    assert "not measured (no finished run of tokens-padded" in headline.text


def test_sixteen_arms_fit_a_pull_request_and_a_terminal() -> None:
    arms, pairs = [], []
    for b, w, length in itertools.product((1, 4), (0, 2), (512, 1024)):
        config = {"data.batch_size": b, "data.workers": w, "data.sequence_length": length}
        point = f"batch_size={b},workers={w},sequence_length={length}"
        base, other = (replace(one, name=f"{one.name}@{point}", config=config) for one in (TEXT, TOKENS))
        arms += [base, other, *base.controls("a-a", "data-only"), *other.controls("data-only")]
        pairs.append((base.name, other.name))
    study, runs = build(arms, pairs, blocks=3, noise=QUIET)
    runs = [  # The replays of one batch size have each kind of row.
        RunData(run.record, run.steps, None, run.samples) if "batch_size=4" in run.record.arm else run for run in runs
    ]
    report = analyse(study, runs)
    page = markdown.page(report, first_screen(report), [])
    for row in page.markdown.splitlines():
        if row.startswith("| ") and not row.startswith("| ---") and "exposed ms" not in row:
            assert len(row.strip("| ").replace(" | ", "  ")) <= PAGE, row
    found = first_screen(report)
    assert len(found.rows) == 8
    assert "tokens-padded vs text-padded, bs1 w0 sl512" in {row[0] for row in found.rows}
    ratios = [c.measured.ratio.median for c in report.compared]
    assert [row[-1] for row in found.rows] == [ratio(one) for one in sorted(ratios, reverse=True)]
    tally, best, worst = found.headlines
    assert tally.finding == "8 gain"
    assert best.finding.startswith(percent(max(ratios) - 1))
    assert worst.finding.startswith(percent(min(ratios) - 1))
    assert max(map(len, terminal.lines(found))) <= PAGE


def waiting(
    found: StudyReport, step_ms: float, waited: float, parallel: float, hidden: float, between: float = 0.0
) -> FirstScreen:
    """``found`` with other waits of its baseline: of several workers, whose work together may be longer than a step."""
    (c,) = found.compared
    waits = replace(
        c.measured.baseline_waits,
        step_ms=step_ms,
        waited_ms=waited,
        exposed_ms={"tokenize": waited},
        hidden_ms={"tokenize": hidden},
        parallel_ms={"tokenize": parallel},
        between_steps_ms={"tokenize": between},
        stage_work_ms={"tokenize": waited + parallel + hidden + between},
    )
    explained = replace(c.explained, hidden_behind_ms={})
    other = replace(c, measured=replace(c.measured, baseline_waits=waits), explained=explained)
    return first_screen(replace(found, comparisons=(other,)))


def test_many_workers_that_are_waited_for_are_not_called_hidden(gain: StudyReport) -> None:
    (headline,) = waiting(gain, step_ms=8.5, waited=6.3, parallel=260.0, hidden=52.0).headlines
    assert headline.support.startswith("Data work is 318 ms for each 8.50 ms step; the step waits 6.30 for it, ")
    assert "while 260 of it run in parallel, 52.0 are hidden behind the step." in headline.support


def test_the_work_of_other_workers_during_a_wait_is_not_called_hidden(gain: StudyReport) -> None:
    (headline,) = waiting(gain, step_ms=40.0, waited=18.0, parallel=18.0, hidden=0.5).headlines
    text = "Data work takes 36.5 of 40.0 ms a step; the step waits 18.0 for it, while 18.0 of it run in parallel."
    assert headline.support == text


@pytest.mark.parametrize(
    ("waited", "parallel", "hidden", "said"),
    [
        (
            0.0,
            0.0,
            20.0,
            "the step waits for none of it, 12.0 run between training steps, the rest is hidden behind",
        ),
        (0.0, 0.0, 0.0, "the step waits for none of it, 12.0 run between training steps."),
        (
            10.0,
            0.0,
            20.0,
            "the step waits 10.0 for it, 12.0 run between training steps, the rest is hidden",
        ),
        (10.0, 0.0, 0.0, "the step waits 10.0 for it, 12.0 run between training steps."),
        (8.0, 8.0, 9.0, "9.00 are hidden behind the step, 12.0 run between training steps."),
    ],
)
def test_what_runs_beside_an_evaluation_is_called_neither_hidden_nor_waited_for(
    gain: StudyReport, waited: float, parallel: float, hidden: float, said: str
) -> None:
    (headline,) = waiting(gain, 40.0, waited, parallel, hidden, between=12.0).headlines
    assert said in headline.support


def test_what_costs_three_percent_of_a_step_is_not_called_hidden(gain: StudyReport) -> None:
    """Hidden is what costs nothing: beside "could gain 1.030x" it would be false, however much of the work it is."""
    (headline,) = waiting(gain, step_ms=33.5, waited=1.0, parallel=0.0, hidden=32.0).headlines
    assert headline.support.endswith("the step waits 1.00 for it, the rest is hidden behind the step.")


@pytest.mark.parametrize(
    ("waited", "said"),
    [
        (0.22, "the step waits 0.22 for it, the rest is hidden behind the step."),  # a worker without slack
        (0.02, "the step waits for none of it: it is hidden behind the step."),  # under 0.1 % of the step
    ],
)
def test_what_is_waited_for_is_said_beside_what_is_hidden(gain: StudyReport, waited: float, said: str) -> None:
    (headline,) = waiting(gain, step_ms=30.6, waited=waited, parallel=0.0, hidden=9.6).headlines
    assert headline.support.endswith(said)


def test_hidden_work_that_takes_cores_is_not_only_called_hidden() -> None:
    alone = Arm("base", tokenize=9.0, workers=1, contended=5.0)
    other = Arm("other", tokenize=8.0, workers=1, contended=5.0)
    report = analyse(*build([alone, *alone.controls("a-a"), other], [("base", "other")], noise=QUIET))
    (headline,) = first_screen(report).headlines
    assert headline.support.endswith("it is hidden behind forward; a step waits 5.00 ms for a core.")
    assert "would be no faster, except for cores and memory bandwidth that hidden work takes (1.000x" in page_of(report)


def without(columns: tuple[str, ...], *arms: Arm) -> StudyReport:
    """A study whose trainer did not count what ``columns`` hold."""
    base, other = arms
    study, runs = build([base, *base.controls("a-a"), other], [(base.name, other.name)], noise=QUIET, spans=False)
    return analyse(study, [_uncounted(run, columns) for run in runs])


def _uncounted(run: RunData, columns: tuple[str, ...]) -> RunData:
    steps = run.steps
    assert steps is not None
    for name in columns:
        place = steps.column_names.index(name)
        field = steps.schema.field(name)
        steps = steps.set_column(place, field, pa.nulls(len(steps), field.type))
    return RunData(run.record, steps, run.spans, run.samples)


def test_a_larger_batch_is_not_called_faster_where_trained_tokens_are_not_counted() -> None:
    report = without(("trained_tokens",), Arm("base"), Arm("twice", tokens=4096))
    (headline,) = first_screen(report).headlines
    assert headline.finding.endswith(", computing 2.00x as many in each step")
    assert "x the tokens/s (" in headline.finding
    page = page_of(report)
    assert "computing 2.00x as many in each step** (" in page
    (c,) = report.compared
    assert c.measured.steps is not None
    assert c.measured.steps.verdict == "none"
    assert "that part is the size of a step, not time" in page


def test_steps_that_hold_an_unknown_amount_are_not_called_faster() -> None:
    half = {"forward": 4.5, "backward": 8.5, "optimizer": 3.0}
    (headline,) = first_screen(without(("tokens", "trained_tokens"), Arm("base"), Arm("half", compute=half))).headlines
    assert " % more steps/s (" in headline.finding
    assert headline.finding.endswith(", trained tokens were not counted")


def test_steps_of_microseconds_are_said_in_microseconds() -> None:
    tiny = Arm("base", read=0.0005, tokenize=0.003, pack=0.0005, compute={"forward": 0.04})
    found = screen(tiny, replace(tiny, name="other", tokenize=0.0), steps=30)
    assert " us a step; the step waits for all of it." in found.headlines[0].support
    assert "0.00" not in found.headlines[0].support


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
    (row,) = screen(Arm("eager"), compiled).rows
    assert row[HEADER.index("could gain")].endswith("x by data")
    assert row[PREDICTED] == NOT_MEASURED


def test_advice_that_promises_more_than_no_data_work_gave_says_so() -> None:
    """The loop is slower beside its ideal data: whatever its waits are, they are not for data work."""
    base = Arm("base", tokenize=4.0)
    ideal = base.variant("ideal-data", read=0.0, tokenize=0.0, pack=0.0, compute={"forward": 36.0})
    arms = [base, *base.controls("a-a"), ideal, Arm("other", tokenize=3.9)]
    found = first_screen(analyse(*build(arms, [("base", "other")], noise=QUIET)))
    assert found.next_steps.ranked
    assert all("do not rely on it: without any data work, 0.9" in line for line in found.next_steps.ranked)


def test_savings_of_a_replay_outside_tolerance_are_not_said(gain: StudyReport) -> None:
    assert "| text-padded | tokenize (stage) |" in page_of(gain)
    arms = [
        replace(arm, explained=replace(arm.explained, replay_error=-0.3, within_tolerance=False))
        if arm.name == "text-padded"
        else arm
        for arm in gain.arms
    ]
    page = page_of(replace(gain, arms=tuple(arms)))
    assert "| text-padded | tokenize (stage) |" not in page
    assert "Not shown for text-padded: the unedited replay is off by more than 5.0 %." in page


def test_the_json_of_many_comparisons_has_each_of_them_with_its_own_headline() -> None:
    base = Arm("a", tokenize=9.0)
    arms = [
        base,
        *base.controls("a-a"),
        *(Arm(f"b{cost:g}", tokenize=cost) for cost in (7.0, 1.0, 5.0, 3.0, 13.0, 0.0)),
    ]
    pairs = [("a", arm.name) for arm in arms if arm.control is None and arm.name != "a"]
    report = analyse(*build(arms, pairs, blocks=7, spans=False))
    found = first_screen(report)
    assert len(found.headlines) < len(pairs)
    written = summary(report, found)["comparisons"]
    assert [one["candidate"] for one in written] == [candidate for _, candidate in pairs]
    for one in written:
        assert one["headline"].startswith(f"{one['candidate']} against a: ")


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
