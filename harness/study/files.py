"""Names, links and digests of a study's files.

A link that would lead out of the study's folder is refused. Each file's SHA-256 is kept in run.json, which tells a file
that a run wrote from one that was damaged since. A file may have two digests while it is being replaced: whatever
moment a kill hits, one of them is that of the file. run.json and study.json keep one of their own content too. In
run.json it does not cover the digests of the files; those have one of their own (:data:`OF_DIGESTS`), which it does
cover.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from trainer.errors import InputError, visible
from trainer.json_types import JsonObject

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


CONTENT = "content_sha256"  # key of a record's own digest
OF_DIGESTS = "digests_sha256"  # key of the digest of the files' digests; older records have none
# A report, of an older version too, replaces this file and its digest: that there is one is sealed, not what it is.
_REPLACED = "steps.parquet"
# An older version checks the record's own without these.
_NOT_IN_CONTENT = {CONTENT, "digests"}


def sealed(content: JsonObject) -> JsonObject:
    """``content``, which JSON can hold, with its own digest, and with that of its files' digests where it has any."""
    plain = {key: value for key, value in content.items() if key != OF_DIGESTS}
    if plain.get("digests"):
        plain[OF_DIGESTS] = _digests_digest(plain)
    return {**plain, CONTENT: _content_digest(plain)}


def seals_digests(content: JsonObject) -> bool:
    """Whether the digests of its files are sealed too: then the run left no other file than those."""
    return CONTENT in content and OF_DIGESTS in content


def check_sealed(path: Path, content: JsonObject) -> None:
    """InputError where a record is not what was written; one from before records had digests is taken as it is."""
    if CONTENT in content and content[CONTENT] != _content_digest(content):
        raise InputError(
            f"{path}: damaged, or changed since it was written: what it says does not have the SHA-256 in its key "
            f"{CONTENT} (whoever changed it on purpose removes that key)"
        )
    if seals_digests(content) and content[OF_DIGESTS] != _digests_digest(content):
        raise InputError(
            f"{path}: damaged, or changed since it was written: its key digests does not have the SHA-256 in its key "
            f"{OF_DIGESTS} (whoever changed it on purpose removes the key {CONTENT})"
        )


def _content_digest(content: JsonObject) -> str:
    return _json_digest({key: value for key, value in content.items() if key not in _NOT_IN_CONTENT})


def _digests_digest(content: JsonObject) -> str:
    found = content.get("digests")
    known = found if isinstance(found, dict) else {}
    return _json_digest({name: None if name == _REPLACED else one for name, one in known.items()})


def _json_digest(value: object) -> str:
    # As it will be read: keys are text then, and sort as text.
    plain = json.loads(json.dumps(value, default=str))
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


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
                "whoever changed it on purpose, or by the report of an older version, removes the entry and the key "
                f"{CONTENT})"
            )
