"""Reads and names the files of torch.profiler: kineto's Chrome trace events as Arrow columns.

The main process's first window is ``torch_profile.json.gz``, its second ``torch_profile.2.json.gz``; loader worker K's
is ``torch_profile.loader-K.json.gz``. Each header says, under ``harness``, how far the realtime clock was ahead of
CLOCK_MONOTONIC and what the file leaves out.

A quarter of a million events are about 100 MB of text and ten times that as Python dicts. The text is therefore cut
into blocks between two events, and Arrow's JSON parser (C++) turns each block into columns. The cut is a line break
with the writer's own indentation, which no JSON string can contain (it would be escaped). Python's json parses the
blocks that Arrow's parser refuses (process ids that are texts, a key given twice), and whole files that another program
wrote in another layout.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from trainer.errors import InputError
from trainer.json_types import JsonObject

if TYPE_CHECKING:
    import pyarrow as pa

# Categories of events and types of devices (kineto's ActivityType, c10::DeviceType).
RUNTIME_CALLS = ("cuda_runtime", "cuda_driver")  # calls on the host, including every launch
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
CPU = "CPU"
DEVICE_TYPES = {0: CPU, 1: "CUDA"}  # other types are shown by number

PHASE = "phase: "  # + a name of trainer.telemetry.PHASES, on the main thread
STAGE = "stage: "  # + a name of trainer.telemetry.STAGES, in a loader worker or inline
STEP = "ProfilerStep#"  # torch's own, + its count of the profiler's steps


_EVENTS = b'"traceEvents": ['
BETWEEN = b"\n  },\n  {"  # separator of two events, as kineto writes it
BLOCK_BYTES = 1 << 20
_SMALL_BYTES = 1 << 14  # Python's json reads this much text in about a millisecond
_SHAPES = re.compile(rb'"Input Dims": (\[[][\d, ]*\])')  # nested lists of any depth, which no column can hold
_NAME = re.compile(rb'(?<=\n    "name": ").*(?=",?\n)')  # kineto does not escape quotes in names, for example of a file
_MICROSECONDS = (19, 3)  # decimal digits, and how many of them are behind the point
_GZIP = b"\x1f\x8b"
_INSTANTS = "cpu_instant_event"  # the only instant events that measure something: allocations
# Keys of an event's args that are kept, all of them integers.
ARGUMENTS = ("correlation", "External id", "Bytes", "Total Allocated", "Device Type", "Device Id", "device")


def open_trace(source: Path | bytes) -> IO[bytes]:
    """Open the text of a trace, gzipped or not. ``source``: path or content. Raises OSError if it cannot be read."""
    if isinstance(source, bytes):
        file = io.BytesIO(source)
        return cast("IO[bytes]", gzip.open(file)) if source.startswith(_GZIP) else file
    with open(source, "rb") as plain:
        packed = plain.read(len(_GZIP)) == _GZIP
    return cast("IO[bytes]", gzip.open(source)) if packed else source.open("rb")


def parse(file: IO[bytes]) -> tuple[pa.Table, Mapping[str, object]]:
    """Return the duration and memory events of a trace as a table, and everything else in it as JSON. Columns: cat,
    name, pid, tid, ts_ns and dur_ns (ns on the trace's own clock; dur_ns 0 without a duration), the keys of
    :data:`ARGUMENTS`, shapes (JSON as text). Raises ValueError if the text is no whole JSON object, KeyError if it has
    no ``traceEvents``.
    """
    import pyarrow as pa

    head, marker, pending = file.read(BLOCK_BYTES).partition(_EVENTS)
    parts: list[pa.Table] = []
    while marker:
        block, pending = _cut(pending, len(pending))
        parts += _block_tables(block)
        more = file.read(BLOCK_BYTES)
        if not more:
            break
        pending += more
    # Parse the last event and what follows it, or the whole of another layout. A truncated file is refused here.
    rest = json.loads(head + marker + pending + file.read(), parse_float=Decimal)
    if not isinstance(rest, dict):
        raise ValueError("not a JSON object")
    parts.append(_events_table(rest.pop("traceEvents")))
    return pa.concat_tables(parts).unify_dictionaries(), rest


def _schema() -> pa.Schema:
    import pyarrow as pa

    time = pa.decimal128(*_MICROSECONDS)
    texts = [(name, pa.string()) for name in ("ph", "cat", "name")]
    numbers = [("pid", pa.int64()), ("tid", pa.int64()), ("ts", time), ("dur", time)]
    arguments = [*((key, pa.int64()) for key in ARGUMENTS), ("Input Dims", pa.string())]
    return pa.schema([*texts, *numbers, ("args", pa.struct(arguments))])


def _cut(text: bytes, before: int) -> tuple[bytes, bytes]:
    """Split ``text`` at the last separator of events before ``before``. Without one, the first part is empty."""
    position = text.rfind(BETWEEN, 0, before)
    return (text[:position] + b"}", text[position + BETWEEN.index(b"{") :]) if position >= 0 else (b"", text)


def _block_tables(block: bytes) -> list[pa.Table]:
    """Parse the events in ``block`` into tables. A block that Arrow refuses is halved; a small part that it refuses is
    parsed by Python's json.
    """
    import pyarrow as pa
    import pyarrow.json as pj

    if not block:
        return []
    pieces = _SHAPES.split(block)
    pieces[1::2] = [b'"Input Dims": "%b"' % shapes for shapes in pieces[1::2]]
    objects = b"".join(pieces).replace(BETWEEN, b"\n  }\n  {")
    try:
        table = pj.read_json(
            pa.BufferReader(objects),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(objects)),
            parse_options=pj.ParseOptions(
                explicit_schema=_schema(), unexpected_field_behavior="ignore", newlines_in_values=True
            ),
        )
    except pa.ArrowInvalid:
        half, rest = _cut(block, len(block) // 2 if len(block) > _SMALL_BYTES else 0)
        if half:  # halve the block until only the refused events are left
            return _block_tables(half) + _block_tables(rest)
        mended = _NAME.sub(lambda name: name[0].replace(b'"', b'\\"'), block)
        return [_events_table(json.loads(b"[" + mended + b"]", parse_float=Decimal))]
    return [_chosen(table)]


def _events_table(events: Sequence[Any]) -> pa.Table:
    """Return events (Python objects) as the table of :func:`_chosen`. Events without process and thread are skipped."""
    import pyarrow as pa

    return _chosen(pa.Table.from_pylist(list(_rows(events)), _schema()))


def _rows(events: Sequence[Any]) -> Iterator[dict[str, object]]:
    for event in events:
        if not isinstance(event, dict):
            raise ValueError("an event is no JSON object")
        if not isinstance(event.get("pid"), int) or not isinstance(event.get("tid"), int) or "ts" not in event:
            continue
        args = event.get("args") or {}
        shapes = args.get("Input Dims")
        row = {key: event.get(key) for key in ("ph", "cat", "name", "pid", "tid")}
        row |= {key: None if event.get(key) is None else _microseconds(event[key]) for key in ("ts", "dur")}
        numbers = {key: value if isinstance(value := args.get(key), int) else None for key in ARGUMENTS}
        yield row | {"args": {**numbers, "Input Dims": None if shapes is None else json.dumps(shapes, default=str)}}


def _microseconds(value: int | Decimal) -> Decimal:
    return Decimal(value).quantize(Decimal(1).scaleb(-_MICROSECONDS[1]))


def _chosen(table: pa.Table) -> pa.Table:
    """Return the duration and memory events in ``table``, with the columns of :func:`parse`. All else is dropped to
    save memory.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, category = table.column("ph"), table.column("cat")
    mask = pc.or_(pc.equal(kind, "X"), pc.and_(pc.equal(kind, "i"), pc.equal(category, _INSTANTS)))
    kept = table.filter(pc.and_kleene(mask, table.column("pid").is_valid())).combine_chunks()
    columns = {name: kept.column(name).fill_null("").dictionary_encode() for name in ("cat", "name")}
    columns |= {name: kept.column(name) for name in ("pid", "tid")}
    columns |= {f"{name}_ns": _nanoseconds(kept.column(name)) for name in ("ts", "dur")}
    columns |= {key: pc.struct_field(kept.column("args"), key) for key in ARGUMENTS}
    return pa.table(columns | {"shapes": pc.struct_field(kept.column("args"), "Input Dims")})


def _nanoseconds(microseconds: pa.ChunkedArray) -> pa.Array:
    """Convert decimals with three places (microseconds) to int64 nanoseconds; null becomes 0."""
    import numpy as np
    import pyarrow as pa

    values = pa.concat_arrays([pa.array([], microseconds.type), *microseconds.fill_null(0).chunks])
    halves = np.frombuffer(values.buffers()[1], dtype="<i8")
    return pa.array(halves[2 * values.offset : 2 * (values.offset + len(values)) : 2].copy())


# (column of the table, key in the event's args)
_NUMBERS = (
    ("correlation", "correlation"),
    ("external_id", "External id"),
    ("bytes", "Bytes"),
    ("total_allocated_bytes", "Total Allocated"),
    ("device_type", "Device Type"),
    ("device_id", "Device Id"),  # device_id of memory events; events on a device have "device"
)
_ON_DEVICE = ("kernel", "gpu_", "cuda_sync")  # prefixes of the categories of events on a device
CUT_NAME = "cut"  # the name of a trace that the harness itself cut short
_BAD = (OSError, EOFError, zlib.error, ValueError, TypeError, AttributeError, ArithmeticError)


def read_profile(source: Path | bytes, realtime_minus_monotonic_ns: int, role: str = "main") -> pa.Table:
    """Read a torch.profiler trace, plain or gzipped, as a table of its duration and memory events.

    ``realtime_minus_monotonic_ns`` makes ``start_ns`` CLOCK_MONOTONIC. ``role``: of the process; work on a device has
    the role ``device``. Raises InputError if the file is missing, truncated or no trace.
    """
    name = "profile" if isinstance(source, bytes) else str(source)
    try:
        with open_trace(source) as file:
            raw, metadata = parse(file)
        base_ns = metadata["baseTimeNanoseconds"]
        if not isinstance(base_ns, int | Decimal | str):
            raise ValueError("its baseTimeNanoseconds is no number")
        table = _table(raw, int(base_ns) - realtime_minus_monotonic_ns, role)
        return table.replace_schema_metadata({CUT_NAME: "yes"}) if metadata.get("traceName") == CUT_NAME else table
    except KeyError as error:
        raise InputError(f"{name}: not a trace of torch.profiler (no {error})") from error
    except _BAD as error:
        raise InputError(f"{name}: not a whole trace of torch.profiler ({_line(error)})") from error


def is_cut(profile: pa.Table) -> bool:
    """Return True if the trace behind a table of :func:`read_profile` was cut short by the harness."""
    return CUT_NAME.encode() in (profile.schema.metadata or {})


def read_header(path: Path) -> JsonObject:
    """Return the metadata before a trace's first event. Raises InputError as :func:`read_profile` does."""
    try:
        with open_trace(path) as file:
            head, marker, _ = file.read(BLOCK_BYTES).partition(_EVENTS)
        content = json.loads(head + marker + b"]}")
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        return content
    except _BAD as error:
        raise InputError(f"{path}: not a whole trace of torch.profiler ({_line(error)})") from error


def table_schema() -> pa.Schema:
    """Return the schema of the tables of :func:`read_profile`. ``*_ns`` are nanoseconds; missing values are null."""
    import pyarrow as pa

    word = pa.dictionary(pa.int32(), pa.string())
    numbers = ("pid", "tid", "start_ns", "duration_ns", *(column for column, _ in _NUMBERS))
    integers = [(name, pa.int64()) for name in numbers]
    return pa.schema([("category", word), ("name", word), *integers, ("role", word), ("input_shapes", pa.string())])


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


STEM, SUFFIX = "torch_profile", ".json.gz"
HEADER = "harness"  # key of the harness's facts in a trace's header
OFFSET = "realtime_minus_monotonic_ns"  # key of the offsets: [at start, at end]
CUT = "cut"  # key of the reason for an early end, or null


def file_name(role: str, window: int = 1) -> str:
    """Return the name of a profile: window ``window`` (from 1) of role "main", or the only one of "loader-K"."""
    part = f".{role}" if role != "main" else f".{window}" if window > 1 else ""
    return f"{STEM}{part}{SUFFIX}"


def files(folder: Path) -> list[tuple[Path, str]]:
    """Return (path, role) of the profiles in ``folder``: the main process's windows in order, then the workers'."""
    profiles = []
    for path in folder.glob(f"{STEM}*{SUFFIX}"):
        part = path.name.removeprefix(STEM).removesuffix(SUFFIX).removeprefix(".")
        if part.startswith("loader-"):
            profiles.append((path, part))
        elif not part or part.isdecimal():
            profiles.append((path, "main"))
    return sorted(profiles, key=lambda profile: (profile[1] != "main", len(profile[0].name), profile[0].name))


def header(path: Path) -> JsonObject:
    """Return what the harness itself wrote into a trace's header: the clock offsets, and the reason for an early end;
    {} if nothing. Raises InputError if the trace is unreadable.
    """
    content = read_header(path).get(HEADER)
    return content if isinstance(content, dict) else {}


def read_profiles(folder: Path, clock_offsets: Sequence[int] = ()) -> tuple[list[pa.Table], list[str]]:
    """Return the tables of all profiles in a run's folder, and a line for each damaged file. ``clock_offsets``:
    realtime minus monotonic clock in ns, from probes.json, for files that do not have it.
    """
    tables, problems = [], []
    for path, role in files(folder):
        try:
            offsets = header(path).get(OFFSET) or list(clock_offsets)
            if not isinstance(offsets, list) or not offsets or not all(type(offset) is int for offset in offsets):
                raise InputError(f"{path}: its clock is unknown (no {OFFSET} in it or in probes.json)")
            tables.append(read_profile(path, round(sum(offsets) / len(offsets)), role))
        except InputError as error:
            problems.append(str(error))
    return tables, problems
