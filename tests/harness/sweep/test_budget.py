"""What trials are expected to need, by hand, and which sweeps a budget is too small for before they begin."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.sweep.budget import Spending, need_of, needs_by_size
from harness.sweep.load import load_sweep
from harness.sweep.messages import SweepProgress
from harness.sweep.model import TrialConfigs
from harness.sweep.pilot import pilots_of, refuse_too_much
from harness.sweep.store import Pilot
from harness.sweep.trials import Trial, TrialPlan, TrialStage
from trainer.errors import InputError

SWEEP = """\
name: small
base:
  model: {layers: 4, width: 64, heads: 4, vocab_size: 512}
  data: {sequence_length: 16, batch_size: 4, path: tokens-mmap}
  evaluation: {every_steps: 30, batches: 2}
learning_rate: {low: 1.0e-4, high: 1.0e-1}
strategy: {name: model-scaling, trials: 4}
steps: 100
"""
HYBRID = "strategy={name: hybrid, eta: 3, R: 9}"
DATA = "strategy={name: data-scaling, trials: 4, tokens: [640, 1280, 2560]}"
MUP = "strategy={name: mup, trials: 4, widths: [16, 32]}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(SWEEP)
    return tmp_path / "small.yaml"


def refused(file: Path, sets: list[str], step_ms: Mapping[str, float] | float | None, spent_s: float = 0.0) -> str:
    """The line that a sweep is refused with, "" where it is not. ``step_ms``: by group, or of every kind."""
    loaded = load_sweep(file, [*sets, "price_usd_per_hour=3600"])  # a dollar a second
    configs = TrialConfigs(loaded.settings, loaded.config, lambda: 512)
    pilots = {}
    if step_ms is not None:
        for kind, plan in pilots_of(loaded.settings, configs.space()).items():
            each = step_ms if isinstance(step_ms, float) else step_ms[plan.group]
            pilots[kind] = Pilot(start_s=2.0, step_s=each / 1e3, pass_s=0.5)
    try:
        refuse_too_much(loaded.settings, configs, pilots, Spending(spent_s, 0, spent_s), 3600.0)
    except InputError as error:
        return str(error)
    return ""


SIZES = {"1/64/1": 10.0, "2/128/2": 40.0, "3/192/3": 100.0}


def test_a_projection_needs_all_of_its_sizes_and_the_refusal_has_the_arithmetic_of_each(file: Path) -> None:
    """Four trials of 100 steps each: start 2 s, passes after steps 30, 60, 90 and 100 of 0.5 s."""
    each = {group: 4 * (2 + 100 * step_ms / 1e3 + 4 * 0.5) for group, step_ms in SIZES.items()}
    assert sum(each.values()) == pytest.approx(20 + 32 + 56)
    assert refused(file, ["budget.usd=108.1"], SIZES) == ""
    line = refused(file, ["budget.usd=107.9"], SIZES)
    assert line == (
        "budget.usd: 107.90 USD, but 3 sizes need 108.00 USD if no trial ends early (1/64/1: 4 trials, 400 steps x "
        "10.0 ms + 16.0 s for the rest = 20.0 s; 2/128/2: 4 trials, 400 steps x 40.0 ms + 16.0 s for the rest = 32.0 "
        "s; 3/192/3: 4 trials, 400 steps x 100 ms + 16.0 s for the rest = 56.0 s, at 3600 USD an hour); give enough "
        "for all sizes, fewer trials, or fewer steps"
    )
    spent = refused(file, [f"budget.hours={110 / 3600}"], SIZES, spent_s=3.0)
    assert "but 3 sizes need 111 s if" in spent
    assert "; measuring the step time (already spent): 3.00 s)" in spent


@pytest.mark.parametrize("strategy", [HYBRID, DATA, MUP])
def test_of_every_strategy_that_projects_all_sizes_are_counted(file: Path, strategy: str) -> None:
    loaded = load_sweep(file, [strategy])
    configs = TrialConfigs(loaded.settings, loaded.config, lambda: 512)
    stages = loaded.settings.strategy.stages(configs.space())
    steps = sum(stage.trials * stage.steps for stage in stages)
    needs = needs_by_size(stages, configs.space(), configs, {})
    assert len(needs) == (2 if strategy == MUP else 3)
    assert sum(one.steps for one in needs) == steps
    assert refused(file, [strategy, f"budget.tokens={64 * steps}"], None) == ""
    line = refused(file, [strategy, f"budget.tokens={64 * steps - 1}"], None)
    assert f"budget.tokens: {64 * steps - 1:,} tokens, but {len(needs)} sizes need {64 * steps:,} tokens" in line
    assert re.findall(r"[\d,]+ steps x 64 tokens = ([\d,]+) tokens", line) == [f"{one.tokens:,}" for one in needs]
    assert refused(file, [strategy, "budget.hours=0.001"], 100.0).startswith("budget.hours: 3.60 s, but ")


def test_of_a_search_at_one_size_one_trial_must_fit(file: Path) -> None:
    """2 s + 100 steps of 10 ms + 4 passes of 0.5 s; it is stopped where the budget is spent, and says what it found."""
    grid = "strategy={name: grid, trials: 4}"
    assert refused(file, [grid, "budget.usd=5.01"], 10.0) == ""
    line = refused(file, [grid, "budget.usd=4.99"], 10.0)
    assert "but one trial of 100 steps needs 5.00 USD (100 steps x 10.0 ms + 4.00 s for the rest, at 3600 USD" in line


def test_a_pilot_of_a_sweep_of_before_has_its_pass_in_its_start(file: Path) -> None:
    loaded = load_sweep(file, ["strategy=grid"])
    configs = TrialConfigs(loaded.settings, loaded.config, lambda: 512)
    plan = TrialPlan(1e-3, 100)
    assert need_of(plan, configs, {plan.kind: Pilot(2.5, 0.01)}, 3).seconds == pytest.approx(3 * (2.5 + 1.0))
    assert need_of(plan, configs, {}).seconds is None


@pytest.mark.parametrize(("depths", "left"), [((1,), ", about 70.0 s left"), ((1, 2), "")])
def test_time_left_follows_from_the_steps_done_where_all_take_as_long(depths: tuple[int, ...], left: str) -> None:
    stages = [TrialStage("grid", 4, 100, overrides={"model.layers": layers}) for layers in depths]
    line = SweepProgress(stages, []).line(Trial(0, TrialPlan(1e-3, 100)), 50, 3.25, 10.0)
    assert line.endswith(f"rate 1.00e-03, step 50 of 100, loss 3.2500 | 10.0 s gone{left}")
    unknown = SweepProgress(stages, []).line(Trial(0, TrialPlan(1e-3, 100)), 50, None, 10.0)
    assert unknown.endswith(f"step 50 of 100 | 10.0 s gone{left}")
