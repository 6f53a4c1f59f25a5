"""Submits scripts to Slurm, and reads the states of the jobs. Each command has a time limit.

Only sbatch, squeue and scontrol are used: sacct needs an accounting database, which small clusters do not have. squeue
knows a job for some minutes after its end (MinJobAge). Later, only the job's own record is left.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.machine.slurm import missing_commands
from trainer.errors import InputError, one_line

COMMAND_S = 60.0  # limit for a busy controller; sbatch itself gives up after MessageTimeout, 10 s by default
# Final states of a job, by man squeue. A job in another state may still run. GONE is not from Slurm: the job is no
# longer known.
ENDED = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "DEADLINE",
     "OUT_OF_MEMORY", "REVOKED", "GONE"}
)  # fmt: skip
UNKNOWN_JOB = "Invalid job id specified"


class SlurmSilent(Exception):  # noqa: N818 - an outcome, reported and survived
    """A command of Slurm failed or did not answer. The message names the command."""


@dataclass(frozen=True)
class JobState:
    """Job as squeue shows it. ``job``: its id, 12 or 12_3. ``reason``: why it waits. ``nodes``: where it runs."""

    job: str
    state: str
    reason: str
    nodes: str

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


def check_slurm_here() -> None:
    """Raise InputError if Slurm's commands are missing on this machine."""
    if missing := missing_commands():
        raise InputError(
            f"launch.slurm: {', '.join(missing)}: not found here; run it where jobs are submitted (a login node), "
            "or give --here to run the study on this machine"
        )


def submit(script: Path) -> str:
    """Submit ``script`` and return the id of its job. Raises InputError, with sbatch's message, if it is refused."""
    # Within a job (salloc), sbatch would use these variables as options of this script.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_JOB")}
    try:
        done = _run(["sbatch", "--parsable", str(script)], environment)
    except SlurmSilent as error:
        raise InputError(f"launch.slurm: {error}") from error
    if done.returncode:
        raise InputError(f"launch.slurm: sbatch refused the job: {_message(done.stderr)} (--dry-run prints it)")
    return done.stdout.strip().split(";")[0]  # JOB;CLUSTER with several clusters


def states(jobs: Sequence[str]) -> dict[str, JobState]:
    """Return the states of ``jobs`` (ids without array elements) and of their elements, by id.

    Jobs that squeue no longer knows are left out. Raises SlurmSilent if squeue fails.
    """
    if not jobs:
        return {}
    # With --array, %i is 12_3 for an element; otherwise it is 12.
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
    """Return the smallest memory in bytes of a node of ``partition`` (None: the default one).

    None if Slurm does not report it.
    """
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
    """Return the last error in a command's output as one line, with the line before it.

    "without a word" if the output is empty.
    """
    lines = [line.partition("error: ")[2] or line for line in text.splitlines() if line.strip()]
    return one_line("; ".join(dict.fromkeys(reversed(lines[-2:]))))[:400] or "without a word"
