"""Checks the arm of ``harness train`` and trains it (harness.launch.training)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.launch.choose_workers import refuse_auto
from harness.launch.preparation import check_devices, check_writable
from harness.launch.progress import Goal
from harness.launch.study import only_one
from harness.launch.training import Trained, Training, TrainingOptions
from harness.launch.training_files import CHECKPOINTS
from harness.launch.training_records import TrainingRecords
from harness.study.store import StudyFolder
from trainer.config import CheckpointConfig, TrainerConfig
from trainer.errors import InputError, cannot_write

if TYPE_CHECKING:
    from harness.scenario.plan import Arm, Plan


def train_arm(
    plan: Plan, goal: Goal | None, out: Path, command: Sequence[str], source: str, options: TrainingOptions
) -> Trained:
    """Train the only arm of ``plan`` to its end (``goal``; None: the scenario's steps) in the folder ``out``. Raises
    InputError if it cannot be trained, or if ``out`` has another study or a training that is not to be resumed.
    """
    resume = options.resume
    arm = only_arm(plan)
    config = arm.config.model_copy(update={"checkpoint": arm.config.checkpoint or CheckpointConfig()})
    goal = goal or Goal(steps=config.steps)
    config = _with_schedule(config, goal)
    if config.compute.emulated is not None or config.compute.work == "none":
        raise InputError(f"train: arm {arm.name} computes no model, so there is nothing to train")
    if config.launch is not None and config.launch.slurm is not None:
        raise InputError(
            "train: launch.slurm: a training runs on the machine that starts it; call harness train ... --resume in "
            "your own batch script, and give --set launch.slurm=null"
        )
    if config.resume is not None and goal.steps is not None and goal.steps <= config.first_step:
        raise InputError(
            f"resume.step: {config.first_step:,}, and the training ends after {goal.steps:,} steps; give more "
            "steps (--steps counts those before it, too)"
        )
    refuse_auto([config], "all parts of a training need the same number")
    check_devices({arm.name: config})
    check_writable(out)
    folder = StudyFolder(out)
    if folder.study_json.exists() and not folder.read_study().is_training:
        raise InputError(f"--out {out}: it contains a study, not a training; give another folder")
    begun = folder.study_json.exists() or (out / CHECKPOINTS).exists()
    if begun and not resume:
        raise InputError(f"--out {out}: it contains a training; continue it (--resume), or give another folder")
    if resume and not begun:  # One line of a batch script begins and resumes it.
        print(f"--resume: no training in {out}, so it starts at step 0", file=sys.stderr)
    allowance = options.allowed(config, goal)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(f"--out {out}", error, "give a folder that can be written") from error
    if config.resume is not None and not (begun and resume):
        from trainer.llmc_model import read_header
        from trainer.trained_model import brought_here

        with brought_here(config.resume.llmc, "resume.llmc") as path:
            read_header(path)  # Checked before the data of the earlier steps are read.
    with only_one(folder):
        records = TrainingRecords(arm, config, folder, command, source)
        training = Training(records, goal, options, allowance)
        return training.run(plan.scenario.name, plan.scenario.price_usd_per_hour)


def only_arm(plan: Plan) -> Arm:
    """Return the only arm of ``plan``, apart from automatic controls. Raises InputError unless there is exactly one."""
    arms = [arm for arm in plan.arms if arm.control is None]
    if len(arms) != 1:
        names = ", ".join(arm.name for arm in arms)
        raise InputError(f"train: only one arm can be trained, not {len(arms)}: give --arm; arms: {names}")
    return arms[0]


def _with_schedule(config: TrainerConfig, goal: Goal) -> TrainerConfig:
    """Return ``config`` with its learning-rate schedule as long as the training, unless it is constant or has a length.

    Raises InputError if that length is unknown (epochs), or not longer than the rate's warm-up.
    """
    optimizer = config.optimizer
    if optimizer.schedule == "constant" or optimizer.schedule_steps is not None:
        return config
    steps = goal.steps_of(config)
    if steps is not None and optimizer.lr_warmup_steps >= steps:
        raise InputError(
            f"optimizer.lr_warmup_steps: {optimizer.lr_warmup_steps} of a {optimizer.schedule} schedule of {steps} "
            "steps, the length of this training; allowed: fewer, or more steps"
        )
    if steps is None:
        raise InputError(
            "optimizer.schedule_steps: the number of steps is unknown with --epochs, but the schedule "
            f"({optimizer.schedule}) needs it; give it, or --steps or --tokens"
        )
    scheduled = optimizer.model_copy(update={"schedule_steps": steps})
    return config.model_copy(update={"optimizer": scheduled})
