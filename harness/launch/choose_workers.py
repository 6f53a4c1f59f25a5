"""Chooses ``data.workers: auto`` before a study, by a short trial of each arm that asks for it (``worker_trial``)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.launch.preparation import run_trial
from harness.launch.progress import announced
from harness.scenario.plan import Arm, Plan
from trainer.config import TrainerConfig
from trainer.errors import InputError, one_line
from trainer.worker_trial import WorkerTrial

KEY = "data.workers"
TRIAL = ("-m", "trainer.worker_trial")
_LOG_LINES_SHOWN = 4  # number of last log lines shown for a trial that ended without an answer


@dataclass(frozen=True)
class WorkerChoice:
    """Number of loader workers chosen for an arm. ``trial``: its measurements; None if workers are impossible."""

    workers: int
    trial: WorkerTrial | None

    @property
    def text(self) -> str:
        if self.trial is None:
            return "0, because data.tokenize starts its own processes"
        trial, cores = self.trial, self.trial.cores
        predicted = {workers: trial.predicted_ms(workers) for workers in sorted({0, 1, self.workers, cores})}
        return (
            f"{self.workers}: a batch takes {trial.stage_ms:.3g} ms to make on average, {trial.ready_ms:.3g} ms to "
            f"receive from a worker ({trial.cycle_ms:.3g} ms of the worker), and {trial.step_ms:.3g} ms to train on "
            f"with {trial.threads} of {cores} cores. Predicted time of a step, per batch: "
            + ", ".join(f"{ms:.3g} ms with {workers}" for workers, ms in predicted.items())
        )


def with_workers_chosen(plan: Plan, start_s: float) -> tuple[Plan, list[str]]:
    """Return ``plan`` with a number in place of each ``data.workers: auto`` (tried for ``start_s``), and notes."""
    chosen: dict[str, WorkerChoice] = {}
    notes: list[str] = []
    for arm in sorted(plan.arms, key=lambda candidate: candidate.control is not None):
        if not arm.config.data.chooses_workers or (arm.of or arm.name) in chosen:
            continue
        selection = _choose(arm, start_s)
        chosen[arm.of or arm.name] = selection
        notes.append(f"arm {arm.of or arm.name}: data.workers auto is {selection.text}")
        print(f"note: {notes[-1]}", file=sys.stderr)
    return replace(plan, arms=tuple(_with(arm, chosen) for arm in plan.arms)), notes


def _with(arm: Arm, chosen: dict[str, WorkerChoice]) -> Arm:
    if not arm.config.data.chooses_workers:
        return arm
    workers = chosen[arm.of or arm.name].workers
    declared = {key: workers if key == KEY else value for key, value in arm.declared.items()}
    return replace(arm, declared=declared, config=with_workers(arm.config, workers))


def with_workers(config: TrainerConfig, workers: int) -> TrainerConfig:
    """Return ``config`` with ``data.workers`` set to ``workers``, validated again."""
    content: dict[str, Any] = config.model_dump()
    content["data"]["workers"] = workers
    return TrainerConfig.model_validate(content)


def refuse_auto(configs: Sequence[TrainerConfig], what: str) -> None:
    """Raise InputError, with the reason ``what``, if one of ``configs`` has ``data.workers: auto``."""
    if any(config.data.chooses_workers for config in configs):
        raise InputError(f"{KEY}: auto is chosen when a study begins, and {what}; allowed here: a number")


def _choose(arm: Arm, start_s: float) -> WorkerChoice:
    if arm.config.data.tokenize in ("processes", "pool"):  # A worker cannot start processes.
        return WorkerChoice(0, None)
    with announced(f"choosing data.workers of arm {arm.name}"):
        try:
            trial = _tried(arm.config, start_s)
        except InputError as error:
            raise InputError(f"arm {arm.name}: {error}") from error
    return WorkerChoice(trial.best(), trial)


def _tried(config: TrainerConfig, start_s: float) -> WorkerTrial:
    late = InputError(f"{KEY}: its trial did not end within {start_s:g} s (limits.start_s)")
    done = run_trial(TRIAL, config.model_dump_json(), start_s, lambda *_: late)
    try:
        fields = json.loads(done.answer)
        if "error" not in fields:
            return WorkerTrial(**fields)
    except (ValueError, TypeError) as error:
        last = one_line(" / ".join(done.printed.splitlines()[-_LOG_LINES_SHOWN:])) or "no output"
        raise InputError(f"{KEY}: its trial ended with exit code {done.exit_code}: {last}") from error
    raise InputError(str(fields["error"]))
