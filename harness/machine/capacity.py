"""Read and check what this machine can hold: memory, disks, open files, processes; and list what raises a limit."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.machine import cgroup
from harness.machine.cgroup import ControlGroup, MemoryLimit
from harness.machine.check import Check, count, fail, ok, size, warn
from harness.machine.files import ROOT, Mount, mount_of, read_fields, read_int, read_mounts, read_text, to_int
from trainer.files import expanded

_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30}


@dataclass(frozen=True)
class Memory:
    """Memory of the whole machine, read by :func:`read_memory`. A control group may allow less."""

    total_bytes: int | None
    available_bytes: int | None  # Bytes that new processes can use without swapping
    swap_total_bytes: int
    swap_used_bytes: int
    huge_pages: str | None  # Transparent huge pages: always, madvise or never.


@dataclass(frozen=True)
class SharedMemory:
    """Size and free space of /dev/shm, which carries the batches of loader workers (:func:`read_shared_memory`)."""

    total_bytes: int
    free_bytes: int
    writable: bool


def read_memory(root: Path = ROOT) -> Memory:
    fields = {name: value.removesuffix(" kB") for name, value in read_fields(root / "proc/meminfo", ":").items()}

    def size(name: str) -> int | None:
        kib = to_int(fields.get(name))
        return None if kib is None else kib * 1024

    swap = size("SwapTotal") or 0
    chosen = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    pages = next((word[1:-1] for word in (chosen or "").split() if word.startswith("[")), None)
    return Memory(size("MemTotal"), size("MemAvailable"), swap, max(swap - (size("SwapFree") or 0), 0), pages)


def read_shared_memory(mounts: list[Mount], root: Path = ROOT) -> SharedMemory | None:
    """Read size and free space of /dev/shm; None if it does not exist. It may hang: use a timeout."""
    folder = root / "dev/shm"
    try:
        usage = os.statvfs(folder)
    except OSError:
        return None
    mount = mount_of(Path("/dev/shm"), mounts)
    size = _size(mount.option("size")) if mount is not None and mount.point == "/dev/shm" else None
    total = usage.f_blocks * usage.f_frsize if size is None else size
    return SharedMemory(total, min(usage.f_bavail * usage.f_frsize, total), os.access(folder, os.W_OK | os.X_OK))


def _size(text: str | None) -> int | None:
    """Convert the size option of a tmpfs, such as 65536k, to bytes; None for other forms such as a percentage."""
    if not text:
        return None
    unit = _UNITS.get(text[-1].lower())
    number = to_int(text[:-1] if unit else text)
    return None if number is None else number * (unit or 1)


def session_peak_bytes(session: int) -> int | None:
    """Return the summed peak memory (VmHWM, bytes; shared pages count in each) of a session's living processes, or
    None if it has none.
    """
    total = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[3]) != session:
                continue
            lines = (folder / "status").read_bytes().splitlines()
            peak_line = next((line for line in lines if line.startswith(b"VmHWM")), None)
        except OSError:  # The process has ended, or is not readable for this user.
            continue
        if peak_line is not None:
            total += int(peak_line.split()[1]) * 1024
    return total or None


NETWORK = {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "9p", "afs", "fuse.sshfs", "fuse.gcsfuse"}


@dataclass(frozen=True)
class Storage:
    """Free space and write permission of a folder that studies write to, read by :func:`read_storage`."""

    folder: Path
    existing: Path  # The folder itself, or its nearest existing parent
    free_bytes: int
    writable: bool
    kind: str | None  # Type of the file system

    @property
    def network(self) -> bool:
        return self.kind in NETWORK


def read_storage(folder: Path, mounts: list[Mount]) -> Storage:
    """Read free space and write permission of ``folder`` or its nearest existing parent. It may hang: use a timeout."""
    folder = expanded(folder).absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    mount = mount_of(existing.resolve(), mounts)
    return Storage(folder, existing, shutil.disk_usage(existing).free, writable, None if mount is None else mount.kind)


@dataclass(frozen=True)
class Needs:
    """Estimated maximum of the resources that a study needs at one time. ``arms``: number of arms that run together."""

    arms: int
    workers: int  # Loader workers of all arms
    shared_bytes: int  # Bytes in /dev/shm, which carries the workers' batches
    open_files: int  # Open files of the process that needs most
    tasks: int  # Number of processes and threads


@dataclass(frozen=True)
class TaskLimit:
    """A limit on the number of processes and threads. ``used``: current number; None if unknown."""

    most: int
    used: int | None
    source: str


def read_task_limit(group: ControlGroup | None) -> TaskLimit | None:
    """Return the limit (pids.max) of the control groups up to the mount that leaves the least room, if any."""
    if group is None:
        return None
    limits = (
        TaskLimit(tasks_max, read_int(folder / "pids.current"), f"pids.max of {folder}")
        for folder in group.lineage()
        if (tasks_max := read_int(folder / "pids.max")) is not None
    )
    return tightest(limits)


def tightest(limits: Iterable[TaskLimit | None]) -> TaskLimit | None:
    """Return the limit that leaves the least room; None if all of ``limits`` are None."""
    readable = [limit for limit in limits if limit is not None]
    return min(readable, key=lambda limit: limit.most - (limit.used or 0), default=None)


def user_task_limit() -> TaskLimit | None:
    """Return this user's limit of processes (RLIMIT_NPROC); None without one. Its current use is not read."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return None if soft < 0 else TaskLimit(soft, None, "ulimit -u")


LARGER_SHM = "docker run --shm-size=8g (Kubernetes: emptyDir, medium Memory); sudo mount -o remount,size=8g /dev/shm"
MORE_SHARED_MEMORY = f"{LARGER_SHM}; or fewer data.workers, data.prefetch"
MORE_OPEN_FILES = "ulimit -n 4096 (docker run --ulimit nofile=4096, or nofile in /etc/security/limits.conf)"
MORE_PROCESSES = "ulimit -u, docker run --pids-limit, or pids.max of the control group: raise it; or fewer data.workers"
MORE_MEMORY = "more memory, or use less: --interleave runs, fewer data.workers, a smaller model"

REMEDIES = {
    "shared memory": MORE_SHARED_MEMORY,
    "open files": MORE_OPEN_FILES,
    "processes": MORE_PROCESSES,
    "memory": MORE_MEMORY,
}
# Messages of torch and Python in a log or an error after such a limit was reached.
_SIGNS = {
    "shared memory": ("unable to allocate shared memory", "bus error", "out of shared memory"),
    "open files": ("too many open files", "received 0 items of ancdata", "unable to open shared memory"),
    "processes": ("can't start new thread", "resource temporarily unavailable", "pthread_create failed"),
    "memory": ("cannot allocate memory", "memoryerror", "can't allocate memory", "killed by signal: killed"),
}


def cause_in(text: str) -> str | None:
    """Return the key of REMEDIES for the exhausted limit that ``text`` (a log or an error) names; None if none."""
    return next((cause for cause, signs in _SIGNS.items() if any(sign in text.lower() for sign in signs)), None)


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
    fix = "sudo swapoff -a && sudo swapon -a, once enough memory is free"
    return warn("swap", f"{finding}: a step that touches a swapped page waits for the disk", fix)


def check_shared_memory(shared: SharedMemory | None) -> Check:
    if shared is None or not shared.writable:
        problem = "none" if shared is None else "not writable"
        fix = "mount a tmpfs on /dev/shm (mode 1777); until then data.workers 0"
        return warn("/dev/shm", f"{problem}: loader workers cannot start", fix)
    finding = f"{size(shared.free_bytes)} free of {size(shared.total_bytes)}"
    if shared.total_bytes >= LEAST_SHARED_BYTES and shared.free_bytes >= LEAST_SHARED_FREE_BYTES:
        return ok("/dev/shm", finding)
    problem = "loader workers pass batches through it; when it is full, they crash (bus error)"
    return warn("/dev/shm", f"{finding}: {problem}", LARGER_SHM)


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
