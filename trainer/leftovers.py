"""Names temporary files and folders after the process that writes them, and removes those whose process has ended."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import threading
import time
from functools import cache
from pathlib import Path

# Of a process that cannot be seen from here (another machine, another container, before a reboot, an earlier version
# of this code): nothing that is being written stays unwritten for as long.
_FOREIGN_S = 24 * 3600.0
_ABANDONED_S = 7 * 24 * 3600.0  # what a killed process can go on from, where it does not within this time
_PARTIAL = ".partial"
_OWNED = re.compile(r"\..+\.(?P<place>[0-9a-f]{8})\.(?P<pid>[0-9]+)\.[0-9]+\.tmp")

_TEMPORARY = re.compile(r"\.(?P<name>.+?)(\.[0-9a-f]{8}\.[0-9]+\.[0-9]+\.tmp|\.partial)")


def temporary_path(path: Path) -> Path:
    """A name beside ``path`` that no other process or thread uses."""
    return path.with_name(f".{path.name}.{_place()}.{os.getpid()}.{threading.get_ident()}.tmp")


def final_name(name: str) -> str:
    """Return ``name`` with every part that :func:`temporary_path` or :func:`partial_path` made as it was asked for."""
    return "/".join(found["name"] if (found := _TEMPORARY.fullmatch(part)) else part for part in name.split("/"))


def partial_path(path: Path) -> Path:
    """The name beside ``path`` of what a process has begun that another one may go on with."""
    return path.with_name(f".{path.name}{_PARTIAL}")


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders in ``folder`` that nobody is writing any more; what cannot be, stays.

    ``folder`` is this program's own. In one that the user chose others may keep theirs: :func:`remove_leftovers_of`.
    """
    _remove_left(folder, ".")


def remove_leftovers_of(path: Path) -> None:
    """Remove what killed processes left beside ``path``, which they were writing, and nothing else."""
    _remove_left(path.parent, f".{path.name}.")


def _remove_left(folder: Path, begin: str) -> None:
    try:
        found = [path for path in folder.iterdir() if path.name.startswith(begin) and path.suffix in (".tmp", _PARTIAL)]
    except OSError:
        return
    for path in found:
        if _is_left(path):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder; what cannot be removed, stays."""
    try:
        path.unlink(missing_ok=True)
    except OSError:  # a folder, as a rule
        shutil.rmtree(path, ignore_errors=True)


def _is_left(path: Path) -> bool:
    if path.suffix == _PARTIAL:
        return _unwritten_s(path) > _ABANDONED_S
    owned = _OWNED.fullmatch(path.name)
    if owned is not None and owned["place"] == _place():
        return not _is_alive(int(owned["pid"]))
    return _unwritten_s(path) > _FOREIGN_S


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's
        pass
    return True


def _unwritten_s(path: Path) -> float:
    """Seconds since anything in it was written; 0 where it is gone meanwhile: its owner lives."""
    try:
        return time.time() - max(one.lstat().st_mtime for one in (path, *path.rglob("*")))
    except OSError:
        return 0.0


@cache
def _place() -> str:
    """Where process ids mean the same processes: this boot of this machine, and this container."""
    parts = [socket.gethostname()]
    try:
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(), str(Path("/proc/self/ns/pid").readlink())]
    except OSError:
        pass  # no Linux: the name alone
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
