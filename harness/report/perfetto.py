"""timeline.json.gz: a window of steps of every arm in Chrome's trace format, for ui.perfetto.dev.

Times are microseconds. Processes of one session share a base, so they lie as they ran; sessions that ran apart each
start at 0. An arrow leads from the last stage of each batch in its worker to the fetch that received it.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.results import RunData, StudyRecord

DEFAULT_STEPS = 20
PROCESSES_PER_ARM = 1000  # room for an arm's worker processes between two arms' ids
Row = dict[str, Any]
Event = dict[str, Any]


@dataclass
class _Slice:
    name: str
    start_ns: int
    end_ns: int
    args: dict[str, Any] = field(default_factory=dict)
    batch: int = -1


def timeline(study: StudyRecord, runs: Sequence[RunData]) -> bytes:
    """The gzipped trace: the last steps of each arm's first finished block; the same input gives the same bytes."""
    asked = (study.scenario_text.get("probes") or {}).get("timeline_steps")
    window = DEFAULT_STEPS if asked is None else max(1, int(asked))
    order = {arm["name"]: place for place, arm in enumerate(study.arms)}
    chosen: dict[str, RunData] = {}
    for run in sorted(runs, key=lambda run: (order.get(run.record.arm, len(order)), run.record.arm, run.record.block)):
        if run.record.status == "done" and not run.record.control and run.steps is not None and len(run.steps):
            chosen.setdefault(run.record.arm, run)
    windows = [(run, *_window(run, window)) for run in chosen.values()]
    bases: dict[str, int] = {}
    for run, steps, spans in windows:
        first = min([row["start_ns"] for row in (*steps, *spans)])
        bases[_clock(run)] = min(first, bases.get(_clock(run), first))
    events: list[Event] = []
    for place, (run, steps, spans) in enumerate(windows):
        events += _arm_events(place, run, steps, spans, bases[_clock(run)])
    content = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "scenario": study.scenario,
            "steps_per_arm": window,
            "clock": "microseconds; arms of one session share a base, sessions that ran apart each start at 0",
        },
    }
    return gzip.compress(json.dumps(content, allow_nan=False, separators=(",", ":")).encode(), mtime=0)


def _clock(run: RunData) -> str:
    return run.record.session or f"arm {run.record.arm}"


def _window(run: RunData, count: int) -> tuple[list[Row], list[Row]]:
    """The last ``count`` steps, and the spans that overlap them or belong to a batch received in them."""
    assert run.steps is not None
    steps: list[Row] = run.steps.to_pylist()[-count:]
    since, until = steps[0]["start_ns"], steps[-1]["start_ns"] + steps[-1]["wall_ns"]
    rows: list[Row] = run.spans.to_pylist() if run.spans is not None else []
    rows = [row for row in rows if row["role"] != "launch"]  # a point in time, shown by the phase around it
    for row in rows:
        if row["role"] == "sync":  # what blocked the main thread lies inside its phases
            row["role"], row["name"] = "main", f"blocked at {row['name']}"
    inside = [row for row in rows if row["end_ns"] > since and row["start_ns"] < until]
    received = {row["batch"] for row in inside if row["role"] == "main" and row["name"] == "fetch"}
    kept = [row for row in rows if row["role"] != "main" and row["batch"] in received and row["end_ns"] <= since]
    return steps, kept + inside


def _arm_events(place: int, run: RunData, steps: list[Row], spans: list[Row], base: int) -> list[Event]:
    arm, first_pid = run.record.arm, 1 + place * PROCESSES_PER_ARM
    roles = sorted({row["role"] for row in spans} | {"main"}, key=lambda role: (role != "main", len(role), role))
    threads: dict[tuple[str, int], list[_Slice]] = {}
    for row in steps:
        args = {"tokens": row["tokens"], "trained_tokens": row["trained_tokens"], "warmup": row["warmup"]}
        args |= {"turn": row["turn"], "loss": row["loss"] if math.isfinite(row["loss"] or 0.0) else None}
        name = f"step {row['step']}"
        main = threads.setdefault(("main", 0), [])
        main.append(_Slice(name, row["start_ns"], row["start_ns"] + row["wall_ns"], args))
    tids: dict[tuple[str, int], int] = {}
    for row in spans:
        # every thread of a role gets a number; the main thread's is 0, where its steps are
        tid = tids.setdefault((row["role"], row["tid"]), sum(role == row["role"] for role, _ in tids))
        args = {} if row["batch"] is None or row["batch"] < 0 else {"batch": row["batch"]}
        batch = args.get("batch", -1)
        one = _Slice(row["name"], row["start_ns"], row["end_ns"], args, batch)
        threads.setdefault((row["role"], tid), []).append(one)
    events = []
    for number, role in enumerate(roles):
        pid = first_pid + number
        what = f"{run.record.facts.get('device', role)}" if role == "device" else role  # says so where it is emulated
        events.append(_metadata(pid, 0, "process_name", {"name": f"{arm}: {what}"}))
        events.append(_metadata(pid, 0, "process_sort_index", {"sort_index": pid}))
    ends: dict[int, tuple[int, int, int]] = {}  # batch: pid, tid, time of the end of its last stage in a worker
    fetches: list[tuple[int, int, int, int]] = []  # batch, pid, tid, time of its reception
    for (role, tid), slices in sorted(threads.items()):
        pid = first_pid + roles.index(role)
        name = "main thread" if role == "main" else role
        events.append(_metadata(pid, tid, "thread_name", {"name": name if tid == 0 else f"{name} {tid}"}))
        events.append(_metadata(pid, tid, "thread_sort_index", {"sort_index": tid}))
        for one in nested(slices):
            start, end = one.start_ns - base, one.end_ns - base
            timing = {"ts": microseconds(start), "dur": microseconds(end - start)}
            category = _category(role, one.name)
            event = {"ph": "X", "name": one.name, "cat": category, "pid": pid, "tid": tid, **timing, "args": one.args}
            events.append(event)
            inside = max(start, end - 1)  # an arrow binds to the slice that encloses its time; the end is outside
            if role.startswith("loader") and one.batch >= 0 and inside >= ends.get(one.batch, (0, 0, -1))[2]:
                ends[one.batch] = (pid, tid, inside)
            if role == "main" and one.name == "fetch" and one.batch >= 0:
                fetches.append((one.batch, pid, tid, inside))
    for batch, pid, tid, received in fetches:
        if batch in ends:
            common = {"name": "batch", "cat": "batch", "id": place * 10**9 + batch}
            sender_pid, sender_tid, sent = ends[batch]
            events.append({"ph": "s", **common, "pid": sender_pid, "tid": sender_tid, "ts": microseconds(sent)})
            events.append({"ph": "f", "bp": "e", **common, "pid": pid, "tid": tid, "ts": microseconds(received)})
    return events


def _category(role: str, name: str) -> str:
    if role == "main":
        return "step" if name.startswith("step ") else "blocked" if name.startswith("blocked ") else "phase"
    return "device" if role == "device" else "stage"


def nested(slices: Iterable[_Slice]) -> list[_Slice]:
    """The slices of one thread in order, each clipped to the one around it and empty ones left out.

    Perfetto silently drops complete events that overlap without nesting.
    """
    result: list[_Slice] = []
    around: list[_Slice] = []
    for one in sorted(slices, key=lambda one: (one.start_ns, -one.end_ns)):
        while around and around[-1].end_ns <= one.start_ns:
            around.pop()
        end = min(one.end_ns, around[-1].end_ns) if around else one.end_ns
        if end <= one.start_ns:
            continue
        clipped = _Slice(one.name, one.start_ns, end, one.args, one.batch)
        result.append(clipped)
        around.append(clipped)
    return result


def microseconds(nanoseconds: int) -> float:
    """The float that the importer, which multiplies by 1000 and truncates, reads back as exactly ``nanoseconds``."""
    value = nanoseconds / 1000
    return value if int(value * 1000) == nanoseconds else math.nextafter(value, math.inf)


def _metadata(pid: int, tid: int, name: str, args: dict[str, Any]) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": name, "args": args}
