"""Estimates how long a study takes here, from an earlier study of the same arms or a few steps of every arm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.scenario.commands import CommandPlan
from harness.study.contract import PROFILED
from trainer.errors import InputError, in_words
from trainer.files import shell_word
from trainer.json_types import JsonObject, integer

if TYPE_CHECKING:
    from harness.judge.cost import ArmMeasurement
    from harness.scenario.plan import Plan
    from harness.study.records import StudyRecord

TRIALS = "cost"  # folder of the measured steps, within that of the studies
MOST_STUDIES = 20  # studies to read, newest first
MOST_TRIAL_S = 90.0  # seconds for the steps of a trial
MOST_PREPARING_S = 600.0  # seconds for its data
_LENGTH = ("steps", "warmup_steps")  # keys that change the length of a run, but not its steps


@dataclass(frozen=True)
class Duration:
    """Expected duration of a study in seconds. ``basis``: the measurement behind it and its folder, as text."""

    seconds: float
    basis: str

    @property
    def text(self) -> str:
        minutes = self.seconds / 60
        rounded = (
            f"{self.seconds:.0f} seconds" if minutes < 1 else f"{minutes:.0f} minute{'s' if minutes >= 1.5 else ''}"
        )
        return f"about {rounded} on this machine ({self.basis})"


def plan_line(plan: Plan | CommandPlan, source: str, out: Path) -> str:
    """Return the expected duration for ``harness run --plan``, or how to measure it. ``source``: scenario file."""
    if (duration := expected(plan, out)) is not None:
        return f"expected duration: {duration.text}"
    text = f"expected duration: unknown, because no finished study of these arms is in {out / plan.scenario.name}"
    return f"{text}; {how_to_measure(plan, source)}"


def how_to_measure(plan: Plan | CommandPlan, source: str) -> str:
    """Return the command that would measure how long the study takes, as text. ``source``: the scenario file."""
    if isinstance(plan, CommandPlan):
        steps = plan.scenario.warmup + plan.scenario.steps
        first = f"each of its runs has a start and {steps} steps; harness run {shell_word(source)} --repeats 1"
        return f"{first} runs {len(plan.arms)} of them, and --plan then uses its times"
    return f"harness cost {shell_word(source)} --study measures a few steps of every arm"


def expected(plan: Plan | CommandPlan, out: Path) -> Duration | None:
    """Estimate the duration of ``plan`` from studies or measured steps below ``out``; None if neither exists."""
    duration = _as_before(plan, out / plan.scenario.name)
    if duration is None and not isinstance(plan, CommandPlan):
        duration = _from_trial(plan, out / TRIALS / plan.scenario.name)
    return duration


def trial(plan: Plan, source: str, out: Path) -> Duration:
    """Measure a few steps of every arm into ``out``; return the duration. InputError if it fails or takes too long."""
    from harness.launch.costing import OVER, MeasurementFailed, called_apart, measure, works_of

    works_of(plan, "study")  # Raises InputError for a plan whose cost cannot be predicted, before anything runs.
    command = ["harness", "cost", source, "--study"]
    steps = partial(measure, plan, "study", out / TRIALS, command, source, limit_s=MOST_TRIAL_S)
    try:
        called_apart(steps, "the trial", MOST_TRIAL_S + MOST_PREPARING_S)
    except MeasurementFailed as failed:
        if failed.status == "interrupted":
            raise KeyboardInterrupt from failed
        if failed.status == OVER:
            raise InputError(
                f"the trial did not finish within {MOST_TRIAL_S:.0f} s: the study is long, or the machine is busy"
            ) from failed
        raise InputError(f"{failed}{f'; its log: {failed.log}' if failed.log else ''}") from failed
    duration = _from_trial(plan, out / TRIALS / plan.scenario.name)
    if duration is None:
        raise InputError("the trial left no readable study")
    return duration


def _studies(folder: Path) -> Iterator[tuple[Path, StudyRecord]]:
    """Yield the newest :data:`MOST_STUDIES` finished studies in ``folder`` from a machine with this CPU and cores."""
    paths = sorted(folder.glob("[0-9]*T[0-9]*Z-*/study.json"), key=lambda path: path.parent.name, reverse=True)
    if not paths:
        return
    from harness.machine.environment import record_environment
    from harness.study.store import StudyFolder

    environment = record_environment()
    for path in paths[:MOST_STUDIES]:
        try:
            record = StudyFolder(path.parent).read_study()
        except InputError:  # A damaged study is no basis.
            continue
        if record.status == "done" and all(record.environment.get(key) == environment[key] for key in ("cpu", "cores")):
            yield path.parent, record


def _as_before(plan: Plan | CommandPlan, folder: Path) -> Duration | None:
    """Return the duration of the newest study in ``folder`` with all arms of ``plan``, scaled to its steps; or None."""
    if isinstance(plan, CommandPlan):
        arms = {arm.name: _kind(arm.declared, _shared(plan.scenario.model_dump(mode="json"))) for arm in plan.arms}
        steps = dict.fromkeys(arms, plan.scenario.warmup + plan.scenario.steps)
    else:
        configs = {arm.name: arm.config.model_dump(mode="json") for arm in plan.arms}
        arms = {arm.name: _kind({}, configs[arm.name]) for arm in plan.arms}
        steps = {name: _steps(config) for name, config in configs.items()}
    runs = sum(map(len, plan.blocks))
    for path, record in _studies(folder):
        is_commands = isinstance(plan, CommandPlan)
        before = {
            arm.name: _kind(arm.declared, _shared(record.scenario_text)) if is_commands else _kind({}, arm.config)
            for arm in record.arms
        }
        if any(note.startswith("resumed ") for note in record.notes) or any(
            before.get(name) != kind for name, kind in arms.items()
        ):
            continue
        try:
            seconds = _seconds_of(record)
            arm_steps = (
                integer(record.scenario_text, "warmup") + integer(record.scenario_text, "steps") if is_commands else 0
            )
        except (InputError, ValueError):
            continue
        recorded = {arm.name: arm_steps or _steps(arm.config) for arm in record.arms}
        planned_steps, recorded_steps = _sum(plan.blocks, steps), _sum(record.order, recorded)
        if recorded_steps and seconds > 0:
            ran = sum(map(len, record.order))
            basis = f"{path} took {seconds:.0f} s for {ran} runs" + (
                "" if planned_steps == recorded_steps else f"; here {runs}, by steps"
            )
            return Duration(seconds * planned_steps / recorded_steps, basis)
    return None


def _from_trial(plan: Plan, folder: Path) -> Duration | None:
    """Return the duration by the newest measured steps of all arms in ``folder``; None if there are none."""
    if not folder.is_dir():
        return None
    from harness.judge.cost import arm_cost, sum_of
    from harness.launch.costing import arm_measurement, arms_of, short_config, work_of_study
    from harness.study.store import StudyFolder

    arms = list(arms_of(plan, "study"))
    for path, record in _studies(folder):
        configs = {arm.name: arm.config for arm in record.arms}
        if any(configs.get(arm.name) != short_config(arm.config, trains=False).model_dump(mode="json") for arm in arms):
            continue
        runs = {run.record.arm: run for run in StudyFolder(path).runs()}
        measured = [arm_measurement(runs[arm.name]) for arm in arms]
        total = sum_of(arm_cost(arm, work).total for arm, work in zip(measured, work_of_study(plan), strict=True))
        return Duration(total.likely, _trial_basis(measured, path))
    return None


def _trial_basis(measured: Sequence[ArmMeasurement], path: Path) -> str:
    from harness.judge.policy import CORE_WAIT_SHARE_MAX

    steps, waiting = min(len(arm.steps_s) for arm in measured), max(arm.waiting_share for arm in measured)
    slowed = f"; other processes slowed it: up to {waiting:.0%} of the time of an arm's steps was a wait for a core"
    return (
        f"a trial of {steps} steps of every arm, {path}; without preparing data"
        f"{slowed if waiting > CORE_WAIT_SHARE_MAX else ''}"
    )


def _kind(declared: JsonObject, config: JsonObject) -> tuple[JsonObject, JsonObject]:
    """Return (``declared``, ``config`` without numbers of steps): arms with equal pairs take equally long per step.

    ``declared``: what an arm of a scenario of commands sets; {} for other arms.
    """
    return declared, {key: value for key, value in config.items() if key not in _LENGTH}


def _shared(scenario_text: JsonObject) -> JsonObject:
    """Return the values that all arms of a scenario of commands have in common, from the resolved scenario."""
    return {key: scenario_text.get(key) for key in ("command", "loop", "base")}


def _steps(config: JsonObject) -> int:
    return integer(config, "warmup_steps") + integer(config, "steps")


def _sum(blocks: Sequence[Sequence[str]], steps: dict[str, int]) -> int:
    return sum(steps.get(name, 0) for names in blocks for name in names if not name.endswith(f"+{PROFILED}"))


def _seconds_of(record: StudyRecord) -> float:
    """Return the seconds from start to end of a study. Raises ValueError if its record has an invalid time."""
    begin, end = (datetime.fromisoformat(timestamp) for timestamp in (record.created_utc, record.ended_utc))
    try:
        return (end - begin).total_seconds()
    except TypeError as error:  # Either value may lack a time zone.
        raise ValueError(in_words(error)) from error
