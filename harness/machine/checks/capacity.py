"""Check memory, swap, /dev/shm, open files and free space on disks, and if these suffice for a scenario."""

from __future__ import annotations

import resource

from harness.machine import cgroup
from harness.machine.capacity import (
    MORE_OPEN_FILES,
    MORE_PROCESSES,
    MORE_SHARED_MEMORY,
    Memory,
    Needs,
    SharedMemory,
    Storage,
    TaskLimit,
    read_shared_memory,
    read_task_limit,
    tightest,
    user_task_limit,
)
from harness.machine.cgroup import MemoryLimit
from harness.machine.checks.check import Check, count, fail, ok, size, warn
from harness.machine.files import ROOT, read_mounts

LEAST_FREE_MEMORY_BYTES = 2 * 2**30  # torch, transformers and a tiny model in two processes
LEAST_SHARED_BYTES = 2**30
LEAST_SHARED_FREE_BYTES = 256 * 2**20
SWAP_IN_USE_BYTES = 2**30  # Less is usually old pages that no process uses.
LEAST_OPEN_FILES = 1024
NEEDED_BYTES = 100 * 2**20  # a small study with its corpus
LEAST_FREE_DISK_BYTES = 5 * 2**30  # profiles and pretokenized corpora of some size


def check_memory(memory: Memory, limit: MemoryLimit | None) -> Check:
    free = [room for room in (memory.available_bytes, limit.free_bytes if limit else None) if room is not None]
    if memory.total_bytes is None or not free:
        return ok("memory", "not reported by this system")
    limited = "no cgroup limit"
    if limit is not None:
        limited = f"cgroup v{limit.version} limit {size(limit.limit_bytes)}"
        if limit.oom_kills:
            limited += f", {limit.oom_kills} killed by the kernel (out of memory)"
    finding = f"{size(min(free))} free of {size(memory.total_bytes)}, {limited}"
    if memory.huge_pages is not None:
        finding += f"; huge pages {memory.huge_pages}"
    if min(free) >= LEAST_FREE_MEMORY_BYTES:
        return ok("memory", finding)
    return warn("memory", finding, "end other processes, raise the limit, or use --interleave runs (one arm at a time)")


def check_swap(memory: Memory) -> Check:
    if not memory.swap_total_bytes:
        return ok("swap", "none")
    finding = f"{size(memory.swap_used_bytes)} of {size(memory.swap_total_bytes)} in use"
    if memory.swap_used_bytes < SWAP_IN_USE_BYTES:
        return ok("swap", finding)
    return warn(
        "swap",
        f"{finding}: a step that touches a swapped page waits for the disk",
        "sudo swapoff -a && sudo swapon -a, once enough memory is free",
    )


def check_shared_memory(shared: SharedMemory | None) -> Check:
    if shared is None or not shared.writable:
        problem = "none" if shared is None else "not writable"
        fix = "mount a tmpfs on /dev/shm (mode 1777); until then data.workers 0"
        return warn("/dev/shm", f"{problem}: loader workers cannot start", fix)
    finding = f"{size(shared.free_bytes)} free of {size(shared.total_bytes)}"
    if shared.total_bytes >= LEAST_SHARED_BYTES and shared.free_bytes >= LEAST_SHARED_FREE_BYTES:
        return ok("/dev/shm", finding)
    return warn(
        "/dev/shm",
        f"{finding}: loader workers pass batches through it; when it is full, they crash (bus error)",
        "docker run --shm-size=8g (Kubernetes: emptyDir, medium Memory); sudo mount -o remount,size=8g /dev/shm",
    )


def check_open_files(soft: int, hard: int) -> Check:
    """Return the line on the limit of open files (RLIMIT_NOFILE), for which -1 means no limit."""
    if soft < 0 or soft >= LEAST_OPEN_FILES:
        return ok("open files", "no limit" if soft < 0 else f"at most {soft}")
    limit = "unlimited" if hard < 0 else str(hard)
    if hard < 0 or hard >= LEAST_OPEN_FILES:
        fix = f"ulimit -n {4096 if hard < 0 else min(hard, 4096)}"
    else:
        fix = "docker run --ulimit nofile=4096, or nofile in /etc/security/limits.conf"
    return warn("open files", f"at most {soft} (hard limit {limit}): each batch from a worker opens several", fix)


def check_storage(name: str, storage: Storage, other: str) -> Check:
    """Return the line ``name`` on a folder that studies write to. ``other``: option that chooses another folder."""
    note = "" if storage.existing == storage.folder else " (does not exist yet)"
    kind = f", {storage.kind}" if storage.kind else ""
    finding = f"{storage.folder}{note}: {size(storage.free_bytes)} free{kind}"
    if not storage.writable:
        return fail(name, f"{finding}; {storage.existing} is not writable", f"another folder: {other}")
    if storage.free_bytes < NEEDED_BYTES:
        return fail(name, f"{finding}: a study needs {size(NEEDED_BYTES)} or more", f"make room, or {other}")
    if storage.free_bytes < LEAST_FREE_DISK_BYTES:
        return warn(name, f"{finding}: profiles and corpora may not fit", f"make room, or {other}")
    return ok(name, f"{finding}{': network file system, slower reads' if storage.network else ''}")


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
