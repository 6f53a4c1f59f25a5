"""Run commands as the arms of a study: fresh processes in each block, which take turns (or run one by one).

A control of an arm is the same command unchanged, or with other batches.
"""

from __future__ import annotations

import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from harness.attach.alternation import AlternatingCommand, CommandFailed, CommandOver
from harness.attach.command import AgentSettings, check_program
from harness.attach.frames import AttachedProcess, made_in, read, trained_by_rank
from harness.attach.run_record import RunOrigin, record_of
from harness.attach.steps import BlockPlan, write_tables
from harness.attach.study import SCENARIO
from harness.attach.totals import REPETITION_STEPS
from harness.launch.channel import BudgetSpent, WaitLimits
from harness.launch.ending import terminable
from harness.launch.progress import Progress
from harness.launch.quiet import LoadCheck
from harness.machine.environment import record_user_environment
from harness.scenario.commands import (
    CommandArm,
    CommandControl,
    CommandPlan,
    CommandScenario,
    Interleave,
    plan_commands,
)
from harness.study.records import COMMAND, ArmRecord, RunRecord, StudyRecord, new_study_id, now, session_of
from harness.study.store import StudyFolder
from trainer.errors import InputError
from trainer.json_types import JsonObject

CONTROLS: tuple[CommandControl, ...] = get_args(CommandControl)
BASELINE, SCRIPT = "baseline", "script"  # arm names: the command of --against, and the command after --
SOON_S = 30.0  # seconds: a start that fails sooner is retried once
RETRY_AFTER_S = 2.0


@dataclass(frozen=True)
class ComparisonOutcome:
    """Status of a comparison. ``cut``: what ran when the time limit ended it within a block; None otherwise."""

    status: Literal["done", "failed", "interrupted"]
    cut: str | None = None


def plan_against(
    program: Sequence[str], against: Sequence[str] | None, controls: Sequence[CommandControl], **settings: Any
) -> CommandPlan:
    """Return the plan of ``--against`` and ``--controls``: command, baseline (with an A/A control), controls."""
    arms: dict[str, dict[str, str | int | float | None] | None] = {SCRIPT: {COMMAND: shlex.join(program)}}
    question = f"Where does the time of {shlex.join(program)} go?"
    if against is not None:
        arms = {BASELINE: {COMMAND: shlex.join(against)}, **arms}
        question = f"Is {shlex.join(program)} faster than {shlex.join(against)}?"
        controls = list(dict.fromkeys([*controls, "a-a"]))
    ordered = [kind for kind in CONTROLS if kind in controls]
    scenario = CommandScenario(name=SCENARIO, question=question, command="-", arms=arms, controls=ordered, **settings)
    plan = plan_commands(scenario)
    # Take the words literally: braces in them are not placeholders.
    programs = {BASELINE: tuple(against or ()), SCRIPT: tuple(program)}
    plain = [replace(arm, program=programs[arm.of or arm.name], values=()) for arm in plan.arms]
    return replace(plan, arms=tuple(plain))


def run_comparison(
    folder: StudyFolder,
    plan: CommandPlan,
    command: Sequence[str],
    source: str = "",
    enough: Callable[[StudyFolder, StudyRecord, int], bool] | None = None,
    end_ns: int | None = None,
    load_check: LoadCheck | None = None,
) -> ComparisonOutcome:
    """Run the blocks of ``plan`` into ``folder``. Raises InputError if a command cannot be started.

    ``enough``: called after each block with the number of blocks; True ends the study. ``end_ns``: time limit
    (CLOCK_MONOTONIC), which drops the block that runs. ``load_check``: looks for other load before block 0.
    """
    study = _study(plan, command, source)
    folder.write_study(study)
    limits = WaitLimits(plan.scenario.limits.start_s, plan.scenario.limits.silence_s, end_ns)
    comparison = _Comparison(folder, plan, study, limits)
    status: Literal["done", "failed", "interrupted"] = "failed"
    cut: str | None = None
    try:
        with terminable():
            if load_check is not None:
                comparison.check_load(load_check)
        with terminable():
            comparison.run(enough)
        status = comparison.status()
    except BudgetSpent as spent:
        cut = str(spent)
        comparison.note(f"the time limit was reached: {cut}")
        status = comparison.status()
    except KeyboardInterrupt:
        status = "interrupted"
    finally:
        study = comparison.study
        finished = len(comparison.finished)
        if enough is not None or comparison.cannot_start:  # fewer blocks than planned
            study = replace(study, order=study.order[:finished], blocks=finished)
        folder.write_study(replace(study, status=status, ended_utc=now()))
    return ComparisonOutcome(status, cut)


class _Comparison:
    """Runner of a comparison's blocks, one after the other. In a block, every arm runs once."""

    def __init__(self, folder: StudyFolder, plan: CommandPlan, study: StudyRecord, limits: WaitLimits) -> None:
        self._folder, self._plan, self._limits = folder, plan, limits
        self.study = study
        self.finished: list[bool] = []  # for each block that ended: True if every run finished
        self.cannot_start = False  # True if no further block can start

    def status(self) -> Literal["done", "failed"]:
        return "done" if all(self.finished) else "failed"

    def note(self, line: str) -> None:
        self.study = replace(self.study, notes=[*self.study.notes, line])

    def check_load(self, load_check: LoadCheck) -> None:
        """Check the programs, look for other load on the machine, and note it."""
        for arm in self._plan.arms:
            if arm.folder is None:
                check_program(arm.program)
        self.study = replace(self.study, notes=[*self.study.notes, *load_check.notes()])

    def run(self, enough: Callable[[StudyFolder, StudyRecord, int], bool] | None) -> None:
        """Run all blocks, or until ``enough`` returns True. Raises BudgetSpent at the time limit."""
        arms = {arm.name: arm for arm in self._plan.arms}
        scenario = self._plan.scenario
        runs = len(self._plan.blocks) * len(arms)
        steps = runs * _repetitions(scenario) * REPETITION_STEPS
        with Progress(runs if enough is None else None, steps) as progress:
            for block, names in enumerate(self._plan.blocks):
                members = [arms[name] for name in names]
                outcome = _run_block(self._folder, self.study, members, scenario, block, progress, self._limits)
                self.finished.append(outcome.finished)
                if outcome.over is not None:
                    steps = outcome.repetitions * REPETITION_STEPS
                    note = (
                        f"{outcome.over} ended before its {scenario.steps:,} steps were measured: later blocks measure "
                        f"{steps:,}. For more, let it train longer"
                    )
                    scenario = scenario.model_copy(update={"steps": steps})
                    self.note(note)
                    progress.note(note)
                if block == 0 and not outcome.started:
                    self.cannot_start = True  # Later blocks would fail in the same way.
                    break
                if enough is not None and enough(self._folder, self.study, block + 1):
                    break


def _study(plan: CommandPlan, command: Sequence[str], source: str) -> StudyRecord:
    scenario = plan.scenario
    return StudyRecord(
        scenario=scenario.name,
        question=scenario.question,
        status="running",
        created_utc=now(),
        command=list(command),
        scenario_file=source,
        scenario_text=scenario.model_dump(mode="json"),
        interleave=scenario.interleave,
        interleave_reason="commands alternate" if scenario.interleave == "slices" else "requested",
        blocks=len(plan.blocks),
        order=[list(block) for block in plan.blocks],
        arms=[
            ArmRecord(arm.name, arm.control, arm.of, declared=arm.declared, config={}, contest=arm.comparison)
            for arm in plan.arms
        ],
        comparisons=list(plan.comparisons),
        environment=record_user_environment(),
        id=new_study_id(),
    )


def _repetitions(scenario: CommandScenario) -> int:
    return -(-scenario.steps // REPETITION_STEPS)


class _CommandRun:
    """Run of one command (arm or control) in one block of a comparison, from its start to its tables."""

    def __init__(self, folder: StudyFolder, arm: CommandArm, block: int, gate: Path, limits: WaitLimits) -> None:
        self.arm, self.block = arm, block
        self.folder = folder
        self.begun_utc = now()
        self.error: str | None = None
        self.exit_code: int | None = None
        self.started = False
        self.skipped = False
        self.taken = False  # True once it has completed every repetition
        self.gate, self.limits = gate, limits
        self.raw = folder.run(arm.name, block) / "raw"
        self.command = self._fresh_command()

    @property
    def launched(self) -> tuple[object, ...]:
        """Program, folder and import path of the command: equal for an arm and its controls, which start the same."""
        return self.arm.program, self.arm.folder, self.arm.path

    def start(self, settings: AgentSettings) -> None:
        """Start the command until it is ready; in block 0, retry once within SOON_S seconds. Raises CommandFailed."""
        settings = replace(settings, control=self.arm.control)
        begun_s = time.monotonic()
        try:
            self.command.start(settings)
        except CommandFailed:
            if self.block > 0 or time.monotonic() - begun_s > SOON_S:
                raise
            self.kill()
            shutil.rmtree(self.raw)
            self.gate.unlink(missing_ok=True)
            time.sleep(RETRY_AFTER_S)
            self.command = self._fresh_command()
            self.command.start(settings)
        self.started = True

    def kill(self) -> None:
        """Kill every process of the command."""
        self.command.kill()

    def fail(self, error: CommandFailed, progress: Progress) -> None:
        """Kill the command. The text of ``error`` goes into the run's record and is shown as progress."""
        self.error = str(error)
        self.kill()
        progress.failed(self.arm.name, self.block, self.error)

    def _fresh_command(self) -> AlternatingCommand:
        self.raw.mkdir(parents=True)
        return AlternatingCommand(
            self.arm.program,
            self.raw.absolute(),
            self.raw.parent / "log.txt",
            self.gate,
            self.limits,
            self.arm.folder,
            self.arm.path,
            f"run {self.arm.name}/{self.block}",
        )

    def write(self, session: str, position: int, interleave: Interleave, environment: JsonObject) -> bool:
        """Write tables and run record, delete the raw records; return True without an error."""
        if self.arm.code is not None:
            environment = {**environment, "git_commit": self.arm.code}
        processes = read(self.raw)
        if trained := trained_by_rank(processes):
            record = self._written(trained[0], processes, environment)
            self.folder.write_samples(self.arm.name, self.block, {})
        else:
            error = self.error or "no training step was seen"
            record = RunRecord(self.arm.name, self.block, "failed", error=error, environment=environment)
        if self.error is not None:
            record = replace(record, status="failed", error=self.error)
        self.folder.write_whole_run(
            replace(
                record,
                control=self.arm.control,
                of=self.arm.of,
                session=session,
                position=position,
                interleave=interleave,
                declared=self.arm.declared,
                ended_utc=now(),
                exit_code=self.exit_code,
            )
        )
        shutil.rmtree(self.raw, ignore_errors=True)
        return record.status == "done" and self.error is None

    def _written(
        self, process: AttachedProcess, processes: Sequence[AttachedProcess], environment: JsonObject
    ) -> RunRecord:
        place = self.folder.run(self.arm.name, self.block)
        (totals,) = write_tables(process, made_in(processes), lambda _block: place, BlockPlan(alternating=True))
        origin = RunOrigin(environment, self.exit_code, self.begun_utc)
        record = record_of(self.arm.name, self.block, process, totals, origin)
        return replace(record, config={**record.config, COMMAND: self.arm.text})


class _BlockOutcome(NamedTuple):
    """Outcome of one block of a comparison: which commands finished and started, and how many repetitions all did."""

    finished: bool  # every command finished
    started: bool  # at least two arms (or the only one) started, without controls
    over: str | None = None  # arm that ended by itself before its steps were measured
    repetitions: int = 0  # repetitions completed by all commands


def _run_block(
    folder: StudyFolder,
    study: StudyRecord,
    arms: Sequence[CommandArm],
    scenario: CommandScenario,
    block: int,
    progress: Progress,
    limits: WaitLimits,
) -> _BlockOutcome:
    """Run each of ``arms`` once, in turns or one after the other, and write their runs.

    Raises BudgetSpent at the time limit, without these runs. On Ctrl-C, runs with all repetitions are written.
    """
    environment = study.environment
    groups = [list(arms)] if scenario.interleave == "slices" else [[arm] for arm in arms]
    session = session_of(study.id, f"{block}-{secrets.token_hex(3)}")
    finished, started = True, 0
    over, repetitions = None, _repetitions(scenario)
    unstartable: set[tuple[object, ...]] = set()
    for group in groups:
        with tempfile.TemporaryDirectory(prefix="harness-gate-") as gates, ExitStack() as ending:
            runs = [
                _CommandRun(folder, arm, block, Path(gates, str(number)), limits) for number, arm in enumerate(group)
            ]
            for run in runs:
                ending.callback(run.kill)
            try:
                if (ended := _alternate(runs, scenario, progress, unstartable)) is not None:
                    over, taken = ended
                    repetitions = min(repetitions, taken)
            except KeyboardInterrupt:
                for run in runs:
                    run.kill()
                    if run.taken:  # all repetitions are complete: only its end is missing
                        run.write(session, arms.index(run.arm), scenario.interleave, environment)
                raise
            except BudgetSpent:  # an incomplete block is dropped
                for run in runs:
                    run.kill()
                for arm in arms:
                    shutil.rmtree(folder.run(arm.name, block), ignore_errors=True)
                raise
            for run in runs:
                if run.skipped:
                    shutil.rmtree(folder.run(run.arm.name, block), ignore_errors=True)
                    finished = False
                    continue
                finished &= run.write(session, arms.index(run.arm), scenario.interleave, environment)
                started += run.started and run.arm.control is None
    enough = started >= min(2, sum(arm.control is None for arm in arms))
    return _BlockOutcome(finished, enough, over, repetitions)


def _alternate(
    runs: Sequence[_CommandRun], scenario: CommandScenario, progress: Progress, unstartable: set[tuple[object, ...]]
) -> tuple[str, int] | None:
    """Start ``runs``, let them take their turns, and end them. Return (arm, repetitions) of one that ended by itself.

    Raises InputError if that was its first repetition in block 0. ``unstartable``: keys of commands to skip.
    """
    alive = _start_all(runs, scenario, progress, unstartable)
    over = _run_repetitions(alive, scenario, progress)
    for run in alive:
        run.taken = True
    for run in alive:
        run.command.resume()
        run.exit_code = run.command.end()
        progress.finished(run.arm.name, run.block)
    return over


def _start_all(
    runs: Sequence[_CommandRun], scenario: CommandScenario, progress: Progress, unstartable: set[tuple[object, ...]]
) -> list[_CommandRun]:
    """Start and suspend ``runs``, arms before their controls, except ``unstartable`` ones; return those started."""
    alive: list[_CommandRun] = []
    settings = AgentSettings(scenario.warmup, fetch=scenario.fetch, step_ends=scenario.step_ends)
    for run in sorted(runs, key=lambda run: run.arm.control is not None):  # An arm starts before its controls.
        if run.launched in unstartable:
            run.skipped = True
            continue
        progress.starting(run.arm.name, run.block)
        run.begun_utc = now()
        try:
            run.start(settings)
        except CommandFailed as error:
            run.fail(error, progress)
            if run.arm.control in (None, "a-a"):  # Another control may itself be the cause.
                unstartable.add(run.launched)
            continue
        run.command.suspend()
        alive.append(run)
    return sorted(alive, key=runs.index)


def _run_repetitions(alive: list[_CommandRun], scenario: CommandScenario, progress: Progress) -> tuple[str, int] | None:
    """Let ``alive`` take turns; failed ones are removed. Return (arm, repetitions) of one that ended by itself."""
    count = _repetitions(scenario)
    for repetition in range(count):
        # Forward and back again (ABBA): a drift of the machine's speed affects every arm alike.
        for run in list(alive if repetition % 2 == 0 else reversed(alive)):
            progress.repetition(run.arm.name, run.block, repetition, count)
            run.command.resume()
            try:
                run.command.take(repetition, REPETITION_STEPS)
            except CommandOver as error:
                if repetition:
                    run.exit_code, run.taken = 0, True
                    run.kill()  # remaining child processes
                    alive.remove(run)
                    return run.arm.name, repetition
                if not run.block:
                    raise InputError(
                        f"{run.arm.name} ended before {REPETITION_STEPS} steps were measured (after {scenario.warmup} "
                        "warm-up steps); a comparison needs as many: let it train longer"
                    ) from error
                run.fail(error, progress)
                alive.remove(run)
                continue
            except CommandFailed as error:
                run.fail(error, progress)
                alive.remove(run)
                continue
            run.command.suspend()
            progress.stepped(REPETITION_STEPS)
    return None
