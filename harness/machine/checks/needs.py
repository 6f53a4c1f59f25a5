"""Check if /dev/shm, open files and processes suffice for a scenario. Each line states the need and the fix."""

from __future__ import annotations

import resource

from harness.machine import cgroup
from harness.machine.checks.check import Check, count, ok, size, warn
from harness.machine.files import ROOT, read_mounts
from harness.machine.memory import SharedMemory, read_shared_memory
from harness.machine.needs import Needs, TaskLimit, read_task_limit, tightest, user_task_limit
from harness.machine.remedies import MORE_OPEN_FILES, MORE_PROCESSES, MORE_SHARED_MEMORY


def check_shared_need(needs: Needs, shared: SharedMemory | None) -> Check:
    name = "shm need"
    if not needs.workers:
        return ok(name, "none: the scenario has no loader workers")
    users = f"{count(needs.workers, 'loader worker')} of {count(needs.arms, 'arm')} at a time"
    needed = f"{users} need about {size(needs.shared_bytes)} in /dev/shm"
    if shared is None or not shared.writable:
        return warn(name, f"{needed}, which cannot be used here", "mount a tmpfs on /dev/shm, or data.workers 0")
    finding = f"{needed}, {size(shared.free_bytes)} of {size(shared.total_bytes)} is free"
    if needs.shared_bytes <= shared.free_bytes:
        return ok(name, finding)
    return warn(name, f"{finding}: batches will be lost", MORE_SHARED_MEMORY)


def check_files_need(needs: Needs, soft: int) -> Check:
    """Return the line that compares the scenario's open files with the limit ``soft`` (RLIMIT_NOFILE; -1: no limit)."""
    allowed = "no limit" if soft < 0 else f"at most {soft} allowed"
    finding = f"a process of it opens about {needs.open_files} files, {allowed}"
    if soft < 0 or needs.open_files <= soft:
        return ok("file need", finding)
    return warn("file need", f"{finding}: batches will be lost", MORE_OPEN_FILES)


def check_task_need(needs: Needs, limit: TaskLimit | None) -> Check:
    finding = f"{count(needs.arms, 'arm')} at a time have about {needs.tasks} processes and threads"
    if limit is None:
        return ok("task need", f"{finding}, no limit")
    used = "" if limit.used is None else f", {limit.used} in use"
    finding += f"; at most {limit.most}{used} ({limit.source})"
    if needs.tasks + (limit.used or 0) <= limit.most:
        return ok("task need", finding)
    return warn("task need", f"{finding}: workers will not start", MORE_PROCESSES)


def check_needs(needs: Needs) -> list[Check]:
    """Return the lines that compare a scenario's needs with this machine: /dev/shm, open files and processes."""
    group = cgroup.find_group("pids", ROOT)
    return [
        check_shared_need(needs, read_shared_memory(read_mounts())),
        check_files_need(needs, resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        check_task_need(needs, tightest([user_task_limit(), read_task_limit(group)])),
    ]
