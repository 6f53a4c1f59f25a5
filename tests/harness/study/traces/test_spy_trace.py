"""The reader of py-spy's traces, against a writer made after py-spy's source, and against damaged files."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.study.run_data import PySpyRecord
from harness.study.traces.py_spy import MARK, clock_of, read_stacks, shorten
from tests.harness.study.traces.spy_writer import Frame, Thread, Writer
from trainer.errors import InputError

OFFSET_NS = 7_000_000_000_000
MAIN, WORKER, OTHER = Thread(10, 77), Thread(11, 77), Thread(10, 88, "Feeder", 14)
CLOCKS = [Thread(98, 55, ""), Thread(99, 55, "")]  # the metronome: a process and its fork
ROLES = {10: "main", 11: "loader-0"}
MARKS = [Frame("take", line=3), Frame(f"{MARK}0", line=9)]


def facts(until_us, **more):
    """Mark 0 runs from 500 us to 1500 us, so that the sample at 1000 us meets it; the window opens at 2000 us."""
    window = [OFFSET_NS + 2_000_000, OFFSET_NS + until_us * 1000]
    marks = [[OFFSET_NS + 500_000, OFFSET_NS + 1_500_000]]
    known = {"rate_hz": 100, "pid": 10, "metronome": [98, 99], "marks": marks, "window": window, "roots": ["/src"]}
    return PySpyRecord(**(known | more))


def write(samples, apart_us=7, clocks=CLOCKS):
    """The trace of ``samples`` (thread -> frames) at 2000, 4000, ... us, after the clock mark at 1000 us.

    The threads of a sample are written ``apart_us`` after one another, the metronome in their midst.
    """
    writer = Writer()
    for number, stacks in enumerate([{MAIN: []}, {MAIN: MARKS}, *samples]):
        now = 1000 * number if number < 2 else 2000 * (number - 1)
        threads = list(stacks.items())
        for place, (thread, frames) in enumerate([*threads[:1], *((clock, []) for clock in clocks), *threads[1:]]):
            writer.increment(now + apart_us * place, thread, frames)
    return writer.text(2000 * len(samples) + 1000)


def stacks_of(table, role):
    return [row["stack"] for row in table.to_pylist() if row["role"] == role]


frames = st.lists(
    st.builds(Frame, st.sampled_from(["step", "encode", "pack"]), st.just("/src/a.py"), st.integers(1, 3)), max_size=4
)
samples = st.lists(
    st.dictionaries(st.sampled_from([MAIN, WORKER, OTHER]), frames).map(
        lambda got: {MAIN: [], WORKER: [], OTHER: []} | got
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(samples, st.sampled_from([7, 300]))
def test_every_sample_of_every_thread_comes_back(taken, apart_us):
    table = read_stacks(write(taken, apart_us), facts(10**6), ROLES)
    for thread, role in ((MAIN, "main"), (WORKER, "loader-0"), (OTHER, "other")):
        expected = [[f"{frame.name} (a.py:{frame.line})" for frame in sample[thread]] for sample in taken]
        assert stacks_of(table, role) == expected, role


@settings(deadline=None)
@given(samples)
def test_times_are_those_of_the_samples_and_durations_reach_to_the_next(taken):
    rows = [row for row in read_stacks(write(taken), facts(10**6), ROLES).to_pylist() if row["role"] == "main"]
    offset = clock_of(read_stacks(write(taken), facts(10**6), ROLES)).offset_ns
    # a thread that did not change is given the time at which its sample was begun to be written
    for number, row in enumerate(rows):
        assert abs(row["time_ns"] - offset - 2_000_000 * (number + 1)) <= 30_000
    for row, following in pairwise(rows):
        assert row["time_ns"] + row["duration_ns"] == following["time_ns"]


def test_without_a_metronome_samples_that_change_something_come_back():
    taken = [{MAIN: [Frame("a", line=number)], OTHER: [Frame("b")]} for number in range(5)]
    table = read_stacks(write(taken, clocks=[]), facts(10**6, metronome=[]), ROLES)
    assert stacks_of(table, "main") == [
        [f"a (program.py:{number})" if number else "a (program.py)"] for number in range(5)
    ]
    assert len(stacks_of(table, "other")) == 5


def test_the_clock_is_within_what_the_mark_leaves_open():
    clock = clock_of(read_stacks(write([{MAIN: []}] * 3), facts(10**6), ROLES))
    assert abs(clock.offset_ns - OFFSET_NS) <= clock.error_ns == 500_000
    assert clock.agreeing == clock.edges == 2


def test_samples_outside_the_window_and_the_metronome_are_left_out():
    table = read_stacks(write([{MAIN: [], OTHER: []}] * 5), facts(6500), ROLES)
    assert set(table["pid"].to_pylist()) == {10}
    assert len(stacks_of(table, "main")) == 3


def test_threads_have_the_systems_ids():
    rows = read_stacks(write([{MAIN: [], WORKER: [], OTHER: []}]), facts(10**6), ROLES).to_pylist()
    assert {(row["pid"], row["tid"], row["role"]) for row in rows} == {
        (10, 10, "main"),
        (11, 11, "loader-0"),
        (10, 14, "other"),
    }


def test_under_gil_a_thread_without_a_sign_of_life_has_no_row():
    taken = [{MAIN: [Frame("a")]}, {}, {}, {MAIN: [Frame("b")]}]
    assert len(stacks_of(read_stacks(write(taken), facts(10**6), ROLES), "main")) == 4
    assert stacks_of(read_stacks(write(taken), facts(10**6, gil=True), ROLES), "main") == [
        ["a (program.py:1)"],
        ["b (program.py:1)"],
    ]


def test_native_code_without_names_is_one_function_of_its_library():
    taken = [{MAIN: [Frame(f"0x7f{number}", "/usr/lib/libc.so.6", 0)]} for number in range(3)]
    assert stacks_of(read_stacks(write(taken), facts(10**6), ROLES), "main") == [["unnamed (libc.so.6)"]] * 3


@pytest.mark.parametrize("cut", [0, 1, 50, -2])
def test_a_trace_cut_short_is_refused(tmp_path, cut):
    text = write([{MAIN: [Frame("a")]}])
    for name, content in (("plain", text[:cut]), ("packed", gzip.compress(text)[:cut])):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"{name}: not readable, perhaps cut short"):
            read_stacks(path, facts(10**6), ROLES)


@settings(deadline=None)
@given(st.data())
def test_a_trace_that_lost_an_event_is_read_or_refused_in_one_line(data):
    events = json.loads(write([{MAIN: [Frame("a"), Frame("b")]}, {MAIN: [Frame("a")]}, {MAIN: [Frame("c")]}]))
    del events[data.draw(st.integers(0, len(events) - 1))]
    try:
        read_stacks(json.dumps(events).encode(), facts(10**6), ROLES)
    except InputError as error:
        line = str(error)
        assert line.startswith("py-spy's trace: ")
        assert "\n" not in line


@pytest.mark.parametrize(("told", "said"), [
    ({"window": [OFFSET_NS + 9_000_000, OFFSET_NS + 2_000_000]}, "its window in probes.json, .* is impossible"),
    ({"window": [1 << 70, 1 << 71]}, "its window in probes.json, from .* is impossible"),
    ({"window": [0, 1]}, "none of its samples is within the window"),
    ({"marks": [[1, 2]] * 2}, "its clock marks in probes.json are out of order"),
    ({"marks": [[2, 1]]}, "its clock marks in probes.json are out of order"),
    ({"marks": [[OFFSET_NS, OFFSET_NS + 3_000_000]]}, "its clock marks in probes.json are out of order, or within"),
    ({"marks": [[1, 2]]}, "none of its samples is within the window"),
    ({"marks": [[float("nan"), 2]]}, "probes.json"),
    ({"marks": [[1]]}, "not a trace of py-spy"),
    ({"rate_hz": float("inf")}, "its rate_hz in probes.json is impossible: inf"),
    ({"rate_hz": 1e-320}, "its rate_hz in probes.json is impossible"),
])  # fmt: skip
def test_a_clock_or_window_that_cannot_be_is_refused_in_one_line(tmp_path, told, said):
    path = tmp_path / "trace"
    path.write_bytes(write([{MAIN: [Frame("a")]}] * 3))
    assert len(read_stacks(path, facts(10**6), ROLES))
    with pytest.raises(InputError, match=said) as refused:
        read_stacks(path, facts(10**6, **told), ROLES)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"{}", b"[1]", b'[{"ph": "B"}]', b"[]"])
def test_another_json_is_refused(content):
    with pytest.raises(InputError, match="py-spy's trace: "):
        read_stacks(content, facts(10**6), ROLES)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_stacks(tmp_path / "stacks.trace.json.gz", facts(10**6), ROLES)


@pytest.mark.parametrize(("path", "short"), [
    ("/src/project/trainer/loop.py", "trainer/loop.py"),
    ("/env/lib/python3.11/site-packages/torch/nn/linear.py", "torch/nn/linear.py"),
    ("/usr/lib/python3.12/queue.py", "queue.py"),
    ("/usr/lib/x86_64-linux-gnu/libc.so.6", "libc.so.6"),
    ("/env/lib/python3.11/site-packages/tokenizers/tokenizers.abi3.so", "tokenizers/tokenizers.abi3.so"),
    ("<frozen runpy>", "<frozen runpy>"),
    ("/elsewhere/tool.py", "/elsewhere/tool.py"),
])  # fmt: skip
def test_files_are_named_from_where_they_are_imported(path, short):
    assert shorten(path, ["/src/project/", "/src"]) == short
