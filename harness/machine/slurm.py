"""Read if jobs can be submitted from here: Slurm's commands, and the partitions of its controller."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from harness.machine.limits import output_of

COMMANDS = ("sbatch", "squeue", "scancel")  # used by launch.slurm
SLURM_LIMIT_S = 12.0  # sinfo itself gives up after MessageTimeout, 10 s by default.


@dataclass(frozen=True)
class BatchSystem:
    """Parts of Slurm that are available here. ``missing``: commands not found.

    ``partitions``: as sinfo prints them, the default with a star.
    """

    missing: tuple[str, ...]
    partitions: tuple[str, ...] = ()
    problem: str | None = None
    """Why the controller did not answer; None if it did, or if the commands are missing."""


def missing_commands() -> tuple[str, ...]:
    """Return those of :data:`COMMANDS` that are not found on PATH."""
    return tuple(name for name in COMMANDS if shutil.which(name) is None)


def read_batch_system() -> BatchSystem:
    if missing := missing_commands():
        return BatchSystem(missing)
    try:
        status, output, errors = output_of(["sinfo", "--noheader", "--format=%P"], SLURM_LIMIT_S)
    except OSError as error:  # A timeout is an OSError.
        return BatchSystem((), problem=str(error))
    if status:
        lines = errors.strip().splitlines()
        return BatchSystem((), problem=lines[-1].strip() if lines else f"sinfo ended with status {status}")
    return BatchSystem((), tuple(output.split()))
