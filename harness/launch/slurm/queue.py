"""Asks Slurm: submits a script, and says in which state its jobs are. Each question has a time limit.

Only sbatch, squeue and scontrol are used: sacct needs an accounting database, which small clusters do not have. squeue
knows a job for some minutes after its end (MinJobAge); what is known of it later, the job itself has written.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.machine.slurm import missing_commands
from trainer.errors import InputError, one_line

COMMAND_S = 60.0  # for a controller that is busy; sbatch itself gives up after MessageTimeout, 10 s by default
# States of a job that has ended for good, by man squeue; every other one may still run. GONE is ours: one that Slurm no
# longer knows.
ENDED = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "DEADLINE",
     "OUT_OF_MEMORY", "REVOKED", "GONE"}
)  # fmt: skip
UNKNOWN_JOB = "Invalid job id specified"


class SlurmSilent(Exception):  # noqa: N818 - an outcome, reported and survived
    """Slurm did not answer, or with an error: the line says which command."""


@dataclass(frozen=True)
class JobState:
    """One job as squeue has it. ``job``: its id, 12 or 12_3."""

    job: str
    state: str
    reason: str
    nodes: str

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


def check_slurm_here() -> None:
    """Raise InputError if Slurm's commands are missing."""
    if missing := missing_commands():
        raise InputError(
            f"launch.slurm: {', '.join(missing)}: not found here; run it where jobs are submitted (a login node), "
            "or give --here to run the study on this machine"
        )


def submit(script: Path) -> str:
    """Submit ``script``; return the id of its job. Raises InputError, with sbatch's message, if it is refused."""
    # In a job (salloc) sbatch would take these for this script's options.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_JOB")}
    try:
        done = _run(["sbatch", "--parsable", str(script)], environment)
    except SlurmSilent as error:
        raise InputError(f"launch.slurm: {error}") from error
    if done.returncode:
        raise InputError(f"launch.slurm: sbatch refused the job: {_message(done.stderr)} (--dry-run prints it)")
    return done.stdout.strip().split(";")[0]  # JOB;CLUSTER if there are several


def states(jobs: Sequence[str]) -> dict[str, JobState]:
    """The state of each of ``jobs`` (ids without array elements) and its elements, by id; SlurmSilent."""
    if not jobs:
        return {}
    # %i is 12_3 of an element with -r, else 12.
    done = _run(["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r|%N", f"--jobs={','.join(jobs)}"])
    if done.returncode and UNKNOWN_JOB not in done.stderr:
        raise SlurmSilent(f"squeue: {_message(done.stderr)}")
    by_id = {}
    for line in done.stdout.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) == 4:
            by_id[parts[0]] = JobState(*parts)
    return by_id


def node_memory_bytes(partition: str | None) -> int | None:
    """Return the least memory of the partition's nodes as Slurm reports it; None if it does not."""
    of = [] if partition is None else [f"--partition={partition}"]
    try:
        done = _run(["sinfo", "--noheader", "--format=%m", *of])
    except SlurmSilent:
        return None
    sizes = [int(text) for line in done.stdout.splitlines() if (text := line.strip().rstrip("+")).isdigit()]
    return None if done.returncode or not sizes else min(sizes) * 2**20


def _run(command: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SlurmSilent(f"{command[0]}: no answer within {COMMAND_S:g} s (is slurmctld running?)") from error
    except OSError as error:
        raise SlurmSilent(f"{command[0]}: {error.strerror or error}") from error


def _message(text: str) -> str:
    """Return the last message of an answer, with the lines before it that belong to it."""
    lines = [line.partition("error: ")[2] or line for line in text.splitlines() if line.strip()]
    return one_line("; ".join(dict.fromkeys(reversed(lines[-2:]))))[:400] or "without a word"
