"""Reads a trace that torch.profiler exported (Chrome JSON, by kineto) into one Arrow table on CLOCK_MONOTONIC.

``ts`` is microseconds with three decimals since the file's ``baseTimeNanoseconds`` on the realtime clock. It is read as
a decimal, never as a float: to the nanosecond.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.traces.chrome_json import open_trace, parse, parse_header
from trainer.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

# (column of the table, key in the event's args)
_NUMBERS = (
    ("correlation", "correlation"),
    ("external_id", "External id"),
    ("bytes", "Bytes"),
    ("total_allocated_bytes", "Total Allocated"),
    ("device_type", "Device Type"),
    ("device_id", "Device Id"),  # of memory events; "device" of those on a device
)
_ON_DEVICE = ("kernel", "gpu_", "cuda_sync")  # how categories of events on a device begin
CUT_NAME = "cut"  # the name that a trace gives itself where we cut it
_BAD = (OSError, EOFError, zlib.error, ValueError, TypeError, AttributeError, ArithmeticError)


def read_profile(source: Path | bytes, realtime_minus_monotonic_ns: int, role: str = "main") -> pa.Table:
    """The complete and memory events of a trace, plain or gzipped, as a table (columns: :func:`table_schema`).

    ``start_ns`` is CLOCK_MONOTONIC nanoseconds: the trace's process must have told how far the realtime clock was
    ahead. ``role`` is that of the process; what ran on a device has the role ``device``. A trace that we cut ourselves
    (``probes.profilers.torch_session``) says so: :func:`is_cut`. InputError where the file is missing, cut short or
    something else.
    """
    name = "profile" if isinstance(source, bytes) else str(source)
    try:
        with open_trace(source) as file:
            raw, rest = parse(file)
        table = _table(raw, int(rest["baseTimeNanoseconds"]) - realtime_minus_monotonic_ns, role)
        return table.replace_schema_metadata({CUT_NAME: "yes"}) if rest.get("traceName") == CUT_NAME else table
    except KeyError as error:
        raise InputError(f"{name}: not a trace of torch.profiler (no {error})") from error
    except _BAD as error:
        raise InputError(f"{name}: not a whole trace of torch.profiler ({_line(error)})") from error


def is_cut(profile: pa.Table) -> bool:
    """Whether a table of :func:`read_profile` is of a trace that ends before what was recorded."""
    return CUT_NAME.encode() in (profile.schema.metadata or {})


def read_header(path: Path) -> dict[str, Any]:
    """What a trace says before its first event, its metadata among it; InputError as :func:`read_profile`."""
    try:
        with open_trace(path) as file:
            return parse_header(file)
    except _BAD as error:
        raise InputError(f"{path}: not a whole trace of torch.profiler ({_line(error)})") from error


def table_schema() -> pa.Schema:
    """The columns of :func:`read_profile`; ``*_ns`` in nanoseconds, ``*bytes`` in bytes, null where not told."""
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
