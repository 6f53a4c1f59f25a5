"""Create a study from the records of attached processes: one arm for the command, or one per rank."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.attach.command import Ended
from harness.attach.frames import AttachedProcess, made_in, read, trained_by_rank, was_attached
from harness.attach.profiled import ProfiledWindows, closing_step, profiled_arm, profiled_steps
from harness.attach.program_causes import program_causes
from harness.attach.retention import minutes_of, thinned
from harness.attach.run_record import RunOrigin, record_of
from harness.attach.steps import PROFILED_PART, BlockPlan, write_tables
from harness.attach.totals import StepTotals, WorkerBatches
from harness.explain.wall import AFTER_STEPS, EVALUATING_STEPS, MEASURED_STEPS, OTHER_STEPS, PROFILED_STEPS, START_UP
from harness.machine.check import count
from harness.machine.environment import record_user_environment
from harness.study.contract import PROFILED
from harness.study.records import COMMAND, ArmRecord, RunRecord, StudyRecord, new_study_id, now, session_of
from harness.study.run_data import History, Minute, write_history
from harness.study.store import StudyFolder

SCENARIO = "exec"


@dataclass(frozen=True)
class ExecResult:
    """Result of a recorded command: one arm per process that trained, and what went wrong in the recording."""

    trained: tuple[str, ...]  # names of their arms
    started: bool  # True if a Python process imported torch with the agent in it
    faults: tuple[str, ...] = ()  # faults of the agent, one line each
    profiled: tuple[str, ...] = ()  # arms that hold the profiled window of a trained arm
    switched_off: bool = False  # True if the agent switched itself off in a process after an internal error


def make_study(
    folder: StudyFolder,
    raw: Path,
    program: Sequence[str],
    command: Sequence[str],
    begun_utc: str,
    ended: Ended | None = None,
    recent: int | None = None,
) -> ExecResult:
    """Create the study in ``folder`` from the records in ``raw``, one arm per process that trained.

    ``recent``: how many of the last files of each process to use, each about a minute long; None: all.
    """
    processes = read(raw, recent)
    trained = trained_by_rank(processes)
    arms = dict(zip(_names(trained), trained, strict=True))
    made_by = made_in(processes)
    origin = RunOrigin(record_user_environment(), 0 if ended is None else ended.code, begun_utc)
    study_id, windows = new_study_id(), ProfiledWindows(raw)
    minutes = {arm: minutes_of(process) for arm, process in arms.items() if len(process.segments) > 1}
    deleted = {arm: thinned(arms[arm], numbered) for arm, numbered in minutes.items()}
    records: list[RunRecord] = []
    missing: list[str] = []  # profiles
    interrupted: list[str] = []  # notes
    for arm, process in arms.items():
        runs, steps = _runs(_Arm(folder, arm, process, made_by, deleted.get(arm, ())), windows, origin, ended)
        if steps:
            interrupted.append(
                f"{arm}: {count(steps, 'step')} not measured: a signal handler of the program raised an "
                "exception within a recording hook"
            )
        for record in runs:
            config = {**record.config, COMMAND: _text(program)}
            records.append(replace(record, session=session_of(study_id, SCENARIO), config=config))
            folder.write_samples(record.arm, record.block, {})
            folder.write_whole_run(records[-1])
        missing += [f"{arm}: {line}" for line in windows.missing(process)]
    if minutes:
        history = {arm: tuple(numbered.values()) for arm, numbered in minutes.items()}
        write_history(folder.path, History(history, {arm: len(gone) for arm, gone in deleted.items()}))
    study = _study(program, command, origin, records, arms)
    folder.write_study(replace(study, id=study_id, notes=[*study.notes, *interrupted, *missing]))
    return ExecResult(
        tuple(arms),
        bool(processes) or was_attached(raw),
        (*windows.problems, *missing, *_faults(processes, trained)),
        tuple(record.arm for record in records if record.control == PROFILED),
        any(process.noted("fault") for process in processes),
    )


def _faults(processes: Sequence[AttachedProcess], trained: Sequence[AttachedProcess]) -> Iterator[str]:
    """Yield a line for each error of the agent, and each name in an option (--fetch, --step-ends) without a match."""
    for process in processes:
        for text in process.noted("fault"):
            yield (
                f"process {process.process.pid}: the recording stopped after an internal error "
                f"({str(text).strip().splitlines()[-1]}); the program continued. Please report the error"
            )
    for process in trained:
        for text in process.noted("device_fault"):
            yield f"process {process.process.pid}: device times are missing ({text}); host times are recorded"
        for name in process.noted("unknown_fetch"):
            yield f"process {process.process.pid}: --fetch {name}: no such function when the first step began"
        if process.noted("optimizer") and not process.noted("closes"):
            names = ", ".join(dict.fromkeys(str(name) for _, name in process.noted("optimizer")))
            yield (
                f"process {process.process.pid}: --step-ends: no optimizer of this class made an update; "
                f"optimizers seen: {names}"
            )


@dataclass(frozen=True)
class _Arm:
    """One arm of the study: a process that trained, and the batches of all loader workers by process id."""

    folder: StudyFolder
    name: str
    process: AttachedProcess
    made_by: WorkerBatches
    deleted: Sequence[Minute]  # minutes whose steps are not in the record any more

    def folder_of(self, block: int) -> Path:
        return self.folder.run(*((profiled_arm(self.name), 0) if block == PROFILED_PART else (self.name, block)))


def _runs(arm: _Arm, windows: ProfiledWindows, origin: RunOrigin, ended: Ended | None) -> tuple[list[RunRecord], int]:
    """Write the tables of ``arm``. Return (run records, steps lost because a signal handler raised in a hook)."""
    process = arm.process
    profiled, closing = profiled_steps(process), closing_step(process)
    plan = BlockPlan(profiled=profiled, closing=closing)
    blocks = write_tables(process, arm.made_by, arm.folder_of, plan)
    interrupted = sum(totals.excluded.interrupted for totals in blocks)
    first = PROFILED_PART if profiled else 0
    causes = tuple(program_causes(process, blocks, [reading for minute in arm.deleted for reading in minute.memory]))
    records = [
        record_of(arm.name, max(block, 0), process, totals, origin, causes)
        for block, totals in enumerate(blocks, first)
    ]
    whole_ms = _program_ms(blocks, 0 if profiled else -1 if closing is not None else None, ended, arm.deleted)
    thinned_steps = sum(minute.steps for minute in arm.deleted) or None
    records = [
        replace(record, facts=replace(record.facts, program_ms=whole_ms, thinned_steps=thinned_steps))
        for record in records
    ]
    if not profiled and closing is None:
        return records, interrupted
    windows.put(arm.folder_of(PROFILED_PART), process)
    if closing is not None:
        records = [replace(records[-1], block=0), *records[:-1]]
    window, *measured = records
    # A program that ended within its window has no block of its own: the window is then a failed run.
    measured = measured or [window]
    name = profiled_arm(arm.name)
    window = replace(window, arm=name, control=PROFILED, of=arm.name, status="done", error=None)
    return [window, *measured], interrupted


def _program_ms(
    blocks: Sequence[StepTotals], profiled: int | None, ended: Ended | None, deleted: Sequence[Minute] = ()
) -> dict[str, float] | None:
    """Return the ms of each part of the program; None if no step began. ``profiled``: index of the profiled block.

    Without ``ended``, start-up and the time after the steps are left out. ``deleted``: summaries of deleted files.
    """
    begun = [totals.first_ns for totals in blocks if totals.first_ns]
    if not begun:
        return None
    first_ns, last_ns = min(begun), max(totals.last_ns for totals in blocks)
    first_ns += sum(totals.first.fetch_ns for totals in blocks)  # start-up ends with the first batch
    window = None if profiled is None else blocks[profiled]
    parts_ns = {
        MEASURED_STEPS: sum(totals.wall_ns for totals in blocks) + round(1e9 * sum(gone.wall_s for gone in deleted)),
        EVALUATING_STEPS: sum(totals.excluded.evaluating_ns for totals in blocks)
        + round(1e9 * sum(gone.evaluating_s for gone in deleted)),
        PROFILED_STEPS: 0 if window is None else window.last_ns - window.first_ns - window.first.fetch_ns,
    }
    parts_ns[OTHER_STEPS] = max(0, last_ns - first_ns - sum(parts_ns.values()))
    if ended is not None:
        parts_ns = {START_UP: first_ns - ended.begun_ns, **parts_ns, AFTER_STEPS: ended.ended_ns - last_ns}
    return {name: round(ns / 1e6, 3) for name, ns in parts_ns.items()}


def _text(program: Sequence[str]) -> str:
    """Return the command line of ``program`` without its interpreter's folder, which does not change the program."""
    return shlex.join([Path(program[0]).name, *program[1:]]) if program else ""


def _names(trained: Sequence[AttachedProcess]) -> list[str]:
    """Return an arm name per process: "rank-0", ... if all ranks are different, else "script", "script-2" and so on."""
    ranks = [process.process.rank for process in trained]
    if len(trained) > 1 and None not in ranks and len(set(ranks)) == len(ranks):
        return [f"rank-{rank}" for rank in ranks]
    return ["script" if place == 0 else f"script-{place + 1}" for place in range(len(trained))]


def _study(
    program: Sequence[str],
    command: Sequence[str],
    origin: RunOrigin,
    records: Sequence[RunRecord],
    arms: Mapping[str, AttachedProcess],
) -> StudyRecord:
    blocks = max((record.block + 1 for record in records), default=0)
    first: dict[str, RunRecord] = {}  # first run of each arm
    for record in records:
        first.setdefault(record.arm, record)
    notes = [f"the command ended with exit code {origin.code}"] if origin.code else []
    if blocks > 1:
        notes.append("its blocks are parts of one run, so the intervals do not include run-to-run variation")
    for arm, process in arms.items():
        if profiled := profiled_steps(process):
            notes.append(
                f"{arm}: its first {profiled} steps are {profiled_arm(arm)}, up to the end of the profiled window: "
                "a profiler slows what it records, so none of them is measured"
            )
        if (closing := closing_step(process)) is not None:
            notes.append(
                f"{arm}: its last {process.steps - closing} steps are {profiled_arm(arm)}, after the measured ones: "
                "they record kernels, because CUDA events do not show all device time (--profile none skips them)"
            )
        notes += [f"{arm}: {text}" for text in process.noted("ended")]
        notes += [
            f"{arm}: another thread ({name}) trains as well; its steps are not recorded"
            for name in process.noted("other_thread")
        ]
        notes += [f"{arm}: the recording stopped after an internal error: {text}" for text in process.noted("fault")]
        notes += [f"{arm}: device times are missing: {text}" for text in process.noted("device_fault")]
    return StudyRecord(
        scenario=SCENARIO,
        question=f"Where does the time of {shlex.join(program)} go?",
        status="done" if any(record.status == "done" for record in records) else "failed",
        created_utc=origin.begun_utc,
        ended_utc=now(),
        command=list(command),
        scenario_file="",
        interleave="runs",
        interleave_reason="one command as it is, cut into blocks",
        blocks=blocks,
        order=[[record.arm for record in records if record.block == block] for block in range(blocks)],
        arms=[ArmRecord(name, run.control, run.of, config=run.config) for name, run in first.items()],
        environment=origin.environment,
        notes=notes,
    )
