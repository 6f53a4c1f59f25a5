"""Sweeps that train: from the file to the report, ended by a budget, killed and resumed, with every trial diverging."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from harness.launch.training_files import read_evaluations
from harness.sweep.searches import grid
from harness.sweep.store import FILE, TrialJournal
from harness.sweep.trials import Trial
from tests.commands import Done, harness
from tests.trainer.data.conftest import make_texts, write_parquet

SWEEP = """\
name: small
base:
  model: {{layers: 1, width: 32, heads: 1}}
  data:
    corpus: {{parquet: {corpus}}}
    tokenizer: {{train: {{vocab_size: 300}}}}
    path: tokens-mmap
    sequence_length: 16
    batch_size: 4
  compute: {{device: cpu, threads: 1}}
  checkpoint: {{every_steps: 5, asynchronous: false}}
  evaluation: {{documents: 8, batches: 2}}
learning_rate: {{low: 1.0e-3, high: 1.0e-1}}
strategy: {{name: grid, trials: 4}}
steps: 12
warmup_fraction: 0.1
schedule: cosine
keep: all
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    corpus = write_parquet(tmp_path / "corpus.parquet", make_texts(60))
    (tmp_path / "small.yaml").write_text(SWEEP.format(corpus=corpus))
    return tmp_path / "small.yaml"


def only(out: Path) -> Path:
    (found,) = out.glob("small/*")
    return found


def resume(folder: Path, *words: str) -> Done:
    done = harness("sweep", "--resume", str(folder), *words)
    assert "Traceback" not in done.stderr
    return done


def without_times(trials: list[Trial]) -> list[tuple[object, ...]]:
    return [(one.number, one.plan, one.status, one.loss, one.steps, one.tokens, one.milestones) for one in trials]


def cut_after(folder: Path, number: int) -> None:
    """Leave the journal as a kill does that comes when trial ``number`` has begun."""
    lines = (folder / FILE).read_bytes().splitlines(keepends=True)
    created = [place for place, line in enumerate(lines) if b'"op_code":4' in line]
    (folder / FILE).write_bytes(b"".join(lines[: created[number] + 3]) + b'{"op_code":7,"wor')


@pytest.mark.slow
def test_a_sweep_that_a_budget_ended_and_kills_interrupted_has_the_trials_of_a_whole_one(file: Path) -> None:
    out = file.parent / "out"
    first = harness("sweep", str(file), "--out", str(out), "--set", "budget.tokens=1600")
    assert first.returncode == 1, first.stderr
    folder = only(out)
    assert [one.status for one in TrialJournal(folder).trials()] == ["done", "done"]
    assert "only 64 tokens of the budget (1,600 tokens) are left, and the next trial (12" in first.stderr
    assert "The budget ended the sweep before its last trial." in first.stdout

    assert resume(folder, "--set", "strategy=greedy").returncode == 2  # a sweep goes on as it was begun
    done = resume(folder, "--set", "budget.tokens=100000")
    assert done.returncode == 0, done.stderr
    whole = TrialJournal(folder).trials()
    assert len(whole) == 4
    assert all(one.status == "done" for one in whole)
    assert sorted(one.plan.learning_rate for one in whole) == pytest.approx(grid(1e-3, 1e-1, 4))
    content = json.loads((folder / "summary.json").read_text())
    assert content["status"] == "done"
    assert [one["tokens"] for one in content["trials"]] == [12 * 64] * 4
    assert (folder / "plots" / "learning-rate.png").exists()

    # Killed between the end of a training and its record: the result that lies there counts, nothing is trained.
    killed = folder.with_name("killed-at-its-end")
    shutil.copytree(folder, killed)
    cut_after(killed, 2)
    log = (killed / "trials" / "0002" / "log.txt").read_bytes()
    assert resume(killed).returncode == 0
    assert [one.loss for one in TrialJournal(killed).trials()] == [one.loss for one in whole]
    assert (killed / "trials" / "0002" / "log.txt").read_bytes() == log

    # Killed within a training: the same trial goes on from its checkpoint, and ends with the same loss.
    killed = folder.with_name("killed-within")
    shutil.copytree(folder, killed)
    cut_after(killed, 3)
    (killed / "trials" / "0003" / "result.json").unlink()
    shutil.rmtree(max((killed / "trials" / "0003" / "checkpoints").glob("step-*")))
    assert resume(killed).returncode == 0
    assert without_times(TrialJournal(killed).trials()) == without_times(whole)
    study = json.loads((killed / "trials" / "0003" / "study.json").read_text())
    assert study["blocks"] == 2  # two parts


@pytest.mark.slow
def test_every_trial_diverges(file: Path) -> None:
    out = file.parent / "out"
    done = harness(
        "sweep", str(file), "--out", str(out), "--set", "learning_rate={low: 1.0e+3, high: 1.0e+6}",
        "--set", "strategy.trials=2", "--set", "divergence.window=3", "--set", "steps=30", "--set", "warmup_fraction=0",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Every trial diverged (2 trials, the lowest rate 1.00e+03): no learning rate is chosen." in done.stdout
    trials = TrialJournal(only(out)).trials()
    assert [one.status for one in trials] == ["diverged", "diverged"]
    assert all(one.steps < 30 for one in trials)


@pytest.mark.slow
def test_a_trial_that_takes_longer_than_its_limit_ends(file: Path) -> None:
    out = file.parent / "out"
    sets = ["limits.trial_hours=0.00003", "strategy.trials=1", "data.inject={pack_ms: 100, how: sleep}", "steps=1000"]
    done = harness("sweep", str(file), "--out", str(out), *(word for one in sets for word in ("--set", one)))
    assert done.returncode == 1, done.stderr
    assert "no trial finished" in done.stderr
    (trial,) = TrialJournal(only(out)).trials()
    assert trial.status == "late"
    assert trial.steps < 1000


@pytest.mark.slow
def test_a_sweep_of_narrow_models_trains_them_under_mup_and_is_resumed(file: Path) -> None:
    out = file.parent / "out"
    done = harness(
        "sweep", str(file), "--out", str(out), "--set", "strategy={name: mup, widths: [16], trials: 4}",
        "--set", "model.width=64", "--set", "model.heads=4", "--set", "steps=4", "--set", "keep=none",
        "--set", "budget.hours=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = only(out)
    (kind,) = json.loads((folder / "sweep.json").read_text())["pilots"]  # of the narrow model, as it is what is trained
    assert '"model.width": 16' in kind
    whole = TrialJournal(folder).trials()
    assert [one.plan.group for one in whole] == ["width 16"] * 4
    projection = json.loads((folder / "summary.json").read_text())["projection"]
    assert (projection["unit"], projection["target"]) == ("width", 64)
    assert projection["mup"] == {"base_width": 16, "base_heads": 1}
    config = json.loads((folder / "trials" / "0003" / "study.json").read_text())
    assert '"mup": {"base_heads": 1, "base_width": 16}' in json.dumps(config, sort_keys=True)
    cut_after(folder, 3)
    (folder / "trials" / "0003" / "result.json").unlink()
    assert resume(folder).returncode == 0
    assert without_times(TrialJournal(folder).trials()) == without_times(whole)


@pytest.mark.slow
def test_a_budget_of_time_refuses_stops_within_a_trial_and_is_raised(file: Path) -> None:
    out = file.parent / "out"
    sets = ["budget.hours=0.00001", "strategy.trials=1", "data.inject={pack_ms: 100, how: sleep}", "steps=100"]
    begun = harness("sweep", str(file), "--out", str(out), *(word for one in sets for word in ("--set", one)))
    assert begun.returncode == 2, begun.stderr
    assert "budget.hours: 0.04 s, but one trial of 100 steps needs " in begun.stderr
    assert " for the rest); give enough for one trial, or fewer steps" in begun.stderr
    folder = only(out)
    assert TrialJournal(folder).trials() == []
    unpriced = resume(folder, "--set", "budget.usd=5")
    assert unpriced.returncode == 2
    assert "budget.usd: this sweep was begun without a price; give a budget of hours or tokens" in unpriced.stderr

    # As if a trial had been expected to take no time: it is stopped in its middle.
    record = json.loads((folder / "sweep.json").read_text())
    assert record["pilots"]["{}"]["step_s"] > 0.1
    record["pilots"] = {"{}": {"start_s": 0.0, "step_s": 1e-9}}
    (folder / "sweep.json").write_text(json.dumps(record))
    # 5 s: more than a start takes, and less than 100 sleeps.
    hours = ("--set", f"budget.hours={record['lost_s'] / 3600 + 0.0014:.9f}")
    stopped = resume(folder, *hours)
    assert stopped.returncode == 1, stopped.stderr
    assert "was spent in trial 0, after " in stopped.stderr
    assert "of 100 steps; its checkpoint is kept" in stopped.stderr
    (trial,) = TrialJournal(folder).trials()
    assert trial.status == "running"
    summary = json.loads((folder / "summary.json").read_text())
    (shown,) = summary["trials"]
    assert 0 < shown["steps"] < 100
    assert shown["tokens"] == 64 * shown["steps"]
    assert summary["spent"]["seconds"] == pytest.approx(record["lost_s"] + shown["seconds"])
    assert summary["spent"]["seconds"] > record["lost_s"] + 1
    assert (folder / "trials/0000/checkpoints" / f"step-{shown['steps']:08d}").is_dir()
    again = resume(folder)
    assert again.returncode == 1
    assert "is spent; trial 0 is incomplete" in again.stderr

    done = resume(folder, "--set", "budget.hours=1")
    assert done.returncode == 0, done.stderr
    (trial,) = TrialJournal(folder).trials()
    assert (trial.status, trial.steps, trial.tokens) == ("done", 100, 6400)
    assert trial.seconds > shown["seconds"]
    assert json.loads((folder / "trials/0000/study.json").read_text())["blocks"] == 2


@pytest.mark.slow
def test_what_a_sweep_will_cost_is_measured_of_every_size_and_no_trial_runs(file: Path) -> None:
    out = file.parent / "out"
    sizes = "[{layers: 1, width: 16, heads: 1}, {layers: 2, width: 16, heads: 1}, {layers: 3, width: 16, heads: 1}]"
    strategy = f"strategy={{name: model-scaling, trials: 4, sizes: {sizes}}}"
    words = ["--set", strategy, "--set", "steps=1000000", "--set", "price_usd_per_hour=3600"]
    done = harness("sweep", str(file), "--cost", "--out", str(out), *words)
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if "000,000" in line}
    assert list(rows) == ["1/16/1", "2/16/1", "3/16/1", "together"]
    for trials, steps, step_ms, hours, usd in (row for size, row in rows.items() if size != "together"):
        assert (trials, steps) == ("4", "4,000,000")
        assert float(hours) * 3600 >= 4e6 * float(step_ms) / 1e3 * 0.98  # steps, and what lies beside them
        assert float(usd.replace(",", "")) == pytest.approx(float(hours) * 3600, rel=0.01)  # a dollar a second
    assert rows["together"][:2] == ["12", "12,000,000"]
    assert float(rows["together"][2]) == pytest.approx(sum(float(rows[size][3]) for size in list(rows)[:3]), rel=0.01)
    assert not out.exists() or not list(out.iterdir())


@pytest.mark.slow
def test_what_a_sweep_will_cost_on_an_emulated_device_is_told_though_it_has_no_loss(file: Path) -> None:
    words = ["--set", "compute.device={emulated: h100-sxm, matmul_efficiency: 1}", "--set", "evaluation=null"]
    asked = ["sweep", str(file), *words, "--set", "strategy={name: grid, trials: 3}", "--set", "steps=1000000"]
    done = harness(*asked, "--cost", "--set", "model={preset: gpt2-small, vocab_size: 50304}")
    assert done.returncode == 0, done.stderr
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("all ")]
    assert row[1:3] == ["3", "3,000,000"]
    # Milliseconds with three digits: with 0.05 for 0.0545, the hours would be 10 % off.
    assert float(row[4]) * 3600 == pytest.approx(3e6 * float(row[3]) / 1e3, rel=0.04)
    assert "no passes over held-out data, because it has no loss" in done.stdout
    refused = harness(*asked)
    assert refused.returncode == 2
    assert "trials are compared by the evaluation loss" in refused.stderr


@pytest.mark.slow
def test_a_budget_is_held_against_every_size_before_the_first_trial(file: Path) -> None:
    """The small model's trials would have fitted."""
    out = file.parent / "out"
    sizes = "[{layers: 1, width: 16, heads: 1}, {layers: 2, width: 16, heads: 1}, {layers: 3, width: 16, heads: 1}]"
    done = harness(
        "sweep", str(file), "--out", str(out), "--set", f"strategy={{name: model-scaling, trials: 4, sizes: {sizes}}}",
        "--set", "steps=1000000", "--set", "budget.hours=1",
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    (line,) = [one for one in done.stderr.splitlines() if one.startswith("harness: ")]
    assert line.startswith("harness: budget.hours: 60.0 min, but 3 sizes need ")
    for group in ("1/16/1", "2/16/1", "3/16/1"):
        assert f"{group}: 4 trials, 4,000,000 steps x " in line
        assert f"measuring the time of a trial of {group}: 20 steps" in done.stderr
    folder = only(out)
    assert TrialJournal(folder).trials() == []
    record = json.loads((folder / "sweep.json").read_text())
    assert len(record["pilots"]) == 3
    assert all(one["pass_s"] > 0 for one in record["pilots"].values())
    assert sum(one["start_s"] for one in record["pilots"].values()) < record["lost_s"]


@pytest.mark.slow
@pytest.mark.nightly
def test_trials_that_fall_behind_are_evaluated_at_their_end_where_that_is_asked_for(file: Path) -> None:
    sets = ["strategy={name: early-stopping, trials: 6, fraction: 1}", "steps=20", "learning_rate.high=1"]
    words = [word for one in sets for word in ("--set", one)]
    losses = {}
    for asked in ("false", "true"):
        out = file.parent / asked
        done = harness("sweep", str(file), "--out", str(out), *words, "--set", f"evaluate_behind={asked}")
        assert done.returncode == 0, done.stderr
        behind = [one for one in TrialJournal(only(out)).trials() if one.status == "behind"]
        assert behind
        losses[asked] = {one.number: one.loss for one in behind}
        passes = [
            [(row.step, row.loss) for row in read_evaluations(only(out) / f"trials/{one.number:04d}/evaluations.csv")]
            for one in behind
        ]
        assert passes == [[(one.steps - 1, one.loss)] if asked == "true" else [] for one in behind]
        summary = json.loads((only(out) / "summary.json").read_text())
        in_fit = {rate for rate, _ in summary["curves"][0]["points"]}
        assert not in_fit & {one.plan.learning_rate for one in behind}
    assert list(losses["false"]) == list(losses["true"])  # what falls behind does not depend on it
    assert set(losses["false"].values()) == {None}
    assert None not in losses["true"].values()
