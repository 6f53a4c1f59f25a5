"""Reads a timeline in Perfetto's own format back, with the format's own definition."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Found:
    """What the file holds: slices as (tid, start_ns, end_ns, name, category)."""

    slices: list[tuple[int, int, int, str, str]] = field(default_factory=list)
    arrows: int = 0
    counter_points: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


def read(content: bytes) -> Found:
    """The slices with their times, and how many arrows and counter points; asserts that begins and ends match."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

    trace = Trace()
    trace.ParseFromString(gzip.decompress(content))
    found = Found()
    tids: dict[int, int] = {}
    open_slices: dict[int, list[tuple[int, str, str]]] = {}
    flows: dict[int, int] = {}
    names: dict[int, str] = {}
    categories: dict[int, str] = {}
    for packet in trace.packet:
        track = packet.track_descriptor
        if track.HasField("thread"):
            tids[track.uuid] = track.thread.tid
        for metadata in packet.chrome_events.metadata:
            found.facts = json.loads(metadata.string_value)
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        names.update({one.iid: one.name for one in packet.interned_data.event_names})
        categories.update({one.iid: one.name for one in packet.interned_data.event_categories})
        around = open_slices.setdefault(event.track_uuid, [])
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            around.append((packet.timestamp, names[event.name_iid], categories[event.category_iids[0]]))
            for flow in event.flow_ids:
                flows[flow] = flows.get(flow, 0) + 1
        elif event.type == TrackEvent.TYPE_SLICE_END:
            start, name, category = around.pop()
            assert packet.timestamp > start
            found.slices.append((tids[event.track_uuid], start, packet.timestamp, name, category))
        else:
            assert event.type == TrackEvent.TYPE_COUNTER
            found.counter_points += 1
    assert not any(open_slices.values())
    assert set(flows.values()) <= {2}
    found.arrows = len(flows)
    return found
