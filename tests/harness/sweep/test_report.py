"""The report of a sweep says what its trials show: the optimum inside, a bound that was hit, or nothing."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from harness.sweep import report, sentences
from harness.sweep.findings import RateCurve, findings
from harness.sweep.fit import NoOptimum
from harness.sweep.load import load_sweep
from harness.sweep.picture import loss_over_rate, training_figure
from harness.sweep.searches import grid
from harness.sweep.store import SweepFolder, SweepRecord, Taken, TrialJournal
from harness.sweep.trials import Trial, TrialPlan
from tests.conftest import PICTURE
from trainer.errors import InputError


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "loss_over_rate", lambda *_: PICTURE)
    monkeypatch.setattr(report, "training_loss_over_rate", lambda *_: PICTURE)


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
    assert "**The optimum may not be inside" not in page
    assert "For that training nothing is transferred" in page
    assert "10 trials: 10 done." in page
    content = json.loads((tmp_path / "summary.json").read_text())
    assert content["chosen"]["by"] == "fit"
    assert len(content["trials"]) == 10
    assert content["spent"] == {"seconds": 300.0, "tokens": 10 * 849 * 2048, "usd": None}


@pytest.mark.parametrize(
    ("optimum", "words"),
    [
        (1e-6, "the loss is lowest at 1.00e-04, the lower bound of the search range. The best rate may lie below it. "
         "Search again with another learning_rate.low."),
        (3.0, "the loss is lowest at 1.00e-01, the upper bound of the search range. The best rate may lie above it. "
         "Search again with another learning_rate.high."),
    ],
)  # fmt: skip
def test_a_bound_that_was_hit_is_said_in_bold(tmp_path: Path, optimum: float, words: str) -> None:
    lines, page = written(tmp_path, [done(rate, optimum) for rate in grid(1e-4, 1e-1, 10)])
    assert f"- **The optimum may not be inside the rates of the trials of 849 steps: {words}**" in page
    assert "the best within the rates of the trials of 849 steps" in lines[0]
    assert "minimum" not in lines[0]


def test_a_bound_of_the_tried_rates_is_not_called_that_of_the_search(tmp_path: Path) -> None:
    _, page = written(tmp_path, [done(rate, 3.0) for rate in grid(1e-3, 1e-2, 6)])
    assert "the loss is lowest at 1.00e-02, the highest rate of the trials of 849 steps." in page


@pytest.mark.parametrize(
    ("losses", "bounded"),
    [((2.999, 3.0, 3.001, 3.03, 3.1, 3.2, 3.4), True), ((2.999, 3.001, 3.0, 3.023, 3.09, 3.2, 3.4), False)],
)
def test_where_noise_made_a_bound_the_lowest_the_other_side_is_said(
    tmp_path: Path, losses: Sequence[float], bounded: bool
) -> None:
    """Of a flat curve: the interval holds lower rates as well, or has no lower end."""
    trials = [Trial(0, plan(1e-1 / 2**n), "done", loss, loss, 849) for n, loss in enumerate(losses)]
    lines, _ = written(tmp_path, trials)
    low = json.loads((tmp_path / "summary.json").read_text())["chosen"]["ci_low"]
    assert (low is not None) == bounded
    end = f"reaches down to {low:.2e}" if bounded else "has no end there either"
    interval = f" (95 % interval from {low:.2e}, no upper end)" if bounded else ""
    assert lines[0].endswith(f"the best within the rates of the trials of 849 steps{interval}.")
    assert f"The best rate may lie above it, or below: the 95 % interval {end}. Search again" in lines[1]


def test_a_rate_that_diverged_bounds_the_optimum(tmp_path: Path) -> None:
    trials = [done(rate, 8e-2) for rate in grid(1e-3, 5e-2, 8)]
    _, page = written(tmp_path, [*trials, Trial(0, plan(1e-1), "diverged", steps=3)])
    assert "**The optimum may not be inside" not in page
    assert "The lowest rate that diverged is 1.00e-01." in page
    assert "8 done and 1 diverged" in page


def test_trials_behind_are_in_no_fit_and_said(tmp_path: Path) -> None:
    trials = [done(rate, 8e-3) for rate in grid(2e-3, 4e-2, 7)]
    behind = [Trial(0, plan(rate), "behind", steps=300) for rate in (1e-4, 9e-2)]
    _, page = written(tmp_path, [*trials, *behind])
    assert "2 trials ended early, because they were behind the others" in page
    assert "**The optimum may not be inside" not in page


def test_too_few_trials_have_no_optimum(tmp_path: Path) -> None:
    lines, page = written(tmp_path, [done(rate, 8e-3) for rate in (1e-3, 8e-3, 5e-2)])
    assert lines[0] == (
        "Chosen learning rate: 8.00e-03, that of the trial with the lowest loss; no optimum is fitted: 3 learning "
        "rates finished, a fit needs 4."
    )
    assert "95 % interval" not in page


def test_every_trial_diverged(tmp_path: Path) -> None:
    trials = [Trial(0, plan(rate), "diverged", steps=2) for rate in (1.0, 10.0)]
    lines, page = written(tmp_path, trials, status="diverged")
    assert lines == [
        "Every trial diverged (2 trials, the lowest rate 1.00e+00): no learning rate is chosen. Search below that "
        "(learning_rate.low), or look at data, precision and clipping."
    ]
    assert f"- **{lines[0]}**" in page
    assert "<picture>" not in page
    assert "## Transfer\n\nNo rate is chosen, so nothing is transferred." in page


def test_a_sweep_that_was_killed_says_so_and_what_is_in_flight(tmp_path: Path) -> None:
    trials = [done(1e-3, 8e-3), Trial(0, plan(2e-3))]
    lines, _ = written(tmp_path, trials, status="running")
    assert (
        "The sweep has not ended, or its process was killed. Trial 1 is incomplete and resumes with the sweep."
    ) in lines


def test_nothing_ended(tmp_path: Path) -> None:
    lines, page = written(tmp_path, [], status="interrupted")
    assert lines == ["The sweep was interrupted before its last trial."]
    assert "Chosen" not in page


def test_shorter_trials_carry_a_hypothesis(tmp_path: Path) -> None:
    trials = [done(rate, 8e-3, steps=212) for rate in grid(1e-4, 1e-1, 10)]
    _, page = written(tmp_path, trials, ["strategy=early-stopping"])
    assert (
        "Transfer hypothesis: the best rate of the full training of 849 steps is the same. The trials had 25 % of"
        in page
    )
    assert "the effect of another seed is not in the interval" in page


def test_money_and_budgets_are_in_the_table_of_what_was_spent(tmp_path: Path) -> None:
    sets = ["price_usd_per_hour=1.5", "budget={usd: 20, hours: 6}"]
    trials = [replace(done(rate, 8e-3), hellaswag=0.2512) for rate in grid(1e-4, 1e-1, 8)]
    _, page = written(tmp_path, trials, sets, price_usd_per_hour=1.5)
    assert "| 0.2512 |" in page
    assert "share of questions answered right by the likelihood of an ending" in page
    assert "| USD | 0.10 | 20.00 |" in page  # 8 x 30 s at 1.50 USD an hour
    assert "| time | 4.00 min | 6.00 h |" in page
    assert "| 0.0125 |" in page


def test_short_trials_and_probes_are_on_no_curve(tmp_path: Path) -> None:
    probes = [
        Trial(0, plan(1e-4, steps=85, group="doubling", role="probe"), "done", 0.1, 0.1, 85),
        Trial(0, plan(9e-2, steps=85, group="doubling", role="probe"), "diverged", steps=20),
    ]
    short = [done(rate, 1e-4, steps=2) for rate in grid(1e-4, 1e-1, 10)]
    _, page = written(tmp_path, [*probes, *short, *(done(rate, 8e-3) for rate in grid(1e-3, 5e-2, 6))])
    assert "Of 6 trials of 849 steps" in page
    assert "The lowest rate that diverged is 9.00e-02." in page


def test_probes_that_trained_are_not_counted_among_what_diverged(tmp_path: Path) -> None:
    probe = Trial(0, plan(1e-4, steps=85, group="doubling", role="probe"), "done", 4.0, 4.0, 85)
    full = [Trial(0, plan(rate), "diverged", steps=200) for rate in (2e-4, 4e-4)]
    lines, _ = written(tmp_path, [probe, *full], status="diverged")
    assert lines[0].startswith("Every trial diverged (2 trials, the lowest rate 2.00e-04)")


def test_a_part_of_a_sweep_that_diverged_is_not_called_all_of_it(tmp_path: Path) -> None:
    lines, _ = written(tmp_path, [Trial(0, plan(1e-1), "diverged", steps=2)], status="interrupted")
    assert lines == ["The sweep was interrupted before its last trial."]


def test_losses_that_are_all_the_same_hit_no_bound(tmp_path: Path) -> None:
    trials = [Trial(0, plan(rate), "done", 5.5, 5.5, 849) for rate in grid(1e-4, 1e-1, 6)]
    lines, page = written(tmp_path, trials)
    assert "the losses around the lowest one are all the same" in lines[0]
    assert "loss is lowest at" not in page


def test_a_shorter_trial_that_diverged_bounds_the_optimum(tmp_path: Path) -> None:
    """As of Hyperband, whose highest rates have a few steps only."""
    short = Trial(0, plan(9e-2, steps=20), "diverged", steps=20)
    _, page = written(tmp_path, [short, *(done(rate, 8e-2) for rate in grid(1e-3, 5e-2, 8))])
    assert "The optimum may not be inside" not in page
    assert "The lowest rate that diverged is 9.00e-02." in page


def test_of_several_seeds_the_mean_chooses(tmp_path: Path) -> None:
    """One lucky seed of another rate is not what is chosen, nor said to be."""
    losses = {1e-3: (3.0, 3.1), 1e-2: (4.0, 2.9), 1e-1: (5.0, 5.1)}
    trials = [
        Trial(0, plan(rate, seed=seed), "done", loss, loss, 849)
        for rate, pair in losses.items()
        for seed, loss in enumerate(pair)
    ]
    lines, _ = written(tmp_path, trials, ["learning_rate.low=1.0e-3", "seeds=[0, 1]"])
    assert lines[0].startswith("Chosen learning rate: 1.00e-03, the best within the rates")
    assert "the loss is lowest at 1.00e-03, the lower bound of the search range" in lines[1]
    assert "one at 1.00e-02 has the lowest loss on held-out data: 2.9000" in lines[2]


UP_TO_A_SEED = {1e-3: (3.6, 3.6), 2e-3: (3.35, 3.36), 4e-3: (3.2, 3.21), 8e-3: (3.1, 3.11), 1.6e-2: (2.9, None)}


def test_a_rate_of_which_a_seed_diverged_is_not_chosen(tmp_path: Path) -> None:
    """The seed that came to its end has the lowest loss of all."""
    lines, page = written(tmp_path, seeded(UP_TO_A_SEED), ["seeds=[0, 1]"])
    chosen = json.loads((tmp_path / "summary.json").read_text())["chosen"]
    assert chosen["learning_rate"] <= 8e-3
    assert chosen["ci_high"] <= 1.6e-2
    assert "one at 8.00e-03 has the lowest loss on held-out data: 3.1000" in lines[1]
    assert "| done, rate diverged (1 of 2 seeds) |" in page
    assert "| diverged (1 of 2 seeds) |" in page
    assert page.count("of 2 seeds) |") == 2
    assert page.count("| done |") == 8


@pytest.mark.usefixtures("pictures")
def test_trials_of_a_rate_that_diverged_are_drawn_and_in_no_line() -> None:
    (curve,) = findings(seeded(UP_TO_A_SEED)).curves
    assert curve.above == ((1.6e-2, 2.9),)
    whole = loss_over_rate([curve], "seeds").png
    assert whole.startswith(b"\x89PNG")
    assert whole != loss_over_rate([replace(curve, above=())], "seeds").png


def test_where_a_higher_rate_trained_than_one_that_diverged_nothing_is_said_to_close_the_range(tmp_path: Path) -> None:
    """A short trial diverged, with fewer steps of warm-up; a full one at a higher rate has the lowest loss of all."""
    losses = {1e-3: (3.6,), 2e-3: (3.35,), 4e-3: (3.2,), 8e-3: (3.1,), 1.6e-2: (2.9,)}
    short = Trial(0, plan(1.2e-2, steps=85), "diverged", None, None, 85)
    lines, page = written(tmp_path, [short, *seeded(losses)])
    assert "where training diverges" not in page
    assert (
        "Of 4 trials of 849 steps below the lowest rate that diverged one at 8.00e-03 has the lowest loss" in lines[1]
    )
    assert lines[-1] == (
        "The lowest rate that diverged is 1.20e-02. The best rate below it is the highest one there. A rate above it "
        "finished, too, so it is unknown if divergence limits the range. Excluded from fits and choice: 1 trial at or "
        "above it that finished."
    )


def test_above_the_best_rate_divergence_closes_the_range(tmp_path: Path) -> None:
    lines, page = written(tmp_path, seeded(UP_TO_A_SEED), ["seeds=[0, 1]"])
    assert "may lie above" not in page
    assert lines[0].startswith(
        "Chosen learning rate: 8.00e-03, the highest below one that diverged: a quadratic in the logarithm of the rate "
        "through 8 trials has its minimum there or above, where training diverges ("
    )
    assert lines[-1] == (
        "The lowest rate that diverged is 1.60e-02 (1 of 2 seeds). The best rate that trained is the highest below it: "
        "divergence limits the range above. Excluded from fits and choice: 1 trial at or above it that finished."
    )


def test_a_rate_above_one_that_diverges_is_not_chosen(tmp_path: Path) -> None:
    trials = seeded({1e-3: (3.2,), 2e-3: (3.0,), 4e-3: (3.1,), 8e-3: (None,), 1.6e-2: (2.5,)})
    lines, page = written(tmp_path, trials)
    assert lines[0].startswith("Chosen learning rate: 2.00e-03, that of the trial with the lowest loss")
    assert "3 learning rates below the lowest that diverged finished, a fit needs 4" in lines[0]
    assert lines[-1] == (
        "The lowest rate that diverged is 8.00e-03. Excluded from fits and choice: 1 trial at or above it that "
        "finished."
    )
    assert "| **3.0000** |" in page


def test_where_the_lowest_rate_diverged_nothing_is_chosen_and_the_search_goes_below_it(tmp_path: Path) -> None:
    trials = seeded({1e-3: (None, 3.2), 2e-3: (3.0, 3.0), 4e-3: (2.9, 2.9), 8e-3: (3.1, 3.1), 1.6e-2: (3.2, 3.2)})
    lines, page = written(tmp_path, trials, ["seeds=[0, 1]"])
    assert lines == [
        "A learning rate of 1.00e-03 diverged (1 of 2 seeds), and no lower one finished: no learning rate is "
        "chosen (9 trials at or above it finished). Search below it (learning_rate.low), or look at data, "
        "precision and clipping."
    ]
    assert "**3." not in page
    assert json.loads((tmp_path / "summary.json").read_text())["chosen"] is None


def test_a_size_whose_lowest_rate_diverged_is_named(tmp_path: Path) -> None:
    trials = [
        replace(one, status="diverged", loss=None) if one.plan.learning_rate == 1e-4 and steps == 106 else one
        for steps in (106, 212, 425)
        for one in (done(rate, 8e-3, steps=steps, group=f"{steps * 2048:,} tokens") for rate in grid(1e-4, 1e-1, 8))
    ]
    lines, page = written(tmp_path, trials, ["strategy={name: data-scaling, tokens: [217000, 435000, 870000]}"])
    assert lines[0].startswith("Nothing is extrapolated to 1,738,752 tokens: 2 sizes have an optimum with an interval")
    assert lines[-1] == (
        "At 217,088 tokens a learning rate of 1.00e-04 diverged, and no lower one finished: it has no best rate "
        "(7 trials at or above it finished). Search below it (learning_rate.low), or look at data, precision "
        "and clipping."
    )
    assert "| 217,088 tokens | 106 | 0 | – | 0 learning rates below the lowest that diverged finished" in page
    assert "| **" not in page  # the chosen rate would be that of no trial


def test_a_fit_beyond_rates_that_are_already_worse_points_nowhere(tmp_path: Path) -> None:
    lines, page = written(tmp_path, fitted_above_what_is_worse())
    assert "may lie above" not in page
    assert lines[0] == (
        "Chosen learning rate: 8.00e-03, that of the trial with the lowest loss; the best rate is unknown: "
        "a quadratic through 4 trials has its minimum above the highest rate, where the loss is already higher."
    )


def test_only_a_trial_with_all_steps_is_bold(tmp_path: Path) -> None:
    """A rung of Hyperband with fewer steps may have a lower loss, as its schedule ended; it was not chosen."""
    rungs = [Trial(0, plan(rate, steps=283), "done", 2.9, 2.9, 283) for rate in (1e-3, 2e-3, 3e-3)]
    full = [Trial(0, plan(rate), "done", loss, loss, 849) for rate, loss in ((1e-3, 3.2), (2e-3, 3.1))]
    sets = ["strategy={name: hyperband, R: 849}"]
    _, page = written(tmp_path / "whole", [*rungs, *full], sets)
    assert re.findall(r"\| \*\*(.*?)\*\* \|", page) == ["3.1000"]
    _, page = written(tmp_path / "interrupted", rungs, sets, status="interrupted")
    assert re.findall(r"\| \*\*(.*?)\*\* \|", page) == []


def test_the_bold_trial_is_one_of_the_rate_with_the_lowest_mean(tmp_path: Path) -> None:
    _, page = written(tmp_path, seeded({1e-3: (3.0, 3.1), 1e-2: (4.0, 2.9), 1e-1: (5.0, 5.1)}), ["seeds=[0, 1]"])
    assert re.findall(r"\| \*\*(.*?)\*\* \|", page) == ["3.0000"]


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
    with pytest.raises(InputError, match=r"sweep\.json: not one of harness sweep \(lost_s: "):
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
