"""Measure a few steps of every arm as a small study, to predict the cost of a training or a study.

Arms run once with their real configuration but 20 steps, or more if fewer than 10 would follow those with batches built
during the start. If checkpoints are saved, one more step saves one, and a few more show its cost.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.judge.cost import ArmMeasurement, ArmWork, Undertaking, passes_within, training_work
from harness.judge.policy import COSTED_STEPS, STEPS_AFTER_CHECKPOINT, WORST_OF_STEPS
from harness.launch.block import plan_repetitions
from harness.launch.budget import Deadline
from harness.launch.channel import KILLED_S, LOOK_S, looks
from harness.launch.child import EVALUATED
from harness.launch.more_warmup import most_waiting_steps
from harness.launch.study import StudyOptions, run_study
from harness.scenario.model import ProbesConfig
from harness.study.contract import PROFILED
from harness.study.store import StudyFolder
from trainer.config import CheckpointConfig, EvaluationConfig, TrainerConfig
from trainer.errors import InputError
from trainer.lifetime import die_with_parent

if TYPE_CHECKING:
    from harness.launch.progress import Goal
    from harness.scenario.plan import Arm, Plan
    from harness.study.run_data import RunData


ALONE = ProbesConfig(host=False, nvml=False)  # a training has no sampler
WAITS = 0.02  # share of fetches in the time of the steps: below it, an arm needs no extra warm-up steps
OVER = "over"  # status of a measurement that exceeded its time limit


class MeasurementFailed(Exception):  # noqa: N818 - an outcome, reported
    """Error: an arm was not measured. ``status``: failed, interrupted or over (time limit). ``log``: path, or ""."""

    def __init__(self, text: str, status: str, log: str = "") -> None:
        super().__init__(text, status, log)  # All arguments are passed on, because the error may be pickled.
        self.status, self.log = status, log

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class ShortStudy:
    """Result of :func:`measure`: folder of the small study, and the measurements of its arms."""

    folder: Path
    arms: tuple[ArmMeasurement, ...]

    def after(self, launcher_s: float) -> tuple[ArmMeasurement, ...]:
        """Return the measurements, each with ``launcher_s``: seconds that the command took before the small study."""
        return tuple(replace(arm, launcher_s=launcher_s) for arm in self.arms)


def measure(
    plan: Plan,
    of: Undertaking,
    out: Path,
    command: Sequence[str],
    source: str,
    *,
    force: bool = False,
    limit_s: float | None = None,
) -> ShortStudy:
    """Run a few steps of every arm as a small study under ``out``, to predict the cost of a "training" or "study"
    (``of``). Raises InputError if it cannot begin, MeasurementFailed if an arm was not measured (within ``limit_s``
    seconds).
    """
    arms = arms_of(plan, of)
    for arm in arms:
        if arm.config.launch is not None and arm.config.launch.slurm is not None:
            raise InputError(
                "cost: launch.slurm: steps are measured where they are started; call it within a job, and give "
                "--set launch.slurm=null"
            )
    short = tuple(replace(arm, config=short_config(arm.config, trains=of == "training")) for arm in arms)
    probes = ALONE if of == "training" else plan.scenario.probes
    asked = {
        "question": "How long does a step of each arm take?",
        "repeats": 1,
        "interleave": "runs",
        "probes": probes.model_copy(update={"torch_profiler": None, "py_spy": None, "calibrate": False}),
        "isolated_baseline": None,
        "claims": [],
        "whatif": [],
        "track": [],
        "budget": None,
    }
    names = tuple(arm.name for arm in short)
    small = replace(plan, scenario=plan.scenario.model_copy(update=asked), arms=short, comparisons=(), blocks=(names,))
    until = None if limit_s is None else Deadline(time.monotonic_ns() + round(limit_s * 1e9))
    outcome = run_study(small, out, command, source, options=StudyOptions(force, until, extra_warmup=False))
    if outcome.cut is not None:
        raise MeasurementFailed(f"its first steps did not finish within that time: {outcome.cut}", OVER)
    folder = StudyFolder(outcome.folder)
    by_arm = {run.record.arm: run for run in folder.runs()}
    for name in names:
        record = by_arm[name].record if name in by_arm else None
        if record is None or record.status != "done":
            reason = "it did not run" if record is None else record.error or record.status
            raise MeasurementFailed(f"arm {name}: {reason}", outcome.status, str(folder.run(name, 0) / "log.txt"))
    return ShortStudy(outcome.folder, tuple(arm_measurement(by_arm[name]) for name in names))


def arms_of(plan: Plan, of: Undertaking) -> tuple[Arm, ...]:
    """Return the arms whose cost counts: of a training without controls, of a study with them, never profiled runs."""
    if of == "training":
        return tuple(arm for arm in plan.arms if arm.control is None)
    return tuple(arm for arm in plan.arms if arm.control != PROFILED)


def _check_intervals(config: TrainerConfig) -> None:
    """Raise InputError for evaluations or checkpoints at intervals in epochs, whose length is not known in advance."""
    for key, section in (("evaluation", config.evaluation), ("checkpoint", config.checkpoint)):
        if section is not None and section.every_epochs is not None:
            raise InputError(
                f"{key}.every_epochs: the steps of an epoch are unknown before the training; with a budget or an "
                f"estimate use {key}.every_steps"
            )


def short_config(config: TrainerConfig, trains: bool) -> TrainerConfig:
    """Return ``config`` with only the few steps that a prediction measures, an evaluation and a checkpoint in them."""
    plain = max(COSTED_STEPS, _warmup_steps(config) + WORST_OF_STEPS)
    saves = saves_checkpoints(config, trains)
    checkpoint = config.checkpoint or CheckpointConfig()
    optimizer = config.optimizer
    if optimizer.schedule != "constant" and optimizer.schedule_steps is None:
        all_steps = config.warmup_steps + config.steps
        optimizer = optimizer.model_copy(update={"schedule_steps": all_steps})
    evaluation = config.evaluation
    if evaluation is not None and evaluation.every_steps is not None:
        evaluation = evaluation.model_copy(update={"every_steps": plain})
    if evaluation is not None and (questions := evaluation.multiple_choice) is not None:
        if questions.every_steps is not None:
            questions = questions.model_copy(update={"every_steps": plain})
        evaluation = evaluation.model_copy(update={"multiple_choice": questions})
    warmup = 1 if config.data.chooses_workers else _warmup_steps(config)
    # Save after step number `plain`. Earlier steps save nothing.
    saved = checkpoint.model_copy(update={"every_steps": plain + 1, "every_minutes": None})
    return config.model_copy(
        update={
            "optimizer": optimizer,
            "evaluation": evaluation,
            "checkpoint": saved if saves else None,
            "resume": None if trains else config.resume,  # a study begins at step 0
            "warmup_steps": 0,
            "steps": plain + (1 + STEPS_AFTER_CHECKPOINT if saves else 0) - warmup,
        }
    )


def saves_checkpoints(config: TrainerConfig, trains: bool) -> bool:
    """True if runs save checkpoints: with a model, on a real device, if configured or if ``trains`` (a training)."""
    has_state = config.compute.emulated is None and config.compute.work != "none"
    return has_state and (trains or config.checkpoint is not None)


def _warmup_steps(config: TrainerConfig) -> int:
    """Return the number of first steps that may use batches built or begun before the first step."""
    workers = (os.cpu_count() or 1) if config.data.chooses_workers else config.data.workers
    return workers * config.data.prefetch + 1


def arm_measurement(run: RunData) -> ArmMeasurement:
    """Return the durations of a short run: steps, start, end, evaluation passes, checkpoint."""
    record = run.record
    config = TrainerConfig.model_validate(record.config)
    table = run.step_columns(["step", "start_ns", "wall_ns", "fetch_ns", "checkpoint_ns", "contended_ns"])
    assert table is not None
    walls_s = [ns / 1e9 for ns in table["wall_ns"].to_pylist()]
    saved_s = [(ns or 0) / 1e9 for ns in table["checkpoint_ns"].to_pylist()]
    checkpoint = next((step for step, seconds in enumerate(saved_s) if seconds > 0), None)
    end_ns = table["start_ns"][-1].as_py() + table["wall_ns"][-1].as_py()
    passes = [] if run.evaluations is None else run.evaluations.to_pylist()
    at_end_s = sum((row["end_ns"] - row["start_ns"]) / 1e9 for row in passes if row["start_ns"] >= end_ns)
    facts = record.facts
    asynchronous = config.checkpoint is not None and config.checkpoint.asynchronous
    writing_s = (facts.checkpoint_writing_ns or 0) / 1e9
    after_s = 0.0 if checkpoint is None else sum(walls_s[checkpoint + 1 :])
    left_s = max(0.0, writing_s - after_s) if asynchronous else 0.0
    import_s = (record.import_ns or 0) / 1e9
    unsettled = _warmup_steps(config)
    queued_s = sum(ns or 0 for ns in table["contended_ns"].to_pylist()) / 1e9
    fetched_s = sum((ns or 0) / 1e9 for ns in table["fetch_ns"].to_pylist()[unsettled:])
    return ArmMeasurement(
        arm=record.arm,
        steps_s=tuple(walls_s),
        unsettled=unsettled,
        startup_s=max(0.0, (record.startup_ns or 0) / 1e9 - import_s),
        ending_s=max(0.0, (record.ending_ns or 0) / 1e9 - at_end_s - left_s),
        passes_s=tuple((row["end_ns"] - row["start_ns"]) / 1e9 for row in passes if row.get("questions") is None),
        answers_s=tuple((row["end_ns"] - row["start_ns"]) / 1e9 for row in passes if row.get("questions") is not None),
        checkpoint=checkpoint,
        saving_s=0.0 if checkpoint is None else saved_s[checkpoint],
        writing_s=writing_s,
        asynchronous=asynchronous,
        import_s=import_s,
        waiting_share=queued_s / sum(walls_s),
        waits=fetched_s > WAITS * sum(walls_s[unsettled:]),
        device=facts.device or "",
        emulated=bool(facts.emulated),
        devices=facts.device_count or 1,
        profile=facts.profile,
        profile_usd=facts.price_per_hour_usd,
        epoch_steps=facts.epoch_steps,
    )


def work_of_training(config: TrainerConfig, steps: int) -> ArmWork:
    """Return the work of harness train up to step ``steps``. Raises InputError for intervals in epochs."""
    _check_intervals(config)
    checkpoint = config.checkpoint or CheckpointConfig()
    saves = saves_checkpoints(config, trains=True)
    every_s = None if checkpoint.every_steps is not None else 60.0 * checkpoint.interval_minutes
    first = config.first_step
    trained = max(0, steps - first)
    work = training_work(
        trained,
        config.evaluation is not None,
        None if config.evaluation is None else config.evaluation.every_steps,
        checkpoint.every_steps,
        every_s,
    )
    work = replace(work, answers=_answers(config.evaluation, trained), passed_over=first)
    return work if saves else replace(work, checkpoint_every_steps=None, checkpoint_every_s=None, last_checkpoint=False)


def _answers(evaluation: EvaluationConfig | None, steps: int) -> int:
    """Return the number of passes over multiple-choice questions within ``steps`` steps; 0 if none are configured."""
    if evaluation is None or evaluation.multiple_choice is None:
        return 0
    return passes_within(steps, evaluation.multiple_choice.every_steps)


def work_of_study(plan: Plan) -> tuple[ArmWork, ...]:
    """Return the work of all arms, controls and profiled runs. Raises InputError for intervals in epochs."""
    asked = plan.scenario.interleave
    interleave = "slices" if asked == "auto" else asked  # slices have more warm-up steps
    works: list[ArmWork] = []
    for arm in arms_of(plan, "study"):
        config = arm.config
        _check_intervals(config)
        repetitions = plan_repetitions(config, interleave, plan.scenario.slice_steps)
        steps = config.warmup_steps + repetitions.total_steps
        blocks = sum(names.count(arm.name) for names in plan.blocks)
        evaluation = config.evaluation if arm.control in EVALUATED else None
        checkpoint = config.checkpoint
        work = training_work(
            steps,
            evaluation is not None,
            None if evaluation is None else evaluation.every_steps,
            None if checkpoint is None else checkpoint.every_steps,
            None if checkpoint is None or checkpoint.every_steps is not None else 60.0 * checkpoint.interval_minutes,
        )
        profiled = any(control.control == PROFILED and control.of == arm.name for control in plan.arms)
        works.append(
            replace(
                work,
                most_extra=repetitions.count * blocks * most_waiting_steps(config),
                steps=steps * blocks + (_profiled_steps(plan.scenario.probes) if profiled else 0),
                starts=blocks + profiled,
                imports=blocks if not works else 0,
                launches=0,
                passes=work.passes * blocks,
                answers=_answers(evaluation, steps) * blocks,
                last_checkpoint=False,
                other_s=2 * plan.scenario.probes.py_spy.seconds if profiled and plan.scenario.probes.py_spy else 0.0,
            )
        )
    return tuple(works)


def _profiled_steps(probes: ProbesConfig) -> int:
    profiler = probes.profiled_run
    return 0 if profiler is None else (profiler.wait + profiler.warmup + profiler.active) * profiler.repeat


def steps_of(goal: Goal, config: TrainerConfig) -> int:
    """Return the steps of a training to ``goal``. Raises InputError for epochs, whose length is not known yet."""
    if (steps := goal.steps_of(config)) is None:
        raise InputError(
            "--epochs: the steps of an epoch are unknown before the training; with a budget use --steps or --tokens"
        )
    return steps


def works_of(plan: Plan, of: Undertaking, steps: int | None = None) -> tuple[ArmWork, ...]:
    """Return the work of each arm, of trainings with ``steps`` (None: the scenario's). Raises InputError if a training
    would resume at its last step or later, and for intervals in epochs.
    """
    if of == "study":
        return work_of_study(plan)
    for arm in arms_of(plan, of):
        if arm.config.resume is not None and (steps or arm.config.steps) <= arm.config.first_step:
            raise InputError(
                f"arm {arm.name}: resume.step: {arm.config.first_step:,}, and its training ends after "
                f"{steps or arm.config.steps:,} steps; give more steps (--steps counts those before it, too)"
            )
    return tuple(work_of_training(arm.config, steps or arm.config.steps) for arm in arms_of(plan, of))


Result = TypeVar("Result")
_INTERRUPTED = 130


def called_apart(call: Callable[[], Result], what: str, limit_s: float) -> Result:
    """Return the (picklable) result of ``call``, run in a forked process, or raise its exception. Call it before this
    process computes or tokenizes. Raises InputError after ``limit_s`` seconds.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(call, sender, os.getpid()))
    process.start()
    sender.close()
    try:
        for _ in range(looks(limit_s)):
            if receiver.poll(min(LOOK_S, limit_s)):
                break
        else:
            raise InputError(f"{what} did not end within {limit_s:,.0f} s (process {process.pid})")
        with suppress(EOFError):
            payload, error = pickle.loads(receiver.recv_bytes())
            if error is not None:
                raise error
            result: Result = payload
            return result
        process.join(KILLED_S)
        if process.exitcode == _INTERRUPTED:
            raise KeyboardInterrupt
        raise InputError(f"{what} ended with status {process.exitcode} without a message")
    finally:
        if process.is_alive():
            process.join(1)
        if process.is_alive():
            process.terminate()  # Like after Ctrl-C, its own children end with it.
            process.join(KILLED_S)
            process.kill()
        receiver.close()


def _answer(call: Callable[[], object], channel: Connection, parent: int) -> None:
    die_with_parent(parent)
    result, raised = None, None
    try:
        result = call()
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)
    except Exception as error:
        raised = error
    try:
        answer = pickle.dumps((result, raised))
    except (pickle.PicklingError, TypeError, AttributeError) as error:  # Each class has another error for this.
        answer = pickle.dumps((None, RuntimeError(f"{raised or 'its result'} cannot be sent: {error}")))
    channel.send_bytes(answer)
