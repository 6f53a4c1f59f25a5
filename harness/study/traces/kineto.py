"""Reads a trace of torch.profiler (Chrome JSON, by kineto) into one Arrow table on CLOCK_MONOTONIC.

``ts`` is microseconds with three decimals since the file's ``baseTimeNanoseconds`` on the realtime clock. It is read as
a decimal, never as a float, so that it stays exact to the nanosecond.
"""

from __future__ import annotations

import zlib
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from harness.study.traces.chrome_json import open_trace, parse, parse_header
from trainer.errors import InputError
from trainer.json_types import JsonObject

if TYPE_CHECKING:
    import pyarrow as pa

# (column of the table, key in the event's args)
_NUMBERS = (
    ("correlation", "correlation"),
    ("external_id", "External id"),
    ("bytes", "Bytes"),
    ("total_allocated_bytes", "Total Allocated"),
    ("device_type", "Device Type"),
    ("device_id", "Device Id"),  # of memory events; events on a device have "device"
)
_ON_DEVICE = ("kernel", "gpu_", "cuda_sync")  # prefixes of the categories of events on a device
CUT_NAME = "cut"  # the name of a trace that the harness itself cut short
_BAD = (OSError, EOFError, zlib.error, ValueError, TypeError, AttributeError, ArithmeticError)


def read_profile(source: Path | bytes, realtime_minus_monotonic_ns: int, role: str = "main") -> pa.Table:
    """Read the complete and memory events of a trace, plain or gzipped, as a table (columns: :func:`table_schema`).

    ``start_ns`` is CLOCK_MONOTONIC nanoseconds; the trace's process must have recorded how far the realtime clock was
    ahead. ``role`` is the role of the process; work on a device has the role ``device``. A trace that the harness cut
    short itself (``probes.profilers.torch_session``) is marked: :func:`is_cut`. Raises InputError where the file is
    missing, truncated or no trace.
    """
    name = "profile" if isinstance(source, bytes) else str(source)
    try:
        with open_trace(source) as file:
            raw, rest = parse(file)
        base_ns = rest["baseTimeNanoseconds"]
        if not isinstance(base_ns, int | Decimal | str):
            raise ValueError("its baseTimeNanoseconds is no number")
        table = _table(raw, int(base_ns) - realtime_minus_monotonic_ns, role)
        return table.replace_schema_metadata({CUT_NAME: "yes"}) if rest.get("traceName") == CUT_NAME else table
    except KeyError as error:
        raise InputError(f"{name}: not a trace of torch.profiler (no {error})") from error
    except _BAD as error:
        raise InputError(f"{name}: not a whole trace of torch.profiler ({_line(error)})") from error


def is_cut(profile: pa.Table) -> bool:
    """Whether a table of :func:`read_profile` comes from a trace that was cut short."""
    return CUT_NAME.encode() in (profile.schema.metadata or {})


def read_header(path: Path) -> JsonObject:
    """Read a trace's metadata, which stand before its first event. Raises InputError as :func:`read_profile` does."""
    try:
        with open_trace(path) as file:
            return parse_header(file)
    except _BAD as error:
        raise InputError(f"{path}: not a whole trace of torch.profiler ({_line(error)})") from error


def table_schema() -> pa.Schema:
    """Return the columns of :func:`read_profile`; ``*_ns`` in nanoseconds, ``*bytes`` in bytes, null where missing."""
    import pyarrow as pa

    word = pa.dictionary(pa.int32(), pa.string())
    numbers = ("pid", "tid", "start_ns", "duration_ns", *(column for column, _ in _NUMBERS))
    whole = [(name, pa.int64()) for name in numbers]
    return pa.schema([("category", word), ("name", word), *whole, ("role", word), ("input_shapes", pa.string())])


def _table(raw: pa.Table, shift_ns: int, role: str) -> pa.Table:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    category = raw.column("cat")
    roles = []
    for chunk in category.chunks:
        on_device = np.array([word.startswith(_ON_DEVICE) for word in chunk.dictionary.to_pylist()], dtype=np.int32)
        codes = pa.array(on_device[chunk.indices.to_numpy()])
        roles.append(pa.DictionaryArray.from_arrays(codes, [role, "device"]))
    schema = table_schema()
    columns = {
        "category": category,
        "name": raw.column("name"),
        "pid": raw.column("pid"),
        "tid": raw.column("tid"),
        "start_ns": pc.add(raw.column("ts_ns"), shift_ns),
        "duration_ns": raw.column("dur_ns"),
        **{column: raw.column(key) for column, key in _NUMBERS},
        "device_id": pc.coalesce(raw.column("Device Id"), raw.column("device")),
        "role": pa.chunked_array(roles, schema.field("role").type),
        "input_shapes": raw.column("shapes"),
    }
    return pa.table(columns, schema=schema)


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
