"""Says what a study needs of the limits that a machine sets on shared memory, open files and processes."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from dataclasses import dataclass

from harness.machine.cgroup import ControlGroup
from harness.machine.files import read_int


@dataclass(frozen=True)
class Needs:
    """Estimates of the most that its runs need at a time. ``arms``: how many of them are alive together."""

    arms: int
    workers: int
    """Loader workers of all of them."""
    shared_bytes: int
    """In /dev/shm, where workers hand batches over."""
    open_files: int
    """Of the one process that needs most."""
    tasks: int
    """Processes and threads."""


@dataclass(frozen=True)
class TaskLimit:
    """Processes and threads: how many are allowed, how many there are, and who says so. None: not known."""

    most: int
    used: int | None
    source: str


def read_task_limit(group: ControlGroup | None) -> TaskLimit | None:
    """Find the tightest limit of the control groups up to the mount; None where there is none."""
    if group is None:
        return None
    limits = [
        TaskLimit(most, read_int(folder / "pids.current"), f"pids.max of {folder}")
        for folder in group.lineage()
        if (most := read_int(folder / "pids.max")) is not None
    ]
    return min(limits, key=lambda limit: limit.most - (limit.used or 0), default=None)


def tightest(limits: Iterable[TaskLimit | None]) -> TaskLimit | None:
    """Return the limit that leaves the least room; None where there is none."""
    known = [limit for limit in limits if limit is not None]
    return min(known, key=lambda limit: limit.most - (limit.used or 0), default=None)


def user_task_limit() -> TaskLimit | None:
    """Read RLIMIT_NPROC of this process; None where it sets none. How much of it the user has in use is not known."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return None if soft < 0 else TaskLimit(soft, None, "ulimit -u")
