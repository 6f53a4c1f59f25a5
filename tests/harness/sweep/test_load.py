"""What a sweep file says, what is shipped, and what is wrong with one: a line each."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.scenario.load import SCENARIOS, SWEEPS, find_file, shipped
from harness.sweep.load import load_sweep
from harness.sweep.model import TrialConfigs
from harness.sweep.trials import TrialPlan, TrialStage
from tests.commands import harness
from trainer.devices.estimates import parameters
from trainer.errors import InputError
from trainer.model import resolve_shape

SWEEP = """\
name: small
base:
  model: {layers: 1, width: 32, heads: 1, vocab_size: 512}
  data: {sequence_length: 16, batch_size: 4, path: tokens-mmap}
learning_rate: {low: 1.0e-4, high: 1.0e-1}
strategy: grid
steps: 100
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(SWEEP)
    return tmp_path / "small.yaml"


def configs(path: Path, *sets: str) -> TrialConfigs:
    loaded = load_sweep(path, sets)
    return TrialConfigs(loaded.settings, loaded.config, lambda: 300)


def stages(path: str | Path) -> list[TrialStage]:
    loaded = load_sweep(path)
    return loaded.settings.strategy.stages(TrialConfigs(loaded.settings, loaded.config, lambda: 0).space())


def test_what_is_shipped_loads_by_name_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert set(shipped(SWEEPS)) == {"tiniest", "gpt2-124m"}
    for name, path in shipped(SWEEPS).items():
        assert load_sweep(name) == load_sweep(path)


def test_tiniest_is_compute_optimal_with_ten_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_sweep("tiniest")
    of = TrialConfigs(loaded.settings, loaded.config, lambda: 0)
    shape = resolve_shape(loaded.config.model, 0, loaded.config.data.sequence_length)
    assert (shape.layers, shape.width, shape.heads) == (1, 64, 1)
    tokens = of.space().steps * of.step_tokens(of.base)
    assert abs(tokens - 20 * parameters(shape)) <= of.step_tokens(of.base) / 2
    assert [stage.trials for stage in stages("tiniest")] == [10]
    monkeypatch.chdir(tmp_path)
    done = harness("sweep", "tiniest", "--plan")
    assert done.returncode == 0, done.stderr
    assert "86,976 parameters, 2,048 tokens a step" in done.stdout
    assert "10 trials, 8,490 steps, 17,387,520 tokens" in done.stdout


def test_the_full_exercise_prints_its_brackets_and_fits_into_its_budget() -> None:
    done = harness("sweep", "gpt2-124m", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "524,288 tokens a step" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert any(line[:6] == ["s", "=", "5,", "rung", "0", "243"] and "2" in line for line in lines)
    assert ["s", "=", "0,", "rung", "0", "6", "555"] in [line[:7] for line in lines]
    settings = load_sweep("gpt2-124m").settings
    steps = sum(stage.trials * stage.steps for stage in stages("gpt2-124m"))
    # At 1.30 s a step, as measured on the device that the file is for.
    assert 0.3 < steps * 1.30 / 3600 * settings.price_usd_per_hour / settings.budget.usd < 0.9


def test_a_trial_has_its_rate_seed_schedule_and_warm_up(file: Path) -> None:
    of = configs(file, "schedule=cosine", "warmup_fraction=0.1", "final_fraction=0.2", "weight_decay=0.3")
    config = of.of(TrialPlan(3e-3, 50, seed=7, overrides={"model.width": 64}))
    optimizer = config.optimizer
    assert (optimizer.learning_rate, optimizer.schedule, optimizer.schedule_steps) == (3e-3, "cosine", 50)
    assert (optimizer.lr_warmup_steps, optimizer.final_fraction, optimizer.weight_decay) == (5, 0.2, 0.3)
    assert (config.seed, config.warmup_steps + config.steps, config.model.width) == (7, 50, 64)
    assert config.evaluation is not None  # trials are compared by it


def test_a_very_short_trial_has_a_schedule_that_outlasts_its_warm_up(file: Path) -> None:
    for steps in (1, 2, 3, 19):
        config = configs(file, "schedule=cosine").of(TrialPlan(1e-3, steps))
        assert config.optimizer.lr_warmup_steps < steps
        assert config.warmup_steps + config.steps == steps


def test_batch_tokens_are_reached_by_accumulation(file: Path) -> None:
    of = configs(file, "batch_tokens=524288")
    assert of.of(TrialPlan(1e-3, 5)).optimizer.accumulation == 524288 // (4 * 16)
    with pytest.raises(
        InputError,
        match=r"^batch_tokens: 100 is not a multiple of data.batch_size 4 x data.sequence_length 16 = 64; nearest: ",
    ):
        configs(file, "batch_tokens=100").of(TrialPlan(1e-3, 5))


def test_steps_by_tokens_and_by_parameters(file: Path) -> None:
    assert configs(file, "steps={tokens: 6400}").space().steps == 100
    of = configs(file, "steps=compute-optimal")
    assert of.space().steps == round(20 * of.parameters(of.base) / 64)
    assert of.steps({"model.width": 64}) > of.space().steps
    of = configs(file, "steps=compute-optimal", "model.vocab_size=null")  # the tokenizer's
    assert of.parameters(of.base) == parameters(resolve_shape(of.base.model, 300, 16))


def test_extends_overrides_key_by_key_and_a_strategy_as_a_whole(file: Path) -> None:
    other = file.with_name("other.yaml")
    text = "extends: small.yaml\nname: other\nstrategy: {name: hyperband, R: 9}\n"
    other.write_text(f"{text}learning_rate.low: 1.0e-3\n")
    with pytest.raises(InputError, match=r"learning_rate\.low"):  # dotted keys are for base
        load_sweep(other)
    other.write_text(f"{text}learning_rate: {{low: 1.0e-3}}\n")
    settings = load_sweep(other).settings
    assert (settings.name, settings.strategy.name, settings.learning_rate.low) == ("other", "hyperband", 1e-3)
    assert settings.learning_rate.high == 1e-1


def test_an_arm_of_a_scenario_is_the_base_and_a_machine_costs_what_it_costs_there(file: Path) -> None:
    small = file.with_name("scenario.yaml")
    small.write_text(
        f"extends: {find_file('quickstart', SCENARIOS).resolve()}\nname: small\nprice_usd_per_hour: 2.0\n"
        "budget: {usd: 1}\nupload: file:///nowhere\n"
    )
    file.write_text(SWEEP.replace("base:\n", f"scenario: {small.name}\narm: tokens-padded\nbase:\n", 1))
    loaded = load_sweep(file)
    assert loaded.arm == "tokens-padded"
    assert (loaded.config.data.path, loaded.config.data.access) == ("tokens-mmap", "scalar")  # the base's, the arm's
    assert loaded.config.data.tokenizer.train.vocab_size == 2048
    assert (loaded.settings.price_usd_per_hour, loaded.settings.budget.usd) == (2.0, None)
    assert loaded.notes == (
        "the budget of scenario.yaml does not apply to this sweep (set the key budget)",
        "the upload of scenario.yaml does not apply to this sweep (use harness upload)",
    )
    own = load_sweep(file, ["price_usd_per_hour=3.0", "budget={usd: 7}"])
    assert (own.settings.price_usd_per_hour, len(own.notes)) == (3.0, 1)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("low: 1.0e-4", "low: 1.0", ":5: learning_rate: reversed: low 1 is above high 0.1; allowed: low below high"),
        ("low: 1.0e-4", "low: 0.1", ":5: learning_rate: empty: low and high are both 0.1; allowed: low below high"),
        ("low: 1.0e-4", "low: -1", ":5: learning_rate.low: must be greater than 0; got -1"),
        ("low: 1.0e-4, ", "", ":5: learning_rate.low: this key is required"),
        ("grid", "gird", ":6: strategy: no such strategy: 'gird'; did you mean 'grid'? allowed: grid, "),
        ("grid", "{trials: 3}", ":6: strategy: name: this key is required; allowed: grid, "),
        ("grid", "{name: grid, trails: 3}", ":6: strategy.trails: unknown key of grid; did you mean 'trials'? "),
        ("grid", "{name: grid, trials: 0}", ":6: strategy.trials: must be greater than or equal to 1; got 0"),
        ("grid", "7", ":6: strategy: must be a name, or a mapping with one; got 7; allowed: grid, "),
        ("grid", "{name: mup, widths: [48, 32]}", ":6: strategy.widths[0]: the base of mup has 48 channels, more than "
         "the sweep's model, which the rate is for (32); allowed: at most 32"),
        ("grid", "mup", ":6: strategy.widths[0]: the base of mup has 64 channels, more than the sweep's model, "),
        ("100", "many", ":7: steps: must be a number of steps from 1 to 10,000,000, compute-optimal, or {tokens: N}"),
        ("100", "0", ":7: steps: must be a number of steps from 1 to 10,000,000, compute-optimal, or {tokens: N}"),
        ("100", "{tokens: -1}", ":7: steps: must be a number of steps from 1 to 10,000,000, compute-optimal, or "),
        ("layers: 1", "layerz: 1", ":3: base.model.layerz: unknown key; did you mean 'layers'?"),
        ("steps: 100", "", ":1: steps: this key is required"),
        ("name: small", "name: small\nnam: 3", ":2: nam: unknown key; did you mean 'name'?"),
        ("base:", "arm: x\nbase:", ":2: arm: goes with scenario; give that too"),
        ("base:", "scenario: quickstart\nbase:", ":2: arm: one arm is trained, and quickstart has 2: text-padded, "),
        ("base:", "scenario: quickstart\narm: x\nbase:", ":2: scenario quickstart: arm x: no arm matches; arms: "),
        ("base:", "seeds: []\nbase:", ":2: seeds: give at least one"),
        ("base:", "seeds: [1, 2, 1]\nbase:", ":2: seeds: 1 is given twice; give each seed once"),
        ("low: 1.0e-4", "low: 1.0e-300", ":5: learning_rate: too low: 1e-300; allowed: at least 1e-30"),
        ("grid", "{name: greedy, fraction: 0.9999999}", ":6: strategy.fraction: must be less than or equal to 0.99"),
        ("100", "{tokens: 10000000000000000}", "steps: 156,250,000,000,000 steps of 64 tokens; allowed: at most 10"),
        ("base:\n", "base:\n  optimizer.learning_rate: 1\n", ":3: base.optimizer.learning_rate: the search sets it; "),
        ("base:\n", "base:\n  steps: 7\n", ":3: base.steps: the search sets it; use the sweep's steps"),
        ("base:\n", "batch_tokens: 64\nbase:\n  optimizer.accumulation: 2\n", ": batch_tokens sets it; give one of "),
        ("base:\n", "schedule: wsd\nbase:\n  optimizer.schedule: wsd\n", ": the sweep's schedule also sets it; "),
        ("base:\n", "budget: {hours: 0}\nbase:\n", ":2: budget.hours: must be greater than 0; got 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(file: Path, old: str, new: str, line: str) -> None:
    assert old in SWEEP
    file.write_text(SWEEP.replace(old, new, 1))
    with pytest.raises(InputError) as refused:
        stages(file)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "sweep: give a file (sweeps/*.yaml), the name of a shipped one, or --resume DIR"),
        (["tiniets"], "tiniets: no such file; did you mean 'tiniest'? shipped: gpt2-124m, tiniest"),
        (["tiniest", "--set", "strategy"], "--set strategy: give key=value, as in --set strategy=greedy"),
        (["tiniest", "--set", "model.layerz=1", "--plan"], "--set model.layerz=1: base.model.layerz: unknown key; "),
        (["--resume", "nowhere"], "nowhere: no sweep there (no sweep.json)"),
        (["tiniest", "--resume", "nowhere"], "sweep --resume: SWEEP cannot be combined with it"),
        (["tiniest", "--set", "budget.tokens=1000"], "budget.tokens: 1,000 tokens, but one trial of 849 steps needs "
         "1,738,752 tokens (849 steps x 2,048 tokens); give enough for one trial, or fewer steps"),
        (["tiniest", "--set", "strategy={name: data-scaling, tokens: [10000, 20000, 10000000000000000]}"],
         "steps: 4,882,812,500,000 steps of 2,048 tokens; allowed: at most 10,000,000 steps"),
        (["tiniest", "--set", "budget.usd=1"], "budget.usd: the price of this machine is unknown; give price_"),
    ],
)  # fmt: skip
def test_what_is_wrong_on_the_command_line_is_one_line(tmp_path: Path, words: list[str], line: str) -> None:
    done = harness("sweep", *words, *([] if "--resume" in words else ["--out", str(tmp_path / "out")]))
    assert done.returncode == 2, done.stdout
    assert line in done.stderr.splitlines()[-1], done.stderr
    assert not (tmp_path / "out").exists()


def test_warm_up_in_steps(file: Path) -> None:
    """At most half of a trial's steps, as a probe may be shorter than it."""
    of = configs(file, "warmup_steps=20")
    assert of.of(TrialPlan(1e-3, 100)).optimizer.lr_warmup_steps == 20
    assert of.of(TrialPlan(1e-3, 10)).optimizer.lr_warmup_steps == 5
    assert configs(file, "warmup_steps=0").of(TrialPlan(1e-3, 100)).optimizer.lr_warmup_steps == 0
    for sets in (["warmup_fraction=0.1"], ["optimizer.lr_warmup_steps=3"]):
        with pytest.raises(InputError, match=r"sets? .*give one "):
            configs(file, "warmup_steps=20", *sets)
    assert configs(file, "warmup_fraction=0.1", "warmup_fraction=null", "warmup_steps=20")


def test_two_keys_of_the_warm_up_are_both_named_with_the_option_that_removes_one(file: Path) -> None:
    file.write_text(f"{SWEEP}warmup_fraction: 0.1\n")
    line = r"^--set warmup_steps=20: warmup_steps: .*:8: warmup_fraction also sets .*; add --set warmup_fraction=null$"
    with pytest.raises(InputError, match=line):
        load_sweep(file, ["warmup_steps=20"])
    file.write_text(f"{SWEEP}warmup_fraction: 0.1\nwarmup_steps: 20\n")
    with pytest.raises(InputError, match=r"warmup_steps: warmup_fraction \(.*\) also sets the warm-up; give one"):
        load_sweep(file)


def test_a_plan_says_that_a_warm_up_is_cut(file: Path) -> None:
    def plan(*sets: str) -> str:
        done = harness("sweep", str(file), "--plan", *(word for one in sets for word in ("--set", one)))
        assert done.returncode == 0, done.stderr
        return done.stdout

    cut = "20 steps, but the warm-up is at most half of a trial: 19 in trials of 39 steps; give fewer warm-up steps"
    for key in ("warmup_steps", "optimizer.lr_warmup_steps"):
        assert f"{key}: {cut}" in plan(f"{key}=20", "steps=39")
        assert "warm-up" not in plan(f"{key}=20", "steps=40")
    assert "warm-up" not in plan("warmup_fraction=0.9", "steps=40")
