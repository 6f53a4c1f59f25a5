"""Submits a study's jobs, waits for them with a time limit, and gathers their runs in one study folder.

    STUDY/slurm/K/      the K-th submission: script.sh, jobs.json, job-ID.log, and the record of each job

A job that failed, was cancelled, hit its time limit or was preempted affects only its own block: its missing runs are
recorded as failed, with the job's id, its state and the end of its log. ``harness run --resume`` submits them again.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.launch.ending import terminable
from harness.launch.nodes import nodes_of
from harness.launch.preparation import recorded_configs
from harness.launch.slurm.batch import (
    JobState,
    SlurmSilent,
    Submission,
    batch_script,
    check_slurm_here,
    node_memory_bytes,
    states,
    submit,
)
from harness.launch.slurm.job import JobEnding, read_ending
from harness.launch.study import Elsewhere, Outcome, begin_study, config_slurm, only_one, read_resumable
from harness.study.records import RunRecord, StudyRecord, now, session_of
from harness.study.store import StudyFolder, write_json
from trainer.config import SlurmConfig, TrainerConfig
from trainer.errors import InputError, one_line, visible
from trainer.files import read_json, shell_word, write_text
from trainer.json_types import integer

if TYPE_CHECKING:
    from harness.scenario.plan import Plan

FIRST_LOOK_S, LAST_LOOK_S = 0.5, 15.0  # seconds between two polls of the queue
CONTROLLER_S = 900.0  # The wait ends if squeue fails for longer. A restart of the controller takes minutes.
SHARED_DISK_S = 10.0  # time for a job's files to become visible on a shared disk
LOG_LINES = 3
LOG_BYTES = 4096
FOLDER = "slurm"
BLAMED = "-job"  # suffix of the session in a record that was not written by a run
GONE = JobState("", "GONE", "", "")  # no longer known to squeue


def slurm_of(configs: Mapping[str, TrainerConfig]) -> SlurmConfig | None:
    """Return the Slurm settings of all arms, or None. Raises InputError if they differ: a job runs all arms."""
    by_arm = {name: config_slurm(config) for name, config in configs.items()}
    first, settings = next(iter(by_arm.items()))
    for name, arm_settings in by_arm.items():
        if arm_settings != settings:
            raise InputError(
                f"launch.slurm: arm {name} differs from {first}, but a job runs all arms of a block; "
                "set it in base, and only launch.torchrun in arms"
            )
    return settings


def most_nodes(configs: Mapping[str, TrainerConfig]) -> int:
    """Return the number of nodes of a job: enough for the largest arm, or more if the settings ask for it."""
    asked = slurm_of(configs)
    return max(*map(nodes_of, configs.values()), (asked and asked.nodes) or 1)


def print_script(plan: Plan, out: Path, force: bool = False) -> str:
    """Return the batch script of a study, without submitting. ``force``: True to ignore lack of memory."""
    configs = {arm.name: arm.config for arm in plan.arms}
    slurm = _asked(configs)
    study = out.absolute() / plan.scenario.name / "<time>-<id>"
    blocks = range(len(plan.blocks))
    folder = study / FOLDER / "0"
    return batch_script(Submission(study, folder, plan.scenario.name, slurm, most_nodes(configs), blocks, force))


def submit_study(
    plan: Plan, out: Path, command: Sequence[str], source: str, *, force: bool = False, wait: bool = True
) -> Outcome:
    """Submit jobs that run ``plan`` as a new study under ``out``, and ``wait`` for them. Raises InputError for a study
    that cannot run, or if sbatch is missing or refuses the job.
    """
    configs = {arm.name: arm.config for arm in plan.arms}
    slurm = _asked(configs)
    check_slurm_here()
    free_bytes = node_memory_bytes(slurm.partition) if slurm.mem is None else _bytes_of(slurm.mem)
    elsewhere = Elsewhere("of Slurm's nodes", free_bytes)
    made = [place for place in (out / plan.scenario.name, out) if not place.exists()]
    folder, record, _ = begin_study(plan, out, command, source, force=force, elsewhere=elsewhere)
    jobs = Jobs(folder, record, slurm, most_nodes(configs))
    with only_one(folder):
        try:
            folder.write_study(record)
            jobs.submit(range(len(record.order)), force)
        except BaseException:  # sbatch refused it. Remove the new folders.
            shutil.rmtree(folder.path, ignore_errors=True)
            with suppress(OSError):
                for place in made:
                    place.rmdir()
            raise
        print(f"study {folder.path}: {jobs.described}", file=sys.stderr)
        return jobs.finish() if wait else jobs.leave("submitted")


def resume_in_jobs(path: Path, command: Sequence[str], *, force: bool = False, wait: bool = True) -> Outcome:
    """Submit each block of the study with a missing run, unless a job in the queue will run it, and ``wait`` for all.

    Raises InputError if the study cannot be resumed, or if the queue cannot be read.
    """
    folder = StudyFolder(path)
    record = read_resumable(folder)
    configs = recorded_configs(folder.study_json, record)
    slurm = _asked(configs)
    check_slurm_here()
    record = replace(record, status="running", notes=[*record.notes, f"resumed {now()}: {' '.join(command)}"])
    with only_one(folder):
        jobs = Jobs(folder, record, slurm, most_nodes(configs))
        jobs.find_submissions()
        try:
            waited_for = jobs.blocks_in_queue()
        except SlurmSilent as error:
            raise InputError(f"launch.slurm: the queue could not be read: {error}") from error
        missing = [block for block in jobs.missing() if block not in waited_for]
        if waited_for and not jobs.is_array:  # The single job runs every missing block.
            missing = []
        folder.write_study(record)
        if missing:
            jobs.submit(missing, force)
        print(f"study {folder.path}: {jobs.described}", file=sys.stderr)
        return jobs.finish() if wait else jobs.leave("submitted")


def begun_in_jobs(path: Path) -> bool:
    """True if jobs were submitted for the study at ``path``."""
    return (path / FOLDER).is_dir()


def refuse_jobs_in_queue(path: Path) -> None:
    """Raise InputError if jobs of the study may still run. Not checked if Slurm does not answer."""
    folder = StudyFolder(path)
    record = read_resumable(folder)
    slurm = slurm_of(recorded_configs(folder.study_json, record))
    if slurm is None:
        return
    jobs = Jobs(folder, record, slurm, 1)
    jobs.find_submissions()
    with suppress(SlurmSilent):  # Without Slurm on this machine, the jobs are unknown.
        if jobs.blocks_in_queue():
            line = f"{path}: jobs {', '.join(jobs.ids)} are still in the queue; wait for them, or scancel them"
            raise InputError(line)


def _asked(configs: Mapping[str, TrainerConfig]) -> SlurmConfig:
    slurm = slurm_of(configs)
    if slurm is None:
        raise InputError("launch.slurm: not in this scenario; give base.launch.slurm, as in {partition: main}")
    return slurm


def _bytes_of(text: str) -> int | None:
    """Return the bytes of a size like "64G" by sbatch's rules (default: megabytes); None if it is none."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "M")
    powers = {"K": 10, "M": 20, "G": 30, "T": 40}
    return int(number) * 2 ** powers[unit] if number.isdigit() and unit in powers else None


class Jobs:
    """All jobs of one study: submits them, finds earlier ones, waits for them, and gathers their runs."""

    def __init__(self, folder: StudyFolder, record: StudyRecord, slurm: SlurmConfig, nodes: int) -> None:
        self._folder, self._record, self._slurm, self._nodes = folder, record, slurm, nodes
        self._by_block: dict[int, tuple[str, Submission]] = {}  # the last job of each block

    @property
    def is_array(self) -> bool:
        return self._slurm.mode == "array"

    @property
    def ids(self) -> list[str]:
        """Ids of the submitted jobs. An array has one id."""
        return list(dict.fromkeys(job for job, _ in self._by_block.values()))

    @property
    def described(self) -> str:
        """Text on the submitted jobs for the user: ids, blocks, and the folders of scripts and logs."""
        if not self._by_block:
            return "no job is needed"
        logs = ", ".join(dict.fromkeys(str(submission.folder) for _, submission in self._by_block.values()))
        kind = "one for each block" if self.is_array else "all blocks in one"
        return f"job {', '.join(self.ids)} ({kind}), scripts and logs in {logs}"

    def missing(self) -> list[int]:
        """Return the numbers of the blocks with a run that is not done."""
        record, done = self._record, self._folder.is_done
        return [b for b, order in enumerate(record.order) if not all(done(name, b) for name in order)]

    def submit(self, blocks: Sequence[int], force: bool) -> None:
        """Write a script for ``blocks`` and submit it. Raises InputError if sbatch refuses it."""
        root = self._folder.path.absolute()
        number = 0
        while (root / FOLDER / str(number) / "jobs.json").exists():
            number += 1
        submission = self._submission(root / FOLDER / str(number), list(blocks), force)
        write_text(submission.script, batch_script(submission))
        job = submit(submission.script)
        write_json(submission.folder / "jobs.json", {"job": job, "blocks": list(blocks), "submitted_utc": now()})
        self._by_block |= dict.fromkeys(blocks, (job, submission))

    def find_submissions(self) -> None:
        """Read which jobs were submitted earlier. A submission with an unreadable file is ignored."""
        for place in sorted((self._folder.path / FOLDER).glob("[0-9]*/jobs.json"), key=lambda p: int(p.parent.name)):
            with suppress(OSError, ValueError, TypeError, KeyError):
                content = read_json(place)
                job, blocks = str(content["job"]), [int(block) for block in content["blocks"]]
                submission = self._submission(place.parent.absolute(), blocks, force=False)
                self._by_block |= dict.fromkeys(blocks, (job, submission))

    def blocks_in_queue(self) -> set[int]:
        """Return the blocks whose job waits or may still run. Raises SlurmSilent if squeue fails."""
        queue = states(self.ids)
        return set(self._living(queue))

    def finish(self) -> Outcome:
        """Wait for all jobs and write the study's result from their runs. Ctrl-C, ``launch.slurm.wait_s``, or
        CONTROLLER_S without an answer of Slurm end the wait; jobs stay in the queue.
        """
        with terminable():
            try:
                late = self._wait()
            except KeyboardInterrupt:
                return self.leave("interrupted")
        if late is not None:
            print(f"harness: {late}", file=sys.stderr)
            return self.leave("failed")
        return self._gather()

    def leave(self, status: Literal["submitted", "interrupted", "failed"]) -> Outcome:
        """Leave the jobs in the queue. Print the commands that wait for the jobs or cancel them. Return the outcome."""
        path = self._folder.path
        print(
            f"jobs {', '.join(self.ids)} stay in the queue; wait for them and gather: harness run --resume "
            f"{shell_word(path)}; end them: scancel {' '.join(self.ids)}",
            file=sys.stderr,
        )
        return Outcome(path, status, in_queue=True)

    def _submission(self, folder: Path, blocks: Sequence[int], force: bool) -> Submission:
        study = self._folder.path.absolute()
        return Submission(study, folder, self._record.scenario, self._slurm, self._nodes, blocks, force)

    def _id(self, block: int) -> str:
        job, submission = self._by_block[block]
        return f"{job}_{block}" if submission.is_array else job

    def _state(self, block: int, queue: Mapping[str, JobState]) -> JobState:
        return queue.get(self._id(block), GONE)

    def _living(self, queue: Mapping[str, JobState]) -> list[int]:
        """Return the blocks whose job may still run. ``queue``: states by id; a missing job has ended."""
        return [block for block in self._by_block if not self._state(block, queue).has_ended]

    def _wait(self) -> str | None:
        """Poll until every job has ended (None), or return a line on the rest at the time limit."""
        begun_s = heard_s = time.monotonic()
        pause_s, shown = FIRST_LOOK_S, ""
        while True:
            now_s = time.monotonic()
            try:
                queue = states(self.ids)
                heard_s = time.monotonic()
            except SlurmSilent as error:
                if now_s - heard_s > CONTROLLER_S:
                    return f"Slurm did not answer for {CONTROLLER_S:g} s: {error}"
            else:
                living = self._living(queue)
                text = self._shown(living, queue)
                if text != shown:
                    print(text, file=sys.stderr, flush=True)
                    shown = text
                if not living:
                    return None
                if now_s - begun_s > self._slurm.wait_s:
                    return f"waited {self._slurm.wait_s:g} s (launch.slurm.wait_s) for {text}"
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LAST_LOOK_S)

    def _shown(self, living: Sequence[int], queue: Mapping[str, JobState]) -> str:
        """Return the jobs' states, like ``job 12: 1 running (12_0 on n1), 3 pending (Resources), 1 ended``."""
        parts = []
        job_states = {self._id(block): self._state(block, queue) for block in living}
        for state in dict.fromkeys(job_state.state for job_state in job_states.values()):
            jobs = {job: job_state for job, job_state in job_states.items() if job_state.state == state}
            if state == "PENDING":
                detail = ", ".join(Counter(job_state.reason for job_state in jobs.values()))
            else:
                detail = ", ".join(f"{job} on {job_state.nodes}" for job, job_state in jobs.items())
            parts.append(f"{len(jobs)} {state.lower()} ({detail})")
        ended = len({self._id(block) for block in self._by_block}) - len(job_states)
        if ended:
            parts.append(f"{ended} ended")
        return f"job {', '.join(self.ids)}: {', '.join(parts)}"

    def _gather(self) -> Outcome:
        """Write the study's status. For each missing run, write a failed record with the reason. Return the outcome."""
        notes = []
        for block, line in list(self._lost_blocks()):
            print(f"harness: {line}", file=sys.stderr)
            notes.append(line)
            self._blame(block, line)
        status: Literal["done", "failed"] = "failed" if self.missing() else "done"
        record = self._record
        done = (self._folder.read_record(name, block) for block, order in enumerate(record.order) for name in order)
        # The environment of a machine that measured. This machine only submitted.
        environment = next((run.environment for run in done if run and run.status == "done"), record.environment)
        notes = [*record.notes, *(line for line in dict.fromkeys(notes) if line not in record.notes)]
        record = replace(record, status=status, ended_utc=now(), environment=environment, notes=notes)
        self._folder.write_study(record)
        return Outcome(self._folder.path, status)

    def _lost_blocks(self) -> Iterator[tuple[int, str]]:
        """Yield each block that is not done although its job has ended, with the line that says why."""
        if not (missing := [block for block in self.missing() if block in self._by_block]):
            return
        try:
            queue = states(self.ids)
        except SlurmSilent:
            queue = {}
        for block in missing:
            job, submission = self._id(block), self._by_block[block][1]
            state = self._state(block, queue)
            self._await_record(submission.record(block), state)
            ending = read_ending(submission.record(block))
            if block in self.missing():  # unless its record became visible late
                yield block, why_lost(block, job, state, ending, submission.log(job))

    def _await_record(self, path: Path, state: JobState) -> None:
        """Wait for a job's own record: on a shared disk, it may become visible late."""
        end_s = time.monotonic() + SHARED_DISK_S
        while state.state in ("COMPLETED", "FAILED", "GONE") and time.monotonic() < end_s:
            ending = read_ending(path)
            if ending is not None and ending.status != "running":
                return
            time.sleep(FIRST_LOOK_S)

    def _blame(self, block: int, line: str) -> None:
        """Write a failed record for each run of the block that the job did not begin, or left without an end."""
        arms = {arm.name: arm for arm in self._record.arms}
        for position, name in enumerate(self._record.order[block]):
            before = self._folder.read_record(name, block)
            if before is not None and not before.session.endswith(BLAMED):
                continue  # The run's own record has its end.
            arm = arms[name]
            self._folder.write_run(
                RunRecord(
                    arm=name,
                    block=block,
                    status="failed",
                    control=arm.control,
                    of=arm.of,
                    session=session_of(self._record.id, f"{block}{BLAMED}"),
                    position=position,
                    interleave=self._record.interleave,
                    config={**arm.config, "seed": integer(arm.config, "seed") + block},
                    declared=arm.declared,
                    error=line,
                    ended_utc=now(),
                )
            )


def why_lost(block: int, job: str, state: JobState, ending: JobEnding | None, log: Path) -> str:
    """Return why ``block`` is not done: job, state, own record (``ending``; None: never began), end of log."""
    node = state.nodes or (ending.node if ending is not None else "")
    outcome = {
        "GONE": "has ended, and Slurm has no record of it",
        "COMPLETED": "ended, with runs that failed",
        "FAILED": "failed",
        "TIMEOUT": "hit its time limit (launch.slurm.time)",
        "CANCELLED": "was cancelled",
        "PREEMPTED": "was preempted",
        "OUT_OF_MEMORY": "was killed for memory (launch.slurm.mem)",
        "NODE_FAIL": "lost its node",
    }.get(state.state, f"ended as {state.state}")
    if state.state == "FAILED" and ending is not None and ending.status == "failed" and ending.error is None:
        outcome = "ended, with runs that failed"
    line = f"block {block}: job {job}{f' on {node}' if node else ''} {outcome}"
    if ending is None:
        line += "; it never began to run the study"
    elif ending.status == "running":
        line += "; it was killed before it wrote a reason"
    elif ending.error is not None:
        line += f": {ending.error}"
    last = _end_of(log)
    if last is None:
        return f"{line}; it left no log"
    return f"{line}; {log} ends: {last}" if last else f"{line}; {log} is empty"


def _end_of(log: Path) -> str | None:
    """Return the last LOG_LINES lines of a log as one line; "" for an empty log, None if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return None
    return visible(" | ".join(one_line(line)[:200] for line in lines[-LOG_LINES:]))
