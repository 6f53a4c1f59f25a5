"""Sweeps that train: from the file to the report, ended by a budget, killed and resumed, with no trial that ends."""

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


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps")
    corpus = write_parquet(folder / "corpus.parquet", make_texts(60))
    (folder / "small.yaml").write_text(SWEEP.format(corpus=corpus))
    return folder / "small.yaml"


def sweep(file: Path, out: Path, *sets: str, code: int = 0, cost: bool = False) -> Done:
    """Run ``harness sweep`` with ``sets``; it ends with the exit code ``code``."""
    words = [word for one in sets for word in ("--set", one)]
    done = harness("sweep", str(file), "--out", str(out), *["--cost"] * cost, *words)
    assert done.returncode == code, done.stderr
    return done


def resume(folder: Path, *sets: str, code: int = 0) -> Done:
    done = harness("sweep", "--resume", str(folder), *(word for one in sets for word in ("--set", one)))
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def only(out: Path) -> Path:
    (found,) = out.glob("small/*")
    return found


def without_times(trials: list[Trial]) -> list[tuple[object, ...]]:
    return [(one.number, one.plan, one.status, one.loss, one.steps, one.tokens, one.milestones) for one in trials]


def cut_after(folder: Path, number: int) -> None:
    """Leave the journal as a kill does that comes when trial ``number`` has begun."""
    lines = (folder / FILE).read_bytes().splitlines(keepends=True)
    created = [place for place, line in enumerate(lines) if b'"op_code":4' in line]
    (folder / FILE).write_bytes(b"".join(lines[: created[number] + 3]) + b'{"op_code":7,"wor')


@pytest.mark.slow
def test_a_sweep_that_a_budget_ended_and_kills_interrupted_has_the_trials_of_a_whole_one(file, tmp_path):
    first = sweep(file, tmp_path, "budget.tokens=1600", code=1)
    folder = only(tmp_path)
    assert [one.status for one in TrialJournal(folder).trials()] == ["done", "done"]
    assert "only 64 tokens of the budget (1,600 tokens) are left, and the next trial (12" in first.stderr
    assert "The budget ended the sweep before its last trial." in first.stdout

    resume(folder, "strategy=greedy", code=2)  # a sweep goes on as it was begun
    resume(folder, "budget.tokens=100000")
    whole = TrialJournal(folder).trials()
    assert [one.status for one in whole] == ["done"] * 4
    assert sorted(one.plan.learning_rate for one in whole) == pytest.approx(grid(1e-3, 1e-1, 4))
    content = json.loads((folder / "summary.json").read_text())
    assert content["status"] == "done"
    assert [one["tokens"] for one in content["trials"]] == [12 * 64] * 4
    assert (folder / "plots" / "learning-rate.png").exists()

    # Killed between the end of a training and its record: the result that lies there counts, nothing is trained.
    killed = folder.with_name("killed-at-its-end")
    shutil.copytree(folder, killed)
    cut_after(killed, 3)
    log = (killed / "trials" / "0003" / "log.txt").read_bytes()
    resume(killed)
    assert [one.loss for one in TrialJournal(killed).trials()] == [one.loss for one in whole]
    assert (killed / "trials" / "0003" / "log.txt").read_bytes() == log

    # Killed within a training: the same trial goes on from its checkpoint, and ends with the same loss.
    killed = folder.with_name("killed-within")
    shutil.copytree(folder, killed)
    cut_after(killed, 3)
    (killed / "trials" / "0003" / "result.json").unlink()
    shutil.rmtree(max((killed / "trials" / "0003" / "checkpoints").glob("step-*")))
    resume(killed)
    assert without_times(TrialJournal(killed).trials()) == without_times(whole)
    study = json.loads((killed / "trials" / "0003" / "study.json").read_text())
    assert study["blocks"] == 2  # two parts


DIVERGES = ["learning_rate={low: 1.0e+3, high: 1.0e+6}", "divergence.window=3", "warmup_fraction=0", "steps=30"]
TAKES_LONG = ["data.inject={pack_ms: 100, how: sleep}", "steps=100", "strategy.trials=1"]


@pytest.mark.slow
@pytest.mark.parametrize(("sets", "statuses", "said"), [
    ([*DIVERGES, "strategy.trials=2"], ["diverged"] * 2, "Every trial diverged (2 trials, the lowest rate 1.00e+03)"),
    ([*TAKES_LONG, "limits.trial_hours=0.00003"], ["late"], "no trial finished"),
])  # fmt: skip
def test_no_trial_ends_with_its_steps(file, tmp_path, sets, statuses, said):
    done = sweep(file, tmp_path, *sets, code=1)
    assert said in done.stdout + done.stderr
    trials = TrialJournal(only(tmp_path)).trials()
    assert [one.status for one in trials] == statuses
    assert all(one.steps < one.plan.steps for one in trials)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_sweep_of_narrow_models_trains_them_under_mup_and_is_resumed(file: Path, tmp_path: Path) -> None:
    sweep(
        file, tmp_path, "strategy={name: mup, widths: [16], trials: 4}", "model.width=64", "model.heads=4", "steps=4",
        "keep=none", "budget.hours=1",
    )  # fmt: skip
    folder = only(tmp_path)
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
    resume(folder)
    assert without_times(TrialJournal(folder).trials()) == without_times(whole)


@pytest.mark.slow
def test_a_budget_of_time_refuses_stops_within_a_trial_and_is_raised(file: Path, tmp_path: Path) -> None:
    begun = sweep(file, tmp_path, "budget.hours=0.00001", *TAKES_LONG, code=2)
    assert "budget.hours: 0.04 s, but one trial of 100 steps needs " in begun.stderr
    folder = only(tmp_path)
    assert TrialJournal(folder).trials() == []
    unpriced = resume(folder, "budget.usd=5", code=2)
    assert "budget.usd: this sweep was begun without a price; give a budget of hours or tokens" in unpriced.stderr

    # As if a trial had been expected to take no time: it is stopped in its middle.
    record = json.loads((folder / "sweep.json").read_text())
    (pilot,) = record["pilots"].values()
    assert (pilot["step_s"] > 0.1, pilot["pass_s"] > 0, 0 < pilot["start_s"] < record["lost_s"]) == (True, True, True)
    record["pilots"] = {"{}": {"start_s": 0.0, "step_s": 1e-9}}
    (folder / "sweep.json").write_text(json.dumps(record))
    # 5 s: more than a start takes, and less than 100 sleeps.
    stopped = resume(folder, f"budget.hours={record['lost_s'] / 3600 + 0.0014:.9f}", code=1)
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
    assert "is spent; trial 0 is incomplete" in resume(folder, code=1).stderr

    resume(folder, "budget.hours=1")
    (trial,) = TrialJournal(folder).trials()
    assert (trial.status, trial.steps, trial.tokens) == ("done", 100, 6400)
    assert trial.seconds > shown["seconds"]
    assert json.loads((folder / "trials/0000/study.json").read_text())["blocks"] == 2


SIZES = ["1/16/1", "2/16/1", "3/16/1"]
PROJECTS = ", ".join(f"{{layers: {layers}, width: 16, heads: 1}}" for layers in (1, 2, 3))
LONG = [f"strategy={{name: model-scaling, trials: 4, sizes: [{PROJECTS}]}}", "steps=1000000"]


@pytest.mark.slow
def test_what_a_sweep_will_cost_is_measured_of_every_size_and_no_trial_runs(file: Path, tmp_path: Path) -> None:
    done = sweep(file, tmp_path, *LONG, "price_usd_per_hour=3600", cost=True)
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if "000,000" in line}
    assert list(rows) == [*SIZES, "together"]
    for trials, steps, step_ms, hours, usd in (row for size, row in rows.items() if size != "together"):
        assert (trials, steps) == ("4", "4,000,000")
        assert float(hours) * 3600 >= 4e6 * float(step_ms) / 1e3 * 0.98  # steps, and what lies beside them
        assert float(usd.replace(",", "")) == pytest.approx(float(hours) * 3600, rel=0.01)  # a dollar a second
    assert rows["together"][:2] == ["12", "12,000,000"]
    assert float(rows["together"][2]) == pytest.approx(sum(float(rows[size][3]) for size in SIZES), rel=0.01)
    assert not list(tmp_path.iterdir())


EMULATED = ["compute.device={emulated: h100-sxm, matmul_efficiency: 1}", "evaluation=null", "strategy.trials=3"]


@pytest.mark.slow
@pytest.mark.nightly
def test_what_a_sweep_will_cost_on_an_emulated_device_is_told_though_it_has_no_loss(file: Path, tmp_path: Path) -> None:
    shape = "model={preset: gpt2-small, vocab_size: 50304}"
    done = sweep(file, tmp_path, *EMULATED, "steps=1000000", shape, cost=True)
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("all ")]
    assert row[1:3] == ["3", "3,000,000"]
    # Milliseconds with three digits: with 0.05 for 0.0545, the hours would be 10 % off.
    assert float(row[4]) * 3600 == pytest.approx(3e6 * float(row[3]) / 1e3, rel=0.04)
    assert "no passes over held-out data, because it has no loss" in done.stdout


@pytest.mark.slow
def test_an_emulated_device_has_no_loss_to_compare_trials_by(file: Path, tmp_path: Path) -> None:
    assert "trials are compared by the evaluation loss" in sweep(file, tmp_path, *EMULATED, code=2).stderr


@pytest.mark.slow
@pytest.mark.nightly
def test_a_budget_is_held_against_every_size_before_the_first_trial(file: Path, tmp_path: Path) -> None:
    """The small model's trials would have fitted."""
    done = sweep(file, tmp_path, *LONG, "budget.hours=1", code=2)
    (line,) = [one for one in done.stderr.splitlines() if one.startswith("harness: ")]
    assert line.startswith("harness: budget.hours: 60.0 min, but 3 sizes need ")
    for group in SIZES:
        assert f"{group}: 4 trials, 4,000,000 steps x " in line
        assert f"measuring the time of a trial of {group}: 20 steps" in done.stderr
    folder = only(tmp_path)
    assert TrialJournal(folder).trials() == []
    assert len(json.loads((folder / "sweep.json").read_text())["pilots"]) == 3


@pytest.mark.slow
@pytest.mark.nightly
def test_trials_that_fall_behind_are_evaluated_at_their_end_where_that_is_asked_for(file: Path, tmp_path: Path) -> None:
    losses = {}
    for asked in ("false", "true"):
        out = tmp_path / asked
        stops = ["strategy={name: early-stopping, trials: 6, fraction: 1}", "steps=20", "learning_rate.high=1"]
        sweep(file, out, *stops, f"evaluate_behind={asked}")
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
