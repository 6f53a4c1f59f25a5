"""Create a study from the records of attached processes: one arm for the command, or one per rank."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.attach.command import Ended
from harness.attach.frames import AttachedProcess, read, was_attached
from harness.attach.profiled import ProfiledWindows, closing_step, profiled_arm, profiled_steps
from harness.attach.program_causes import program_causes
from harness.attach.steps import EXACT, FORCED, LATE, PROFILED_PART, MadeBy, StepTotals, write_tables
from harness.explain.causes import CODE, COMPILED, EVALUATION, GC, HOLDER, HOOKS, LOCK, SAMPLED
from harness.explain.wall import AFTER_STEPS, EVALUATING_STEPS, MEASURED_STEPS, OTHER_STEPS, PROFILED_STEPS, START_UP
from harness.machine.check import count
from harness.machine.environment import record_user_environment
from harness.study.contract import PROFILED
from harness.study.records import COMMAND, ArmRecord, RunFacts, RunRecord, StudyRecord, new_study_id, now, session_of
from harness.study.store import StudyFolder
from trainer.json_types import JsonObject

SCENARIO = "exec"
LEAST_CAUSE_SHARE = 0.002  # share of the measured time below which places are left out
LEAST_FORCED = 0.2  # share of the time in Python code: less is not representative of the rest


@dataclass(frozen=True)
class ExecResult:
    """Result of a recorded command: arms of the processes that trained (none: no training), and faults."""

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
    code: int,
    begun_utc: str,
    ended: Ended | None = None,
) -> ExecResult:
    """Create the study in ``folder``, one arm per process that trained. ``ended``: None if not started here."""
    processes = read(raw)
    workers = [process for process in processes if process.made]
    trained = sorted((process for process in processes if process.steps), key=lambda process: process.process.rank or 0)
    environment = record_user_environment()
    records, study_id = [], new_study_id()
    session = session_of(study_id, "exec")
    made_by = {worker.process.pid: worker.made for worker in workers}
    windows = ProfiledWindows(raw)
    arms = dict(zip(_names(trained), trained, strict=True))
    lost: list[str] = []  # missing profiles
    notes: list[str] = []
    for arm, arm_process in arms.items():
        runs, interrupted = _runs(folder, arm, arm_process, made_by, windows, environment, code, begun_utc, ended)
        if interrupted:
            notes.append(
                f"{arm}: {count(interrupted, 'step')} not measured: a signal handler of the program raised an "
                "exception within a recording hook"
            )
        for record in runs:
            records.append(replace(record, session=session, config={**record.config, COMMAND: _text(program)}))
            folder.write_samples(record.arm, record.block, {})
            folder.write_whole_run(records[-1])
        lost += [f"{arm}: {line}" for line in windows.missing(arm_process)]
    study = _study(program, command, code, begun_utc, environment, records, arms)
    folder.write_study(replace(study, id=study_id, notes=[*study.notes, *notes, *lost]))
    faults = [*windows.problems, *lost]
    faults += [
        f"process {process.process.pid}: the recording stopped after an internal error "
        f"({str(text).strip().splitlines()[-1]}); the program continued. Please report the error"
        for process in processes
        for text in process.noted("fault")
    ]
    faults += [
        f"process {process.process.pid}: device times are missing ({text}); host times are recorded"
        for process in trained
        for text in process.noted("device_fault")
    ]
    faults += [
        f"process {process.process.pid}: --fetch {name}: no such function when the first step began"
        for process in trained
        for name in process.noted("unknown_fetch")
    ]
    faults += [
        f"process {process.process.pid}: --step-ends: no optimizer of this class made an update; "
        f"optimizers seen: {', '.join(dict.fromkeys(str(name) for _, name in process.noted('optimizer')))}"
        for process in trained
        if process.noted("optimizer") and not process.noted("closes")
    ]
    profiled = tuple(record.arm for record in records if record.control == PROFILED)
    switched_off = any(process.noted("fault") for process in processes)
    return ExecResult(tuple(arms), bool(processes) or was_attached(raw), tuple(faults), profiled, switched_off)


def _runs(
    folder: StudyFolder,
    arm: str,
    one: AttachedProcess,
    made_by: MadeBy,
    windows: ProfiledWindows,
    environment: JsonObject,
    code: int,
    begun_utc: str,
    ended: Ended | None,
) -> tuple[list[RunRecord], int]:
    """Write the tables of ``one`` by block and profiled window; return records and the number of steps left out."""
    profiled, closing = profiled_steps(one), closing_step(one)

    def folder_of(block: int) -> Path:
        return folder.run(profiled_arm(arm), 0) if block == PROFILED_PART else folder.run(arm, block)

    blocks = write_tables(one, made_by, folder_of, one.process.rank or 0, profiled=profiled, closing=closing)
    interrupted = sum(totals.interrupted for totals in blocks)
    first = PROFILED_PART if profiled else 0
    causes = tuple(program_causes(one, blocks))
    records = [
        record_of(arm, max(block, 0), one, totals, environment, code, begun_utc, causes)
        for block, totals in enumerate(blocks, first)
    ]
    whole_ms = _program_ms(blocks, 0 if profiled else -1 if closing is not None else None, ended)
    records = [replace(record, facts=replace(record.facts, program_ms=whole_ms)) for record in records]
    if not profiled and closing is None:
        return records, interrupted
    windows.put(folder_of(PROFILED_PART), one)
    if closing is not None:
        records = [replace(records[-1], block=0), *records[:-1]]
    window, *measured = records
    # A program that ended within its window has no block of its own: the window is then a failed run.
    measured = measured or [window]
    window = replace(window, arm=profiled_arm(arm), control=PROFILED, of=arm, status="done", error=None)
    return [window, *measured], interrupted


def _program_ms(blocks: Sequence[StepTotals], profiled: int | None, ended: Ended | None) -> dict[str, float] | None:
    """Return the ms of each part of the program; None if no step began. ``ended``: None without start-up and end."""
    begun = [totals.first_ns for totals in blocks if totals.first_ns]
    if not begun:
        return None
    first_ns, last_ns = min(begun), max(totals.last_ns for totals in blocks)
    first_ns += sum(totals.first_fetch_ns for totals in blocks)  # start-up ends with the first batch
    window = None if profiled is None else blocks[profiled]
    parts_ns = {
        MEASURED_STEPS: sum(totals.wall_ns for totals in blocks),
        EVALUATING_STEPS: sum(totals.evaluating_ns for totals in blocks),
        PROFILED_STEPS: 0 if window is None else window.last_ns - window.first_ns - window.first_fetch_ns,
    }
    parts_ns[OTHER_STEPS] = max(0, last_ns - first_ns - sum(parts_ns.values()))
    if ended is not None:
        parts_ns = {START_UP: first_ns - ended.begun_ns, **parts_ns, AFTER_STEPS: ended.ended_ns - last_ns}
    return {name: round(ns / 1e6, 3) for name, ns in parts_ns.items()}


def _text(program: Sequence[str]) -> str:
    """Return the command line of ``program`` without its interpreter's folder, which does not change the program."""
    return shlex.join([Path(program[0]).name, *program[1:]]) if program else ""


def _names(trained: Sequence[AttachedProcess]) -> list[str]:
    """Return an arm name per process: "rank-0", ... if ranks differ, else "script", "script-2", ..."""
    ranks = [process.process.rank for process in trained]
    if len(trained) > 1 and None not in ranks and len(set(ranks)) == len(ranks):
        return [f"rank-{rank}" for rank in ranks]
    return ["script" if place == 0 else f"script-{place + 1}" for place in range(len(trained))]


def record_of(
    arm: str,
    block: int,
    one: AttachedProcess,
    totals: StepTotals,
    environment: JsonObject,
    code: int | None,
    begun_utc: str,
    whole: Sequence[JsonObject] | None = None,
) -> RunRecord:
    """Return the run record of the process ``one`` for the steps in ``totals``; "failed" if no step was measured.

    ``code``: exit code of the command; None if killed. ``whole``: causes of the whole process; None: those in
    ``totals``.
    """
    whole = tuple(program_causes(one, [totals])) if whole is None else whole
    workers, prefetch = one.loader
    config: JsonObject = {
        "data": {"workers": workers, "prefetch": prefetch},
        "optimizer": {"accumulation": totals.fetches_per_step},
    }
    device = _last(one, "device") or "cpu"
    return RunRecord(
        arm=arm,
        block=block,
        status="done" if totals.measured else "failed",
        error=None if totals.measured else _too_short(totals),
        pid=one.process.pid,
        started_utc=begun_utc,
        ended_utc=now(),
        exit_code=code,
        config=config,
        facts=RunFacts(
            device=device,
            asynchronous=device != "cpu",
            emulated=False,
            device_count=1,
            threads=one.process.threads,
            workers=workers,
            cores=one.process.cores,
            iterable=bool(one.noted("iterable")) if one.noted("loader") else None,
            torch=one.process.torch,
            program_fingerprint=_last(one, "code"),
            attached=_attached(one),
            ranks=one.process.world,
            step_ends=_step_ends(one),
            unseen_share=round(totals.unseen_share, 4),
            unseen_place=unseen_place(one, totals),
            waiting_share=round(totals.waiting_share, 4),
            running_share=totals.running_share,
            tokenizing_share=round(totals.tokenizing_share, 4),
            iterating_share=round(totals.iterating_share, 4),
            restarting_share=round(totals.restarting_share, 4),
            sampling_share=round(totals.sampling_share, 4),
            persistent_workers=one.persistent_workers if one.noted("loader") else None,
            copies=max(one.noted("copies"), default=None),
            empty_workers=max(one.noted("empty_workers"), default=None),
            epoch_steps=_epoch_steps(one, totals),
            repeated_rows=_last(one, "repeated_rows"),
            epoch_ends=totals.epoch_ends if one.noted("loader") else None,
            evaluating_steps=totals.evaluating,
            evaluating_share=round(totals.evaluating_share, 4),
            marked_steps=tuple(totals.marked),
            causes=(*_causes(one, totals), *whole) or None,
        ),
        environment={**environment, "python": one.process.python, "torch": one.process.torch},
        realtime_minus_monotonic_ns=one.process.realtime_minus_monotonic_ns,
    )


def _epoch_steps(one: AttachedProcess, totals: StepTotals) -> float | None:
    """Return the number of steps in an epoch; None if unknown or if training uses several datasets."""
    epochs = one.noted("epoch_batches")
    return epochs[0] / totals.fetches_per_step if len(epochs) == 1 else None


def unseen_place(one: AttachedProcess, totals: StepTotals) -> str | None:
    """Return the place outside phases that blocked early steps most, ``train.py:31 (read)``; None below half."""
    place, watched_ns = next(iter(one.noted("blocked")), (None, 0))
    is_majority = totals.measured and watched_ns * totals.measured >= totals.unseen_blocked_ns / 2
    return str(place) if place is not None and is_majority else None


def _causes(one: AttachedProcess, totals: StepTotals) -> tuple[JsonObject, ...]:
    """Return causes of slow steps in ``totals``, as rows: noted waits and copies, counted events, sampled places."""
    reasons: Counter[tuple[str, str]] = Counter()
    for place, reason, seconds in one.noted("recompiled"):
        reasons[place, reason] += seconds
    place, reason = max(reasons, key=lambda key: reasons[key], default=("", ""))
    named: dict[str, JsonObject] = {COMPILED: {"place": place, "code": reason}}
    counted: list[JsonObject] = [
        {
            **named.get(kind, {}),
            "kind": kind,
            "times": step_count.times,
            "steps": step_count.steps,
            "of": totals.measured,
            "ms": step_count.wall_ns / 1e6,
            "rest_ms": (totals.wall_ns - step_count.wall_ns) / 1e6,
        }
        for kind, step_count in sorted(totals.counted.items())
    ]
    return (*one.noted("cause"), *counted, *_own_time(one, totals))


def _own_time(one: AttachedProcess, totals: StepTotals) -> Iterator[JsonObject]:
    """Yield rows on own code, the interpreter lock, evaluations, collections; from LEAST_CAUSE_SHARE on."""
    if not totals.sampled_ns and not totals.collections and not totals.evaluated_ns:
        return
    yield {"kind": SAMPLED, "of": totals.measured, "wall_ms": totals.wall_ns / 1e6, "looks": totals.looks}
    places = {number: tuple(fields) for number, *fields in one.noted("place")}
    holders = {number: ns for (phase, number, _), ns in totals.sampled_ns.items() if phase == HOLDER}
    for phase in {phase for phase, _, _ in totals.sampled_ns} - {HOLDER}:
        for number, (ns, late) in _spent_at(totals, phase).items():
            if number in places and ns >= LEAST_CAUSE_SHARE * totals.wall_ns:
                place, function, code, called = places[number]
                yield {
                    "kind": CODE,
                    "phase": phase,
                    "place": place,
                    "function": function,
                    "code": code,
                    "called": called,
                    "late": late,
                    "spent_ms": ns / 1e6,
                }
    held = {number: ns * totals.held_shares.get(number, 0.0) for number, ns in totals.others_ns.items()}
    for kind, spent_at in ((LOCK, held), (HOLDER, holders), (EVALUATION, totals.evaluated_ns)):
        for number, ns in spent_at.items():
            if number in places and ns >= LEAST_CAUSE_SHARE * (totals.wall_ns + totals.evaluating_ns):
                place, function, code, called = places[number]
                row = {"kind": kind, "place": place, "function": function, "code": code, "called": called}
                yield {**row, "spent_ms": ns / 1e6}
    for number, times in totals.collections.items():
        place, _function, code, _called = places.get(number, ("", "", "", ""))
        yield {"kind": GC, "place": place, "code": code, "times": times, "spent_ms": totals.collecting_ns[number] / 1e6}


def _spent_at(totals: StepTotals, phase: str) -> dict[int, tuple[float, bool]]:
    """Return (nanoseconds, True if it is only the end of that time) for each place of the phase, by place number.

    A late look's time is spread over places that ran Python code for long (FORCED). If these are few, the code ran in
    short pieces, and the place at the end of a piece gets its time.
    """
    spent_by_look: dict[int, Counter[int]] = {EXACT: Counter(), LATE: Counter(), FORCED: Counter()}
    for (sampled_phase, number, waited), ns in totals.sampled_ns.items():
        if sampled_phase == phase:
            spent_by_look[waited][number] += ns
    exact, late, forced = spent_by_look[EXACT], spent_by_look[LATE], spent_by_look[FORCED]
    python_ns = late.total() + forced.total()
    short = forced.total() < LEAST_FORCED * python_ns
    python = Counter({number: ns for number, ns in (forced + late if short else forced).items() if number})
    spread = python_ns / python.total() if python else 1.0
    spent = {number: exact[number] + python[number] * spread for number in exact | python}
    scale = (exact.total() + python_ns) / max(sum(spent.values()), 1) * _ns_of_look(totals, phase)
    return {number: (ns * scale, short and 2 * late[number] * spread > ns) for number, ns in spent.items()}


def _ns_of_look(totals: StepTotals, phase: str) -> float:
    """Return the factor from sampled to real ns in a phase ("": outside all, with all garbage collections)."""
    alike = ("backward", HOOKS) if phase in ("backward", HOOKS) else (phase,)
    sampled_ns = sum(ns for (sampled_phase, _, _), ns in totals.sampled_ns.items() if sampled_phase in alike)
    parts = {name: sum(ms) * 1e6 for name, ms in totals.lengths.parts.items()}
    outside_ns = totals.wall_ns - sum(parts.values()) - totals.collecting_ns.total()
    return max(parts.get(alike[0], 0.0) if phase else outside_ns, 0.0) / max(sampled_ns, 1)


def _too_short(totals: StepTotals) -> str:
    if not totals.ended:
        return "the program ended before its first step was complete"
    reason = "were warm-up (--warmup), were profiled (--profile) or contained an evaluation"
    return f"no step was measured: all {count(totals.ended, 'step')} {reason}. Run more steps"


def _attached(one: AttachedProcess) -> str:
    """Describe the timed phases of the program, such as "fetch: DataLoader with 2 workers; forward: Net; backward"."""
    loaders = one.noted("loader")
    parts = []
    if (function := _last(one, "fetch")) is not None:
        parts.append(f"fetch: {function}")
    elif loaders:
        workers, _ = one.loader
        number = f"{workers} worker{'s' * (workers > 1)}"
        parts.append(f"fetch: DataLoader with {number}" if workers else "fetch: DataLoader without workers")
    if (model := _last(one, "forward")) is not None:
        parts.append(f"forward: {model}")
    parts.append("backward")
    if optimizers := one.noted("optimizer"):
        parts.append("optimizer: " + ", ".join(dict.fromkeys(str(name) for _, name in optimizers)))
    return "; ".join(parts)


def _step_ends(one: AttachedProcess) -> str:
    closing = _last(one, "closes")
    if closing is None:
        return "the first fetch after a backward pass (no optimizer was seen)"
    shares_name = sum(name == closing for _, name in one.noted("optimizer")) > 1
    return f"the update of {closing}" + (", the last of several in each step" if shares_name else "")


def _last(one: AttachedProcess, what: str) -> Any:
    notes = one.noted(what)
    return notes[-1] if notes else None


def _study(
    program: Sequence[str],
    command: Sequence[str],
    code: int,
    begun_utc: str,
    environment: JsonObject,
    records: Sequence[RunRecord],
    arms: Mapping[str, AttachedProcess],
) -> StudyRecord:
    blocks = max((record.block + 1 for record in records), default=0)
    first: dict[str, RunRecord] = {}  # first run of each arm
    for record in records:
        first.setdefault(record.arm, record)
    notes = [f"the command ended with exit code {code}"] if code else []
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
        created_utc=begun_utc,
        ended_utc=now(),
        command=list(command),
        scenario_file="",
        interleave="runs",
        interleave_reason="one command as it is, cut into blocks",
        blocks=blocks,
        order=[[record.arm for record in records if record.block == block] for block in range(blocks)],
        arms=[ArmRecord(name, run.control, run.of, config=run.config) for name, run in first.items()],
        environment=environment,
        notes=notes,
    )
