"""Writes the batch script of a study: a plain sbatch script that a user can read, edit and submit."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.config import SlurmConfig
from trainer.files import shell_word

# Environment variables that a run reads. Some clusters pass none to jobs (SBATCH_EXPORT=NONE).
KEPT_VARIABLES = ("PYTHONPATH", "HARNESS_CACHE", "HF_HOME", "HF_HUB_OFFLINE", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Submission:
    """One batch script to submit: its study, blocks and Slurm settings.

    ``folder``: contains the script, the logs and the jobs' records. ``nodes``: machines of a job.
    ``force``: True to start runs that cannot fit into memory.
    """

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
        yield f"--array={_ranges(submission.blocks)}{limit}"
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


def _ranges(numbers: Sequence[int]) -> str:
    """Return the blocks in sbatch's format for array elements: 0-4, or 1,3,5-7."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
