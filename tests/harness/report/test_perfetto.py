"""The timeline must survive Perfetto's importer: everything nests, every arrow binds, everything has a name."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.report.perfetto import _Slice, microseconds, nested, timeline
from tests.harness.synthetic import Arm, build

ARMS = [Arm("worker", workers=1, tokenize=6.0, transfer=0.3), Arm("inline"), Arm("worker+a-a", "a-a", "worker")]


def events(arms=ARMS, **how):
    return json.loads(gzip.decompress(timeline(*build(arms, **how))))["traceEvents"]


def ns(value):
    return int(value * 1000)  # what Perfetto's importer does


def threads(found):
    by_thread = defaultdict(list)
    for event in found:
        if event["ph"] == "X":
            since = ns(event["ts"])
            by_thread[event["pid"], event["tid"]].append((since, since + ns(event["dur"]), event["name"]))
    return by_thread


def name_of(found, kind):
    return {event["pid"]: event["args"]["name"] for event in found if event["name"] == kind}


def test_slices_of_a_thread_nest():
    for slices in threads(events()).values():
        open_until = []
        for since, until, _ in sorted(slices, key=lambda s: (s[0], -s[1])):
            while open_until and open_until[-1] <= since:
                open_until.pop()
            assert not open_until or until <= open_until[-1]
            open_until.append(until)


def test_steps_hold_phases_and_an_inline_fetch_holds_its_stages():
    found = events([Arm("inline")])
    ((_, slices),) = threads(found).items()
    steps = [s for s in slices if s[2].startswith("step ")]
    assert len(steps) == 3  # probes.timeline_steps of the synthetic scenario
    for name, parent in (("forward", "step "), ("fetch", "step "), ("tokenize", "fetch")):
        children = [s for s in slices if s[2] == name]
        assert len(children) == 3
        for since, until, _ in children:
            assert any(p[0] <= since and until <= p[1] for p in slices if p[2].startswith(parent))


def test_every_process_and_thread_has_a_name_and_controls_stay_out():
    found = events()
    names = name_of(found, "process_name")
    assert sorted(names.values()) == ["inline: main", "worker: loader-0", "worker: main"]
    named_threads = {(e["pid"], e["tid"]) for e in found if e["name"] == "thread_name"}
    assert set(threads(found)) == named_threads
    order = [names[e["pid"]] for e in found if e["name"] == "process_sort_index"]
    assert order == ["worker: main", "worker: loader-0", "inline: main"]


def test_arrows_lead_from_the_workers_last_stage_to_the_fetch_that_received_the_batch():
    found = events()
    by_thread, names = threads(found), name_of(found, "process_name")
    starts = {e["id"]: e for e in found if e["ph"] == "s"}
    ends = {e["id"]: e for e in found if e["ph"] == "f"}
    assert len(starts) == 3
    assert set(starts) == set(ends)
    for key, start in starts.items():
        end = ends[key]
        assert end["bp"] == "e"
        assert (start["name"], start["cat"]) == (end["name"], end["cat"])
        assert start["ts"] <= end["ts"]
        assert names[start["pid"]] == "worker: loader-0"
        assert names[end["pid"]] == "worker: main"
        assert "pack" in enclosing(by_thread, start)
        assert "fetch" in enclosing(by_thread, end)


def enclosing(by_thread, event):
    at = ns(event["ts"])
    return {name for since, until, name in by_thread[event["pid"], event["tid"]] if since <= at < until}


def test_times_start_at_zero_and_the_first_finished_block_is_shown():
    failing = [Arm("a", failed_blocks=(0,)), Arm("b")]
    found = events(failing, interleave="runs")
    first = {pid: min(since for since, _, _ in slices) for (pid, _), slices in threads(found).items()}
    assert set(first.values()) == {0}  # sessions that ran apart each have their own base
    assert len(first) == 2


def test_the_same_tables_give_the_same_bytes():
    assert timeline(*build(ARMS)) == timeline(*build(ARMS))


def test_a_study_without_runs_is_an_empty_timeline():
    study, _ = build(ARMS)
    assert json.loads(gzip.decompress(timeline(study, [])))["traceEvents"] == []


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12))
def test_any_slices_come_out_nested_in_order_and_not_empty(spans):
    result = nested([_Slice(str(i), min(span), max(span)) for i, span in enumerate(spans)])
    for i, one in enumerate(result):
        assert one.end_ns > one.start_ns
        for other in result[i + 1 :]:
            assert other.start_ns >= one.end_ns or other.end_ns <= one.end_ns


@given(st.integers(0, 10**15))
def test_nanoseconds_survive_the_float(nanoseconds):
    assert ns(microseconds(nanoseconds)) == pytest.approx(nanoseconds, abs=0)
