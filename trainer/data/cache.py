"""Builds things once and finds them again: the cache folder, content fingerprints, atomic creation.

What is found is hashed before it is used. An entry that is damaged is built again, with one line on stderr.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.errors import MACHINE_FAULTS, InputError, cannot_write, one_line
from trainer.files import expanded, read_json, write_text
from trainer.leftovers import partial_path, remove, remove_leftovers, temporary_path

FINGERPRINT_LENGTH = 16  # hex digits: 64 bits, far beyond any collision by chance among cached files
DIGESTS = "digests.json"  # of every other file in a cached folder
# Which entry a cached folder is, as kind/key. It is a file like any other, so that an earlier version, which compares
# each name in digests.json with a file, takes an entry of this one; its digest alone says whether it is the right one.
ENTRY = "entry.txt"
_REMEDY = "HARNESS_CACHE=DIR chooses another cache"

# Digests that this process has computed, by what changes with any write. A file that was written within a tick of the
# file system's clock may be written again without a trace: it is not remembered.
_known: dict[tuple[str | int, ...], str] = {}
_TICK_NS = 100_000_000
_LARGE_BYTES = 128 << 20  # hashing as much again takes longer than waiting for the next tick

Check = Callable[[Path], object]
# Builds what an entry holds in the folder that it is given. It may return a mapping: the digests of files that it has
# hashed while it wrote them.
Build = Callable[[Path], object]
JOURNAL = ".journal"  # folder of what a build can go on from; it is no part of the entry


def cache_root() -> Path:
    """``$HARNESS_CACHE``, or ``llm-harness`` under ``$XDG_CACHE_HOME`` or ``~/.cache``; not created here."""
    if chosen := os.environ.get("HARNESS_CACHE"):
        return expanded(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").absolute() / "llm-harness"


def clean() -> None:
    """Remove what killed processes left half written in the cache."""
    try:
        folders = [path for path in cache_root().iterdir() if path.is_dir()]
    except OSError:
        return
    for folder in folders:
        remove_leftovers(folder)


def fingerprint(*parts: object) -> str:
    """Short sha256 of ``parts`` as JSON: equal parts, equal fingerprint."""
    content = json.dumps(parts, sort_keys=True, default=str).encode()
    return hashlib.sha256(content).hexdigest()[:FINGERPRINT_LENGTH]


def file_digest(path: Path) -> str:
    """The sha256 of a file's content, read once per process unless the file changes. Raises OSError."""
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        identity = _identity(path, stat)
        if (known := _known.get(identity)) is not None:
            return known
        settled = time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns) > _TICK_NS
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if settled:
        _known[identity] = found
    return found


def _identity(path: Path, stat: os.stat_result) -> tuple[str | int, ...]:
    return (str(path), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def known_digests() -> list[list[str | int]]:
    """What this process has hashed, for :func:`trust` in another one: one list of identity and digest a file."""
    return [[*identity, digest] for identity, digest in _known.items()]


def trust(known: Iterable[Sequence[str | int]]) -> None:
    """Hash no file again that another process of this machine has hashed (:func:`known_digests`) and nobody wrote."""
    for *identity, digest in known:
        _known[tuple(identity)] = str(digest)


def file_fingerprint(path: Path) -> str:
    """Short sha256 of a file's content. Raises InputError where it cannot be read."""
    try:
        return file_digest(path)[:FINGERPRINT_LENGTH]
    except OSError as error:
        if error.errno in MACHINE_FAULTS:
            raise
        raise InputError(f"{path}: cannot be read ({error.strerror or one_line(error)})") from error


def remember(kind: str, key: object, compute: Callable[[], Any]) -> Any:
    """The JSON value of ``compute()``, remembered under ``kind`` and ``key``; a damaged memory is recomputed."""
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
        _say(path, reason, "computed again")
        if path.is_dir():
            remove(path)
    value = compute()
    content = json.dumps({"value": value, "sha256": _digest_of(kind, name, value)})
    _guard(path, lambda: write_text(path, content))
    return value


def folder(kind: str, key: object, build: Build, check: Check = lambda _: None, *, resumable: bool = False) -> Path:
    """The cached folder ``kind/<key>``, built by ``build(temporary folder)`` where it does not exist or is damaged.

    ``check(folder)`` raises InputError where the content is not what was asked for. ``resumable``: see
    :func:`create_folder`.
    """
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
    """Build a folder beside ``target`` and rename it, so that no reader sees an incomplete one; its digests are kept.

    Where another process was faster, keep its folder and drop ours: both have the same content. ``resumable``: what a
    killed or interrupted process leaves is what ``build`` is given next, with its ``JOURNAL``; where ``build`` fails,
    nothing stays.
    """
    with _partial(target) if resumable else _temporary(target) as temporary:
        if temporary is None:  # another process was building it, and has
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
    """A new folder beside ``target`` that no other process uses; it is removed in any case."""
    temporary = temporary_path(target)

    def make() -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove(temporary)  # of a killed process that had this one's id
        temporary.mkdir()

    _guard(target, make)
    try:
        yield temporary
    finally:
        remove(temporary)


@contextmanager
def _partial(target: Path) -> Iterator[Path | None]:
    """The folder beside ``target`` that a killed process may have begun; it stays when this one is interrupted.

    Where another process works in it, or the file system has no locks: a folder of our own, as for any other entry.
    None where ``target`` has been made meanwhile.
    """
    partial = partial_path(target)
    opened: list[int] = []

    def take() -> bool:
        while True:
            partial.mkdir(parents=True, exist_ok=True)
            opened[:] = [os.open(partial, os.O_RDONLY)]
            try:
                fcntl.flock(opened[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            try:
                if partial.stat().st_ino == os.fstat(opened[0]).st_ino:
                    return True
            except FileNotFoundError:
                pass
            os.close(opened.pop())  # it was finished, and renamed, between the two

    taken: list[bool] = []
    try:
        _guard(target, lambda: taken.append(take()))
        if not taken[0]:
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
            remove(partial)  # where the other's folder was kept
    finally:
        for descriptor in opened:
            os.close(descriptor)


def damage(folder: Path, *, entry: str | None = None, may_hold_more: bool = False) -> str | None:
    """What is wrong with a folder that :func:`create_folder` made; None where nothing is.

    ``entry``: the kind/key that it must say it is; None for a user's folder, which may be moved and renamed, and may
    lack digests. A file more than it was made with is damage (a library may read any name), unless ``may_hold_more``.
    """
    if not folder.is_dir():
        return "not a folder"
    try:
        known = read_json(folder / DIGESTS)
    except FileNotFoundError:  # of an earlier version, which kept none
        return None if entry is None else f"{DIGESTS} is gone"
    except (OSError, ValueError) as error:
        return f"{DIGESTS}: {_reason(error)}"
    if not isinstance(known, dict):
        return f"{DIGESTS}: not an object"
    for name in sorted({*known, *(() if may_hold_more else (path.name for path in _files(folder)))}):
        try:
            if known.get(name) != file_digest(folder / name):
                return f"{name} is not what was written"
        except FileNotFoundError:
            return f"{name} is gone"
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be one
            return f"{name}: {_reason(error)}"
    if entry is None or known.get(ENTRY) == hashlib.sha256(entry.encode()).hexdigest():
        return None
    # One of an earlier version may be of any key: what is in it does not say what it was asked to be.
    return "it is the entry of another key" if ENTRY in known else "an earlier version wrote it, without its key"


def _discard_damaged(target: Path, check: Check) -> None:
    """Remove ``target`` where it is damaged, or not known to be the entry of its key."""
    if not os.path.lexists(target) or _problem(target, check) is None:
        return

    def discard() -> None:
        with _locked(target.parent):
            # Another process may have built it again meanwhile.
            if os.path.lexists(target) and (problem := _problem(target, check)) is not None:
                _say(target, problem, "built again")
                aside = temporary_path(target)
                remove(aside)
                target.rename(aside)
                remove(aside)

    _guard(target, discard)


def _problem(target: Path, check: Check) -> str | None:
    if (found := damage(target, entry=_entry_of(target))) is not None:
        return found
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
    """Do not hash again what this process hashed while it wrote it, once nobody can write it without a trace."""
    stat = path.stat()
    if stat.st_size >= _LARGE_BYTES:
        time.sleep(max(max(stat.st_mtime_ns, stat.st_ctime_ns) + _TICK_NS - time.time_ns(), 0) / 1e9)
        if _identity(path, path.stat()) == _identity(path, stat):
            _known[_identity(path, stat)] = digest


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name != DIGESTS and not path.name.startswith(".")]


def _digest_of(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _say(path: Path, reason: str, what: str) -> None:
    print(f"damaged in the cache: {path}: {reason}; {what}", file=sys.stderr)


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or "not readable"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, where its file system has one."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass  # a network's: two processes may then build the same entry, and one of them throws it away
        yield
    finally:
        os.close(descriptor)


def _guard(place: Path, write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as error:
        raise cannot_write(error.filename or place, error, _REMEDY) from error
