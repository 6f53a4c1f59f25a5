"""The rules a timeline in Chrome's format must keep so that Perfetto shows all of it, and shows it right."""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.timeline_check.alignment import alignment

PHASES = "XMCsf"
METADATA = ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
FACTS = ("events", "base_monotonic_ns", "scenario", "clock", "runs", "cut")
CAUSES = {"read", "tokenize", "pack", "transfer", "python", "sync", "checkpoint", "log", "unknown"}
Event = dict[str, Any]
Thread = tuple[int, int]


@dataclass
class Slices:
    """The slices of one thread as (start, end, name, args) in nanoseconds, in order, parents first."""

    rows: list[tuple[int, int, str, Event]] = field(default_factory=list)

    def sort(self) -> None:
        self.rows.sort(key=lambda row: (row[0], -row[1]))

    def last_started(self, t_ns: int) -> tuple[int, int, str, Event] | None:
        """What Perfetto ties an arrow at ``t_ns`` to, whether it has ended by then or not."""
        place = bisect_right(self.rows, t_ns, key=lambda row: row[0])
        return self.rows[place - 1] if place else None


@dataclass
class Result:
    """What is wrong, a line each, and what was counted and measured."""

    problems: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


def check(content: bytes) -> Result:
    """Every rule against a gzipped or plain timeline."""
    result = Result()
    try:
        text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        trace = json.loads(text)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        result.problems.append(f"not a whole JSON file: {error}")
        return result
    events, facts = (trace.get("traceEvents"), trace.get("otherData")) if isinstance(trace, dict) else (None, None)
    if not isinstance(events, list) or not isinstance(facts, dict):
        result.problems.append("no traceEvents or no otherData")
        return result
    _facts(facts, events, result)
    good = [event for index, event in enumerate(events) if _well_formed(event, index, result)]
    threads = _threads(good)
    _names(good, result)
    _nesting(threads, result)
    _flows(good, threads, result)
    _counters(good, result)
    _waits(threads, result)
    result.figures |= {
        "events": len(events),
        "slices": sum(event["ph"] == "X" for event in good),
        "arrows": sum(event["ph"] == "s" for event in good),
        "counter_points": sum(event["ph"] == "C" for event in good),
        "processes": sum(event["name"] == "process_name" for event in good),
        "threads": sum(event["name"] == "thread_name" for event in good),
        "base_monotonic_ns": facts.get("base_monotonic_ns"),
        "cut": facts.get("cut"),
    }
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in good if e["name"] == "thread_name"}
    measured = alignment({thread: (named.get(thread, ""), slices.rows) for thread, slices in threads.items()})
    result.figures["alignment"] = measured
    result.problems += [problem for run in measured.values() for problem in run["problems"]]
    return result


def is_chrome(content: bytes) -> bool:
    """Whether it is Chrome's format; else it is Perfetto's own, which only Perfetto itself can check."""
    if content[:2] != b"\x1f\x8b":
        return True
    with gzip.open(io.BytesIO(content)) as file:
        return file.read(1) == b"{"


def ns(microseconds: float) -> int:
    """As the importer reads it."""
    return int(microseconds * 1000)


def _facts(facts: Event, events: list[Event], result: Result) -> None:
    result.problems += [f"otherData has no {name!r}" for name in FACTS if name not in facts]
    if facts.get("events") != len(events):
        result.problems.append(f"otherData tells of {facts.get('events')} events, there are {len(events)}")


def _well_formed(event: Event, index: int, result: Result) -> bool:
    wrong = []
    if event.get("ph") not in tuple(PHASES):
        wrong.append(f"ph {event.get('ph')!r}")
    if not isinstance(event.get("name"), str) or not event["name"]:
        wrong.append("no name")
    # 0 is the idle process to Perfetto
    wrong += [f"{key} {event.get(key)!r}" for key in ("pid", "tid") if not _whole(event.get(key)) or event[key] < 1]
    if event.get("ph") == "M":
        wrong += [] if event.get("name") in METADATA and isinstance(event.get("args"), dict) else ["unknown metadata"]
    elif not _nanoseconds(event.get("ts")):
        wrong.append(f"ts {event.get('ts')!r}")
    if event.get("ph") == "X":
        wrong += [] if _nanoseconds(event.get("dur")) and event["dur"] > 0 else [f"dur {event.get('dur')!r}"]
        wrong += [] if isinstance(event.get("cat"), str) and event["cat"] else ["no category"]
    if event.get("ph") == "C":
        values = event.get("args")
        good = isinstance(values, dict) and len(values) == 1 and all(map(_finite, values.values()))
        wrong += [] if good else [f"values {values!r}"]
    if event.get("ph") in ("s", "f"):
        wrong += [] if _whole(event.get("id")) else [f"id {event.get('id')!r}"]
        wrong += [] if event["ph"] == "s" or event.get("bp") == "e" else ["an arrow's end that does not bind (bp)"]
    result.problems += [f"event {index}: {what}" for what in wrong]
    return not wrong


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _nanoseconds(value: Any) -> bool:
    """A time that is a whole number of nanoseconds, after the importer's multiplication and truncation."""
    return _finite(value) and value >= 0 and abs(value * 1000 - ns(value)) < 0.01


def _threads(events: list[Event]) -> dict[Thread, Slices]:
    threads: dict[Thread, Slices] = defaultdict(Slices)
    for event in events:
        if event["ph"] == "X":
            start = ns(event["ts"])
            row = (start, start + ns(event["dur"]), event["name"], event)
            threads[event["pid"], event["tid"]].rows.append(row)
    for slices in threads.values():
        slices.sort()
    return threads


def _names(events: list[Event], result: Result) -> None:
    """Every process and thread has one name and one place, and no thread number belongs to two processes."""
    given: dict[tuple[str, int, int], int] = defaultdict(int)
    for event in events:
        if event["ph"] == "M":
            given[event["name"], event["pid"], 0 if event["name"].startswith("process") else event["tid"]] += 1
    result.problems += [f"{name} of {pid}/{tid} given {n} times" for (name, pid, tid), n in given.items() if n > 1]
    used = {(event["pid"], event["tid"]) for event in events if event["ph"] in "Xsf"}
    pids = {event["pid"] for event in events}
    for kind, keys in (("process", {(pid, 0) for pid in pids}), ("thread", used)):
        for what in ("name", "sort_index"):
            missing = [key for key in sorted(keys) if (f"{kind}_{what}", *key) not in given]
            result.problems += [f"no {kind}_{what} of {pid}/{tid}" for pid, tid in missing]
    owners: dict[int, set[int]] = defaultdict(set)
    for pid, tid in used:
        owners[tid].add(pid)
    result.problems += [f"thread {tid} in processes {sorted(p)}" for tid, p in owners.items() if len(p) > 1]


def _nesting(threads: dict[Thread, Slices], result: Result) -> None:
    for (pid, tid), slices in threads.items():
        around: list[tuple[int, int, str, Event]] = []
        for row in slices.rows:
            while around and around[-1][1] <= row[0]:
                around.pop()
            if around and row[1] > around[-1][1]:
                result.problems.append(f"{pid}/{tid}: {row[2]!r} at {row[0]} ns ends after {around[-1][2]!r} around it")
            around.append(row)


def _flows(events: list[Event], threads: dict[Thread, Slices], result: Result) -> None:
    """Every arrow has one start and one end, in order, and each lies in the slice that Perfetto ties it to."""
    ends: dict[tuple[str, str, int], dict[str, list[Event]]] = defaultdict(lambda: {"s": [], "f": []})
    for event in events:
        if event["ph"] in "sf":
            ends[event.get("cat", ""), event["name"], event["id"]][event["ph"]].append(event)
    for key, found in ends.items():
        what = f"arrow {key[1]} {key[2]}"
        if len(found["s"]) != 1 or len(found["f"]) != 1:
            result.problems.append(f"{what}: {len(found['s'])} starts, {len(found['f'])} ends")
            continue
        starts = []
        for end in (found["s"][0], found["f"][0]):
            at = ns(end["ts"])
            slices = threads.get((end["pid"], end["tid"]))
            bound = slices.last_started(at) if slices is not None else None
            if bound is None or not bound[0] <= at < bound[1]:
                result.problems.append(f"{what}: its {end['ph']} at {at} ns lies in no slice")
            else:
                starts.append(bound[0])
        if ns(found["s"][0]["ts"]) > ns(found["f"][0]["ts"]) or (len(starts) == 2 and starts[0] > starts[1]):
            result.problems.append(f"{what}: leads back in time")


def _counters(events: list[Event], result: Result) -> None:
    last: dict[tuple[int, str, str], int] = {}
    for event in events:
        if event["ph"] == "C":
            key = (event["pid"], event["name"], *event["args"])
            at = ns(event["ts"])
            if at <= last.get(key, -1):
                result.problems.append(f"counter {event['name']!r} of {event['pid']} goes back to {at} ns")
            last[key] = at


def _waits(threads: dict[Thread, Slices], result: Result) -> None:
    """Every stretch of waiting or starving has a cause, and its parts, where it has some, fill it."""
    for slices in threads.values():
        outer: tuple[int, int, str, Event] | None = None
        filled = 0
        for row in [*slices.rows, (1 << 62, 1 << 62, "", {"cat": "", "args": {"cause": "log"}})]:
            if outer is not None and row[0] >= outer[1]:
                if filled not in (0, outer[1] - outer[0]):
                    result.problems.append(f"{outer[2]!r} at {outer[0]} ns: its causes last {filled} ns")
                outer, filled = None, 0
            if row[3].get("cat") not in ("waits", "starved"):
                continue
            if outer is not None:
                filled += row[1] - row[0]
            elif row[3].get("args", {}).get("cause") not in CAUSES:
                result.problems.append(f"{row[2]!r} at {row[0]} ns has no cause")
            else:
                outer = row
