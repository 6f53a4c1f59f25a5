"""The report of a sweep says what its trials show: the optimum inside, a bound that was hit, or nothing."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from harness.sweep import report, sentences
from harness.sweep.findings import RateCurve, findings
from harness.sweep.fit import NoOptimum
from harness.sweep.load import load_sweep
from harness.sweep.picture import loss_figure, picture, training_figure
from harness.sweep.searches import grid
from harness.sweep.store import SweepFolder, SweepRecord, Taken, TrialJournal
from harness.sweep.trials import Trial, TrialPlan, TrialStatus
from tests.conftest import PICTURE
from trainer.errors import InputError


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "picture", lambda *_: PICTURE)


def plan(rate: float, **more: object) -> TrialPlan:
    return replace(TrialPlan(rate, 849), **more)  # type: ignore[arg-type]


def done(rate: float, optimum: float, **more: object) -> Trial:
    """Its loss is near a parabola in the logarithm of the rate."""
    loss = 3 + 0.1 * math.log(rate / optimum) ** 2 + 1e-3 * math.sin(1e5 * rate)
    return Trial(0, plan(rate, **more), "done", loss, loss, 849, 849 * 2048, 30.0)


def seeded(losses: Mapping[float, Sequence[float | None]], **more: object) -> list[Trial]:
    """Trials of several seeds at each rate; a loss that is None: that seed diverged."""
    return [
        Trial(0, plan(rate, seed=seed, **more), "diverged" if loss is None else "done", loss, loss, 849)
        for rate, seeds in losses.items()
        for seed, loss in enumerate(seeds)
    ]


def fitted_above_what_is_worse(**more: object) -> list[Trial]:
    """The lowest loss is at the second highest rate, the minimum of a quadratic above the highest."""
    losses = (3.042, 3.025, 3.029, 3.002, 3.012)
    return [Trial(0, plan(1e-3 * 2**place, **more), "done", loss, loss, 849) for place, loss in enumerate(losses)]


def written(
    folder: Path, trials: Sequence[Trial], sets: Sequence[str] = (), **changes: object
) -> tuple[list[str], str]:
    """The lines that a sweep prints, and its page."""
    loaded = load_sweep("tiniest", sets)
    record = SweepRecord(
        "tiniest", "trial", loaded.settings.model_dump(mode="json"), loaded.config.model_dump(mode="json"), 849, 2048,
        86976, None, "done", "2026-01-01T00:00:00+00:00", ["harness", "sweep"], "tiniest", {},
    )  # fmt: skip
    SweepFolder(folder).write(replace(record, **changes))  # type: ignore[arg-type]
    journal = TrialJournal(folder)
    for one in trials:
        begun = journal.begin(one.plan)
        if one.status != "running":
            journal.end(replace(one, number=begun.number))
    lines = report.write_report(SweepFolder(folder))
    return lines, (folder / "summary.md").read_text()


def test_an_optimum_inside_the_range(tmp_path: Path) -> None:
    lines, page = written(tmp_path, [done(rate, 8e-3) for rate in grid(1e-4, 1e-1, 10)])
    found = re.match(
        r"Chosen learning rate: (\S+), where a quadratic in the logarithm of the rate through \d+ trials has its "
        r"minimum \(95 % interval (\S+) to (\S+); R2 (\d\.\d+)\)\.",
        lines[0],
    )
    assert found is not None, lines
    low, high = float(found[2]), float(found[3])
    assert low < 8e-3 < high
    assert low <= float(found[1]) <= high
    assert "For that training nothing is transferred" in page
    assert "10 trials: 10 done." in page
    content = json.loads((tmp_path / "summary.json").read_text())
    assert (content["chosen"]["by"], content["chosen"]["at_edge"], len(content["trials"])) == ("fit", None, 10)
    assert content["spent"] == {"seconds": 300.0, "tokens": 10 * 849 * 2048, "usd": None}


GRID = grid(1e-4, 1e-1, 10)
NOT_INSIDE = "The optimum may not be inside"
UP_TO_A_SEED = {1e-3: (3.6, 3.6), 2e-3: (3.35, 3.36), 4e-3: (3.2, 3.21), 8e-3: (3.1, 3.11), 1.6e-2: (2.9, None)}
LUCKY_SEED = {1e-3: (3.0, 3.1), 1e-2: (4.0, 2.9), 1e-1: (5.0, 5.1)}
LOWEST_DIVERGED = {1e-3: (None, 3.2), 2e-3: (3.0, 3.0), 4e-3: (2.9, 2.9), 8e-3: (3.1, 3.1), 1.6e-2: (3.2, 3.2)}
ONE_SEED = {1e-3: (3.6,), 2e-3: (3.35,), 4e-3: (3.2,), 8e-3: (3.1,), 1.6e-2: (2.9,)}
PROBE = Trial(0, plan(1e-4, steps=85, group="doubling", role="probe"), "done", 4.0, 4.0, 85)
TWO_SEEDS = ["seeds=[0, 1]"]


def ended(status: TrialStatus, *rates: float, steps: int = 849) -> list[Trial]:
    """Trials without a loss."""
    return [Trial(0, plan(rate, steps=steps), status, steps=min(steps, 300)) for rate in rates]


def lossy(losses: Sequence[float], factor: float, first: float) -> list[Trial]:
    return [Trial(0, plan(first * factor**n), "done", loss, loss, 849) for n, loss in enumerate(losses)]


@dataclass
class Case:
    """Trials of a sweep, and what its report has to say of them."""

    trials: list[Trial]
    first: str = ""  # what is in the first line
    last: str = ""  # in the last one
    page: Sequence[str] = ()  # on the page
    absent: Sequence[str] = ()  # not on it
    sets: Sequence[str] = ()
    status: str = "done"
    bold: Sequence[str] | None = None  # losses in bold in the table of trials


CASES = {
    "at the lower bound": Case(
        [done(rate, 1e-6) for rate in GRID], "the best within the rates of the trials of 849 steps",
        page=["the loss is lowest at 1.00e-04, the lower bound of the search range. The best rate may lie below it. "
              "Search again with another learning_rate.low.**"],
        absent=["minimum"],
    ),
    "at the upper bound": Case(
        [done(rate, 3.0) for rate in GRID], "the best within the rates",
        page=[f"- **{NOT_INSIDE}", "the upper bound of the search range", "another learning_rate.high.**"],
    ),
    "at a bound of the tried rates, which is not that of the search": Case(
        [done(rate, 3.0) for rate in grid(1e-3, 1e-2, 6)],
        page=["the loss is lowest at 1.00e-02, the highest rate of the trials of 849 steps."],
    ),
    "a flat curve, whose interval has a lower end": Case(
        lossy((2.999, 3.0, 3.001, 3.03, 3.1, 3.2, 3.4), 0.5, 1e-1), " (95 % interval from ",
        page=[", or below: the 95 % interval reaches down to "],
    ),
    "a flat curve, whose interval has none": Case(
        lossy((2.999, 3.001, 3.0, 3.023, 3.09, 3.2, 3.4), 0.5, 1e-1), "of the trials of 849 steps.",
        page=[", or below: the 95 % interval has no end there either"],
    ),
    "the losses are all the same": Case(
        lossy([5.5] * 6, 4.0, 1e-4), "the losses around the lowest one are all the same", absent=["loss is lowest at"]
    ),
    "the fit's minimum lies where rates are worse": Case(
        fitted_above_what_is_worse(),
        "8.00e-03, that of the trial with the lowest loss; the best rate is unknown: a quadratic through 4 trials has "
        "its minimum above the highest rate, where the loss is already higher.", absent=["may lie above"],
    ),
    "too few trials": Case(
        [done(rate, 8e-3) for rate in (1e-3, 8e-3, 5e-2)],
        "8.00e-03, that of the trial with the lowest loss; no optimum is fitted: 3 learning rates finished, a fit "
        "needs 4.", absent=["95 % interval"],
    ),
    "a rate that diverged bounds the optimum": Case(
        [*(done(rate, 8e-2) for rate in grid(1e-3, 5e-2, 8)), *ended("diverged", 1e-1)],
        page=["The lowest rate that diverged is 1.00e-01.", "8 done and 1 diverged"], absent=[NOT_INSIDE],
    ),
    "a shorter trial that diverged, as of Hyperband, does too": Case(
        [*ended("diverged", 9e-2, steps=20), *(done(rate, 8e-2) for rate in grid(1e-3, 5e-2, 8))],
        page=["The lowest rate that diverged is 9.00e-02."], absent=[NOT_INSIDE],
    ),
    "trials behind are in no fit": Case(
        [*(done(rate, 8e-3) for rate in grid(2e-3, 4e-2, 7)), *ended("behind", 1e-4, 9e-2)],
        page=["2 trials ended early, because they were behind the others"], absent=[NOT_INSIDE],
    ),
    "every trial diverged": Case(
        ended("diverged", 1.0, 10.0),
        "Every trial diverged (2 trials, the lowest rate 1.00e+00): no learning rate is chosen. Search below that",
        page=["- **Every trial", "## Transfer\n\nNo rate is chosen, so nothing is transferred."],
        absent=["<picture>", "Chosen"], status="diverged",
    ),
    "probes that trained are not counted among what diverged": Case(
        [PROBE, *ended("diverged", 2e-4, 4e-4)], "Every trial diverged (2 trials, the lowest rate 2.00e-04)",
        status="diverged",
    ),
    "a part of a sweep that diverged is not all of it": Case(
        ended("diverged", 1e-1), "The sweep was interrupted before its last trial.", absent=["Every trial"],
        status="interrupted",
    ),
    "killed, with a trial in flight": Case(
        [done(1e-3, 8e-3), Trial(0, plan(2e-3))],
        page=["has not ended, or its process was killed.** Trial 1 is incomplete and resumes"], status="running",
    ),
    "nothing ended": Case([], "The sweep was interrupted", absent=["Chosen"], status="interrupted"),
    "shorter trials carry a hypothesis": Case(
        [done(rate, 8e-3, steps=212) for rate in GRID], sets=["strategy=early-stopping"],
        page=["Transfer hypothesis: the best rate of the full training of 849 steps is the same. The trials had 25 % "
              "of", "the effect of another seed is not in the interval"],
    ),
    "short trials and probes are on no curve": Case(
        [PROBE, Trial(0, replace(PROBE.plan, learning_rate=9e-2), "diverged", steps=20),
         *(done(rate, 1e-4, steps=2) for rate in GRID), *(done(rate, 8e-3) for rate in grid(1e-3, 5e-2, 6))],
        page=["Of 6 trials of 849 steps", "The lowest rate that diverged is 9.00e-02."],
    ),
    "of several seeds the mean chooses, not a lucky one": Case(
        seeded(LUCKY_SEED), "1.00e-03, the best within the rates",
        "one at 1.00e-02 has the lowest loss on held-out data: 2.9000", sets=["learning_rate.low=1.0e-3", *TWO_SEEDS],
        page=["the loss is lowest at 1.00e-03, the lower bound of the search range"], bold=["3.0000"],
    ),
    "a rate of which a seed diverged is not chosen": Case(
        seeded(UP_TO_A_SEED),
        "8.00e-03, the highest below one that diverged: a quadratic in the logarithm of the rate through 8 trials has "
        "its minimum there or above, where training diverges (",
        "The lowest rate that diverged is 1.60e-02 (1 of 2 seeds). The best rate that trained is the highest below it: "
        "divergence limits the range above. Excluded from fits and choice: 1 trial at or above it that finished.",
        page=["one at 8.00e-03 has the lowest loss on held-out data: 3.1000", "| diverged (1 of 2 seeds) |",
              "| done, rate diverged (1 of 2 seeds) |"],
        absent=["may lie above"], sets=TWO_SEEDS,
    ),
    "a higher rate trained than one that diverged": Case(
        [*ended("diverged", 1.2e-2, steps=85), *seeded(ONE_SEED)], "the highest below one that diverged",
        "A rate above it finished, too, so it is unknown if divergence limits the range. Excluded from fits and "
        "choice: 1 trial at or above it that finished.",
        page=["Of 4 trials of 849 steps below the lowest rate that diverged one at 8.00e-03 has the lowest loss"],
        absent=["where training diverges"],
    ),
    "a rate above one that diverges is not chosen": Case(
        seeded({1e-3: (3.2,), 2e-3: (3.0,), 4e-3: (3.1,), 8e-3: (None,), 1.6e-2: (2.5,)}),
        "2.00e-03, that of the trial with the lowest loss; no optimum is fitted: 3 learning rates below the lowest "
        "that diverged finished, a fit needs 4",
        "The lowest rate that diverged is 8.00e-03. Excluded from fits and choice: 1 trial", bold=["3.0000"],
    ),
    "the lowest rate diverged": Case(
        seeded(LOWEST_DIVERGED),
        "A learning rate of 1.00e-03 diverged (1 of 2 seeds), and no lower one finished: no learning rate is chosen "
        "(9 trials at or above it finished). Search below it (learning_rate.low)", sets=TWO_SEEDS, bold=[],
        absent=["Chosen"],
    ),
    "the lowest rate of a size diverged": Case(
        [
            replace(one, status="diverged", loss=None) if one.plan.learning_rate == GRID[0] and steps == 106 else one
            for steps in (106, 212, 425)
            for one in (done(rate, 8e-3, steps=steps, group=f"{steps * 2048:,} tokens") for rate in GRID)
        ],
        "Nothing is extrapolated to 1,738,752 tokens: 2 sizes have an optimum with an interval",
        "At 217,088 tokens a learning rate of 1.00e-04 diverged, and no lower one finished: it has no best rate (9 "
        "trials at or above it finished).", sets=["strategy={name: data-scaling, tokens: [217000, 435000, 870000]}"],
        page=["| 217,088 tokens | 106 | 0 | – | 0 learning rates below the lowest that diverged finished"], bold=[],
    ),
    "only a trial with all steps is bold, not a lower loss of a rung of Hyperband": Case(
        [*(Trial(0, plan(rate, steps=283), "done", 2.9, 2.9, 283) for rate in (1e-3, 2e-3, 3e-3)),
         *lossy((3.2, 3.1), 2.0, 1e-3)], sets=["strategy={name: hyperband, R: 849}"], bold=["3.1000"],
    ),
    "no trial has all steps": Case(
        [Trial(0, plan(1e-3, steps=283), "done", 2.9, 2.9, 283)], sets=["strategy={name: hyperband, R: 849}"],
        status="interrupted", bold=[],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_report_says_of_its_trials(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    lines, page = written(tmp_path, case.trials, case.sets, status=case.status)
    assert case.first in lines[0]
    assert case.last in lines[-1]
    assert [text for text in case.page if text not in page] == []
    assert [text for text in case.absent if text in page] == []
    if case.bold is not None:
        assert re.findall(r"\| \*\*(.*?)\*\* \|", page) == case.bold
    chosen = json.loads((tmp_path / "summary.json").read_text())["chosen"]
    assert (chosen is not None) == ("Chosen learning rate" in page)


def test_money_and_budgets_are_in_the_table_of_what_was_spent(tmp_path: Path) -> None:
    sets = ["price_usd_per_hour=1.5", "budget={usd: 20, hours: 6}"]
    trials = [replace(done(rate, 8e-3), hellaswag=0.2512) for rate in grid(1e-4, 1e-1, 8)]
    _, page = written(tmp_path, trials, sets, price_usd_per_hour=1.5)
    # 8 x 30 s at 1.50 USD an hour
    rows = ("| 0.2512 |", "share of questions answered right", "| USD | 0.10 | 20.00 |", "| time | 4.00 min | 6.00 h |")
    assert [text for text in (*rows, "| 0.0125 |") if text not in page] == []


@pytest.mark.usefixtures("pictures")
def test_trials_of_a_rate_that_diverged_are_drawn_and_in_no_line() -> None:
    (curve,) = findings(seeded(UP_TO_A_SEED)).curves
    assert curve.above == ((1.6e-2, 2.9),)
    (axes,) = loss_figure([curve], "seeds").axes
    (hollow,) = [line for line in axes.lines if line.get_fillstyle() == "none"]
    assert [*hollow.get_xdata()] == [1.6e-2]
    assert picture(loss_figure, [curve], "seeds").png.startswith(b"\x89PNG")


def test_a_trial_in_flight_has_spent_what_it_noted(tmp_path: Path) -> None:
    SweepFolder(tmp_path).trial(1).mkdir(parents=True)
    SweepFolder(tmp_path).note_taken(1, Taken(90.0, 100, 204_800))
    TrialJournal(tmp_path)
    _, page = written(tmp_path, [done(1e-3, 8e-3), Trial(0, plan(2e-3))], status="budget")
    assert "| time | 2.00 min |" in page
    assert "100 of 849" in page
    assert json.loads((tmp_path / "summary.json").read_text())["spent"]["tokens"] == 949 * 2048


def test_a_record_of_wrong_kinds_is_one_line(tmp_path: Path) -> None:
    written(tmp_path, [])
    content = json.loads((tmp_path / "sweep.json").read_text())
    (tmp_path / "sweep.json").write_text(json.dumps({**content, "lost_s": "much"}))
    with pytest.raises(InputError, match=r"sweep\.json: lost_s: "):
        SweepFolder(tmp_path).read()


def test_the_training_loss_has_a_curve_of_its_own(tmp_path: Path) -> None:
    """Its lowest mean is at another rate than that of the loss on held-out data."""
    trials = [
        replace(one, training_loss=3 + abs(math.log(one.plan.learning_rate / 2.15e-2)))
        for one in (done(rate, 1e-3) for rate in grid(1e-4, 1e-1, 10))
    ]
    trials[-1] = replace(trials[-1], status="diverged", loss=None)
    _, page = written(tmp_path, trials)
    (curve,) = findings(trials).curves
    assert [rate for rate, _ in curve.training] == [one.plan.learning_rate for one in trials[:-1]]
    assert curve.lowest_mean == pytest.approx(1e-3)
    (star,) = [line for line in training_figure([curve], "x").axes[0].lines if line.get_marker() == "*"]
    assert star.get_xdata()[0] == pytest.approx(2.15e-2, rel=0.01)
    assert '"plots/training-loss.png"' in page
    assert (tmp_path / "plots/training-loss.png").exists()


def test_an_end_far_beyond_the_tried_rates_is_open() -> None:
    """A flat fit gave 1.46e+18, which no reader can use."""
    curve = RateCurve("", 24, ((1e-4, 6.2), (1e-1, 5.6)), (), (), NoOptimum("flat", 2, None, None))
    assert sentences.interval(1e-3, 1.46e18, curve) == "from 1.00e-03, no upper end"
    assert sentences.interval(1e-3, 2e-1, curve) == "1.00e-03 to 2.00e-01"
    assert sentences.interval(1e-12, 1.46e18, curve) == "no interval"
