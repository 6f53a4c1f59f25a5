"""Ways to damage one column of a parquet table: another type, other values, another name, gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

TABLES = ("steps", "spans", "samples")
Change = Callable[[Path], None]
LARGEST, SMALLEST = 2**63 - 1, -(2**63)


def damages(path: Path) -> Iterator[tuple[str, str, Change]]:
    """(column, what is done to it, how) of every damage of the table at ``path``."""
    table = pq.read_table(path)
    for name in table.column_names:
        for what, make in COLUMN.items():
            yield name, what, lambda file, name=name, make=make: _column(file, name, make)
        yield name, "gone", lambda file, name=name: _write(file, _read(file).drop_columns([name]))
        yield name, "renamed", lambda file, name=name: _renamed(file, name, f"{name}\n\x1b[2J")
        yield name, "twice", lambda file, name=name: _write(file, _twice(_read(file), name))
    for what, change in WHOLE.items():
        yield "the table", what, change


def _values(kind: Any, value: object) -> Callable[[Any], Any]:
    return lambda column: pa.array([value] * len(column), kind)


def _cast(kind: Any) -> Callable[[Any], Any]:
    """The values as another type; where they cannot be that, values of that type."""

    def change(column: Any) -> Any:
        try:
            return column.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return pa.nulls(len(column), kind)

    return change


COLUMN: dict[str, Callable[[Any], Any]] = {
    "as text": _cast(pa.string()),
    "as float": _cast(pa.float64()),
    "as int8": lambda column: pa.array([number % 100 for number in range(len(column))], pa.int8()),
    "as bool": _values(pa.bool_(), True),
    "as time": _values(pa.timestamp("ns"), 5),
    "as lists": _values(pa.list_(pa.int64()), [1]),
    "as structs": _values(pa.struct([("a", pa.int64())]), {"a": 1}),
    "as bytes": _values(pa.binary(), b"\xff\xfe"),
    "as bytes called text": lambda column: pa.Array.from_buffers(
        pa.string(), len(column), pa.array([b"\xff\xfe"] * len(column), pa.binary()).buffers()
    ),
    "as decimals": _values(pa.decimal128(38, 2), 1),
    "null": lambda column: pa.nulls(len(column), column.type),
    "no type": lambda column: pa.nulls(len(column)),
    "NaN": _values(pa.float64(), float("nan")),
    "infinite": _values(pa.float64(), float("inf")),
    "largest": _values(pa.int64(), LARGEST),
    "smallest": _values(pa.int64(), SMALLEST),
    "beyond": _values(pa.uint64(), 2**64 - 1),
    "zero": _values(pa.int64(), 0),
    "hostile text": _values(pa.string(), "\x1b[2J\n# x"),
    "some null": lambda column: pa.array(
        [None if place % 3 == 0 else value for place, value in enumerate(column.to_pylist())], column.type
    ),
}
WHOLE: dict[str, Change] = {
    "without rows": lambda file: _write(file, _read(file).slice(0, 0)),
    "of one row": lambda file: _write(file, _read(file).slice(0, 1)),
    "without columns": lambda file: _write(file, pa.table({})),
    "backwards": lambda file: _write(file, _read(file).take(list(range(_read(file).num_rows))[::-1])),
    "twice": lambda file: _write(file, pa.concat_tables([_read(file)] * 2)),
    "empty": lambda file: file.write_bytes(b"") and None,
    "text": lambda file: file.write_text("PAR1 no PAR1") and None,
    "half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]) and None,
    "a folder": lambda file: _folder(file),
    "gone": lambda file: file.unlink(),
}


def _read(file: Path) -> Any:
    return pq.read_table(file)


def _write(file: Path, table: Any) -> None:
    pq.write_table(table, file)


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _column(file: Path, name: str, make: Callable[[Any], Any]) -> None:
    table = _read(file)
    _write(file, table.set_column(table.column_names.index(name), name, make(table.column(name))))


def _renamed(file: Path, name: str, other: str) -> None:
    table = _read(file)
    _write(file, table.rename_columns([other if one == name else one for one in table.column_names]))


def _twice(table: Any, name: str) -> Any:
    return table.append_column(name, table.column(name))
