"""Creates a folder under a temporary name and renames it when it is whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.errors import InputError, cannot_write
from trainer.leftovers import remove, remove_leftovers_of, temporary_path

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REMEDY = "--out DIR chooses another folder"


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
