"""Reads JSON; writes files so that no reader sees an incomplete one: to a temporary name, then renamed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.leftovers import temporary_path


def read_json(path: Path) -> Any:
    """The JSON value in ``path``. Raises OSError, or ValueError where it is none or nested too deep to be read."""
    try:
        return json.loads(path.read_text())
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Create ``path`` by ``write(temporary path)`` and a rename; its folder is made, the temporary file never stays.

    Two threads or processes that write the same path do not disturb each other: the last rename wins. What a killed
    process leaves is removed by :func:`trainer.leftovers.remove_leftovers`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    try:
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
