"""The timeline must survive Perfetto's importer: everything nests, every arrow binds, everything has a name."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.show.timeline.build import run_timeline, timeline
from harness.show.timeline.formats import microseconds
from harness.show.timeline.model import Slice, Sources, nested
from harness.study.records import ArmRecord
from harness.study.run_data import ProbesRecord, PySpyRecord, TorchProfilerRecord
from tests.harness.show.studies import built
from tests.harness.show.timeline.tables import operators, stacks
from tests.harness.synthetic import Arm, build
from tests.timeline_check.check import check, ns

ARMS = [Arm("worker", workers=1, tokenize=6.0, transfer=0.3), Arm("inline"), Arm("worker+a-a", "a-a", "worker")]


def trace(made):
    return json.loads(gzip.decompress(made.content))


def events(arms=ARMS):
    made = timeline(*built(*arms, blocks=1))
    assert check(made.content).problems == []
    assert made.name == "timeline.json.gz"
    return trace(made)["traceEvents"]


def threads(found, name=None):
    """(start, end, name) of every slice, by thread; of the threads of that ``name``."""
    named = {(event["pid"], event["tid"]): event["args"]["name"] for event in found if event["name"] == "thread_name"}
    by_thread = defaultdict(list)
    for event in found:
        if event["ph"] == "X" and name in (None, named[event["pid"], event["tid"]]):
            since = ns(event["ts"])
            by_thread[event["pid"], event["tid"]].append((since, since + ns(event["dur"]), event["name"]))
    return by_thread


def name_of(found, kind):
    return {event["pid"]: event["args"]["name"] for event in found if event["name"] == kind}


def test_steps_hold_phases_and_an_inline_fetch_holds_its_stages():
    ((_, slices),) = threads(events([Arm("inline")]), "main thread").items()
    steps = [s for s in slices if s[2].startswith("step ")]
    assert len(steps) == 3  # probes.timeline_steps of the synthetic scenario
    for name, parent in (("forward", "step "), ("fetch", "step "), ("tokenize", "fetch")):
        children = [s for s in slices if s[2] == name]
        assert len(children) == 3
        for since, until, _ in children:
            assert any(p[0] <= since and until <= p[1] for p in slices if p[2].startswith(parent))


def test_a_step_says_that_its_loss_was_not_a_number():
    found = [event["args"] for event in events([Arm("inline", nan_from=0)]) if event["name"].startswith("step ")]
    assert [args["loss"] for args in found] == ["nan"] * 3
    assert "NaN" not in json.dumps(found)  # which is no JSON


def test_processes_come_in_the_order_of_the_arms_and_arrows_lead_from_worker_to_the_use_of_a_batch():
    """The last stage of a batch in its worker, and the phase that used it first; controls stay out."""
    found = events()
    names = name_of(found, "process_name")
    places = {event["pid"]: event["args"]["sort_index"] for event in found if event["name"] == "process_sort_index"}
    order = [names[pid] for pid in sorted(names, key=lambda pid: places[pid])]
    assert order == ["worker: main", "worker: loader-0", "worker: machine", "inline: main", "inline: machine"]
    assert sorted(names) == sorted(names, key=lambda pid: places[pid])  # for importers that know no sort index
    by_thread = threads(found)
    starts, ends = ({e["id"]: e for e in found if e["ph"] == kind} for kind in "sf")
    assert len(starts) == 3
    assert set(starts) == set(ends)
    for key, start in starts.items():
        end = ends[key]
        assert (start["name"], start["cat"]) == (end["name"], end["cat"])
        assert (names[start["pid"]], names[end["pid"]]) == ("worker: loader-0", "worker: main")
        assert "pack" in enclosing(by_thread, start)
        assert "h2d" in enclosing(by_thread, end)  # what follows the fetch that received it


def enclosing(by_thread, event):
    at = ns(event["ts"])
    return {name for since, until, name in by_thread[event["pid"], event["tid"]] if since <= at < until}


def test_all_processes_share_one_base():
    study, runs = build([Arm("a", failed_blocks=(0,)), Arm("b")], interleave="runs")
    content = trace(timeline(study, runs))
    base = content["otherData"]["base_monotonic_ns"]
    first = {name: min(runs, key=lambda run: (run.record.arm != name, run.steps is None)) for name in "ab"}
    for pid, name in name_of(content["traceEvents"], "process_name").items():
        if name.endswith(": main"):
            run = first[name[0]]
            starts = {row["start_ns"] for row in run.steps.to_pylist()}
            steps = [s for s in threads(content["traceEvents"])[pid, pid] if s[2].startswith("step ")]
            assert {since + base for since, _, _ in steps} <= starts


def test_the_metadata_say_what_is_shown_and_the_same_tables_give_the_same_bytes():
    study, runs = built(*ARMS)
    made = timeline(study, runs)
    facts = trace(made)["otherData"]
    assert [(run["arm"], run["block"], run["steps"]) for run in facts["runs"]] == [("worker", 0, 3), ("inline", 0, 3)]
    assert facts["events"] == made.events == len(trace(made)["traceEvents"])
    assert facts["cut"] == made.cut == []
    assert timeline(*build(ARMS)) == made
    nothing = timeline(study, [])
    assert trace(nothing)["traceEvents"] == []
    assert check(nothing.content).problems == []
    # A damaged run is no obstacle.
    damaged = replace(runs[0], record=replace(runs[0].record, arm="b", status="failed"), steps=None, spans=None)
    assert timeline(study, [*runs, damaged]) == made


def test_a_span_without_a_role_belongs_to_no_process():
    study, runs = build([Arm("inline")], blocks=1)
    rows = runs[0].spans.to_pylist()
    spans = pa.Table.from_pylist([*rows, {**rows[-1], "role": None, "name": "lost"}], runs[0].spans.schema)
    made = timeline(study, [replace(runs[0], spans=spans)])
    assert made == timeline(study, runs)
    assert check(made.content).problems == []


def profiled(study, runs):
    """The first run of the arm ``worker`` again, as the run that its probes disturbed, with what they recorded."""
    run = runs[0]
    steps = run.steps.to_pylist()
    control = replace(run.record, arm="worker+profiled", control="profiled", of="worker")
    window = (steps[2]["start_ns"], steps[2]["start_ns"] + steps[2]["wall_ns"], 2, 2)
    spied = (steps[4]["start_ns"], steps[5]["start_ns"] + steps[5]["wall_ns"])
    spans = run.spans.to_pylist()
    forward = next(row for row in spans if row["name"] == "forward" and row["start_ns"] >= steps[2]["start_ns"])
    since, until = forward["start_ns"], forward["end_ns"]
    table = operators(
        ("user_annotation", "phase: forward", 1000, since - 2000, until - since + 4000, "main"),
        ("cpu_op", "aten::linear", 1000, since + 1000, 5000, "main", {"input_shapes": "[[2, 3]]"}),
        ("cpu_op", "aten::addmm", 1000, since + 2000, 3000, "main"),
        ("cpu_op", "aten::copy_", 1001, since - 50_000, 3000, "loader-0"),
        ("cpu_op", "before the window", 1000, steps[0]["start_ns"], 1000, "main"),
    )
    seen = stacks((spied[0] + 1000, 10_000_000, 1000, 1000, "main", ["main (a.py:1)", "step (a.py:2)"]))
    probes = ProbesRecord(
        torch_profiler=TorchProfilerRecord(windows=(window,)), py_spy=PySpyRecord(rate_hz=100, window=spied)
    )
    sources = Sources(table, seen, probes)
    study.arms.append(ArmRecord("worker+profiled", "profiled", "worker"))
    return replace(run, record=control), sources


def test_the_run_that_its_probes_disturbed_follows_its_arm_with_operators_and_stacks():
    study, runs = build(ARMS)
    run, sources = profiled(study, runs)
    made = timeline(study, [*runs, run], {("worker+profiled", 0): sources})
    result = check(made.content)
    assert result.problems == []
    found = trace(made)["traceEvents"]
    names = name_of(found, "process_name")
    rows = {
        (names[event["pid"]], event["args"]["name"]): threads(found)[event["pid"], event["tid"]]
        for event in found
        if event["name"] == "thread_name"
    }
    order = list(dict.fromkeys(name.partition(":")[0] for name in names.values()))
    assert order == ["worker", "worker+profiled", "inline"]
    main = rows["worker+profiled: main", "torch, main thread"]
    assert [name for _, _, name in main] == ["phase: forward", "aten::linear", "aten::addmm"]
    assert [name for _, _, name in rows["worker+profiled: loader-0", "torch, main thread"]] == ["aten::copy_"]
    assert [name for _, _, name in rows["worker+profiled: main", "py-spy, main thread"]] == ["step (a.py)"]
    steps = [name for _, _, name in rows["worker+profiled: main", "main thread"] if name.startswith("step ")]
    assert steps == ["step 2", "step 4", "step 5"]  # of the profiler's window, and of py-spy's
    (alignment,) = result.figures["alignment"].values()
    assert alignment["spans"] == 1
    assert (alignment["ahead_at_least_us"], alignment["ahead_at_most_us"]) == (-2.0, 2.0)


def test_a_run_alone_shows_every_step():
    study, runs = build(ARMS)
    run, sources = profiled(study, runs)
    made = run_timeline(study, run, sources)
    assert check(made.content).problems == []
    assert trace(made)["otherData"]["runs"][0]["steps"] == len(run.steps)
    assert any(event["name"] == "before the window" for event in trace(made)["traceEvents"])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12))
def test_any_slices_come_out_nested_in_order_and_not_empty(spans):
    result = nested([Slice(str(i), min(span), max(span), "") for i, span in enumerate(spans)])
    for i, (one, child) in enumerate(result):
        assert one.end_ns > one.start_ns
        inside = [other.start_ns for other, _ in result[i + 1 :] if other.start_ns < one.end_ns]
        assert child == (min(inside) if inside else None)
        for other, _ in result[i + 1 :]:
            assert other.start_ns >= one.end_ns or other.end_ns <= one.end_ns


@given(st.integers(0, 10**15))
def test_nanoseconds_survive_the_float(nanoseconds):
    assert ns(microseconds(nanoseconds)) == pytest.approx(nanoseconds, abs=0)
