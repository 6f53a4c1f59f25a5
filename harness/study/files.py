"""Names, links and digests of a study's files. A link that would lead out of the study's folder is refused.

run.json has each file's SHA-256 (two while it is replaced, so that one matches at any moment of a kill). run.json and
study.json have a digest of their own content; in run.json, the files' digests have their own (:data:`OF_DIGESTS`).
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

MAX_NAME_BYTES = 255  # bytes of one part of a path, on every common file system


def folder_name(name: str) -> str:
    """Return ``name``. Raises ValueError if it cannot name a single folder, for example because of a slash."""
    if not name or name in (".", "..") or "/" in name or "\\" in name or not name.isprintable():
        raise ValueError(f"not usable as a folder's name: {_short(name)}")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"longer than the {MAX_NAME_BYTES} bytes that a folder's name may have: {_short(name)}")
    return name


def check_folder_name(name: str, what: str) -> str:
    """Return ``name``. Raises InputError, naming ``what``, if it is not the name of a single folder."""
    try:
        return folder_name(name)
    except ValueError as error:
        raise InputError(f"{what}: {error}") from error


def _short(name: str) -> str:
    text = visible(repr(name))
    return text if len(text) <= 60 else f"{text[:57]}..."


FolderName = Annotated[str, AfterValidator(folder_name)]


# Only these names at the top of a study's folder are written through. Every other file is replaced by a rename.
WRITTEN_THROUGH = {"runs", "plots", "raw", "slurm", ".lock"}
_DEPTH = 3  # runs/<arm>/<block>/<file>


def check_no_links(study: Path) -> None:
    """Raise InputError for the first symbolic link within a study's folder. The folder itself may be a link."""
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
        if entry.is_symlink():  # The directory listing has this, without a look at each file.
            yield Path(entry.path)
        elif depth > 1 and entry.is_dir(follow_symlinks=False):
            yield from _links_below(entry.path, depth - 1)


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    """Return the entries of ``folder``, sorted by name; [] if it is missing or cannot be read."""
    with suppress(OSError), os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)
    return []


Digests = Mapping[str, tuple[str, ...]]  # by file name
NOT_DIGESTED = {"run.json", "log.txt"}  # the file with the digests, and the log, which still grows


def digest(path: Path) -> str:
    """Return the SHA-256 of a file as ``sha256:HEX``. It takes less time than reading the file as a table."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def digests_of(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return {file name: (digest,)} of the files that a run left in ``folder``, without run.json and the log."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in NOT_DIGESTED)
    return {path.name: (digest(path),) for path in files if not path.name.startswith(".")}


CONTENT = "content_sha256"  # key of a record's own digest
OF_DIGESTS = "digests_sha256"  # key of the digest of the files' digests; older records have none
# A report, also of an older version, replaces this file and its digest. So only the digest's existence is sealed.
_REPLACED = "steps.parquet"
# An older version computes a record's own digest without these keys.
_NOT_IN_CONTENT = {CONTENT, "digests"}


def sealed(content: JsonObject) -> JsonObject:
    """Return a record's ``content`` with a SHA-256 of itself and, if it lists digests of files (key digests), one of
    that list.
    """
    plain = {key: value for key, value in content.items() if key != OF_DIGESTS}
    if plain.get("digests"):
        plain[OF_DIGESTS] = _digests_digest(plain)
    return {**plain, CONTENT: _content_digest(plain)}


def seals_digests(content: JsonObject) -> bool:
    """Return True if a record has digests of itself and of its list of files. A table that the list lacks is then not
    the run's.
    """
    return CONTENT in content and OF_DIGESTS in content


def check_sealed(path: Path, content: JsonObject) -> None:
    """Raise InputError if the record at ``path`` was changed since. Old records have no digests, and pass."""
    if CONTENT in content and content[CONTENT] != _content_digest(content):
        raise InputError(
            f"{path}: damaged, or changed since it was written: its content does not match the SHA-256 in its key "
            f"{CONTENT}. If the change was intended, remove that key"
        )
    if seals_digests(content) and content[OF_DIGESTS] != _digests_digest(content):
        raise InputError(
            f"{path}: damaged, or changed since it was written: its key digests does not match the SHA-256 in its key "
            f"{OF_DIGESTS}. If the change was intended, remove the key {CONTENT}"
        )


def _content_digest(content: JsonObject) -> str:
    return _json_digest({key: value for key, value in content.items() if key not in _NOT_IN_CONTENT})


def _digests_digest(content: JsonObject) -> str:
    digests = content.get("digests")
    by_name = digests if isinstance(digests, dict) else {}
    return _json_digest({name: None if name == _REPLACED else value for name, value in by_name.items()})


def _json_digest(value: object) -> str:
    # Convert as JSON does: keys become text, and sort as text.
    plain = json.loads(json.dumps(value, default=str))
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check(folder: Path, known: Digests, names: Iterable[str]) -> None:
    """Raise InputError if a file of ``names`` in ``folder`` is missing or differs from its digest in ``known``."""
    for name in names:
        path = folder / name
        try:
            changed = digest(path) not in known[name]
        except FileNotFoundError as error:
            raise InputError(f"{path}: the run wrote this file, but it is missing") from error
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error
        if changed:
            raise InputError(
                f"{path}: damaged, or changed since it was written: its SHA-256 is not that in run.json (key digests). "
                "If the change was intended, or made by the report of an older version, remove the entry and the key "
                f"{CONTENT}"
            )
