"""Checks a table that was read against the contract: which columns it has, of which type, and whether text is text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.study.contract import ADDED_COLUMNS, SCHEMA
from trainer.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Columns = tuple[tuple[str, str], ...]  # (name, Arrow type)
# Of a step, a span or a sample: what it is and when it was. Of any other column a null says "not measured".
ALWAYS_KNOWN = {"step", "warmup", "start_ns", "wall_ns", "end_ns", "role", "name", "t_ns", "source", "metric"}
LARGEST = 2**53  # a hundred days in nanoseconds
CLOCKS, LATEST_NS = ("start_ns", "end_ns", "t_ns"), 2**62  # since the machine started, a century or so ago


def check_names(path: Path, names: Sequence[str]) -> None:
    """InputError where two columns of the table at ``path`` have one name: nobody knows which is meant."""
    for name, times in Counter(names).items():
        if times > 1:
            raise _wrong(path, f"{times} columns named {name!r}")


def completed(path: Path, table: pa.Table, columns: Columns, wanted: Sequence[str] | None = None) -> pa.Table:
    """``table`` with the types of ``columns``; those that came later are null where it lacks them.

    ``wanted``: the columns that were asked for, where not all. InputError where it is not one of ours.
    """
    import pyarrow as pa

    found = {one.name: one.type for one in table.schema}
    for name, kind in columns:
        if name in found:
            if found[name] != pa.type_for_alias(kind):
                table = _typed(path, table, name, pa.type_for_alias(kind))
            if name in ALWAYS_KNOWN and table.column(name).null_count:
                raise _wrong(path, f"column {name!r} holds nulls")
            if kind == "string":
                _check_text(path, table, name)
            elif kind == "int64":
                _check_range(path, table, name)
            continue
        if wanted is not None and name not in wanted:
            continue
        if name not in ADDED_COLUMNS:
            raise _wrong(path, f"no column {name!r}")
        table = table.append_column(name, pa.nulls(len(table), pa.type_for_alias(kind)))
    return table


def _typed(path: Path, table: pa.Table, name: str, kind: pa.DataType) -> pa.Table:
    """``table`` with that column as the contract has it: another program may have written the same values wider."""
    import pyarrow as pa

    found = table.schema.field(name).type
    if pa.types.is_dictionary(found) and found.value_type == kind:
        return table
    try:
        column = table.column(name).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _wrong(path, f"column {name!r} is {found}, not {kind}") from error
    return table.set_column(table.schema.get_field_index(name), name, column)


def _check_text(path: Path, table: pa.Table, name: str) -> None:
    """A parquet file may call bytes text; they would fail wherever they are first turned into a name."""
    import pyarrow as pa

    try:
        table.column(name).validate(full=True)
    except pa.ArrowInvalid as error:
        raise _wrong(path, f"column {name!r} holds bytes that are no text") from error


def _check_range(path: Path, table: pa.Table, name: str) -> None:
    """Sums of nanoseconds and of tokens are exact in floats because each of them is; clocks are never summed."""
    import pyarrow.compute as pc

    found = pc.min_max(table.column(name))
    least, most = found["min"].as_py(), found["max"].as_py()
    low, high = (0, LATEST_NS) if name in CLOCKS else (-LARGEST, LARGEST)
    if least is not None and not low <= least <= most <= high:
        raise _wrong(path, f"column {name!r} holds {least if least < low else most}, not {low} to {high}")


def _wrong(path: Path, what: str) -> InputError:
    return InputError(f"{path}: not a results table of schema {SCHEMA}: {what}")
