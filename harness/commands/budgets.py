"""Budgets of `harness run` and `harness train`: predicts the cost, refuses, stops in time, and reports the result."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.output import say
from trainer.errors import InputError
from trainer.files import shell_word

if TYPE_CHECKING:
    from harness.judge.cost import PredictedCost, SpendingLimit, Undertaking
    from harness.launch.budget import Allowance
    from harness.launch.progress import Goal
    from harness.scenario.model import Scenario
    from harness.scenario.plan import Arm, Plan
    from trainer.config import TrainerConfig

NO_LIMIT = "none"
_LIMIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(usd|h|m|s)\s*", re.IGNORECASE)
_HOURS = {"h": 1.0, "m": 1 / 60, "s": 1 / 3600}
UNPRICED = "budget.usd: the price of the devices is unknown; give price_usd_per_hour, or budget.hours"
_ALLOWED = "allowed: a time (6h, 90m, 30s), an amount (20usd), or none"


def read_limit(text: str) -> SpendingLimit | None:
    """Parse a budget such as ``6h``, ``90m`` or ``20usd``. ``none`` gives None. Raises InputError for anything else."""
    from harness.judge.cost import SpendingLimit

    if text.strip() == NO_LIMIT:
        return None
    match = _LIMIT.fullmatch(text)
    if match is None or not 0 < float(match[1]) <= 1e9:
        raise InputError(f"--budget {text[:60]!r}: {_ALLOWED}")
    amount, unit = float(match[1]), match[2].lower()
    return SpendingLimit(usd=amount) if unit == "usd" else SpendingLimit(hours=amount * _HOURS[unit])


def limit_asked(text: str | None, scenario: Scenario) -> SpendingLimit | None:
    """Return the budget of the option --budget (``text``), else that of the scenario. None without a budget."""
    from harness.launch.budget import limit_of

    return limit_of(scenario) if text is None else read_limit(text)


def study_allowance(
    plan: Plan, limit: SpendingLimit, out: Path, command: Sequence[str], source: str, force: bool
) -> Allowance:
    """Measure a few steps of every arm, and return the study's budget with its predicted cost. ``out``: folder of
    studies. ``force``: True to start even if memory may not suffice. Raises InputError if the study is expected to
    exceed the budget.
    """
    from harness.launch.budget import Allowance

    predicted = _predicted(plan, "study", limit, out / plan.scenario.name, command, source, force=force)
    _check(predicted)
    return Allowance(predicted)


def resumed_allowance(folder: Path, text: str | None) -> Allowance | None:
    """Return the rest of the budget of the study in ``folder``; None if it has no budget. ``text``: option with another
    budget for the whole study; None keeps the old one. Raises InputError if the rest is expected not to suffice.
    """
    from harness.launch.budget import Allowance, read_cost
    from harness.study.store import StudyFolder

    previous = read_cost(folder)
    if previous is None:
        if text is not None and read_limit(text) is not None:
            raise InputError(
                f"run --resume {shell_word(folder)} --budget: it began without a budget, so its cost was not predicted"
            )
        return None
    limit = previous.limit if text is None else read_limit(text)
    _refuse_unpriced(limit, previous, "--budget")
    study = StudyFolder(folder)
    names = [(name, block) for block, order in enumerate(study.read_study().order) for name in order]
    done = sum(study.is_done(name, block) for name, block in names) / max(1, len(names))
    predicted = replace(previous, limit=limit, standing="unfinished")
    _check(predicted, done)
    return Allowance(predicted)


def training_allowance(
    plan: Plan, out: Path, command: Sequence[str], source: str, begun_s: float
) -> Callable[[TrainerConfig, Goal], Allowance | None]:
    """Return a function that makes the budget of a training, once its configuration and goal are known. That function
    returns None without a budget, and raises InputError if the cost is expected to exceed it. ``begun_s``: start of the
    command, by :func:`time.monotonic`.
    """

    def allowed(config: TrainerConfig, goal: Goal) -> Allowance | None:
        from harness.launch.budget import Allowance, limit_of, prices_of, read_cost
        from harness.launch.costing import steps_of, works_of
        from harness.launch.training_files import CHECKPOINTS
        from trainer import checkpoint_folder

        limit = limit_of(plan.scenario)
        if limit is None:
            return None
        steps = steps_of(goal, config)
        used_s = time.monotonic() - begun_s
        previous = read_cost(out) if out.exists() else None
        if previous is None:
            spent_s = _spent_s(out)
            predicted = _predicted(
                plan, "training", limit, out, command, source, steps=steps, launcher_s=used_s, spent_s=spent_s
            )
        else:
            prices = prices_of(previous.measured, scenario_usd=plan.scenario.price_usd_per_hour)
            work = works_of(plan, "training", steps)
            predicted = replace(previous, limit=limit, work=work, prices=prices, standing="unfinished")
            _refuse_unpriced(limit, predicted)
        first = config.first_step
        trained = next(
            (int(path.name.removeprefix("step-")) for path in checkpoint_folder.written(out / CHECKPOINTS)), first
        )
        _check(predicted, min(1.0, (trained - first) / max(1, steps - first)))
        return Allowance(predicted, used_s)

    return allowed


def _spent_s(out: Path) -> float:
    """Return the seconds that the training in ``out`` has taken so far, without a budget; 0 if it has not begun."""
    from harness.launch.budget import expense_of

    return expense_of(out).seconds if (out / "study.json").exists() else 0.0


def _predicted(
    plan: Plan,
    of: Undertaking,
    limit: SpendingLimit,
    near: Path,
    command: Sequence[str],
    source: str,
    *,
    steps: int | None = None,
    launcher_s: float = 0.0,
    spent_s: float = 0.0,
    force: bool = False,
) -> PredictedCost:
    """Measure a few steps of every arm in a temporary folder beside ``near``, and return the predicted cost. ``of``:
    what is predicted. ``steps``: length of a training. ``source``: path of the scenario file. ``force``: True to
    measure even if memory may not suffice. ``launcher_s``: seconds that the command has taken until now. ``spent_s``:
    seconds that earlier parts took. Raises InputError if the measurement exceeds the limit or fails, or a limit in
    dollars has no price.
    """
    from harness.judge.cost import PredictedCost
    from harness.launch.budget import prices_of
    from harness.launch.costing import OVER, MeasurementFailed, called_apart, measure, works_of
    from harness.launch.preparation import check_writable
    from harness.show.cost import amounts_text
    from harness.show.words import duration
    from trainer.files import remove, remove_leftovers_of, temporary_path

    scenario = plan.scenario
    if limit.usd is not None and scenario.price_usd_per_hour is None and not all(map(_may_have_price, plan.arms)):
        raise InputError(UNPRICED)  # Fail now, not after the measurement.
    check_writable(near)
    remove_leftovers_of(near)
    # Raises InputError for a plan that cannot be predicted, before anything is measured.
    works = works_of(plan, of, steps)
    place = temporary_path(near)
    limit_s = limit.seconds(scenario.price_usd_per_hour)
    may_s = None if limit_s is None else max(0.0, limit_s - spent_s)
    print("budget: measuring the first steps of every arm", file=sys.stderr)
    measuring = partial(measure, plan, of, place, command, source, force=force, limit_s=may_s)
    limits, arms = scenario.limits, len(plan.arms)
    begun_s = time.monotonic()
    try:
        # Runs in its own process, because a training forks its ranks from a process that must not have tokenized.
        most_s = arms * (2 * limits.start_s + 40 * limits.silence_s)
        measured = called_apart(measuring, "budget: measuring the first steps", most_s).after(launcher_s)
    except MeasurementFailed as failed:
        if failed.status == "interrupted":
            raise KeyboardInterrupt from failed
        if failed.status == OVER and limit_s is not None:
            before = f"{duration(spent_s)} spent before + " if spent_s else ""
            took_s = time.monotonic() - begun_s
            raise InputError(
                f"budget: {amounts_text(limit, limit_s)}, but measuring the first steps used all of it "
                f"({before}{duration(took_s)}), so nothing is left for the {of}. Give a larger budget (harness cost "
                "predicts it)"
            ) from failed
        raise InputError(f"budget: the cost could not be measured: {failed}") from failed
    finally:
        remove(place)
    prices = prices_of(measured, scenario_usd=scenario.price_usd_per_hour)
    measuring_s = time.monotonic() - begun_s
    prediction = PredictedCost(of, scenario.name, measured, works, prices, limit, spent_s + measuring_s, measuring_s)
    _refuse_unpriced(limit, prediction)
    return prediction


def _refuse_unpriced(limit: SpendingLimit | None, found: PredictedCost, option: str | None = None) -> None:
    """Raise InputError if ``limit`` is in dollars but the price of the devices is unknown. ``option``: name of the
    option that set the limit of a resumed study, for the message; else None.
    """
    if limit is not None and limit.usd is not None and found.per_hour_usd is None:
        if option is not None:
            raise InputError(f"{option}: an amount, but the study began without a price; allowed: a time (6h), or none")
        raise InputError(UNPRICED)


def _may_have_price(arm: Arm) -> bool:
    """Return True if the arm's device may have a price: an emulated one has, or a GPU of this machine will be used."""
    from harness.machine.environment import has_nvidia_driver
    from trainer.devices.profiles import load_profile

    compute = arm.config.compute
    if compute.emulated is not None:
        return load_profile(compute.emulated.emulated).price_per_hour_usd is not None
    return compute.device != "cpu" and has_nvidia_driver()


def _check(predicted: PredictedCost, done: float = 0.0) -> None:
    """Raise InputError if the expected cost exceeds the budget. Print a warning if only the worst case does."""
    from harness.show.cost import refusal, worst_warning

    if predicted.exceeds(done):
        raise InputError(refusal(predicted, done))
    if not done and (line := worst_warning(predicted)) is not None:
        print(f"warning: {line}", file=sys.stderr)


def stopped_line(folder: Path, cut: str | None) -> str:
    """Return the message after a stop at the budget, with the command to continue. ``cut``: None for a training; any
    text for a study.
    """
    from harness.launch.budget import read_cost
    from harness.show.cost import outcome

    cost = read_cost(folder)
    text = "" if cost is None else f" {outcome(cost)}"
    if cut is None:
        return (
            f"harness: stopped at the budget; the last checkpoint is saved.{text} Continue with a larger budget "
            "and --resume"
        )
    return (
        f"harness: stopped at the budget; finished runs are kept.{text} Complete it with: "
        f"harness run --resume {shell_word(folder)} --budget LIMIT"
    )


def say_cost(folder: Path) -> None:
    """Print the predicted and the actual cost of the study or training in ``folder``. Prints nothing if it had no
    budget, or if the budget stopped it.
    """
    from harness.launch.budget import read_cost
    from harness.show.cost import actual_line

    if (cost := read_cost(folder)) is not None and cost.standing != "stopped":
        say(actual_line(cost))
