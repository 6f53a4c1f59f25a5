"""Finds the files behind a path, a folder, a glob or a URL: each file once. Skipped files are counted.

Links are followed, and a broken one is an error. A second name of a file is skipped.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from trainer.data.corpus import places
from trainer.data.corpus.base import PassedOver, Reason
from trainer.errors import InputError, visible
from trainer.files import check_utf8, expanded

REASONS: dict[Reason, str] = {
    "hidden": "hidden",
    "output": "written by harness",
    "repeated": "another name of what is read",
    "folder": "a folder, which the pattern does not include",
    "special": "not a regular file",
    "format": "of another format",
    "suffix": "without a suffix of a corpus",
    "unnamed": "not named in state.json",
}
MOST_NAMES = 3  # names kept per reason
_WILD = "*?["
# File names that identify the output folder of a command.
_OUTPUTS = (
    {"manifest.json", "digests.json"},  # data pretokenize
    {"dedup.json", "dedup.md"},
    {"stats.json", "stats.md"},
    {"study.json"},
    {"run.json"},
    {"sweep.json"},
    {"export.json"},
)


class Tally:
    """Counts files and folders that are not read, by reason, and keeps their names. One search makes one."""

    def __init__(self) -> None:
        self._names: dict[Reason, list[str]] = {}

    def add(self, reason: Reason, name: str) -> None:
        """Count the file or folder ``name`` as not read for ``reason``."""
        self._names.setdefault(reason, []).append(name)

    def result(self) -> tuple[PassedOver, ...]:
        """Return the number and the first names of unread files, one entry for each reason."""
        return tuple(
            PassedOver(reason, len(names), tuple(sorted(names)[:MOST_NAMES])) for reason, names in self._names.items()
        )


@dataclass(frozen=True)
class Matched:
    """Files that match a path, folder, glob or URL, in order. ``pattern``: True for a folder or a glob."""

    files: tuple[str, ...]
    folder: str | None = None
    tally: Tally = field(default_factory=Tally)
    pattern: bool = False


def described(passed_over: Collection[PassedOver]) -> str:
    """Return a line about the files that are not read: for each reason their number and first names."""
    parts = []
    for group in passed_over:
        more = ", ..." if group.count > len(group.names) else ""
        parts.append(f"{group.count:,} {REASONS[group.reason]} ({', '.join(map(visible, group.names))}{more})")
    return "; ".join(parts)


def find(pattern: str) -> Matched:
    """Return the visible files behind a path, glob or URL, without this package's outputs. Raises InputError."""
    check_utf8(pattern, places.KEY)
    pattern = places.local(pattern)
    if places.is_remote(pattern):
        return _remote(pattern)
    path = expanded(pattern)
    return _of_folder(pattern, path.absolute()) if path.is_dir() else matching(pattern, places.KEY)


def matching(pattern: str, key: str) -> Matched:
    """Return the file ``pattern``, or the files that it matches. Raises InputError, naming ``key``, without one."""
    path = expanded(pattern)
    check_utf8(str(path.absolute()), key)
    if path.is_file():
        return Matched((str(path.absolute()),))
    tally, absolute = Tally(), path.absolute()
    deep = "**" in absolute.parts
    literal = next(
        (index for index, part in enumerate(absolute.parts) if set(_WILD) & set(part)), len(absolute.parts) - 1
    )
    root = Path(*absolute.parts[:literal])
    files = []
    names = _expanded_glob(str(root), absolute.parts[literal:], frozenset(), key)
    for name in sorted(set(map(os.path.abspath, names))):
        kind = _kind(name, key)
        if kind == "file" and not (deep and (output := _output_above(root, Path(name)))):
            files.append(name)
        elif kind == "file":
            tally.add("output", f"{output}/")
        elif kind == "special" or not deep:
            tally.add("special" if kind == "special" else "folder", os.path.relpath(name, root))
    matches = _once(files, root, tally)
    if not matches:
        passed = f"; passed over: {described(tally.result())}" if tally.result() else ""
        wild = set(_WILD) & set(pattern) or key != places.KEY
        raise InputError(f"{key}: no file matches {pattern}{passed}" if wild else f"{key}: no {pattern}")
    return Matched(matches, tally=tally, pattern=True)


def _expanded_glob(folder: str, parts: tuple[str, ...], above: frozenset[str], key: str) -> Iterator[str]:
    """Yield what matches the glob ``parts`` in ``folder``; a link into ``above`` (real paths) would be a loop."""
    first, rest = parts[0], parts[1:]
    if first != "**" and not set(_WILD) & set(first):
        name = os.path.join(folder, first)  # noqa: PTH118
        if not rest:
            yield from [name] if os.path.lexists(name) else []
        elif os.path.isdir(name):  # noqa: PTH112
            yield from _expanded_glob(name, rest, above, key)
        return
    inside = [entry for entry in _entries(folder, key) if first.startswith(".") or not entry.name.startswith(".")]
    if first != "**":
        inside = [entry for entry in inside if fnmatch.fnmatchcase(entry.name, first)]
    elif rest:
        yield from _expanded_glob(folder, rest, above, key)
    above |= {os.path.realpath(folder)}
    for entry in inside:
        if not rest:
            yield entry.path
        if rest and entry.is_symlink():
            _kind(entry.path, key)  # A broken link may point to a folder with files of the corpus.
        if (rest or first == "**") and entry.is_dir() and os.path.realpath(entry.path) not in above:
            yield from _expanded_glob(entry.path, parts if first == "**" else rest, above, key)


def _entries(folder: str, key: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"{key}: {error.filename}: cannot be read ({error.strerror})") from error


def _output_above(root: Path, file: Path) -> str:
    """Return the folder between ``root`` and ``file`` that this package wrote, relative to ``root``; "" for none."""
    if not file.is_relative_to(root):
        return ""
    for parent in reversed(file.relative_to(root).parents[:-1]):
        if _is_output(os.listdir(root / parent)):  # noqa: PTH208
            return str(parent)
    return ""


def _is_output(names: Collection[str]) -> bool:
    return any(marks <= set(names) for marks in _OUTPUTS)


def _kind(name: str, key: str) -> Literal["file", "folder", "special"]:
    """Return the kind of the entry ``name``, following links. Raises InputError for a broken link."""
    check_utf8(name, key)
    try:
        mode = os.stat(name).st_mode  # noqa: PTH116
    except OSError as error:
        if os.path.islink(name):  # noqa: PTH114
            target = visible(os.readlink(name))  # noqa: PTH115
            raise InputError(
                f"{key}: {name}: a link to {target}, which cannot be read ({error.strerror}); mount or copy its "
                "target, or remove the link"
            ) from error
        raise places.unreadable(name, error) from error
    return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "special"


def _once(names: Iterable[str], root: Path, tally: Tally) -> tuple[str, ...]:
    """Return each file once, in the order of paths, under its own name (not a link's) if that is below ``root``."""
    real_root = os.path.realpath(root)
    files: dict[str, str] = {}
    folders: dict[str, str] = {}  # resolved folder names; resolving every file would take ten times as long
    for name in names:
        folder, last = os.path.split(name)
        if os.path.islink(name):  # noqa: PTH114
            real_path = os.path.realpath(name)
        else:
            real_path = f"{folders.get(folder) or folders.setdefault(folder, os.path.realpath(folder))}/{last}"
        if (earlier := files.get(real_path)) is None:
            files[real_path] = name
            continue
        is_real = f"{real_root}/{os.path.relpath(name, root)}" == real_path
        files[real_path] = name if is_real else earlier
        tally.add("repeated", os.path.relpath(earlier if is_real else name, root))
    return tuple(sorted(files.values(), key=Path))


def _of_folder(pattern: str, root: Path) -> Matched:
    tally = Tally()
    names = [os.path.relpath(name, root) for name in _once(_below(root, tally), root, tally)]
    if {"dedup.json", "dedup.md"} <= set(names):
        raise InputError(f"{places.KEY}: {pattern} was written by harness data dedup; give {root / 'kept'}")
    files = _without_outputs(names, tally)
    if not files:
        raise _empty(pattern, tally)
    return Matched(tuple(str(root / name) for name in files), str(root), tally, pattern=True)


def _empty(folder: str, tally: Tally) -> InputError:
    passed = tally.result()
    return InputError(
        f"{places.KEY}: the folder {folder} holds no file" + (f" to read: {described(passed)}" if passed else "")
    )


def _below(root: Path, tally: Tally) -> Iterator[str]:
    """Yield the visible regular files below ``root``, each folder once; ``tally`` counts what is not read."""
    visited: set[str] = set()
    folders, linked = [str(root)], list[str]()
    while folders or linked:  # Linked folders come last, so that a file's own name precedes its other names.
        folder = folders.pop() if folders else linked.pop(0)
        real_path = os.path.realpath(folder)
        if real_path in visited or (visited and root.resolve().is_relative_to(real_path)):
            tally.add("repeated", f"{os.path.relpath(folder, root)}/")
            continue
        visited.add(real_path)
        for entry in _entries(folder, places.KEY):
            relative = os.path.relpath(entry.path, root)
            if entry.name.startswith((".", "_")):
                tally.add("hidden", relative)
                continue
            kind = _kind(entry.path, places.KEY)
            if kind == "file":
                yield entry.path
            elif kind == "special":
                tally.add("special", relative)
            else:
                (linked if entry.is_symlink() else folders).append(entry.path)


def _without_outputs(names: Collection[str], tally: Tally) -> list[str]:
    """Return the names outside of output folders of this package below the searched one; ``tally`` counts these."""
    inside: dict[str, set[str]] = {}
    for name in names:
        path = PurePosixPath(name)
        inside.setdefault(str(path.parent), set()).add(path.name)
    outputs = {folder for folder, files in inside.items() if folder != "." and _is_output(files)}
    passed, kept = set(), []
    for name in names:
        above = [str(parent) for parent in PurePosixPath(name).parents if str(parent) in outputs]
        passed |= {above[-1]} if above else set()
        kept += [] if above else [name]
    for folder in sorted(passed):
        tally.add("output", f"{folder}/")
    return kept


def _remote(url: str) -> Matched:
    import pyarrow.fs as fs

    scheme = url.split("://", 1)[0].lower()
    tally = Tally()
    with places.one_line_errors(url):
        filesystem, path = places.resolved(url)
        info = filesystem.get_file_info(path)
        if info.type == fs.FileType.File:
            return Matched((url,))
        if info.type == fs.FileType.Directory:
            root = PurePosixPath(path)
            below = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
            names = []
            for info in below:
                relative = PurePosixPath(info.path).relative_to(root)
                if info.type == fs.FileType.File and any(part.startswith((".", "_")) for part in relative.parts):
                    tally.add("hidden", str(relative))
                elif info.type == fs.FileType.File:
                    names.append(str(relative))
            files = _without_outputs(sorted(names), tally)
            if not files:
                raise _empty(url, tally)
            urls = tuple(places.url_of(scheme, str(root / name)) for name in files)
            return Matched(urls, url.rstrip("/"), tally, pattern=True)
        if not set(_WILD) & set(path):
            # fsspec reports a web server that does not answer as a missing file.
            raise InputError(f"{places.KEY}: no {url}{', or no answer in time' * (scheme in places.WEB)}")
        from fsspec.implementations.arrow import ArrowFSWrapper

        matches = sorted(set(ArrowFSWrapper(filesystem).glob(path)))
        infos = filesystem.get_file_info(matches)
    if not any(info.type == fs.FileType.File for info in infos):
        raise InputError(f"{places.KEY}: no file matches {url}")
    if "**" not in path:
        for info in infos:
            if info.type == fs.FileType.Directory:
                tally.add("folder", info.path)
    files = sorted(places.url_of(scheme, info.path) for info in infos if info.type == fs.FileType.File)
    return Matched(tuple(files), tally=tally, pattern=True)
