"""harness cost, and budgets of harness train and harness run, through the command line."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import pytest

from harness.judge.cost import COST, ArmMeasurement, ArmWork, PredictedCost, SpendingLimit
from harness.judge.policy import COSTED_LONG_RATIO
from harness.launch.budget import Deadline, cost_json, read_cost
from harness.launch.costing import short_config, works_of
from harness.launch.study import StudyOptions, run_study
from harness.scenario.load import load_scenario
from harness.scenario.plan import make_plan
from harness.study.store import StudyFolder, write_json
from tests.commands import Done, fork_servers, harness
from tests.trainer.data.conftest import make_texts, write_parquet

SCENARIO = """\
name: small
question: What does it cost?
base:
  model: {{layers: 1, width: 32, heads: 2}}
  data:
    corpus: {{parquet: {corpus}}}
    tokenizer: {{train: {{vocab_size: 300}}}}
    path: text-stream
    sequence_length: 16
    batch_size: 3
  compute: {{device: cpu, threads: 1}}
  evaluation: {{every_steps: 50, fraction: 0.2, batches: 1}}
  checkpoint: {{every_steps: 50}}
  warmup_steps: 2
  steps: 6
arms: {{plain: null, other: {{data.path: tokens-padded, data.workers: 1, data.prefetch: 2}}}}
repeats: 2
slice_steps: 3
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    corpus = write_parquet(tmp_path / "corpus.parquet", make_texts())
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO.format(corpus=corpus))
    return str(path)


@pytest.fixture(autouse=True)
def no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """What asks git for the commit starts a process."""
    monkeypatch.setattr("harness.launch.study.record_environment", dict)


def refused(done: Done) -> str:
    """The one line of a command that was refused."""
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("harness: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


def each_of_many_s(plain_s: list[float], step_s: dict[str, float]) -> float:
    """What each of many steps takes: the mean where some are long, as on a machine that is busy with something else."""
    usual = next(place for place, seconds in enumerate(plain_s) if seconds <= COSTED_LONG_RATIO * step_s["likely"])
    mean = fmean(plain_s[usual:])
    return step_s["likely"] if mean <= step_s["high"] else mean


@pytest.mark.slow
def test_the_prediction_follows_from_the_steps_that_were_measured(tmp_path: Path, scenario: str) -> None:
    """Each figure is what the tables of the small study say, multiplied."""
    asked = tmp_path / "asked.jsonl"
    asked.write_text(json.dumps({"ctx": "He", "endings": ["sat", "ran", "ate", "slept"], "label": 0}) + "\n")
    questions = f"evaluation.multiple_choice={{path: {asked}, every_steps: 9}}"
    words = ["--steps", "1000", "--price", "3600", "--set", questions]
    done = harness("cost", scenario, *words, "--out", str(tmp_path / "cost"), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    runs = {run.record.arm: run for run in StudyFolder(Path(found["measured"])).runs()}
    assert [one["arm"] for one in found["arms"]] == ["plain", "other"]
    for one, first in zip(found["arms"], (1, 3), strict=True):  # a worker with 2 batches prefetched steps 0 to 2
        run = runs[one["arm"]]
        walls_s = [wall / 1e9 for wall in run.steps["wall_ns"].to_pylist()]
        assert len(walls_s) == 26
        saved = [step for step, wall in enumerate(run.steps["checkpoint_ns"].to_pylist()) if wall]
        assert saved == [20]
        plain_s = walls_s[first:20]
        if any(entry["kind"] == "drift" and entry["arms"] == [one["arm"]] for entry in found["doubts"]):
            plain_s = plain_s[-(len(plain_s) // 3) :]  # as on a machine whose load changes
        assert one["step_s"]["likely"] == pytest.approx(median(plain_s))
        assert one["step_s"]["worst"] == pytest.approx(max(walls_s[10:20]))
        each_s = each_of_many_s(plain_s, one["step_s"])
        assert one["parts"]["steps"] == pytest.approx(walls_s[0] + 999 * each_s)
        passes = run.evaluations.to_pylist()
        for part, times, of in (("passes", 20, None), ("answers", 112, 1)):  # those over questions are others
            own = [row for row in passes if row["questions"] == of]
            assert len(own) == 2
            assert one["parts"][part] == pytest.approx(times * (own[-1]["end_ns"] - own[-1]["start_ns"]) / 1e9)
        record = run.record
        assert record.startup_ns is not None
        assert record.import_ns is not None
        assert record.facts.checkpoint_writing_ns is not None
        assert one["parts"]["startup"] >= record.startup_ns / 1e9
        assert one["seconds"]["likely"] == pytest.approx(sum(one["parts"].values()))
        assert one["usd"] == pytest.approx(one["seconds"]["likely"])
    assert found["seconds"]["likely"] == pytest.approx(sum(one["seconds"]["likely"] for one in found["arms"]))
    assert not list(Path(found["measured"]).glob("runs/*/*/checkpoints"))


@pytest.mark.slow
@pytest.mark.nightly
def test_of_an_emulated_device_it_takes_the_price_of_its_profile(tmp_path: Path, scenario: str) -> None:
    emulated = "compute={device: {emulated: gh200}, precision: bf16}"
    words = ["--arm", "plain", "--set", emulated, "--set", "evaluation=null", "--set", "checkpoint=null"]
    done = harness("cost", scenario, *words, "--round-up", "1", "--study", "--out", str(tmp_path / "cost"))
    assert done.returncode == 0, done.stderr
    assert "rounded up from" in done.stdout
    assert "is emulated" in done.stdout
    assert "preparing the data and writing the report" in done.stdout


@pytest.mark.slow
def test_a_training_beyond_its_budget_does_not_start(tmp_path: Path, scenario: str) -> None:
    out = tmp_path / "out" / "plain"
    words = ["train", scenario, "--arm", "plain", "--out", str(out), "--set"]
    dear = harness(*words, "budget={usd: 5}", "--set", "price_usd_per_hour=1.5", "--steps", "2000000000")
    line = refused(dear)
    assert "budget: 5.00 USD, which is 3.33 h, but it is expected to take" in line
    assert "plain: 1,999,999,999 steps x " in line
    assert not out.exists()
    assert not list(out.parent.glob(".*"))
    without = harness(*words, "budget={usd: 5}", "--steps", "10")
    assert "measuring" not in without.stderr
    unpriced = refused(without)
    assert "price of the devices is unknown" in unpriced
    short = refused(harness(*words, "budget={hours: 1e-7}", "--steps", "10"))
    assert "budget: 1e-07 h, which is 0.00 s, but measuring the first steps used all of it" in short
    assert "run plain" not in short  # nor what it was doing then
    assert not out.exists()


@pytest.mark.slow
def test_a_training_stops_at_its_budget_and_goes_on_with_a_larger_one(tmp_path: Path, scenario: str) -> None:
    """It was predicted to take no time at all."""
    out = tmp_path / "out"
    out.mkdir()
    instant = ArmMeasurement("plain", (0.0, *[1e-12] * 19), 1, 0.0, 0.0)
    predicted = PredictedCost("training", "small", (instant,), (ArmWork(10**9),), (None,), SpendingLimit(hours=1))
    write_json(out / COST, cost_json(predicted))
    words = ["train", scenario, "--arm", "plain", "--out", str(out), "--set"]
    stopped = harness(*words, "budget={hours: 0.001}", "--steps", "1000000000")
    assert stopped.returncode == 1, stopped.stderr
    assert "stopped at the budget; the last checkpoint is saved" in stopped.stderr
    found = read_cost(out)
    assert found.standing == "stopped"
    steps = len((out / "losses.csv").read_text().splitlines()) - 1
    assert (out / "checkpoints" / f"step-{steps:08d}").is_dir()
    again = refused(harness(*words, "budget={hours: 0.0001}", "--steps", str(steps + 5), "--resume"))
    assert "spent + " in again
    assert "price of the devices is unknown" in refused(
        harness(*words, "budget={usd: 5}", "--steps", str(steps + 5), "--resume")
    )
    done = harness(*words, "budget={hours: 1}", "--steps", str(steps + 5), "--resume")
    assert done.returncode == 0, done.stderr
    after = read_cost(out)
    assert after.spent_s > found.spent_s
    assert after.standing == "done"
    assert "## Cost" in harness("report", str(out), "--format", "md").stdout
    assert json.loads((out / "summary.json").read_text())["cost"]["standing"] == "done"


SETS = ["evaluation=null", "checkpoint=null", "steps=3"]
SMALL = ["--arm", "plain", *(word for one in SETS for word in ("--set", one))]


@pytest.mark.slow
def test_a_study_beyond_its_budget_is_refused(tmp_path: Path, scenario: str) -> None:
    refusal = refused(harness("run", scenario, *SMALL, "--budget", "1s", "--out", str(tmp_path / "out")))
    assert refusal.startswith("harness: budget: ")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.slow
@pytest.mark.nightly
def test_a_study_is_held_to_its_budget_and_completed_with_a_larger_one(tmp_path: Path, scenario: str) -> None:
    sets, words = SETS, SMALL
    plan = make_plan(load_scenario(scenario, sets), scenario, ["plain"])
    with fork_servers.shared():
        cut = run_study(plan, tmp_path / "cut", [], scenario, options=StudyOptions(until=Deadline(time.monotonic_ns())))
    assert cut.status == "interrupted"
    assert cut.cut is not None
    assert len(StudyFolder(cut.folder).read_study().order) == 2  # nothing of the plan is forgotten
    done = harness("run", scenario, *words, "--budget", "10h", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "cost: predicted " in done.stdout
    (folder,) = (tmp_path / "out" / "small").iterdir()
    found = read_cost(folder)
    assert (found.standing, found.of, found.limit) == ("done", "study", SpendingLimit(hours=10))
    assert found.spent_s > found.measuring_s > sum(found.measured[0].steps_s)
    # As if it had been killed before its last run, with all of another budget spent.
    (folder / "runs/plain/1/run.json").unlink()
    write_json(folder / COST, cost_json(replace(found, spent_s=40_000.0, standing="unfinished")))
    assert "spent + " in refused(harness("run", "--resume", str(folder)))
    unpriced = refused(harness("run", "--resume", str(folder), "--budget", "20usd"))
    assert "--budget: an amount, but the study began without a price; allowed: a time (6h), or none" in unpriced
    resumed = harness("run", "--resume", str(folder), "--budget", "20h")
    assert resumed.returncode == 0, resumed.stderr
    after = read_cost(folder)
    assert (after.standing, after.limit) == ("done", SpendingLimit(hours=20))
    assert after.spent_s > 40_000


@pytest.mark.parametrize(("words", "message"), [
    (["cost", "--steps", "0"], "--steps: 0; allowed: 1 to"),
    (["cost", "--steps", "5", "--study"], "--steps is only for trainings"),
    (["cost", "--price", "nan"], "--price: nan; allowed: more than 0"),
    (["cost", "--price", "-1"], "--price: -1; allowed: more than 0"),
    (["cost", "--round-up", "inf"], "--round-up: inf; allowed: more than 0"),
    (["cost", "--device-profile", "a100-80gb-pcie"], "it has no price"),
    (["cost", "--device-profile", "h101"], "unknown device profile 'h101'"),
    (["cost", "--arm", "plain", "--set", "resume={llmc: model.bin, step: 60}", "--steps", "60"],
     "arm plain: resume.step: 60, and its training ends after 60 steps; give more"),
    (["cost", "--set", "budget={}"], "limits nothing; give usd, hours or both"),
    (["cost", "--set", "budget={hours: 0}"], "budget.hours"),
    (["cost", "--set", "price_usd_per_hour=-2"], "price_usd_per_hour"),
    (["run", "--budget", "soon"], "--budget 'soon': allowed: a time (6h, 90m, 30s), an amount (20usd), or none"),
    *((["run", f"--budget={limit}"], f"--budget {limit!r}: allowed") for limit in ("0usd", "nan", "-1h", "", "6 m s")),
    (["train", "--arm", "plain", "--epochs", "1", "--set", "budget={hours: 1}"],
     "--epochs: the steps of an epoch are unknown"),
    (["cost", "--set", "evaluation={every_epochs: 1, every_steps: null}"],
     "evaluation.every_epochs: the steps of an epoch are unknown"),
    ([*("train", "--arm", "plain", "--set", "budget={hours: 1}"), *("--set",
     "checkpoint={every_epochs: 1, every_steps: null}")],
     "checkpoint.every_epochs: the steps of an epoch are unknown"),
])  # fmt: skip
def test_wrong_input_is_one_line(tmp_path: Path, scenario: str, words: list[str], message: str) -> None:
    out = tmp_path / "out"
    assert message in refused(harness(words[0], scenario, *words[1:], "--out", str(out)))
    assert not out.exists()


def test_of_a_training_that_begins_at_a_later_step_the_rest_is_predicted(scenario: str) -> None:
    sets = ["resume={llmc: model.bin, step: 60}", "evaluation.multiple_choice={path: asked.jsonl, every_steps: 20}"]
    plan = make_plan(load_scenario(scenario, sets), scenario, ["plain"])
    (work,) = works_of(plan, "training", 160)
    assert (work.steps, work.passed_over, work.passes, work.answers) == (100, 60, 2, 5)
    config = plan.arms[0].config
    assert short_config(config, trains=True).resume is None  # a study, as the measuring is one, begins at step 0


@pytest.mark.parametrize("content", [
    "[]",
    "{}",
    '{"schema": 1}',
    '{"schema": 1, "of": "study", "scenario": "x", "measured": [], "work": [{"steps": 1}], "prices": []}',
    "\0",
])  # fmt: skip
def test_a_damaged_prediction_is_one_line(tmp_path: Path, content: str) -> None:
    from trainer.errors import InputError

    (tmp_path / COST).write_text(content)
    with pytest.raises(InputError, match=r"cost\.json: "):
        read_cost(tmp_path)
