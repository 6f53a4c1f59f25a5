"""Reads JSON Lines. Arrow parses block by block; a block that it refuses is parsed line by line, to find the row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from trainer.data.corpus import text
from trainer.data.corpus.base import Content
from trainer.errors import InputError, one_line
from trainer.json_types import JsonObject

_SHOWN_KEYS = 12
_BOM = b"\xef\xbb\xbf"


def content(name: str, column: str) -> Content:
    """Return the kind of content by the first value that is no null and no empty list. Raises InputError if none."""
    keys: list[str] = []
    lists = False
    for block in text.blocks(name):
        for row, record in _objects(name, block, 0):
            keys = keys or list(record)[:_SHOWN_KEYS]
            value = record.get(column)
            if isinstance(value, str):
                return "text"
            if isinstance(value, list):
                if value:
                    return "chat" if isinstance(value[0], dict) else "tokens"
                lists = True
            elif value is not None:
                raise _wrong(name, row, column, value, "a string, a list of token ids or a list of messages")
            if column not in record:
                raise InputError(
                    f"{name}, row {row} (from 0): no column {column!r}; it has {', '.join(map(repr, keys)) or 'none'}"
                )
    return "tokens" if lists else "text"  # only empty lists and nulls, which the counting refuses


def has(name: str, column: str) -> bool:
    """Return True if the name ``column`` in double quotes occurs in the file, so that a row may have that key."""
    return any(f'"{column}"'.encode() in block for block in text.blocks(name))


def read(name: str, column: str, content: Content) -> Iterator[Any]:
    """Yield a column's values in order: Arrow arrays of strings or of lists of int64, or lists of messages."""
    row = 0
    for block in text.blocks(name):
        values = None if content == "chat" else _parsed(block, column, content)
        if values is None:
            values = _values(name, block, row, column, content)
        yield values
        row += len(values)


def objects(name: str) -> Iterator[tuple[int, JsonObject]]:
    """Yield (row, object) for each line that is not blank, from 0. Raises InputError for a line without one."""
    first = 0
    for block in text.blocks(name):
        for row, record in _objects(name, block, first):
            yield row, record
            first = row + 1


def rows(name: str) -> Iterator[list[bytes]]:
    """Yield the lines of ``name`` unparsed, without ends and blank ones, a list per block."""
    first = True
    for block in text.blocks(name):
        yield [line for line in (block.removeprefix(_BOM) if first else block).split(b"\n") if line.strip()]
        first = False


def _parsed(block: bytes, column: str, content: Content) -> Any:
    """Return the column of ``block`` as an Arrow array; None if Arrow refuses it or finds no row in some line."""
    import pyarrow as pa
    import pyarrow.json as pj

    kind = pa.string() if content == "text" else pa.list_(pa.int64())
    try:
        table = pj.read_json(
            pa.BufferReader(block),
            pj.ReadOptions(use_threads=False, block_size=len(block) + 1),
            pj.ParseOptions(explicit_schema=pa.schema([(column, kind)]), unexpected_field_behavior="ignore"),
        )
        values = table.column(0).combine_chunks()
        values.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return None
    rows = block.count(b"\n") + (not block.endswith(b"\n"))
    return values if len(values) == rows else None


def _values(name: str, block: bytes, first: int, column: str, content: Content) -> Any:
    import pyarrow as pa

    values: list[Any] = []
    for row, record in _objects(name, block, first):
        if (key := _repeated_key(record, column)) is not None:
            raise InputError(f"{name}, row {row} (from 0): key {key!r} occurs twice in one object; give it once")
        value = record.get(column)
        if value is None and column not in record:
            raise InputError(f"{name}, row {row} (from 0): no column {column!r}")
        if value is not None:
            _check(name, row, column, value, content)
        values.append(value)
    if content == "chat":
        return values
    try:
        return pa.array(values, pa.string() if content == "text" else pa.list_(pa.int64()))
    except (pa.ArrowException, OverflowError) as error:  # an id beyond 64 bits
        raise InputError(f"{name}: column {column!r}: {one_line(error)}") from error


def _objects(name: str, block: bytes, first: int) -> Iterator[tuple[int, _Object]]:
    """Yield (row, object) for each line of ``block`` that is not blank. Raises InputError for a line without one."""
    row = first
    for line in block.split(b"\n"):
        if not line.strip():
            continue
        try:
            record = json.loads(line.removeprefix(_BOM) if row == 0 else line, object_pairs_hook=_Object)
        except (ValueError, RecursionError) as error:
            reason = "nested too deep" if isinstance(error, RecursionError) else one_line(error)
            hint = "; a .json file must have an object a line, too" if row == 0 else ""
            raise InputError(f"{name}, row {row} (from 0): not JSON ({reason}){hint}") from error
        if not isinstance(record, _Object):
            raise InputError(f"{name}, row {row} (from 0): {_kind(record)}, not an object; give an object a line")
        yield row, record
        row += 1


class _Object(dict[str, Any]):
    """A JSON object. ``repeated``: keys that occur more than once; the last value counts."""

    repeated: frozenset[str] = frozenset()

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        if len(self) < len(pairs):
            keys = [key for key, _ in pairs]
            self.repeated = frozenset(key for key in self if keys.count(key) > 1)


def _repeated_key(record: _Object, column: str) -> str | None:
    """Return a key that occurs twice: ``column``, or a key within its value, such as a role; None without one."""
    if column in record.repeated:
        return column
    pending = [record.get(column)]
    while pending:
        value = pending.pop()
        if isinstance(value, _Object):
            if value.repeated:
                return min(value.repeated)
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return None


def _check(name: str, row: int, column: str, value: object, content: Content) -> None:
    if content == "text":
        if not isinstance(value, str):
            raise _wrong(name, row, column, value, "a string, as in other rows")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{name}, row {row} (from 0): column {column!r} holds half of a surrogate pair "
                f"(\\u{ord(value[error.start]):04x}), which is not valid in UTF-8"
            ) from error
    elif not isinstance(value, list):
        items = "token ids" if content == "tokens" else "messages"
        raise _wrong(name, row, column, value, f"a list of {items}, as in other rows")
    elif content == "tokens" and (invalid := [item for item in value if type(item) is not int]):
        raise _wrong(name, row, column, invalid[0], "whole numbers, the token ids")


def _wrong(name: str, row: int, column: str, value: object, allowed: str) -> InputError:
    return InputError(f"{name}, row {row} (from 0): column {column!r} holds {_kind(value)}; allowed: {allowed}")


def _kind(value: object) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list"}
    return "null" if value is None else kinds.get(type(value), "an object")
