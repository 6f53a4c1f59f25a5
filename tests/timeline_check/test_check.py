"""The validator finds every defect that is planted in a timeline without one."""

from __future__ import annotations

import copy
import gzip
import json

import pytest

from tests.timeline_check.check import check


def slice_(name, start, end, tid=1, pid=1, cat="phase", **args):
    return {"ph": "X", "name": name, "cat": cat, "pid": pid, "tid": tid, "ts": start, "dur": end - start, "args": args}


def named(pid, tid, process=False):
    kind = "process" if process else "thread"
    common = {"ph": "M", "pid": pid, "tid": tid}
    return [
        {**common, "name": f"{kind}_name", "args": {"name": f"{kind} {tid}"}},
        {**common, "name": f"{kind}_sort_index", "args": {"sort_index": tid}},
    ]


def arrow(end, tid, at, number=1):
    return {"ph": end, "bp": "e", "name": "batch", "cat": "batch", "id": number, "pid": 1, "tid": tid, "ts": at}


GOOD = [
    *named(1, 1, process=True),
    *named(1, 1),
    *named(1, 2),
    slice_("step 0", 0, 100),
    slice_("fetch", 10, 40),
    slice_("forward", 40, 90),
    slice_("pack", 5, 30, tid=2, cat="stage"),
    slice_("waits: pack", 110, 140, tid=2, cat="waits", cause="pack"),
    slice_("pack", 110, 130, tid=2, cat="waits"),
    slice_("transfer", 130, 140, tid=2, cat="waits"),
    {"ph": "C", "name": "queue depth", "pid": 1, "tid": 1, "ts": 0.0, "args": {"batches ready": 0.0}},
    {"ph": "C", "name": "queue depth", "pid": 1, "tid": 1, "ts": 30.0, "args": {"batches ready": 1.0}},
    arrow("s", 2, 29.999),
    arrow("f", 1, 40),
]
FACTS = {"base_monotonic_ns": 5, "scenario": "x", "clock": "y", "runs": [], "cut": []}


def written(listed, **facts):
    return json.dumps({"traceEvents": listed, "otherData": {"events": len(listed), **FACTS, **facts}}).encode()


def planted(change):
    events = copy.deepcopy(GOOD)
    change(events)
    return check(written(events)).problems


def find(events, **wanted):
    return next(event for event in events if all(event.get(key) == value for key, value in wanted.items()))


def test_a_good_timeline_has_no_problems():
    result = check(written(GOOD))
    assert result.problems == []
    assert (result.figures["slices"], result.figures["arrows"], result.figures["counter_points"]) == (7, 1, 2)


DEFECTS = {
    "overlap": (lambda e: find(e, name="fetch").update(dur=35), "'forward' at 40000 ns ends after 'fetch' around it"),
    "no duration": (lambda e: find(e, name="fetch").pop("dur"), "dur None"),
    "empty slice": (lambda e: find(e, name="fetch").update(dur=0), "dur 0"),
    "negative time": (lambda e: find(e, name="fetch").update(ts=-1), "ts -1"),
    "time between nanoseconds": (lambda e: find(e, name="fetch").update(ts=10.00007), "ts 10.00007"),
    "no name": (lambda e: find(e, name="fetch").update(name=""), "no name"),
    "no category": (lambda e: find(e, name="fetch").pop("cat"), "no category"),
    "unknown kind": (lambda e: find(e, name="fetch").update(ph="B"), "ph 'B'"),
    "thread 0": (lambda e: find(e, name="fetch").update(tid=0), "tid 0"),
    "process as a word": (lambda e: find(e, name="fetch").update(pid="main"), "pid 'main'"),
    "thread of two processes": (lambda e: e.append(slice_("x", 0, 1, tid=1, pid=2)), "thread 1 in processes [1, 2]"),
    "unnamed thread": (lambda e: e.append(slice_("x", 0, 1, tid=9)), "no thread_name of 1/9"),
    "unsorted process": (lambda e: e.remove(find(e, name="process_sort_index")), "no process_sort_index of 1/0"),
    "named twice": (lambda e: e.append(find(e, name="thread_name", tid=2)), "thread_name of 1/2 given 2 times"),
    "arrow without an end": (lambda e: e.remove(find(e, ph="f")), "arrow batch 1: 1 starts, 0 ends"),
    "arrow twice": (lambda e: e.append(arrow("f", 1, 50)), "arrow batch 1: 1 starts, 2 ends"),
    "arrow from nowhere": (lambda e: find(e, ph="s").update(ts=30), "its s at 30000 ns lies in no slice"),
    "arrow to an ended child": (lambda e: find(e, ph="f").update(ts=95), "its f at 95000 ns lies in no slice"),
    "arrow into the past": (lambda e: find(e, ph="f").update(ts=20, tid=2), "leads back in time"),
    "arrow that does not bind": (lambda e: find(e, ph="f").pop("bp"), "does not bind"),
    "counter goes back": (lambda e: find(e, ph="C", ts=30.0).update(ts=0.0), "goes back to 0 ns"),
    "counter without a number": (lambda e: find(e, ph="C").update(args={"x": None}), "values {'x': None}"),
    "wait without a cause": (lambda e: find(e, name="waits: pack").update(args={}), "has no cause"),
    "causes that do not fill": (lambda e: find(e, name="transfer").update(dur=5), "its causes last 25000 ns"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_found(defect):
    change, expected = DEFECTS[defect]
    problems = planted(change)
    assert any(expected in problem for problem in problems), problems


def test_an_arrow_to_a_slice_that_started_before_its_sender_is_found():
    """Perfetto draws an arrow from the slice that started first, whatever the arrow says."""
    events = [event for event in copy.deepcopy(GOOD) if event["ph"] != "f"]
    find(events, name="pack").update(ts=15, dur=15)
    assert any("leads back in time" in problem for problem in check(written([*events, arrow("f", 1, 39)])).problems)


def test_a_file_that_is_cut_or_lacks_events_or_metadata_is_found():
    whole = gzip.compress(written(GOOD))
    assert check(whole).problems == []
    assert "not a whole JSON file" in check(whole[:-20]).problems[0]
    assert "not a whole JSON file" in check(written(GOOD)[:-2]).problems[0]
    assert check(written(GOOD, events=len(GOOD) + 1)).problems == ["otherData tells of 18 events, there are 17"]
    content = json.dumps({"traceEvents": GOOD, "otherData": {"events": len(GOOD)}}).encode()
    assert len(check(content).problems) == len(FACTS)
    assert check(b"[]").problems == ["no traceEvents or no otherData"]


def marked(shift_us):
    """A phase of 1000 us, and the profiler's mark around it, by a clock that is ahead by ``shift_us``."""
    mark = slice_("phase: forward", 999 + shift_us, 2002 + shift_us, tid=2, cat="user_annotation")
    phase = slice_("forward", 1000, 2000)
    return check(written([*named(1, 1, process=True), *named(1, 1), *named(1, 2), phase, mark]))


@pytest.mark.parametrize(("shift_us", "good"), [(0, True), (40, True), (-40, True), (60, False), (-60, False)])
def test_the_profilers_clock_is_compared_with_the_ledgers_and_at_most_50_us_off(shift_us, good):
    result = marked(shift_us)
    (found,) = result.figures["alignment"].values()
    assert (found["ahead_at_least_us"], found["ahead_at_most_us"]) == (shift_us - 1.0, shift_us + 2.0)
    assert (result.problems == []) is good
