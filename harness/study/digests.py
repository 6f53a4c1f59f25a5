"""Tells a file that a run wrote from one that was damaged since: each file's digest is kept in run.json.

A file may have two digests while it is being replaced: whatever moment a kill hits, one of them is that of the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from trainer.errors import InputError

Digests = Mapping[str, tuple[str, ...]]  # by file name
NOT_DIGESTED = {"run.json", "log.txt"}  # what holds the digests, and what is still written to


def digest(path: Path) -> str:
    """The SHA-256 of a file's bytes, named: hundreds of megabytes take less time than reading the table in them."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def digests_of(folder: Path) -> dict[str, tuple[str, ...]]:
    """The digest of every file that a run left in its folder."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in NOT_DIGESTED)
    return {path.name: (digest(path),) for path in files if not path.name.startswith(".")}


def check(folder: Path, known: Digests, names: Iterable[str]) -> None:
    """InputError where one of these files is gone, or is not what the run wrote."""
    for name in names:
        path = folder / name
        try:
            changed = digest(path) not in known[name]
        except FileNotFoundError as error:
            raise InputError(f"{path}: the run wrote this file, and it is gone") from error
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error
        if changed:
            raise InputError(
                f"{path}: damaged, or changed since it was written: its SHA-256 is not that in run.json (key digests; "
                "whoever changed it on purpose, or by the report of an older version, removes the entry)"
            )
