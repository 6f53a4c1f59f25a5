"""Counters, operators, kernels and samples: each row of the timeline from a table small enough to see through."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from harness.show.timeline import operators
from harness.show.timeline.model import FILE, NO_SOURCES, Process, Trace, last_steps, merged, resolve
from harness.show.timeline.tracks import queue_depth, sampled
from harness.study.contract import SPAN_COLUMNS, arrow_schema
from tests.harness.show.timeline import tables
from tests.harness.synthetic import Arm, build

US = 1000


def spans(*rows):
    """(role, name, batch, start, end)."""
    columns = {name: [] for name, _ in SPAN_COLUMNS}
    for role, name, batch, start, end in rows:
        for column, value in zip(columns, (1, 1, role, 0, name, batch, start, end, None), strict=True):
            columns[column].append(value)
    return pa.table(columns, schema=arrow_schema(SPAN_COLUMNS))


def run(**tables):
    _, runs = build([Arm("a")], blocks=1)
    return replace(runs[0], **tables)


def test_batches_are_ready_from_their_last_stage_to_the_end_of_their_fetch():
    rows = [
        ("loader-0", "read", 0, 0, 5),
        ("loader-0", "pack", 0, 5, 10),
        ("loader-1", "pack", 1, 0, 20),
        ("main", "fetch", 0, 12, 30),
        ("main", "fetch", 1, 40, 41),
    ]
    counter = queue_depth(run(spans=spans(*rows)), (3, 60))
    assert counter.points == [(3, 0.0), (10, 1.0), (20, 2.0), (30, 1.0), (41, 0.0)]
    assert queue_depth(run(spans=spans(*rows)), (25, 35)).points == [(25, 2.0), (30, 1.0)]
    assert queue_depth(run(spans=spans(("main", "fetch", 0, 0, 5))), (0, 10)) is None
    assert merged([(5, 9), (0, 5), (20, 30), (21, 22)]) == [(0, 9), (20, 30)]


def test_samples_become_counters_by_source_and_metric_with_their_unit():
    """A point is drawn until the next one: a mean or a growth stands where its time began, per second."""
    one = run()
    start, ms = one.steps["start_ns"][-1].as_py(), 10**6  # the step takes more than ten
    table = tables.samples(
        (start + 2, "nvml:0", "power", 301.0, "W"),
        (start + 1, "nvml:0", "power", 300.0, "W"),
        (start + 1, "host", "page_cache_bytes", 1.5, "bytes"),
        (start + 1, "host", "nothing", float("nan"), "cores"),
        (start - 10**12, "host", "page_cache_bytes", 9.0, "bytes"),
        (start + 5 * ms, "host:main", "cpu_cores", 0.5, "cores"),
        (start + 10 * ms, "host:main", "cpu_cores", 0.9, "cores"),
        (start + 10 * ms, "host", "interval_s", 0.01, "s"),
        (start + 10 * ms, "host:main", "major_faults", 8.0, "faults"),
    )
    process = sampled(last_steps(replace(one, samples=table), NO_SOURCES, 1))
    assert [(counter.name, counter.unit, counter.points) for counter in process.counters] == [
        ("host page_cache", "bytes", [(start, 1.5)]),  # read once: shown from the repetition's beginning
        ("host:main cpu", "cores", [(start, 0.5), (start + 5 * ms, 0.9)]),
        ("host:main major", "faults/s", [(start, 800.0)]),
        ("nvml:0 power", "W", [(start + 1, 300.0), (start + 2, 301.0)]),
    ]


def test_kernels_lie_on_their_streams_and_an_arrow_leads_to_each_from_its_launch():
    table = tables.operators(
        ("cpu_op", "aten::mm", 7, 0, 20 * US, "main"),
        ("cuda_runtime", "cudaLaunchKernel", 7, 5 * US, 4 * US, "main", {"correlation": 3}),
        ("kernel", "gemm", 13, 8 * US, 30 * US, "device", {"correlation": 3, "device_id": 0}),
        ("gpu_memcpy", "Memcpy HtoD", 14, 1 * US, 5 * US, "device", {"correlation": 2, "device_id": 0}),
        ("gpu_user_annotation", "ProfilerStep#1", 13, 0, 50 * US, "device", {"device_id": 0}),
        ("ac2g", "ac2g", 13, 0, 0, "main"),
        ("cpu_instant_event", "[memory]", 7, 3 * US, 0, "main", {"total_allocated_bytes": 64, "bytes": 64,
                                                                 "device_type": 1, "device_id": 0}),
    )  # fmt: skip
    processes = {"main": Process("a: main"), "device": Process("a: device")}
    shown = operators.shown(table)
    assert len(shown) == 5
    assert operators.has_kernels(shown)
    arrows = operators.add_operators(shown, "a", processes, {"main": 7})
    rows = {thread.name: [one.name for one in thread.slices] for one in processes.values() for thread in one.threads}
    assert rows == {
        "torch, main thread": ["aten::mm", "cudaLaunchKernel"],
        "torch, device 0 stream 13": ["gemm"],
        "torch, device 0 stream 13, annotations": ["ProfilerStep#1"],
        "torch, device 0 stream 14": ["Memcpy HtoD"],
    }
    (bound,) = resolve(Trace([*processes.values()], arrows)).arrows
    assert (bound.sender.t_ns, bound.receiver.t_ns) == (5 * US, 8 * US)
    ((role, counter),) = operators.memory([table], [(0, 10 * US)])
    assert (role, counter.name, counter.points) == ("main", "torch memory CUDA 0", [(3 * US, 64.0)])


def test_two_profiles_that_count_their_calls_anew_are_kept_apart():
    launch = ("cuda_runtime", "cudaLaunchKernel", 7, 0, 2 * US, "main", {"correlation": 3})
    kernel = ("kernel", "gemm", 13, 8 * US, 30 * US, "device", {"correlation": 3, "device_id": 0})
    first = tables.operators(launch, kernel)
    second = tables.operators(*((*row[:3], row[3] + 100 * US, *row[4:]) for row in (launch, kernel)))
    both = pa.concat_tables(
        [table.append_column(FILE, pa.array([index] * 2)) for index, table in enumerate((first, second))]
    )
    processes = {"main": Process("a: main"), "device": Process("a: device")}
    arrows = operators.add_operators(operators.shown(both), "a", processes, {})
    bound = resolve(Trace([*processes.values()], arrows)).arrows
    assert [(one.sender.t_ns, one.receiver.t_ns) for one in bound] == [(0, 8 * US), (100 * US, 108 * US)]


def test_frames_stay_while_samples_show_them_in_one_place():
    ms = 1_000_000
    seen = tables.stacks(
        (0, 10 * ms, 1, 1, "main", ["main (a.py:1)", "run (a.py:1)", "step (a.py:5)"]),
        (10 * ms, 10 * ms, 1, 1, "main", ["main (a.py:1)", "run (a.py:1)", "step (a.py:9)", "item (b.py:2)"]),
        (20 * ms, 10 * ms, 1, 1, "main", ["main (a.py:1)", "run (a.py:2)", "fetch (a.py:7)"]),
        (60 * ms, 10 * ms, 1, 1, "main", ["main (a.py:1)", "run (a.py:2)"]),
    )
    table = operators.sample_slices(seen, [(0, 100 * ms)])
    rows = zip(table["name"].to_pylist(), table["start_ns"].to_pylist(), table["duration_ns"].to_pylist(), strict=True)
    assert sorted((start // ms, -duration // ms, name) for name, start, duration in rows) == [
        (0, -30, "run (a.py)"),
        (0, -20, "step (a.py)"),
        (10, -10, "item (b.py)"),
        (20, -10, "fetch (a.py)"),
        (60, -10, "run (a.py)"),
    ]
    assert len(operators.sample_slices(seen, [(65 * ms, 70 * ms)])) == 1


def test_other_threads_of_a_known_process_are_shown_with_it():
    seen = tables.stacks(
        (0, 10, 5, 77, "other", ["pool (t.py:1)"]),
        (0, 10, 6, 6, "loader-0", ["work (w.py:1)"]),
        (0, 10, 9, 9, "other", ["alien (x.py:1)"]),
    )
    processes = {"main": Process("a: main"), "loader-0": Process("a: loader-0")}
    operators.add_stacks(operators.sample_slices(seen, [(0, 10)]), "a", processes, {5: "main", 6: "loader-0"})
    assert {one.name: [thread.name for thread in one.threads] for one in processes.values()} == {
        "a: main": ["py-spy, thread 77"],
        "a: loader-0": ["py-spy, main thread"],
        "a: process 9": ["py-spy, thread 9"],
    }
