"""Define the shared memory, open files and processes that a study needs, and read the machine's task limits."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from dataclasses import dataclass

from harness.machine.cgroup import ControlGroup
from harness.machine.files import read_int


@dataclass(frozen=True)
class Needs:
    """Estimated maximum needs of a study at one time. ``arms``: number of arms that are alive together."""

    arms: int
    workers: int
    """Loader workers of all arms."""
    shared_bytes: int
    """Bytes in /dev/shm, which carries the workers' batches."""
    open_files: int
    """Open files of the process that needs most."""
    tasks: int
    """Number of processes and threads."""


@dataclass(frozen=True)
class TaskLimit:
    """Limit of processes and threads, their current number, and the source of the limit. None: unknown."""

    most: int
    used: int | None
    source: str


def read_task_limit(group: ControlGroup | None) -> TaskLimit | None:
    """Return the tightest limit of the control groups up to the mount; None without one."""
    if group is None:
        return None
    limits = [
        TaskLimit(tasks_max, read_int(folder / "pids.current"), f"pids.max of {folder}")
        for folder in group.lineage()
        if (tasks_max := read_int(folder / "pids.max")) is not None
    ]
    return min(limits, key=lambda limit: limit.most - (limit.used or 0), default=None)


def tightest(limits: Iterable[TaskLimit | None]) -> TaskLimit | None:
    """Return the limit that leaves the least room; None without one."""
    readable = [limit for limit in limits if limit is not None]
    return min(readable, key=lambda limit: limit.most - (limit.used or 0), default=None)


def user_task_limit() -> TaskLimit | None:
    """Return RLIMIT_NPROC of this process; None if it sets none. The number that the user has in use is unknown."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return None if soft < 0 else TaskLimit(soft, None, "ulimit -u")
