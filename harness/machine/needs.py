"""Define the shared memory, open files and processes that a study needs, and read the machine's task limits."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from dataclasses import dataclass

from harness.machine.cgroup import ControlGroup
from harness.machine.files import read_int


@dataclass(frozen=True)
class Needs:
    """Estimated maximum of the resources that a study needs at one time. ``arms``: number of arms that run together."""

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
    """A limit on the number of processes and threads. ``used``: current number.

    None if unknown. ``source``: what sets it.
    """

    most: int
    used: int | None
    source: str


def read_task_limit(group: ControlGroup | None) -> TaskLimit | None:
    """Return the limit (pids.max) of the control groups up to the mount that leaves the least room; None without
    one.
    """
    if group is None:
        return None
    limits = [
        TaskLimit(tasks_max, read_int(folder / "pids.current"), f"pids.max of {folder}")
        for folder in group.lineage()
        if (tasks_max := read_int(folder / "pids.max")) is not None
    ]
    return min(limits, key=lambda limit: limit.most - (limit.used or 0), default=None)


def tightest(limits: Iterable[TaskLimit | None]) -> TaskLimit | None:
    """Return the limit that leaves the least room; None if all of ``limits`` are None."""
    readable = [limit for limit in limits if limit is not None]
    return min(readable, key=lambda limit: limit.most - (limit.used or 0), default=None)


def user_task_limit() -> TaskLimit | None:
    """Return this user's limit of processes (RLIMIT_NPROC); None without one. Its current use is not read."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return None if soft < 0 else TaskLimit(soft, None, "ulimit -u")
