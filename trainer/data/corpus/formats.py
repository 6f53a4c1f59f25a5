"""Tells formats by file name and, where the name does not say it, by content; chooses a folder's files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal, cast, get_args

from trainer.data.corpus import lines, places
from trainer.data.corpus.base import Format
from trainer.errors import InputError, literal

_KEY = "data.corpus.format"
_COMPRESSED = (".gz", ".zst")
SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".rst": "text",
}
_TABLES: tuple[Format, ...] = ("parquet", "arrow", "jsonl")
_PEEKED = 4096  # bytes of a file whose name does not say what it is
_STATE, _SPLITS = "state.json", "dataset_dict.json"  # of what Hugging Face's save_to_disk writes


@dataclass(frozen=True)
class Chosen:
    """The files of a corpus, in order, and the one format that all of them have."""

    files: tuple[str, ...]
    format: Format


def choose(pattern: str, asked: Literal["auto"] | Format) -> Chosen:
    """The files that ``pattern`` names, and their format. Raises InputError where they have none or several.

    A folder gives its files of one kind: where there are tables (Parquet, Arrow, JSONL), text files beside them are
    left out. Asked for text, it gives every file that is not hidden. A folder of ``save_to_disk`` gives its data files.
    """
    found = places.find(pattern)
    if found.folder is not None:
        saved = _saved_to_disk(found.folder, found.files)
        if saved is not None:
            if asked not in ("auto", "arrow"):
                raise InputError(f"{_KEY}: {asked}, but {pattern} was written by save_to_disk; allowed: auto, arrow")
            return Chosen(saved, "arrow")
        return _of_folder(pattern, found.files, asked)
    if asked != "auto":
        return Chosen(found.files, asked)
    formats = {name: format_of(name) for name in found.files}
    if len(set(formats.values())) > 1:
        raise _mixed(pattern, list(formats.values()))
    return Chosen(found.files, next(iter(formats.values())))


def by_name(name: str) -> Format | None:
    """What the file's name says, without the suffix of a compression."""
    path = PurePosixPath(name.lower())
    if path.suffix in _COMPRESSED:
        inner = SUFFIXES.get(path.with_suffix("").suffix)
        return inner if inner in ("jsonl", "text") else None
    return SUFFIXES.get(path.suffix)


def format_of(name: str) -> Format:
    """What the file's name or its first bytes say. Raises InputError where it is none of the formats."""
    return by_name(name) or _by_content(name)


def _by_content(name: str) -> Format:
    with lines.open_stream(name) as stream:
        head = lines.read(name, stream, _PEEKED)
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # a character that the cut fell into is none that is wrong
            raise InputError(
                f"{name}: neither Parquet, Arrow nor UTF-8 text; allowed: {', '.join(get_args(Format))}, each also by "
                f"{_KEY}"
            ) from error
        text = head[: error.start].decode("utf-8-sig")
    return "jsonl" if text.lstrip().startswith("{") else "text"


def _of_folder(pattern: str, files: Sequence[str], asked: Literal["auto"] | Format) -> Chosen:
    if asked == "text":
        return Chosen(tuple(files), "text")
    named: dict[Format, list[str]] = {}
    plain_json = []
    for name in files:
        if name.lower().endswith(".json"):  # may as well say what the folder's other files are
            plain_json.append(name)
        elif (format := by_name(name)) is not None:
            named.setdefault(format, []).append(name)
    if plain_json and "jsonl" not in named and (asked == "jsonl" or not named):
        named["jsonl"] = plain_json
    if asked != "auto":
        if asked not in named:
            raise InputError(f"{_KEY}: {asked}, but the folder {pattern} holds no file with a suffix of it")
        return Chosen(tuple(named[asked]), asked)
    tables = [format for format in _TABLES if format in named]
    if len(tables) > 1:
        raise _mixed(pattern, [format for format in tables for _ in named[format]])
    if not named:
        raise InputError(
            f"{places.KEY}: the folder {pattern} holds no file with a suffix of a corpus ({', '.join(SUFFIXES)}, also "
            f"{' and '.join(_COMPRESSED)}); {_KEY}: text takes each of its files as a document"
        )
    format = tables[0] if tables else "text"
    return Chosen(tuple(named[format]), format)


def _mixed(pattern: str, formats: Sequence[Format]) -> InputError:
    counts = ", ".join(f"{formats.count(one)} {one}" for one in dict.fromkeys(formats))
    return InputError(
        f"{_KEY}: {pattern} has files of several formats ({counts}); name those of one, or say which format all have"
    )


def _saved_to_disk(folder: str, files: Sequence[str]) -> tuple[str, ...] | None:
    """The data files, in order, of a dataset that Hugging Face's ``save_to_disk`` wrote; None for another folder."""
    join = "/".join if places.is_remote(folder) else lambda parts: str(PurePosixPath(*parts))
    if (splits := join((folder, _SPLITS))) in files:
        content = _json(splits)
        names = [str(one) for one in content.get("splits", [])] if isinstance(content, dict) else []
        raise InputError(
            f"{places.KEY}: {folder} holds the splits {', '.join(map(literal, names)) or '(none)'}; give one of them, "
            f"such as {join((folder, names[0] if names else 'train'))}"
        )
    state = join((folder, _STATE))
    if state not in files:
        return None
    content = _json(state)
    data = content.get("_data_files") if isinstance(content, dict) else None
    named = [one.get("filename") for one in data if isinstance(one, dict)] if isinstance(data, list) else []
    if data == []:
        raise InputError(f"{places.KEY}: {folder} was written by save_to_disk of a dataset without rows")
    if not named or not all(isinstance(one, str) and PurePosixPath(one).name == one for one in named):
        if data is None:  # a state.json of something else
            return None
        raise InputError(f"{state}: names no data files, as save_to_disk would write them")
    if isinstance(content, dict) and content.get("_indices_data_files"):
        raise InputError(f"{state}: its rows are chosen by a file of indices; save it anew after flatten_indices()")
    saved = tuple(join((folder, str(one))) for one in named)
    if missing := [one for one in saved if one not in files]:
        raise InputError(f"{state}: names {missing[0]}, which is not there")
    return saved


def _json(name: str) -> object:
    with lines.open_stream(name) as stream:
        content = lines.read(name, stream, 2**24)
    try:
        return cast(object, json.loads(content))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: not JSON") from error
