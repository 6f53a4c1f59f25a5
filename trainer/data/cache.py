"""Builds cache entries once: the cache folder, content fingerprints, atomic creation of folders.

Every entry is hashed before it is used. A damaged entry is built again, with one line on stderr.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trainer.errors import MACHINE_FAULTS, InputError, cannot_write, one_line
from trainer.files import expanded, partial_path, read_json, remove, remove_leftovers, temporary_path, write_text

FINGERPRINT_LENGTH = 16  # hex digits: 64 bits, enough against chance collisions among cached files
DIGESTS = "digests.json"  # digest of every other file in a cached folder
# File with the kind/key of a cached folder. Earlier versions accept it, because digests.json lists it like any file.
ENTRY = "entry.txt"
_REMEDY = "HARNESS_CACHE=DIR chooses another cache"

# Digests that this process has computed, by the file's identity (path, inode, size, times). A file that was written
# within a tick of the file system's clock could change without a new identity, so it is not remembered.
_known: dict[tuple[str | int, ...], str] = {}
_TICK_NS = 100_000_000
_LARGE_BYTES = 128 << 20  # Hashing such a file again takes longer than waiting for the next tick.

Check = Callable[[Path], object]
# Writes an entry into the given folder. It may return digests of files that it hashed while it wrote them.
Build = Callable[[Path], object]
JOURNAL = ".journal"  # folder with a build's state for resuming; it is not part of the entry


def cache_root() -> Path:
    """Return the cache folder: ``$HARNESS_CACHE``, or ``llm-harness`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if chosen := os.environ.get("HARNESS_CACHE"):
        return expanded(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").absolute() / "llm-harness"


def clean() -> None:
    """Remove half-written entries from the cache that killed processes left there."""
    try:
        folders = [path for path in cache_root().iterdir() if path.is_dir()]
    except OSError:
        return
    for folder in folders:
        remove_leftovers(folder)


def fingerprint(*parts: object) -> str:
    """Return the first characters of the sha256 of ``parts`` as JSON: a short key that changes with any of them."""
    content = json.dumps(parts, sort_keys=True, default=str).encode()
    return hashlib.sha256(content).hexdigest()[:FINGERPRINT_LENGTH]


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's content, read once per process unless the file changes. Raises OSError."""
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        identity = _identity(path, stat)
        if (cached := _known.get(identity)) is not None:
            return cached
        is_stable = time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns) > _TICK_NS
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if is_stable:
        _known[identity] = digest
    return digest


def _identity(path: Path, stat: os.stat_result) -> tuple[str | int, ...]:
    return (str(path), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def known_digests() -> list[list[str | int]]:
    """Return the digests of this process, as lists of file identity and sha256, for :func:`trust` in another."""
    return [[*identity, digest] for identity, digest in _known.items()]


def trust(known: Iterable[Sequence[str | int]]) -> None:
    """Take over another process's :func:`known_digests`: its files are hashed again only if they have changed."""
    for *identity, digest in known:
        _known[tuple(identity)] = str(digest)


def file_fingerprint(path: Path) -> str:
    """Return the first characters of the sha256 of a file's content. Raises InputError if it cannot be read."""
    try:
        return file_digest(path)[:FINGERPRINT_LENGTH]
    except OSError as error:
        if error.errno in MACHINE_FAULTS:
            raise
        raise InputError(f"{path}: cannot be read ({error.strerror or one_line(error)})") from error


def remember(kind: str, key: object, compute: Callable[[], Any]) -> Any:
    """Return the JSON value of ``compute()``, from the cache if an intact entry of ``kind`` and ``key`` has it."""
    name = fingerprint(key)
    path = cache_root() / "facts" / f"{kind}-{name}.json"
    if os.path.lexists(path):
        try:
            content = read_json(path)
            if content["sha256"] == _digest_of(kind, name, content["value"]):
                return content["value"]
            reason = "its digest is not that of its value"
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = _reason(error)
        _report_damage(path, reason, "computed again")
        if path.is_dir():
            remove(path)
    value = compute()
    with _guarded(path):
        write_text(path, json.dumps({"value": value, "sha256": _digest_of(kind, name, value)}))
    return value


def folder(kind: str, key: object, build: Build, check: Check = lambda _: None, *, resumable: bool = False) -> Path:
    """Return the cached folder ``kind/<key>``, built if it is missing, damaged or refused by ``check`` (InputError)."""
    target = cache_root() / kind / fingerprint(key)

    def build_entry(to: Path) -> object:
        digests = build(to)
        write_text(to / ENTRY, _entry_of(target))
        return digests

    _discard_damaged(target, check)
    if not target.is_dir():
        create_folder(target, build_entry, resumable=resumable)
    return target


def create_folder(target: Path, build: Build, *, resumable: bool = False) -> None:
    """Build a folder, renamed to ``target`` unless that exists. ``resumable``: build() gets a killed one's."""
    with _partial(target) if resumable else _temporary(target) as temporary:
        if temporary is None:  # Another process has finished it.
            return
        try:
            written = build(temporary)
            digests = written if isinstance(written, Mapping) else {}
            _write_digests(temporary, digests)
        except OSError as error:
            if error.errno in MACHINE_FAULTS:
                remedy = _REMEDY if target.is_relative_to(cache_root()) else "another folder can be named"
                raise cannot_write(target, error, remedy) from error
            raise
        try:
            temporary.rename(target)
        except OSError:
            if not target.is_dir():
                raise
        else:
            remove(target / JOURNAL)
            for name, digest in digests.items():
                _trust_written(target / name, digest)


@contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """Yield a new folder next to ``target`` that no other process uses. It is removed in any case."""
    temporary = temporary_path(target)
    with _guarded(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove(temporary)  # A killed process with the same id may have left it.
        temporary.mkdir()
    try:
        yield temporary
    finally:
        remove(temporary)


@contextmanager
def _partial(target: Path) -> Iterator[Path | None]:
    """Yield a folder to build in, which an interrupt leaves for the next process; None if ``target`` exists by now."""
    partial = partial_path(target)
    with _guarded(target):
        descriptor, is_ours = _taken(partial)
    try:
        if not is_ours:
            with _temporary(target) as temporary:
                yield temporary
        elif target.is_dir():
            remove(partial)
            yield None
        else:
            try:
                yield partial
            except Exception:
                remove(partial)
                raise
            remove(partial)  # Still there if another process's folder was kept.
    finally:
        os.close(descriptor)


def _taken(partial: Path) -> tuple[int, bool]:
    """Open the folder ``partial``, made if necessary. Return its descriptor, and True if this process has locked it."""
    while True:
        partial.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(partial, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return descriptor, False
        with suppress(FileNotFoundError):
            if partial.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor, True
        os.close(descriptor)  # Another process has renamed it meanwhile.


def damage(folder: Path, *, entry: str | None = None, may_hold_more: bool = False) -> str | None:
    """Return what damages a folder of :func:`create_folder` (``entry``: kind/key), or None. A new file does, too."""
    if not folder.is_dir():
        return "not a folder"
    try:
        digests = read_json(folder / DIGESTS)
    except FileNotFoundError:  # An earlier version wrote none.
        return None if entry is None else f"{DIGESTS} is gone"
    except (OSError, ValueError) as error:
        return f"{DIGESTS}: {_reason(error)}"
    if not isinstance(digests, dict):
        return f"{DIGESTS}: not an object"
    for name in sorted({*digests, *(() if may_hold_more else (path.name for path in _files(folder)))}):
        try:
            if digests.get(name) != file_digest(folder / name):
                return f"{name} differs from what was written"
        except FileNotFoundError:
            return f"{name} is gone"
        except (OSError, ValueError) as error:  # ValueError: not a file name
            return f"{name}: {_reason(error)}"
    if entry is None or digests.get(ENTRY) == hashlib.sha256(entry.encode()).hexdigest():
        return None
    # An earlier version's folder does not record its key, so it may belong to any.
    return "it is the entry of another key" if ENTRY in digests else "an earlier version wrote it, without its key"


def _discard_damaged(target: Path, check: Check) -> None:
    """Remove ``target``, with a line on stderr, if it is damaged, of another key, or fails ``check``."""
    if not os.path.lexists(target) or _problem(target, check) is None:
        return
    with _guarded(target), _locked(target.parent):
        # Check again: another process may have built it meanwhile.
        if os.path.lexists(target) and (problem := _problem(target, check)) is not None:
            _report_damage(target, problem, "built again")
            temporary = temporary_path(target)
            remove(temporary)
            target.rename(temporary)
            remove(temporary)


def _problem(target: Path, check: Check) -> str | None:
    if (problem := damage(target, entry=_entry_of(target))) is not None:
        return problem
    try:
        check(target)
    except InputError as error:
        return one_line(error).removeprefix(f"{target}: ").removeprefix(f"{target}/")
    return None


def _entry_of(target: Path) -> str:
    return f"{target.parent.name}/{target.name}"


def _write_digests(folder: Path, known: Mapping[str, str]) -> None:
    digests = {path.name: known.get(path.name) or file_digest(path) for path in _files(folder)}
    write_text(folder / DIGESTS, json.dumps(digests, indent=1) + "\n")


def _trust_written(path: Path, digest: str) -> None:
    """Remember a large file's digest once the clock has ticked, so that a later change shows in its times."""
    stat = path.stat()
    if stat.st_size >= _LARGE_BYTES:
        time.sleep(max(max(stat.st_mtime_ns, stat.st_ctime_ns) + _TICK_NS - time.time_ns(), 0) / 1e9)
        if _identity(path, path.stat()) == _identity(path, stat):
            _known[_identity(path, stat)] = digest


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name != DIGESTS and not path.name.startswith(".")]


def _digest_of(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _report_damage(path: Path, reason: str, repair: str) -> None:
    print(f"damaged in the cache: {path}: {reason}; {repair}", file=sys.stderr)


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or "not readable"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``folder`` during the body. Without effect on a file system that has no locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass  # Without locks two processes may build the same entry; one result is dropped.
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _guarded(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(error.filename or place, error, _REMEDY) from error
