"""Writes a timeline in Chrome's trace format (gzipped JSON), which ui.perfetto.dev and chrome://tracing read.

Times are microseconds since the start of the trace. The importer reads a truncated file without an error, so the
metadata at the end state the number of events, and ``damage`` checks a file before it is shown.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from harness.show.timeline.model import CounterPoint, Resolved
from trainer.json_types import Json, JsonObject

Event = dict[str, Json]
CHROME_NAME = "timeline.json.gz"
_EVENTS_AT_ONCE = 2000  # events per call of the encoder and of gzip
GZIP_LEVEL = 4  # gzip's level: half the time of its default for a tenth more bytes
BEGINNING, BEFORE_FACTS = b'{"displayTimeUnit":"ms","traceEvents":[', b'\n],"otherData":'
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def write(trace: Resolved) -> bytes:
    """Write the file's content. The same trace gives the same bytes."""
    target = io.BytesIO()
    count = 0
    following = events(trace)
    with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=GZIP_LEVEL, mtime=0) as file:
        file.write(BEGINNING)
        while some := list(islice(following, _EVENTS_AT_ONCE)):
            file.write((",\n" if count else "\n").encode() + _encode(some)[1:-1].encode())  # without its brackets
            count += len(some)
        facts = {"events": count, "base_monotonic_ns": trace.base_ns, **asdict(trace.facts)}
        file.write(BEFORE_FACTS + _encode(facts).encode() + b"}\n")
    return target.getvalue()


def events(trace: Resolved) -> Iterator[Event]:
    """Yield every event: names first, then slices, counters, arrows."""
    for index, (pid, process) in enumerate(trace.processes):
        yield _metadata(pid, pid, "process_name", {"name": process.name})
        yield _metadata(pid, pid, "process_sort_index", {"sort_index": index})
    for index, row in enumerate(trace.rows):
        yield _metadata(row.pid, row.tid, "thread_name", {"name": row.name})
        yield _metadata(row.pid, row.tid, "thread_sort_index", {"sort_index": index})
    for row in trace.rows:
        for one, _ in row.slices:
            event: Event = {"ph": "X", "name": one.name, "cat": one.category, "pid": row.pid, "tid": row.tid}
            event["ts"] = microseconds(one.start_ns - trace.base_ns)
            event["dur"] = microseconds(one.end_ns - one.start_ns)
            if one.args:
                event["args"] = dict(one.args)
            yield event
    for pid, process in trace.processes:
        for counter in process.counters:
            for t_ns, value in counter.points:
                at: Event = {"pid": pid, "tid": pid, "ts": microseconds(t_ns - trace.base_ns)}
                yield {"ph": "C", "name": counter.name, **at, "args": {counter.unit: value}}
    for number, bound in enumerate(trace.arrows, 1):
        common: Event = {"name": bound.arrow.name, "cat": bound.arrow.name, "id": number}
        yield {"ph": "s", **common, **_at(bound.sender, trace.base_ns)}
        yield {"ph": "f", "bp": "e", **common, **_at(bound.receiver, trace.base_ns)}


def microseconds(nanoseconds: int) -> float:
    """Convert to microseconds so that the importer (times 1000, truncated) gets exactly ``nanoseconds`` back."""
    value = nanoseconds / 1000
    return value if int(value * 1000) == nanoseconds else math.nextafter(value, math.inf)


def _at(point: CounterPoint, base_ns: int) -> Event:
    return {"pid": point.pid, "tid": point.tid, "ts": microseconds(point.t_ns - base_ns)}


def _metadata(pid: int, tid: int, name: str, args: JsonObject) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": name, "args": args}


_CHECKED_BYTES = 1 << 20  # bytes


def damage(path: Path) -> str | None:
    """Return what is wrong with the timeline at ``path``, None where it is whole. Reads it in pieces.

    gzip's checksum finds every later change. For Chrome's format the beginning and the end are checked too.
    """
    head, last, tail = b"", b"", b""
    try:
        with gzip.open(path) as file:
            while some := file.read(_CHECKED_BYTES):
                head = head or some
                last, tail = tail, some
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        return str(error)
    if not head:
        return "it is empty"
    if path.name != CHROME_NAME:
        return None
    _, found, facts = (last + tail).rpartition(BEFORE_FACTS)
    try:
        if found and head.startswith(BEGINNING):
            json.loads(facts.rstrip().removesuffix(b"}"))
            return None
    except ValueError:
        pass
    return "it is not a whole timeline"
