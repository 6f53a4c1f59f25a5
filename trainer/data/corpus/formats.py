"""Recognizes formats by file name, else by content, and chooses a folder's files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal, cast, get_args

from trainer.data.corpus import finding, places
from trainer.data.corpus.base import Format, PassedOver
from trainer.data.corpus.finding import Matched
from trainer.data.corpus.text import open_stream, read_bytes
from trainer.errors import InputError, literal

_KEY = "data.corpus.format"
COMPRESSED = (".gz", ".zst", ".bz2")
# Suffixes of archives and of compressions that are not read.
_PACKED = (".xz", ".lzma", ".lz4", ".br", ".snappy", ".sz", ".z", ".zip", ".7z", ".rar", ".tar", ".tgz")
SUFFIXES: dict[str, Format] = {
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".txt", ".text", ".md", ".rst"), "text"),
}
_TABLES: tuple[Format, ...] = ("parquet", "arrow", "jsonl")
_PEEKED = 4096  # bytes read of a file whose name does not give its format
_FIRST_ROW = 2**20  # bytes of a .json file within which its first line must end
_STATE, _SPLITS, _INFO = "state.json", "dataset_dict.json", "dataset_info.json"  # files of Hugging Face's save_to_disk


@dataclass(frozen=True)
class Chosen:
    """Files of a corpus in order, and their format. ``rows``: expected by dataset_info.json; None if unknown."""

    files: tuple[str, ...]
    format: Format
    passed_over: tuple[PassedOver, ...] = ()
    pattern: bool = False  # True if a folder or a glob chose the files
    rows: int | None = None


def choose(pattern: str, asked: Literal["auto"] | Format, column: str) -> Chosen:
    """Return the files that ``pattern`` names, and their format. Raises InputError unless they have one format.

    A folder yields its tables, or text files if it has none (``asked`` text: every visible file).
    """
    matched = finding.find(pattern)
    if matched.folder is not None:
        saved = _saved_to_disk(matched.folder, matched)
        if saved is not None:
            if asked not in ("auto", "arrow"):
                raise InputError(f"{_KEY}: {asked}, but {pattern} was written by save_to_disk; allowed: auto, arrow")
            return saved
        files, format = _of_folder(pattern, matched, asked, column)
    elif asked != "auto":
        files, format = matched.files, asked
    else:
        formats = {name: format_of(name) for name in matched.files}
        if len(set(formats.values())) > 1:
            raise _mixed(pattern, list(formats.values()))
        files, format = matched.files, next(iter(formats.values()))
    return Chosen(files, format, matched.tally.result(), matched.pattern)


def by_name(name: str) -> Format | None:
    """Return the format by the suffix of the file's name, without that of a compression; None if it is unknown."""
    path = PurePosixPath(name.lower())
    if path.suffix in COMPRESSED:
        inner = SUFFIXES.get(path.with_suffix("").suffix)
        return inner if inner in ("jsonl", "text") else None
    return SUFFIXES.get(path.suffix)


def format_of(name: str) -> Format:
    """Return the format by the file's name, else by its first bytes. Raises InputError if both are unknown."""
    return by_name(name) or _by_content(name)


def _by_content(name: str) -> Format:
    with open_stream(name) as stream:
        head = read_bytes(name, stream, _PEEKED)
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # A character that is cut at the end is no error.
            raise InputError(
                f"{name}: neither Parquet, Arrow nor UTF-8 text; allowed: {', '.join(get_args(Format))}, each also by "
                f"{_KEY}"
            ) from error
        text = head[: error.start].decode("utf-8-sig")
    return "jsonl" if text.lstrip().startswith("{") else "text"


def _of_folder(
    pattern: str, matched: Matched, asked: Literal["auto"] | Format, column: str
) -> tuple[tuple[str, ...], Format]:
    if asked == "text":
        return matched.files, "text"
    by_format: dict[Format, list[str]] = {}
    plain_json = []
    for name in matched.files:
        if name.lower().endswith(".json"):  # A .json file may hold rows, or metadata of the other files.
            plain_json.append(name)
        elif (format := by_name(name)) is not None:
            by_format.setdefault(format, []).append(name)
        else:
            _check_packed(name)
            matched.tally.add("suffix", _relative(name, matched))
    if plain_json and "jsonl" not in by_format and (asked == "jsonl" or not by_format):
        by_format["jsonl"], plain_json = plain_json, []
    chosen = _format_of_folder(pattern, by_format, asked)
    for name in plain_json:
        if asked in ("auto", "jsonl") and _holds_rows(name, column):
            raise InputError(
                f"{places.KEY}: {name}: has rows with the column {column!r}, and so do files with the suffix of "
                f"{chosen} next to it; choose the corpus with a glob, such as {matched.folder}/*.json*"
            )
    for name in (*plain_json, *(name for format in by_format if format != chosen for name in by_format[format])):
        matched.tally.add("format", _relative(name, matched))
    return tuple(by_format[chosen]), chosen


def _format_of_folder(pattern: str, named: dict[Format, list[str]], asked: Literal["auto"] | Format) -> Format:
    if asked != "auto":
        if asked not in named:
            raise InputError(f"{_KEY}: {asked}, but the folder {pattern} holds no file with a suffix of it")
        return asked
    tables = [format for format in _TABLES if format in named]
    if len(tables) > 1:
        raise _mixed(pattern, [format for format in tables for _ in named[format]])
    if not named:
        raise InputError(
            f"{places.KEY}: the folder {pattern} holds no file with a suffix of a corpus ({', '.join(SUFFIXES)}, also "
            f"{' and '.join(COMPRESSED)}); {_KEY}: text reads each of its files as a document"
        )
    return tables[0] if tables else "text"


def _check_packed(name: str) -> None:
    """Raise InputError if ``name`` is a file of documents in an unsupported compression, such as ``a.jsonl.xz``."""
    path = PurePosixPath(name.lower())
    inner = path.with_suffix("")
    if path.suffix in (*_PACKED, *COMPRESSED) and inner.suffix in SUFFIXES:
        raise InputError(
            f"{places.KEY}: {name}: {inner.suffix} in {path.suffix} is not read; unpack it, or move it out of the "
            f"folder; allowed: .jsonl and .txt and their like in {', '.join(COMPRESSED)}"
        )


def _relative(name: str, matched: Matched) -> str:
    return name.removeprefix(f"{matched.folder}/")


def _holds_rows(name: str, column: str) -> bool:
    """Return True if the first line of a .json file is an object with ``column``: the file is JSON Lines."""
    with open_stream(name) as stream:
        head = read_bytes(name, stream, _FIRST_ROW)
    first = next((line for line in head.split(b"\n") if line.strip()), b"")
    try:
        row = json.loads(first.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and column in row


def _mixed(pattern: str, formats: Sequence[Format]) -> InputError:
    counts = ", ".join(f"{formats.count(format)} {format}" for format in dict.fromkeys(formats))
    return InputError(
        f"{_KEY}: {pattern} has files of several formats ({counts}); name those of one, or say which format all have"
    )


def _saved_to_disk(folder: str, matched: Matched) -> Chosen | None:
    """Return the data files that ``save_to_disk`` wrote, or None. Raises InputError for several splits."""
    files = matched.files
    join = "/".join if places.is_remote(folder) else lambda parts: str(PurePosixPath(*parts))
    if (splits := join((folder, _SPLITS))) in files:
        content = _json(splits)
        names = [str(entry) for entry in content.get("splits", [])] if isinstance(content, dict) else []
        raise InputError(
            f"{places.KEY}: {folder} holds the splits {', '.join(map(literal, names)) or '(none)'}; give one of them, "
            f"such as {join((folder, names[0] if names else 'train'))}"
        )
    state = join((folder, _STATE))
    if state not in files:
        return None
    content = _json(state)
    data = content.get("_data_files") if isinstance(content, dict) else None
    filenames = [entry.get("filename") for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    if data == []:
        raise InputError(f"{places.KEY}: {folder} was written by save_to_disk of a dataset without rows")
    if not filenames or not all(isinstance(entry, str) and PurePosixPath(entry).name == entry for entry in filenames):
        if data is None:  # Another program wrote this state.json.
            return None
        raise InputError(f"{state}: names no data files, as save_to_disk would write them")
    if isinstance(content, dict) and content.get("_indices_data_files"):
        raise InputError(f"{state}: its rows are chosen by a file of indices; save it anew after flatten_indices()")
    saved = tuple(join((folder, str(entry))) for entry in filenames)
    if missing := [entry for entry in saved if entry not in files]:
        raise InputError(f"{state}: names {missing[0]}, which is not there")
    for name in files:
        if name not in (*saved, state, join((folder, _INFO))):
            matched.tally.add("unnamed", _relative(name, matched))
    split = content.get("_split") if isinstance(content, dict) else None
    rows = _rows_of_split(join((folder, _INFO)), split) if join((folder, _INFO)) in files else None
    return Chosen(saved, "arrow", matched.tally.result(), pattern=True, rows=rows)


def _rows_of_split(info: str, split: object) -> int | None:
    """Return the rows of ``split`` by ``info``, a ``dataset_info.json``; None if unknown, as for ``train[:10%]``."""
    content = _json(info)
    splits = content.get("splits") if isinstance(content, dict) else None
    facts = splits.get(split) if isinstance(splits, dict) else None
    rows = facts.get("num_examples") if isinstance(facts, dict) else None
    return rows if isinstance(rows, int) and not isinstance(rows, bool) else None


def _json(name: str) -> object:
    with open_stream(name) as stream:
        content = read_bytes(name, stream, 2**24)
    try:
        return cast(object, json.loads(content))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: not JSON") from error
