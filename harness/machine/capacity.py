"""Read what this machine can hold: memory, disks, open files, processes; and list what raises such a limit."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.machine.cgroup import ControlGroup
from harness.machine.files import ROOT, Mount, mount_of, read_fields, read_int, read_text, to_int
from trainer.files import expanded

_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30}


@dataclass(frozen=True)
class Memory:
    """Memory of the whole machine, read by :func:`read_memory`. A control group may allow less."""

    total_bytes: int | None
    available_bytes: int | None
    """Bytes that new processes can use without swapping."""
    swap_total_bytes: int
    swap_used_bytes: int
    huge_pages: str | None
    """Transparent huge pages: always, madvise or never."""


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
    """Return the summed peak memory (VmHWM, bytes; shared pages count in each) of a session's living processes."""
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
    existing: Path
    """The folder itself, or its nearest existing parent."""
    free_bytes: int
    writable: bool
    kind: str | None
    """Type of the file system."""

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


MORE_SHARED_MEMORY = (
    "docker run --shm-size=8g (Kubernetes: emptyDir, medium Memory); sudo mount -o remount,size=8g /dev/shm; "
    "or fewer data.workers, data.prefetch"
)
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
