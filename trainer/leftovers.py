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
_OWNED = re.compile(r"\..+\.(?P<place>[0-9a-f]{8})\.(?P<pid>[0-9]+)\.[0-9]+\.tmp")


def temporary_path(path: Path) -> Path:
    """A name beside ``path`` that no other process or thread uses."""
    return path.with_name(f".{path.name}.{_place()}.{os.getpid()}.{threading.get_ident()}.tmp")


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders in ``folder`` that nobody is writing any more; what cannot be, stays."""
    try:
        found = [path for path in folder.iterdir() if path.name.startswith(".") and path.name.endswith(".tmp")]
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
    owned = _OWNED.fullmatch(path.name)
    if owned is not None and owned["place"] == _place():
        return not _is_alive(int(owned["pid"]))
    try:
        return time.time() - _last_written_s(path) > _FOREIGN_S
    except OSError:  # gone meanwhile: its owner lives
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's
        pass
    return True


def _last_written_s(path: Path) -> float:
    return max(one.lstat().st_mtime for one in (path, *path.rglob("*")))


@cache
def _place() -> str:
    """Where process ids mean the same processes: this boot of this machine, and this container."""
    parts = [socket.gethostname()]
    try:
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(), str(Path("/proc/self/ns/pid").readlink())]
    except OSError:
        pass  # no Linux: the name alone
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
