"""Reads one column of a corpus' file, whatever its format: strings, lists of token ids, or lists of messages.

Folders of `harness data pretokenize --out` are a corpus of token ids; whole documents are preferred to padded rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.corpus import jsonl, places, tables, text
from trainer.data.corpus.base import Content, Format, Split, first_line
from trainer.data.formats.exchange import document_chunks
from trainer.data.manifest import MANIFEST, Pretokenized, read_manifest
from trainer.errors import InputError
from trainer.files import expanded

# The column of each format of pretokenized files. Formats that store whole documents come first.
TOKEN_COLUMNS = {"flat": "tokens", "token-list": "tokens", "padded": "input_ids"}
MASK = "attention_mask"
_KINDS: dict[Content, str] = {
    "text": "string",
    "tokens": "a list of whole numbers (token ids)",
    "chat": "a list of objects (messages)",
}


def find_pretokenized(path: str) -> list[Pretokenized]:
    """Return ``path`` or subfolders if `harness data pretokenize` made them. Raises InputError for several origins."""
    if places.is_remote(path):
        return []
    folder = expanded(places.local(path)).absolute()
    is_single = (folder / MANIFEST).is_file()
    folders = [folder] if is_single else [folder / name for name in TOKEN_COLUMNS]
    parts = [part for candidate in folders if (part := _read(candidate)) is not None]
    for part in parts[1:]:
        for key in ("corpus_fingerprint", "tokenizer_fingerprint", "eos_id", "documents"):
            first, second = getattr(parts[0].manifest, key), getattr(part.manifest, key)
            if first != second:
                raise InputError(
                    f"{places.KEY}: {path} holds tokens of several origins: {key} is {first!r} in {parts[0].folder} "
                    f"and {second!r} in {part.folder}; give one of them"
                )
    return parts


def read_flat(name: str) -> Iterator[Any]:
    """Yield arrays of many documents each, as Arrow lists of tokens. ``name``: the file with the flat tokens."""
    import pyarrow as pa

    folder = Path(name).parent
    for ids, lengths in document_chunks(Pretokenized(str(folder), read_manifest(folder)).flat()):
        yield pa.LargeListArray.from_arrays(np.concatenate([[0], np.cumsum(lengths)]), pa.array(ids))


def _read(folder: Path) -> Pretokenized | None:
    try:
        manifest = read_manifest(folder)
    except InputError:  # There is no manifest, or another program wrote it.
        return None
    return Pretokenized(str(folder), manifest) if manifest.format in TOKEN_COLUMNS else None


def content_of(name: str, format: Format, column: str) -> Content:
    """Return the content of ``column``: text, tokens (lists of ids) or chat (lists of messages). Raises InputError."""
    if format == "text":
        return "text"
    if format == "jsonl":
        return jsonl.content(name, column)
    kind = column_type(name, format, column)
    content = _content(kind)
    if content is None:
        raise InputError(f"{name}: column {column!r} is {kind}; allowed: {', '.join(_KINDS.values())}")
    return content


def column_type(name: str, format: Format, column: str) -> Any:
    """Return the Arrow type of a Parquet or Arrow file's column. Raises InputError if it is missing or occurs twice."""
    schema = tables.schema(name, format)
    try:
        names = schema.names
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: damaged {format} file (a column's name is not UTF-8)") from error
    if column not in names:
        raise InputError(f"{name}: no column {column!r}; it has {', '.join(names) or 'no columns'}")
    if names.count(column) > 1:
        raise InputError(f"{name}: {names.count(column)} columns named {column!r}; it must be one")
    return schema.field(column).type


def has_mask(name: str, format: Format) -> bool:
    """Return True if the file has a column :data:`MASK`, which marks each token id as a token or as padding."""
    if format in ("text", "flat"):
        return False
    if format == "jsonl":
        return jsonl.has(name, MASK)
    return MASK in tables.schema(name, format).names


def read(
    name: str, format: Format, column: str, content: Content, split: Split, *, masked: bool = False
) -> Iterator[Any]:
    """Yield validated documents in order: Arrow arrays, or lists of messages. ``masked``: drop ids of mask 0."""
    if format == "text":
        yield from text.read(name, split)
    elif format == "flat":
        yield from read_flat(name)
    elif masked:
        row = 0
        for ids, mask in _pairs(name, format, column):
            yield _unmasked(name, row, ids, mask)
            row += len(ids)
    elif format == "jsonl":
        yield from jsonl.read(name, column, content)
    else:
        for (values,) in _tables(name, format, {column: content}):
            yield _messages(values) if content == "chat" else values


def _pairs(name: str, format: Format, column: str) -> Iterator[Sequence[Any]]:
    """Yield (token ids, masks: 1 for a token, 0 for padding) of a file by blocks, as Arrow arrays of the same rows."""
    if format == "jsonl":  # Both columns are read in the same blocks.
        yield from zip(jsonl.read(name, column, "tokens"), jsonl.read(name, MASK, "tokens"), strict=True)
    else:
        yield from _tables(name, format, {column: "tokens", MASK: "tokens"})


def _tables(name: str, format: Format, columns: dict[str, Content]) -> Iterator[list[Any]]:
    """Yield a list of Arrow arrays per record batch, by ``columns``. Raises InputError for other content or damage."""
    import pyarrow as pa

    for column, content in columns.items():
        kind = column_type(name, format, column)
        if _content(kind) != content:
            raise InputError(f"{name}: column {column!r} is {kind}, not {_KINDS[content]}")
    for batch in tables.batches(name, format, list(columns)):
        arrays = []
        for column in columns:
            values = batch.column(batch.schema.get_field_index(column))
            try:
                values.validate(full=True)
                arrays.append(_plain(values))
            except (pa.ArrowException, UnicodeDecodeError) as error:
                raise InputError(f"{name}: damaged {format} file ({first_line(error)})") from error
        yield arrays


def _unmasked(name: str, first: int, ids: Any, mask: Any) -> Any:
    """Return the lists of ``ids`` without the ids whose mask is 0. Raises InputError unless each has a 0 or 1."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if ids.null_count or ids.flatten().null_count:  # Counting the tokens refuses nulls.
        return ids
    lengths, mask_lengths = (
        pc.fill_null(pc.list_value_length(lists), -1).to_numpy(zero_copy_only=False) for lists in (ids, mask)
    )
    kept = mask.flatten()
    is_wrong = lengths != mask_lengths
    if not is_wrong.any():
        ends = np.cumsum(lengths)
        marks = pc.fill_null(kept, -1).to_numpy(zero_copy_only=False)
        invalid = np.flatnonzero((marks < 0) | (marks > 1))
        is_wrong[np.searchsorted(ends, invalid[:1], side="right")] = True
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        raise InputError(
            f"{name}, row {first + row} (from 0): {MASK} is not a 0 or 1 for each of its {lengths[row]} token ids"
        )
    is_real = marks != 0
    real_before = np.concatenate([[0], np.cumsum(is_real)])
    ends = real_before[np.concatenate([[0], np.cumsum(lengths)])]
    return pa.LargeListArray.from_arrays(
        pa.array(ends), pa.array(ids.flatten().to_numpy(zero_copy_only=False)[is_real])
    )


def _content(kind: Any) -> Content | None:
    import pyarrow as pa

    is_type = pa.types
    if is_type.is_dictionary(kind):
        kind = kind.value_type
    if is_type.is_string(kind) or is_type.is_large_string(kind) or is_type.is_string_view(kind):
        return "text"
    if is_type.is_list(kind) or is_type.is_large_list(kind) or is_type.is_fixed_size_list(kind):
        if is_type.is_integer(kind.value_type):
            return "tokens"
        if is_type.is_struct(kind.value_type):
            return "chat"
    return None


def _plain(values: Any) -> Any:
    """Return dictionaries, string views and lists of fixed size as plain strings and lists, other arrays unchanged."""
    import pyarrow as pa

    kind = values.type
    if pa.types.is_dictionary(kind):
        values = values.dictionary_decode()
        kind = values.type
    if pa.types.is_string_view(kind):
        return values.cast(pa.large_string())
    if pa.types.is_fixed_size_list(kind):
        return values.cast(pa.large_list(kind.value_type))
    return values


def _messages(values: Any) -> list[Any]:
    """Return the chats as lists of messages (Python objects), without the nulls that a table has for missing keys."""
    return [None if chat is None else _without_nulls(chat) for chat in values.to_pylist()]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value
