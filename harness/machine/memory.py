"""Read the machine's memory: free memory, swap, huge pages, and the shared memory that carries workers' batches."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from harness.machine.files import ROOT, Mount, mount_of, read_fields, read_text, to_int

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
    """Size and free space of /dev/shm, which carries the batches of loader workers.

    Read by :func:`read_shared_memory`.
    """

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
    """Read size and free space of /dev/shm.

    None if it does not exist. It may hang with its file system, so use a timeout.
    """
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
    """Return the summed peak memory (VmHWM, bytes) of the living processes of a session. None if none reports it.

    ``session``: its id. Pages that processes share count in each, so the sum is an upper bound.
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
