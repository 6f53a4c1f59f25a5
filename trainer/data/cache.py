"""Builds things once and finds them again: the cache folder, content fingerprints, atomic creation."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.errors import InputError
from trainer.files import expanded, read_json, write_text

FINGERPRINT_LENGTH = 16  # hex digits: 64 bits, far beyond any collision by chance among cached files


def cache_root() -> Path:
    """``$HARNESS_CACHE``, or ``llm-harness`` under ``$XDG_CACHE_HOME`` or ``~/.cache``; not created here."""
    if chosen := os.environ.get("HARNESS_CACHE"):
        return expanded(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").absolute() / "llm-harness"


def fingerprint(*parts: object) -> str:
    """Short sha256 of ``parts`` as JSON: equal parts, equal fingerprint."""
    content = json.dumps(parts, sort_keys=True, default=str).encode()
    return hashlib.sha256(content).hexdigest()[:FINGERPRINT_LENGTH]


def file_identity(path: Path) -> list[object]:
    """Identify a file's content without reading it: absolute path, size in bytes, mtime in ns."""
    stat = path.stat()
    return [str(path.absolute()), stat.st_size, stat.st_mtime_ns]


def file_fingerprint(path: Path) -> str:
    """Short sha256 of a file's content, remembered in the cache by the file's path, size and mtime."""

    def compute() -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:FINGERPRINT_LENGTH]

    return str(remember("content", file_identity(path), compute))


def remember(kind: str, key: object, compute: Callable[[], Any]) -> Any:
    """The JSON value of ``compute()``, remembered under ``kind`` and ``key``; a damaged memory is recomputed."""
    path = cache_root() / "facts" / f"{kind}-{fingerprint(key)}.json"
    try:
        return read_json(path)
    except (OSError, ValueError):
        pass
    value = compute()
    _guard(lambda: write_text(path, json.dumps(value)))
    return value


def folder(kind: str, key: object, build: Callable[[Path], None]) -> Path:
    """The cached folder ``kind/<key>``, built by ``build(temporary folder)`` where it does not exist yet."""
    target = cache_root() / kind / fingerprint(key)
    if not target.is_dir():
        create_folder(target, build)
    return target


def create_folder(target: Path, build: Callable[[Path], None]) -> None:
    """Build a folder beside ``target`` and rename it, so that no reader sees an incomplete one.

    Where another process was faster, keep its folder and drop ours: both have the same content.
    """

    def temporary_folder() -> Path:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
        made.chmod(0o755)  # mkdtemp makes it private; a cache may be shared
        return made

    temporary = _guard(temporary_folder)
    try:
        build(temporary)
        try:
            temporary.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _guard(write: Callable[[], Any]) -> Any:
    try:
        return write()
    except OSError as error:
        place = error.filename or cache_root()
        reason = error.strerror or error
        raise InputError(f"{place}: cannot be written ({reason}); HARNESS_CACHE=DIR chooses another cache") from error
