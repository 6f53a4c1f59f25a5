"""The join of samples and spans, against a search through every span; and what is said of the result."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.explain.probes.samples import MAIN, OUTSIDE, WORKERS, StackSpan, explain, names_at, process_roles, segments
from harness.explain.statistics import wilson
from harness.show.profile import tokenization_lines
from harness.study.run_data import PySpyRecord
from harness.study.traces.py_spy import FittedClock

MS = 1_000_000
FACTS = PySpyRecord(window=(0, 1000 * MS), rate_hz=100)
CLOCK = FittedClock(0, MS // 2, 0, 8, 8)
ENCODE, LOOP, WAIT = "encode_batch (trainer/data/tokenizers.py:160)", "train (trainer/loop.py:31)", "get (queue.py:9)"


def samples_table(rows, clock=CLOCK):
    """``rows``: (time in ms, role, stack)."""
    pids = {"main": 10, "other": 12}
    columns = {
        "time_ns": [int(time * MS) for time, _, _ in rows],
        "duration_ns": [10 * MS] * len(rows),
        "pid": [pids.get(role, 11) for _, role, _ in rows],
        "tid": [pids.get(role, 11) for _, role, _ in rows],
        "role": [role for _, role, _ in rows],
        "stack": pa.array([stack for _, _, stack in rows], pa.list_(pa.string())),
    }
    return pa.table(columns).replace_schema_metadata({k: str(v) for k, v in clock._asdict().items()})


def spans_table(rows):
    """``rows``: (role, name, start in ms, end in ms)."""
    return pa.table(
        {
            "pid": [{"main": 10, "device": 10}.get(role, 11) for role, _, _, _ in rows],
            "role": [role for role, _, _, _ in rows],
            "name": [name for _, name, _, _ in rows],
            "start_ns": [int(start * MS) for _, _, start, _ in rows],
            "end_ns": [int(end * MS) for _, _, _, end in rows],
        }
    )


def place(report, who, name):
    return next(place for place in report.places if (place.threads, place.name) == (who, name))


names = st.sampled_from(["fetch", "tokenize", "forward"])
spans = st.lists(
    st.builds(lambda a, w, n: StackSpan(a, a + w, n), st.integers(0, 40), st.integers(0, 15), names), max_size=12
)


@settings(deadline=None)
@given(spans, st.lists(st.integers(-5, 60), max_size=30))
def test_a_sample_gets_the_innermost_span_that_holds_it(spans, times):
    def innermost(time):
        holding = [span for span in spans if span.start_ns <= time < span.end_ns]
        return {
            span.name
            for span in holding
            if (-span.start_ns, span.end_ns) == min((-s.start_ns, s.end_ns) for s in holding)
        }

    found = names_at(np.array(times, dtype=np.int64), *segments(spans))
    for time, name in zip(times, found, strict=True):
        assert name in (innermost(time) or {None})


@settings(deadline=None)
@given(spans, st.lists(st.integers(-5, 60), min_size=1, max_size=30))
def test_no_sample_is_lost_or_counted_twice(spans, times):
    rows = [(time, "main", [LOOP]) for time in times] + [(time, "loader-0", [WAIT]) for time in times]
    rows += [(time, "other", [WAIT]) for time in times]
    table = spans_table([("main", span.name, span.start_ns, span.end_ns) for span in spans])
    report = explain(samples_table(rows), table, FACTS)
    for who in (MAIN, WORKERS):
        own = [place for place in report.places if place.threads == who]
        assert sum(place.whole.samples for place in own) == report.samples[who] == len(times)
        assert sum(place.whole.share for place in own) == pytest.approx(1)
        for one in own:
            assert sum(function.samples for function in one.functions) == one.whole.samples
    assert report.samples["other threads"] == len(times)
    assert report.readings == len(times)


def test_phases_and_stages_are_of_the_samples_own_thread():
    spans = [("main", "fetch", 0, 100), ("loader-0", "tokenize", 0, 90), ("device", "gemm", 0, 100)]
    rows = [(50, "main", [LOOP, WAIT]), (50, "loader-0", [LOOP, ENCODE]), (95, "loader-0", [WAIT])]
    report = explain(samples_table(rows), spans_table(spans), FACTS)
    assert [(place.threads, place.name) for place in report.places] == [
        (MAIN, "fetch"),
        (WORKERS, "tokenize"),
        (WORKERS, OUTSIDE),
    ]
    assert place(report, WORKERS, "tokenize").functions[0].name == "encode_batch (trainer/data/tokenizers.py)"
    assert place(report, WORKERS, "tokenize").stacks[0].name == f"{LOOP};{ENCODE}"


def test_lines_of_a_function_count_together():
    lines = [f"encode (a.py:{line})" for line in (1, 1, 2, 3)]
    rows = [(time, "main", [line]) for time, line in enumerate([*lines, "pack (a.py:9)"])]
    fetched = place(explain(samples_table(rows), spans_table([("main", "fetch", 0, 99)]), FACTS), MAIN, "fetch")
    assert [(share.name, share.samples) for share in fetched.functions] == [("encode (a.py)", 4), ("pack (a.py)", 1)]
    assert fetched.stacks[0].samples == 2


@pytest.mark.parametrize(
    ("tokenize", "said"),
    [
        (60, "Tokenizing took the most samples of the main thread: 60% [50% to 69%], 100% of those in encode_batch"),
        (20, None),
    ],
)
def test_a_tokenization_heavy_run_names_the_tokenizer(tokenize, said):
    spans = [
        ("main", "fetch", 0, 1000),
        ("main", "tokenize", 0, tokenize * 10),
        ("main", "forward", tokenize * 10, 1000),
    ]
    rows = [(10 * k + 5, "main", [LOOP, ENCODE] if k < tokenize else [LOOP]) for k in range(100)]
    report = explain(samples_table(rows), spans_table(spans), FACTS)
    assert place(report, MAIN, "fetch: tokenize").whole.samples == tokenize
    assert [sentence[: len(said or "")] for sentence in tokenization_lines(report)] == ([said] if said else [])


TRAIN, LEAVE = (
    "train (trainer/loop.py:31)",
    ["_Span.__exit__ (trainer/telemetry.py:9)", "Recorder.exit (harness/probes/s.py:7)"],
)
CLOCK_CALL = ["slot_tp_call (libpython3.so)", "clock_gettime (libc.so.6)", "unnamed ([vdso])"]


@pytest.mark.parametrize(
    ("native", "stack", "function", "kept"),
    [
        (False, [TRAIN, *LEAVE], TRAIN, 1),
        (True, [TRAIN, CLOCK_CALL[0], *LEAVE, *CLOCK_CALL], TRAIN, 1),
        (False, ["take (harness/probes/py_spy.py:3)", TRAIN], TRAIN, 2),  # only the innermost frames
        (False, LEAVE, LEAVE[-1], 2),  # there is no caller
        (False, [TRAIN, "exit (mine/harness/probes/s.py:7)"], "exit (mine/harness/probes/s.py)", 2),
    ],
)
def test_what_was_met_in_the_recorder_counts_for_its_caller(native, stack, function, kept):
    facts, spans = replace(FACTS, native=native), spans_table([("main", "forward", 0, 99)])
    found = place(explain(samples_table([(50, "main", stack)]), spans, facts), MAIN, "forward")
    assert [share.name for share in found.functions] == [re.sub(r":\d+", "", function)]
    assert found.stacks[0].name == ";".join(stack[:kept])


def test_native_functions_without_a_name_count_for_their_caller_and_the_headline_is_pythons():
    rust, unnamed = "merge (tokenizers/tokenizers.abi3.so)", "unnamed (libc.so.6)"
    stacks = [[ENCODE, unnamed]] * 4 + [[ENCODE, rust]] * 2 + [[ENCODE, rust, unnamed, unnamed]] * 3
    stacks += [[unnamed], ["<lambda> (<string>:1)", rust]]
    rows = [(time, "loader-0", stack) for time, stack in enumerate(stacks)]
    spans = spans_table([("loader-0", "tokenize", 0, 99)])
    report = explain(samples_table(rows), spans, replace(FACTS, native=True))
    assert [(share.name, share.samples) for share in place(report, WORKERS, "tokenize").functions] == [
        (rust, 6),
        ("encode_batch (trainer/data/tokenizers.py)", 4),
        (unnamed, 1),  # nobody called it
    ]
    (said,) = tokenization_lines(report)
    assert said.endswith(f"{9 / 11:.0%} of those in encode_batch (trainer/data/tokenizers.py).")


def test_without_native_stacks_every_frame_is_of_python_whatever_its_file():
    spans, rows = spans_table([("main", "fetch", 0, 99)]), [(50, "main", [LOOP, "unnamed (bin/program:3)"])]
    found = place(explain(samples_table(rows), spans, FACTS), MAIN, "fetch")
    assert found.functions[0].name == found.python.name == "unnamed (bin/program)"


@pytest.mark.parametrize(("near", "rough"), [(1, False), (2, True)])
def test_a_place_is_rough_where_more_than_a_third_may_be_its_neighbours(near, rough):
    rows = [(0.1 * k, "main", [LOOP, ENCODE]) for k in range(near)] + [
        (50 + k, "main", [LOOP]) for k in range(3 - near)
    ]
    spans = spans_table([("main", "fetch", 0, 100), ("main", "tokenize", 0, 99)])
    report = explain(samples_table(rows), spans, FACTS)
    found = place(report, MAIN, "fetch: tokenize")
    assert (found.near, found.rough) == (near, rough)
    (said,) = tokenization_lines(report)
    assert said.endswith(f"A rough share: {near} of its 3 samples may belong elsewhere.") == rough


def test_samples_near_a_boundary_are_counted():
    rows = [(time, "main", [LOOP]) for time in (9.4, 9.6, 10.4, 10.6, 15)]
    report = explain(samples_table(rows), spans_table([("main", "fetch", 0, 10), ("main", "forward", 10, 20)]), FACTS)
    assert report.near_edges == 2


def test_nothing_sampled_says_nothing():
    report = explain(samples_table([]), spans_table([("main", "fetch", 0, 10)]), FACTS)
    assert report.places == ()
    assert report.readings == 0
    assert report.expected_readings == 100


def test_spans_tell_which_process_is_which():
    spans = [("main", "fetch", 0, 1), ("loader-3", "read", 0, 1), ("device", "gemm", 0, 1)]
    assert process_roles(spans_table(spans).to_batches()) == {10: "main", 11: "loader-3"}
    assert process_roles(spans_table([(None, "read", 0, 1), *spans]).to_batches()) == {10: "main", 11: "loader-3"}


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    # R: binom::binom.wilson(x, n)
    [(0, 10, 0.0, 0.277533), (5, 10, 0.236593, 0.763407), (10, 10, 0.722467, 1.0), (1, 100, 0.001767, 0.054486)],
)
def test_the_interval_is_wilsons(count, total, low, high):
    assert wilson(count, total) == pytest.approx((low, high), abs=1e-6)
