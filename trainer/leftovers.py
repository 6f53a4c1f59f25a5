"""Names temporary files and folders after the process that writes them, and removes those whose process has ended.

A new folder (:func:`new_folder`) has such a name until it is whole.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from trainer.errors import InputError, cannot_write

# Age limit for files of processes that are not visible here (another machine or container, before a reboot, an earlier
# version of this code). A file in use is written more often.
_FOREIGN_S = 24 * 3600.0
_ABANDONED_S = 7 * 24 * 3600.0  # age limit of partial work from which another process could resume
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REMEDY = "--out DIR chooses another folder"
_PARTIAL = ".partial"
_OWNED = re.compile(r"\..+\.(?P<place>[0-9a-f]{8})\.(?P<pid>[0-9]+)\.[0-9]+\.tmp")

_TEMPORARY = re.compile(r"\.(?P<name>.+?)(\.[0-9a-f]{8}\.[0-9]+\.[0-9]+\.tmp|\.partial)")


def temporary_path(path: Path) -> Path:
    """Return a name beside ``path`` for a temporary file or folder that no other process or thread uses."""
    return path.with_name(f".{path.name}.{_place()}.{os.getpid()}.{threading.get_ident()}.tmp")


def final_name(name: str) -> str:
    """Return the path ``name`` without the temporary names of :func:`temporary_path` and :func:`partial_path`.

    Original names stand in their place.
    """
    return "/".join(match["name"] if (match := _TEMPORARY.fullmatch(part)) else part for part in name.split("/"))


def partial_path(path: Path) -> Path:
    """Return the name beside ``path`` of partial work from which another process can resume."""
    return path.with_name(f".{path.name}{_PARTIAL}")


def remove_leftovers(folder: Path) -> None:
    """Remove the abandoned temporary files and folders in ``folder``. Skips those that cannot be removed.

    ``folder`` must be this program's own. In a user's folder, other files may look alike: :func:`remove_leftovers_of`.
    """
    _remove_left(folder, ".")


def remove_leftovers_of(path: Path) -> None:
    """Remove the temporary files of killed processes that were writing ``path``, and nothing else."""
    _remove_left(path.parent, f".{path.name}.")


def _remove_left(folder: Path, begin: str) -> None:
    try:
        leftovers = [
            path for path in folder.iterdir() if path.name.startswith(begin) and path.suffix in (".tmp", _PARTIAL)
        ]
    except OSError:
        return
    for path in leftovers:
        if _is_left(path):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder. Skips parts that cannot be removed."""
    try:
        path.unlink(missing_ok=True)
    except OSError:  # usually a folder
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
    except OSError:  # process of another user
        pass
    return True


def _unwritten_s(path: Path) -> float:
    """Return the seconds since anything in ``path`` was last written; 0 if a file is gone meanwhile.

    A file that disappears shows that its owner lives.
    """
    try:
        return time.time() - max(file.lstat().st_mtime for file in (path, *path.rglob("*")))
    except OSError:
        return 0.0


@cache
def _place() -> str:
    """Return an id of the place where process ids are comparable: this boot of this machine, and this container."""
    parts = [socket.gethostname()]
    try:
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(), str(Path("/proc/self/ns/pid").readlink())]
    except OSError:
        pass  # Outside of Linux only the host's name counts.
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


def check_new(out: Path) -> None:
    """Raise InputError if ``out`` exists and is not an empty folder."""
    if out.is_dir() and not out.is_symlink() and not os.listdir(out):  # noqa: PTH208
        return
    if out.exists() or out.is_symlink():
        raise InputError(f"--out {out}: is there already; give a folder that is not, or an empty one")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder to write into, which gets the name ``out`` if the block ends without an error.

    Temporary folders of killed processes are removed first.
    """
    remove_leftovers_of(out)
    folder = temporary_path(out)
    try:
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise cannot_write(out, error, _REMEDY) from error
        try:
            yield folder
        except OSError as error:
            if error.errno in _FULL:
                error.filename = str(out)  # shows which disk is full
            raise
        try:
            folder.rename(out)
        except OSError as error:
            raise cannot_write(out, error, _REMEDY) from error
    finally:
        remove(folder)
