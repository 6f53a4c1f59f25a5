"""Writes a timeline as a gzipped file: Chrome's JSON format or, if too large for it, Perfetto's own.

Times are whole nanoseconds. Perfetto's own format needs the optional ``perfetto`` package.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any

from harness.show.timeline.model import CounterPoint, Nested, Resolved, TimelineRow
from trainer.json_types import Json, JsonObject

PROTOBUF_NAME = "timeline.perfetto-trace.gz"
_SEQUENCE = 1  # every packet belongs to one sequence
_UUIDS_PER_NUMBER = 1000  # leaves room for a process's counters between two numbers
_FACTS = "harness"
_BUFFER_BYTES = 1 << 18
_PACKET_TAG = b"\x0a"  # field 1 of a Trace; a file is one Trace: its packets one after the other


class _Writer:
    """Writes packets of Perfetto's format to ``file``; CLOCK_MONOTONIC is ``base_ns`` at the file's time 0."""

    def __init__(self, file: IO[bytes], base_ns: int) -> None:
        definition = import_module("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
        self.types = definition.TrackEvent
        self._packet = definition.TracePacket
        self._file = file
        self._base_ns = base_ns
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        first = self.packet()
        first.sequence_flags = self._packet.SEQ_INCREMENTAL_STATE_CLEARED
        self.write(first)

    def packet(self) -> Any:
        packet = self._packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet

    def write(self, packet: Any) -> None:
        content = packet.SerializeToString()
        length = len(content)
        head = bytearray(_PACKET_TAG)
        while length > 0x7F:  # a varint: seven bits a byte, the lowest first
            head.append(length & 0x7F | 0x80)
            length >>= 7
        head.append(length)
        self._file.write(bytes(head) + content)

    def event(self, kind: int, track: int, t_ns: int) -> Any:
        packet = self.packet()
        packet.timestamp = t_ns - self._base_ns
        packet.sequence_flags = self._packet.SEQ_NEEDS_INCREMENTAL_STATE
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        return packet

    def name(self, packet: Any, name: str, category: str) -> None:
        """Set the name and the category of the event in ``packet``."""
        event = packet.track_event
        for ids, word, field in ((self._names, name, "event_names"), (self._categories, category, "event_categories")):
            if word not in ids:
                ids[word] = len(ids) + 1
                entry = getattr(packet.interned_data, field).add()
                entry.iid, entry.name = ids[word], word
        event.name_iid = self._names[name]
        event.category_iids.append(self._categories[category])


def write_protobuf(trace: Resolved) -> bytes:
    """Return the timeline as a gzipped file in Perfetto's own format. The same trace gives the same bytes."""
    target = io.BytesIO()
    flows: dict[Any, list[int]] = {}
    for number, bound in enumerate(trace.arrows, 1):
        for key in (bound.arrow.sender, bound.arrow.receiver):
            flows.setdefault(key, []).append(number)
    with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=GZIP_LEVEL, mtime=0) as packed:
        file = io.BufferedWriter(packed, _BUFFER_BYTES)
        writer = _Writer(file, trace.base_ns)
        _processes(writer, trace)
        for row in trace.rows:
            _slices(writer, row, flows)
        file.flush()
    return target.getvalue()


def _processes(writer: _Writer, trace: Resolved) -> None:
    packet = writer.packet()
    facts = packet.chrome_events.metadata.add()  # the trace processor's table metadata has it, as cr-harness
    facts.name = _FACTS
    facts.string_value = json.dumps({"events": trace.events, "base_monotonic_ns": trace.base_ns, **asdict(trace.facts)})
    writer.write(packet)
    for index, (pid, process) in enumerate(trace.processes):
        uuid = pid * _UUIDS_PER_NUMBER
        packet = writer.packet()
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.process.pid = pid
        packet.track_descriptor.process.process_name = process.name
        packet.track_descriptor.process.legacy_sort_index = index
        writer.write(packet)
        for number, counter in enumerate(process.counters, 1):
            packet = writer.packet()
            packet.track_descriptor.uuid = uuid + number
            packet.track_descriptor.parent_uuid = uuid
            packet.track_descriptor.name = f"{counter.name} {counter.unit}"
            packet.track_descriptor.counter.unit_name = counter.unit
            writer.write(packet)
            for t_ns, value in counter.points:
                packet = writer.event(writer.types.TYPE_COUNTER, uuid + number, t_ns)
                packet.track_event.double_counter_value = value
                writer.write(packet)
    for index, row in enumerate(trace.rows):
        packet = writer.packet()
        packet.track_descriptor.uuid = _uuid(row)
        thread = packet.track_descriptor.thread
        thread.pid, thread.tid, thread.thread_name, thread.legacy_sort_index = row.pid, row.tid, row.name, index
        writer.write(packet)


def _uuid(row: TimelineRow) -> int:
    return row.tid * _UUIDS_PER_NUMBER + _UUIDS_PER_NUMBER - 1


def _slices(writer: _Writer, row: TimelineRow, flows: dict[Any, list[int]]) -> None:
    """Write the begin and end events of all slices of a row. An inner slice ends before the slice around it."""
    track, enclosing = _uuid(row), list[Nested]()
    for nested in row.slices:
        while enclosing and enclosing[-1].slice.end_ns <= nested.slice.start_ns:
            writer.write(writer.event(writer.types.TYPE_SLICE_END, track, enclosing.pop().slice.end_ns))
        piece = nested.slice
        packet = writer.event(writer.types.TYPE_SLICE_BEGIN, track, piece.start_ns)
        writer.name(packet, piece.name, piece.category)
        packet.track_event.flow_ids.extend(flows.get(piece.key, ()) if piece.key is not None else ())
        for name, value in (piece.args or {}).items():
            _annotate(packet.track_event.debug_annotations.add(), name, value)
        writer.write(packet)
        enclosing.append(nested)
    for nested in reversed(enclosing):
        writer.write(writer.event(writer.types.TYPE_SLICE_END, track, nested.slice.end_ns))


def _annotate(annotation: Any, name: str, value: Any) -> None:
    annotation.name = name
    kind = {bool: "bool_value", int: "int_value", float: "double_value"}.get(type(value), "string_value")
    setattr(annotation, kind, value if kind != "string_value" else str(value))


Event = dict[str, Json]
CHROME_NAME = "timeline.json.gz"
_EVENTS_AT_ONCE = 2000  # events per call of the encoder and of gzip
GZIP_LEVEL = 4  # gzip's level: half the time of its default for a tenth more bytes
BEGINNING, BEFORE_FACTS = b'{"displayTimeUnit":"ms","traceEvents":[', b'\n],"otherData":'
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def write_chrome(trace: Resolved) -> bytes:
    """Return the timeline as a gzipped file in Chrome's JSON format. The same trace gives the same bytes."""
    target = io.BytesIO()
    count = 0
    following = events(trace)
    with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=GZIP_LEVEL, mtime=0) as file:
        file.write(BEGINNING)
        while batch := list(islice(following, _EVENTS_AT_ONCE)):
            file.write((",\n" if count else "\n").encode() + _encode(batch)[1:-1].encode())  # without its brackets
            count += len(batch)
        facts = {"events": count, "base_monotonic_ns": trace.base_ns, **asdict(trace.facts)}
        file.write(BEFORE_FACTS + _encode(facts).encode() + b"}\n")
    return target.getvalue()


def events(trace: Resolved) -> Iterator[Event]:
    """Yield all events of Chrome's format: first names of processes and threads, then slices, counters and arrows."""
    for index, (pid, process) in enumerate(trace.processes):
        yield _metadata(pid, pid, "process_name", {"name": process.name})
        yield _metadata(pid, pid, "process_sort_index", {"sort_index": index})
    for index, row in enumerate(trace.rows):
        yield _metadata(row.pid, row.tid, "thread_name", {"name": row.name})
        yield _metadata(row.pid, row.tid, "thread_sort_index", {"sort_index": index})
    for row in trace.rows:
        for entry, _ in row.slices:
            event: Event = {"ph": "X", "name": entry.name, "cat": entry.category, "pid": row.pid, "tid": row.tid}
            event["ts"] = microseconds(entry.start_ns - trace.base_ns)
            event["dur"] = microseconds(entry.end_ns - entry.start_ns)
            if entry.args:
                event["args"] = dict(entry.args)
            yield event
    for pid, process in trace.processes:
        for counter in process.counters:
            for t_ns, value in counter.points:
                mark: Event = {"pid": pid, "tid": pid, "ts": microseconds(t_ns - trace.base_ns)}
                yield {"ph": "C", "name": counter.name, **mark, "args": {counter.unit: value}}
    for number, bound in enumerate(trace.arrows, 1):
        common: Event = {"name": bound.arrow.name, "cat": bound.arrow.name, "id": number}
        yield {"ph": "s", **common, **_at(bound.sender, trace.base_ns)}
        yield {"ph": "f", "bp": "e", **common, **_at(bound.receiver, trace.base_ns)}


def microseconds(nanoseconds: int) -> float:
    """Convert to microseconds that Perfetto's importer, which truncates, reads as the same ``nanoseconds``."""
    value = nanoseconds / 1000
    return value if int(value * 1000) == nanoseconds else math.nextafter(value, math.inf)


def _at(point: CounterPoint, base_ns: int) -> Event:
    return {"pid": point.pid, "tid": point.tid, "ts": microseconds(point.t_ns - base_ns)}


def _metadata(pid: int, tid: int, name: str, args: JsonObject) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": name, "args": args}


_CHECKED_BYTES = 1 << 20  # bytes


def damage(path: Path) -> str | None:
    """Return the damage of the timeline file at ``path``; None if it is complete. Reads it in pieces."""
    head, last, tail = b"", b"", b""
    try:
        with gzip.open(path) as file:
            while chunk := file.read(_CHECKED_BYTES):
                head = head or chunk
                last, tail = tail, chunk
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        return str(error)
    if not head:
        return "it is empty"
    if path.name != CHROME_NAME:
        return None
    _, separator, facts = (last + tail).rpartition(BEFORE_FACTS)
    try:
        if separator and head.startswith(BEGINNING):
            json.loads(facts.rstrip().removesuffix(b"}"))
            return None
    except ValueError:
        pass
    return "it is not a whole timeline"
