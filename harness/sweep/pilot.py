"""Train a few steps of each kind of trial before the first, for their times, and refuse what exceeds the budget."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from harness.launch.protocol import TrialEvent, TrialStart
from harness.sweep import messages
from harness.sweep.budget import BudgetOver, Spending, need_of, needs_by_size, plan_of, shortage
from harness.sweep.model import SweepConfig, TrialConfigs
from harness.sweep.projection import projection_of
from harness.sweep.store import Pilot
from harness.sweep.trial_run import TrialFailed, TrialLate, TrialServer
from harness.sweep.trials import SearchSpace, TrialPlan
from trainer.config import TrainerConfig
from trainer.errors import InputError

PILOT_STEPS, PILOT_SKIPPED = 20, 10


def pilots_of(settings: SweepConfig, space: SearchSpace) -> dict[str, TrialPlan]:
    """Return {kind: plan of its longest trial, at the lowest rate}. Steps of one kind (model) take equal time."""
    plans = [plan_of(stage, space) for stage in settings.strategy.stages(space)]
    return {plan.kind: plan for plan in sorted(plans, key=lambda plan: plan.steps)}


def refuse_too_much(
    settings: SweepConfig, configs: TrialConfigs, pilots: Mapping[str, Pilot], spent: Spending, price: float | None
) -> None:
    """Raise InputError if one full trial (of a projection: all of all sizes) exceeds the budget."""
    space = configs.space()
    stages = settings.strategy.stages(space)
    if projection_of(settings.strategy, space) is not None:
        needs = needs_by_size(stages, space, configs, pilots)
        if (short := shortage(settings.budget, needs, spent, price)) is not None:
            raise InputError(messages.smaller_than_the_sizes(short, needs, spent, price))
        return
    need = need_of(plan_of(max(stages, key=lambda stage: stage.steps), space), configs, pilots)
    if (short := shortage(settings.budget, [need], Spending(0.0, 0, 0.0), price)) is not None:
        raise InputError(messages.smaller_than_a_trial(short, need, price))


def train_pilot(server: TrialServer, start: TrialStart, may_s: float) -> Pilot:
    """Train a few steps and return their times. Raises BudgetOver after ``may_s`` s, TrialFailed or InputError."""
    folder, count, begun_s = Path(start["folder"]), start["steps"], time.monotonic()

    def going_on(_: TrialEvent) -> bool:
        return time.monotonic() - begun_s <= may_s

    try:
        event = server.train(start, folder / "log.txt", 0.0, lambda _: "step", going_on)
    except TrialLate as late:
        raise TrialFailed(
            f"the pilot ({count} steps that measure the time of a trial) exceeded limits.trial_hours"
        ) from late
    ended_s, status, error = time.monotonic(), event.get("status"), event.get("error")
    if status == "interrupted":
        if ended_s - begun_s > may_s:
            raise BudgetOver(messages.spent_on_the_pilot(ended_s - begun_s, count))
        raise TrialFailed("a signal ended the pilot, which measures the time of a trial")
    if status == "failed":
        if event.get("wrong_input"):
            raise InputError(str(error))
        raise TrialFailed(f"the pilot, which measures the time of a trial, failed: {error}")
    steps_file = next(folder.glob("runs/*/*/steps.parquet"), None)
    walls_s = [] if steps_file is None else _seconds(steps_file, "wall_ns")
    if steps_file is None or not walls_s:
        raise TrialFailed(f"the step time could not be measured; see {folder}")
    step_s = median(walls_s[PILOT_SKIPPED:] or walls_s)
    passes_s, answers_s = _passes(steps_file.with_name("evaluations.parquet"))
    other_s = ended_s - server.forked_s - len(walls_s) * step_s - sum(passes_s) - sum(answers_s)
    return Pilot(max(0.0, other_s), step_s, passes_s[-1] if passes_s else 0.0, answers_s[-1] if answers_s else 0.0)


def time_steps(name: str, config: TrainerConfig, out: Path, command: Sequence[str]) -> Pilot:
    """Measure the times of an untrainable trial (emulated device) in ``out``. Raises InputError or TrialFailed."""
    from harness.launch.costing import MeasurementFailed, measure
    from harness.scenario.model import Scenario
    from harness.scenario.plan import Arm, Plan

    scenario = Scenario(name=name, question="", arms={name: None})
    plan = Plan(scenario, (Arm(name, None, None, {}, config),), (), ())
    try:
        (arm,) = measure(plan, "training", out, command, "").arms
    except MeasurementFailed as failed:
        raise TrialFailed(f"the pilot, which measures the time of a trial, failed: {failed}") from failed
    return Pilot(arm.startup_s + arm.ending_s, arm.step.likely)


def _seconds(path: Path, column: str) -> list[float]:
    from pyarrow.parquet import read_table

    return [value / 1e9 for value in read_table(path, columns=[column]).column(column).to_pylist()]


def _passes(path: Path) -> tuple[list[float], list[float]]:
    """Return the seconds of the passes over held-out data, and of those over multiple-choice questions."""
    from pyarrow.parquet import read_table

    rows = read_table(path).to_pylist() if path.exists() else []
    passes = [((row["end_ns"] - row["start_ns"]) / 1e9, row.get("questions") is not None) for row in rows]
    return [seconds for seconds, scored in passes if not scored], [seconds for seconds, scored in passes if scored]
