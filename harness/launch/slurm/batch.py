"""Write the batch script of a study (plain sbatch), submit it to Slurm, and read the states of the jobs.

sacct is not used: it needs an accounting database. squeue knows a job for minutes after its end (MinJobAge); later,
only the job's own record is left.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.machine.check import span
from harness.machine.software import missing_commands
from trainer.config import SlurmConfig
from trainer.errors import InputError, one_line
from trainer.files import shell_word

# Environment variables that a run reads. Some clusters pass none to jobs (SBATCH_EXPORT=NONE).
KEPT_VARIABLES = ("PYTHONPATH", "HARNESS_CACHE", "HF_HOME", "HF_HUB_OFFLINE", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Submission:
    """One batch script: study, blocks and Slurm settings. ``folder``: for script, logs and the jobs' records."""

    study: Path
    folder: Path
    name: str
    slurm: SlurmConfig
    nodes: int
    blocks: Sequence[int]
    force: bool = False

    @property
    def is_array(self) -> bool:
        return self.slurm.mode == "array"

    @property
    def script(self) -> Path:
        return self.folder / "script.sh"

    def log(self, job: str) -> Path:
        """Return the path of a job's log. ``job``: its id, 12, or 12_3 for block 3 of the array 12."""
        return self.folder / f"job-{job}.log"

    def record(self, block: int) -> Path:
        """Return the path of the file in which the job that runs ``block`` records its state."""
        return self.folder / (f"block-{block}.json" if self.is_array else "study.json")


def batch_script(submission: Submission) -> str:
    """Return the text of the sbatch script for ``submission``."""
    extent = "one job for each block" if submission.is_array else "the whole study in one job"
    lines = [
        "#!/bin/bash",
        f"# The study {submission.study}: {extent}.",
        "# Written by harness run from the scenario's launch.slurm; harness run --resume STUDY waits for its jobs,",
        "# gathers what they measured, and submits again what is missing.",
        *(f"#SBATCH {shell_word(option) if ' ' in option else option}" for option in _options(submission)),
        "",
        f"cd {shell_word(Path.cwd())} || exit 1",
        *(f"export {name}={shell_word(os.environ[name])}" for name in KEPT_VARIABLES if name in os.environ),
        *submission.slurm.setup,
        "# In the shell's place, so that Slurm's SIGTERM (time limit, scancel) reaches it: it keeps what is finished.",
        f"exec {_command(submission)}",
    ]
    return "\n".join(lines) + "\n"


def _options(submission: Submission) -> Iterator[str]:
    slurm = submission.slurm
    yield f"--job-name=harness-{submission.name}"
    if submission.is_array:
        limit = "" if slurm.at_once is None else f"%{slurm.at_once}"
        yield f"--array={span(submission.blocks)}{limit}"
    log = submission.log("JOB")
    jobs = log.name.replace("JOB", "%A_%a" if submission.is_array else "%j")
    yield f"--output={str(log.parent).replace('%', '%%')}/{jobs}"
    yield f"--nodes={submission.nodes}"
    yield "--ntasks-per-node=1"
    options = {
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "time": slurm.time,
        "cpus-per-task": slurm.cpus_per_task,
        "mem": slurm.mem,
        "gpus-per-node": slurm.gpus_per_node,
        "gres": slurm.gres,
    }
    yield from (f"--{name}={value}" for name, value in options.items() if value is not None)
    if slurm.exclusive:
        yield "--exclusive"
    yield "--no-requeue"  # harness run --resume submits the missing blocks
    yield from slurm.extra


def _command(submission: Submission) -> str:
    block = ' --block "$SLURM_ARRAY_TASK_ID"' if submission.is_array else ""
    record = f"block-{'$SLURM_ARRAY_TASK_ID'}.json" if submission.is_array else "study.json"
    force = " --force" * submission.force
    return (
        f"{shell_word(sys.executable)} -m harness.launch.slurm.job {shell_word(submission.study)}{block}"
        f' --record {shell_word(submission.folder)}/"{record}"{force}'
    )


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
    """Return the states of ``jobs`` by id (12, or 12_3 for an element), if Slurm knows them. Raises SlurmSilent."""
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
    """Return the smallest memory of a node of ``partition`` (None: the default); None if not reported."""
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
    """Return the last two lines of a command's errors as one line, the last first; "without a message" if none."""
    lines = [line.partition("error: ")[2] or line for line in text.splitlines() if line.strip()]
    return one_line("; ".join(dict.fromkeys(reversed(lines[-2:]))))[:400] or "without a message"
