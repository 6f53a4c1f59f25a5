"""Makes a study of what attached processes wrote: one arm for the command, or one for each rank of it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.attach.frames import AttachedProcess, read
from harness.attach.steps import StepTotals, write_tables
from harness.launch.study import now
from harness.machine.environment import record_environment
from harness.study.records import ArmRecord, RunRecord, StudyRecord, new_study_id, session_of
from harness.study.run_facts import RunFacts
from harness.study.store import StudyFolder
from trainer.json_types import JsonObject

SCENARIO = "exec"
RAW = "raw"  # where the agent writes, within the study's folder


@dataclass(frozen=True)
class ExecResult:
    """What a command left: the processes that trained, and what they say of themselves. Empty: none was attached."""

    trained: tuple[str, ...]  # names of their arms
    started: int  # Python processes that imported torch and had something to say
    faults: tuple[str, ...] = ()  # of ours, a line each
    switched_off: bool = False  # in one of these processes, by the first fault of ours


def make_study(
    folder: StudyFolder, raw: Path, program: Sequence[str], command: Sequence[str], code: int, begun_utc: str
) -> ExecResult:
    """Write the records and tables of everything that was recorded in ``raw`` into ``folder``."""
    processes = read(raw)
    workers = [one for one in processes if one.made]
    trained = sorted((one for one in processes if one.steps), key=lambda one: one.process.rank or 0)
    environment = record_environment()
    records, study_id, notes = [], new_study_id(), []
    session = session_of(study_id, "exec")
    for arm, one in zip(_names(trained), trained, strict=True):
        made_by = {worker.process.pid: worker.made for worker in workers}
        rank = one.process.rank or 0
        blocks = write_tables(one, made_by, lambda block, arm=arm: folder.run(arm, block), rank)  # type: ignore[misc]
        if interrupted := sum(totals.interrupted for totals in blocks):
            notes.append(
                f"{arm}: left out are {interrupted} steps in which a signal handler of the program raised while its "
                "step was being recorded"
            )
        for block, totals in enumerate(blocks):
            record = replace(record_of(arm, block, one, totals, environment, code, begun_utc), session=session)
            records.append(record)
            folder.write_samples(arm, block, {})
            folder.write_whole_run(record)
    study = _study(program, command, code, begun_utc, environment, records, trained)
    folder.write_study(replace(study, id=study_id, notes=[*study.notes, *notes]))
    faults = [
        f"process {one.process.pid}: our recording failed and was switched off ({str(text).strip().splitlines()[-1]}); "
        "the program was left alone"
        for one in processes
        for text in one.noted("fault")
    ]
    switched_off = bool(faults)
    faults += [
        f"process {one.process.pid}: what its device did is not recorded ({text}); the rest is"
        for one in trained
        for text in one.noted("device_fault")
    ]
    faults += [
        f"process {one.process.pid}: --fetch {name}: no such function there when its first step began"
        for one in trained
        for name in one.noted("unknown_fetch")
    ]
    faults += [
        f"process {one.process.pid}: --step-ends: no such optimizer made an update; "
        f"those that did: {', '.join(dict.fromkeys(str(name) for _, name in one.noted('optimizer')))}"
        for one in trained
        if one.noted("optimizer") and not one.noted("closes")
    ]
    return ExecResult(
        tuple(dict.fromkeys(record.arm for record in records)), len(processes), tuple(faults), switched_off
    )


def _names(trained: Sequence[AttachedProcess]) -> list[str]:
    """``rank-0`` and so on where the processes are ranks of one program, else ``script``, ``script-2``."""
    ranks = [one.process.rank for one in trained]
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
) -> RunRecord:
    """What is known of the process ``one``, whose steps amount to ``totals``."""
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
            unseen_place=next((str(place) for place, _ in one.noted("blocked")), None),
            waiting_share=round(totals.waiting_share, 4),
            tokenizing_share=round(totals.tokenizing_share, 4),
            restarting_share=round(totals.restarting_share, 4),
            evaluating_steps=totals.evaluating,
            evaluating_share=round(totals.evaluating_share, 4),
        ),
        environment={**environment, "python": one.process.python, "torch": one.process.torch},
        realtime_minus_monotonic_ns=one.process.realtime_minus_monotonic_ns,
    )


def _too_short(totals: StepTotals) -> str:
    return f"it ended after {totals.begun} steps, all of them warm-up (--warmup) or with an evaluation within"


def _attached(one: AttachedProcess) -> str:
    """What of the program is timed."""
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
    alike = sum(name == closing for _, name in one.noted("optimizer")) > 1
    return f"the update of {closing}" + (", the last of several in each step" if alike else "")


def _last(one: AttachedProcess, what: str) -> Any:
    found = one.noted(what)
    return found[-1] if found else None


def _study(
    program: Sequence[str],
    command: Sequence[str],
    code: int,
    begun_utc: str,
    environment: JsonObject,
    records: Sequence[RunRecord],
    trained: Sequence[AttachedProcess],
) -> StudyRecord:
    arms = list(dict.fromkeys(record.arm for record in records))
    blocks = max((record.block + 1 for record in records), default=0)
    notes = [f"the command ended with exit code {code}"] if code else []
    if blocks > 1:
        notes.append("its blocks are parts of one run: the intervals do not hold what differs from run to run")
    for arm, one in zip(arms, trained, strict=True):
        notes += [f"{arm}: {text}" for text in one.noted("ended")]
        notes += [f"{arm}: our recording failed and was switched off: {text}" for text in one.noted("fault")]
        notes += [f"{arm}: what its device did is not recorded: {text}" for text in one.noted("device_fault")]
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
        arms=[ArmRecord(arm, config=next(r.config for r in records if r.arm == arm)) for arm in arms],
        environment=environment,
        notes=notes,
    )
