"""Names the folders of a study, and refuses links in it that would lead elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from trainer.errors import InputError, visible

MAX_NAME_BYTES = 255  # of one part of a path, on every common file system


def folder_name(name: str) -> str:
    """``name`` itself; ValueError where it is no name of one folder within another."""
    if not name or name in (".", "..") or "/" in name or "\\" in name or not name.isprintable():
        raise ValueError(f"not usable as a folder's name: {_short(name)}")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"longer than the {MAX_NAME_BYTES} bytes that a folder's name may have: {_short(name)}")
    return name


def check_folder_name(name: str, what: str) -> str:
    """``name`` itself, the name of ``what``; InputError where :func:`folder_name` refuses it."""
    try:
        return folder_name(name)
    except ValueError as error:
        raise InputError(f"{what}: {error}") from error


def _short(name: str) -> str:
    text = visible(repr(name))
    return text if len(text) <= 60 else f"{text[:57]}..."


FolderName = Annotated[str, AfterValidator(folder_name)]


# At the top of a study's folder only these are written through; every other file is replaced by a rename.
WRITTEN_THROUGH = {"runs", "plots", "raw", "slurm", ".lock"}
_DEPTH = 3  # runs/<arm>/<block>/<file>


def check_no_links(study: Path) -> None:
    """InputError that names the first symbolic link in the folder ``study``, which itself may be reached by one."""
    for link in _links(study):
        raise InputError(
            f"{link} is a link: a study's files must lie in its own folder; "
            "copy the study with cp -rL, or remove the link"
        )


def _links(study: Path) -> Iterator[Path]:
    for entry in _entries(study):
        if entry.name in WRITTEN_THROUGH and entry.is_symlink():
            yield Path(entry.path)
    yield from _links_below(study / "runs", _DEPTH)


def _links_below(folder: Path | str, depth: int) -> Iterator[Path]:
    for entry in _entries(folder):
        if entry.is_symlink():  # the listing says so: no file is asked
            yield Path(entry.path)
        elif depth > 1 and entry.is_dir(follow_symlinks=False):
            yield from _links_below(entry.path, depth - 1)


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    """What lies in ``folder``, by name; nothing where it is gone or cannot be read."""
    with suppress(OSError), os.scandir(folder) as found:
        return sorted(found, key=lambda entry: entry.name)
    return []
