"""Reads JSON; writes files so that no reader sees an incomplete one: to a temporary name, then renamed."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from trainer.errors import InputError, visible
from trainer.leftovers import temporary_path

MAX_DIGITS = 25  # more than any 64-bit integer has


def read_json(path: Path) -> Any:
    """Return the JSON value in ``path``. Raises OSError, or ValueError if it is invalid or nested too deep.

    ValueError also for numbers that JSON does not have (NaN, Infinity), or that no float or 64-bit integer can
    represent.
    """
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
    raise ValueError(f"{text:.40} is no number that a program can count with")


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
        raise InputError(f"{path}: no home folder is known for {Path(path).parts[0]}") from error


@contextmanager
def naming(path: Path, temporary: Path) -> Iterator[None]:
    """Context that sets ``path`` as the file of an OSError, so that its message shows the full disk.

    Only errors without a file, or with the file ``temporary``, are changed.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and (error.filename is None or str(error.filename) == str(temporary)):
            error.filename = str(path)
        raise


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Create ``path`` by ``write(temporary path)`` and a rename. Creates its folder; the temporary file never stays.

    Two threads or processes that write the same path do not disturb each other: the last rename wins. Leftovers of a
    killed process are removed by :func:`trainer.leftovers.remove_leftovers`.
    """
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

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    write_atomically(path, write)


def write_text(path: Path, content: str) -> None:
    """Write ``content`` to ``path`` atomically as UTF-8, creating its folder."""
    write_bytes(path, content.encode())
