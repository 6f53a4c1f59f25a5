"""Reads JSON; writes files and folders under a temporary name, with its process, and renames them."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from trainer.errors import InputError, cannot_write, visible

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
    """Return the path ``name`` with original names in place of temporary ones."""
    return "/".join(match["name"] if (match := _TEMPORARY.fullmatch(part)) else part for part in name.split("/"))


def partial_path(path: Path) -> Path:
    """Return the name beside ``path`` of partial work from which another process can resume."""
    return path.with_name(f".{path.name}{_PARTIAL}")


def remove_leftovers(folder: Path) -> None:
    """Remove what ended processes left in a folder of this harness (a user's: :func:`remove_leftovers_of`)."""
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
    """Return the seconds since ``path`` or a file below was written; 0 if one disappears meanwhile."""
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
    """Yield a folder to write into, which gets the name ``out`` if the block ends without an error."""
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


MAX_DIGITS = 25  # more than any 64-bit integer has


def read_json(path: Path) -> Any:
    """Return the JSON value. Raises OSError; ValueError if invalid, too deep, or a number is no 64-bit one."""
    try:
        return json.loads(path.read_text(), parse_constant=_refuse, parse_float=_finite, parse_int=_whole)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def shell_word(text: str | Path) -> str:
    """Quote ``text`` as one word of a shell command."""
    return shlex.quote(str(text))


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _whole(text: str) -> int:
    value = int(text) if len(text) < MAX_DIGITS else 2**64
    return value if -(2**63) <= value < 2**63 else _refuse(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text:.40} is outside of the range of numbers")


def check_utf8(name: str, where: str) -> None:
    """Raise InputError for a name that is not UTF-8, because tables, pages and messages cannot contain it."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: {visible(name)}: its name is not UTF-8; rename it") from error


def expanded(path: str | Path) -> Path:
    """Return ``path`` with ~ and ~user replaced by home folders. Raises InputError if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InputError(f"{path}: unknown home folder of {Path(path).parts[0]}") from error


@contextmanager
def naming(path: Path, temporary: Path) -> Iterator[None]:
    """Context that names ``path`` in an OSError without a file name, or with that of ``temporary``."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and (error.filename is None or str(error.filename) == str(temporary)):
            error.filename = str(path)
        raise


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Create the file ``path`` by ``write(temporary path)`` and a rename; the last rename wins. Makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    try:
        with naming(path, temporary):
            write(temporary)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` atomically, creating its folder."""
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def write_text(path: Path, content: str) -> None:
    """Write ``content`` to ``path`` atomically as UTF-8, creating its folder."""
    write_bytes(path, content.encode())
