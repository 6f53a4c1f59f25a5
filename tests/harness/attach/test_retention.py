"""What is kept of a long program's record: whole segments, a minute of each, every note, and nothing twice."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.attach import command, retention
from harness.attach.agent import events as kinds
from harness.attach.frames import Series, append, events, frames, read
from harness.attach.profiled import profiled_steps
from harness.attach.program_causes import _memory
from harness.attach.retention import FIRST, LAST, RETAINED_BYTES, Retention, kept, minutes_of, summarize, thinned
from harness.attach.steps import steps_of, write_tables
from harness.attach.study import make_study
from harness.attach.totals import REPETITION_STEPS, StepTotals, data_ended
from harness.show.build import build_report
from harness.study.run_data import LongStep, read_history
from harness.study.store import StudyFolder
from tests.commands import fork_servers
from tests.harness.attach.test_steps import FACTS, MS, STEPS, made_up

SERIES: Series = (1, 7)


@given(st.lists(st.integers(1, RETAINED_BYTES // 3), max_size=60))
def test_no_segment_is_kept_that_was_deleted_before(sizes: list[int]) -> None:
    whole: set[int] = set()
    for count in range(1, len(sizes) + 1):
        now = kept(sizes[:count])
        assert now <= whole | {count - 1}
        assert {*range(min(FIRST, count)), *range(max(0, count - LAST), count)} <= now
        assert sum(sizes[number] for number in now if FIRST <= number < count - LAST) <= RETAINED_BYTES
        whole = now


def write_segment(raw: Path, number: int, events: list[tuple[Any, ...]]) -> Path:
    path = raw / f"1-1-{number}.frames"
    first = events[0]  # the start of a step, or of its first phase
    begun_ns = first[1] if first[0] == kinds.STEP else first[2]
    facts = replace(FACTS, warmup=0, now_ns=begun_ns, series_ns=SERIES[1], segment=number)
    append(path, "process", asdict(facts))
    append(path, "note", ("place", (number, f"train.py:{number}", "main", "", "")))
    append(path, "events", events)
    return path


def program(raw: Path, segments: int, looks: bool) -> None:
    """Record so many ``segments`` of STEPS steps each; the step that a segment begins ends in the next one."""
    events: list[tuple[Any, ...]] = []
    for number in range(segments):
        more = made_up(number * STEPS * MS)
        more = [
            (*event[:3], event[3] + number * STEPS, 0, False) if event[0] == kinds.STEP else event for event in more
        ]
        more = [event for event in more if event[0] != kinds.PAUSE]
        events += more
    cuts = [place + 1 for place, event in enumerate(events) if event[0] == kinds.STEP and event[3] % STEPS == 0][1:]
    retention_ = Retention(raw)
    for number, (begin, end) in enumerate(zip([0, *cuts], [*cuts, len(events)], strict=True)):
        write_segment(raw, number, events[begin:end])
        if looks:
            retention_.look()


def test_of_deleted_segments_the_notes_and_a_minute_remain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = 40
    (whole := tmp_path / "whole").mkdir()
    (bound := tmp_path / "bound").mkdir()
    program(whole, segments, looks=False)
    size = max(path.stat().st_size for path in whole.glob("*.frames"))
    monkeypatch.setattr(retention, "RETAINED_BYTES", 4 * size)
    program(bound, segments, looks=True)
    (before,), (after,) = read(whole), read(bound)
    assert [segment.number for segment in before.segments] == list(range(segments))
    assert [segment.number for segment in after.segments] == [0, 1, 2, 3, 4, 5, 13, 21, 29, 37, 38, 39]
    assert (after.notes, after.steps) == (before.notes, before.steps)
    expected, minutes = minutes_of(before), minutes_of(after)
    assert minutes == expected
    assert [minute.first_step for minute in thinned(after, minutes)] == [
        STEPS * number for number in range(segments) if number not in {s.number for s in after.segments}
    ]
    assert all(minute.p50_ms == pytest.approx(1.0) for minute in minutes.values())
    assert {minute.steps for minute in minutes.values() if minute.first_step < 39 * STEPS} == {STEPS}


def test_an_error_of_a_look_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, 20, looks=False)
    (process,) = read(tmp_path)
    expected = minutes_of(process)
    tries = 0

    def append_at_second_try(path: Path, word: str, content: Any) -> None:
        nonlocal tries
        tries += 1
        if tries % 2:
            raise OSError("a full disk")
        append(path, word, content)

    monkeypatch.setattr(retention, "append", append_at_second_try)
    monkeypatch.setattr(retention, "RETAINED_BYTES", 1)
    looking = Retention(tmp_path)
    for _ in range(100):
        with suppress(OSError):
            looking.look()
    (process,) = read(tmp_path)
    assert [segment.number for segment in process.segments] == [0, 1, 2, 3, 4, 5, 17, 18, 19]
    assert minutes_of(process) == expected


def test_half_an_appended_frame_is_taken_back(tmp_path: Path) -> None:
    append(path := tmp_path / "digest", "minute", 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="No space"):
            append(path, "minute", "x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    append(path, "minute", 2)
    assert list(frames(path)) == [("minute", 1), ("minute", 2)]


def test_looks_go_on_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks, enough = [0], threading.Event()

    def look(_: Retention) -> None:
        looks.append(0)
        if len(looks) > 3:
            enough.set()
        raise OSError("a full disk")

    monkeypatch.setattr(command, "RETENTION_LOOK_S", 0.01)
    monkeypatch.setattr(command, "RETENTION_NICE", 0)
    monkeypatch.setattr(Retention, "look", look)
    with command._retaining(tmp_path, 0):
        assert enough.wait(60)
    assert capsys.readouterr().err.count("could not be shortened (OSError: a full disk)") == 1


def test_memory_that_grew_in_the_first_minutes_only_is_no_leak(tmp_path: Path) -> None:
    """The tables have the first minutes. Most readings after them are in deleted segments."""
    used = [min(step, 60) << 24 for step in range(600)]
    read_at = [(step, used[step], 0, 4 << 30) for step in range(600)]
    events: list[tuple[Any, ...]] = []
    for step, *reading in read_at[60:]:
        events += [(kinds.STEP, step * MS, (), step, 0, False), (kinds.MEMORY_READ, *reading)]
    minute, *_ = summarize(write_segment(tmp_path, 0, [*events, (kinds.PAUSE, 600 * MS, ())]), FACTS, None)
    assert minute is not None
    assert minute.memory == tuple(read_at[60:])
    (kept_only,) = _memory([totals := StepTotals(measured=60, wall_ns=60 * MS, memory=read_at[:60])])
    assert kept_only["kind"] == "memory"
    assert not list(_memory([totals], minute.memory))


def test_parts_of_steps_that_alternate(tmp_path: Path) -> None:
    count = 1500  # long and short passes take turns
    events: list[tuple[Any, ...]] = []
    for step in range(count):
        at, lasts = step * MS, 900_000 if step % 2 else 100_000
        events += [
            (kinds.STEP, at, (), step, 0, False),
            (kinds.ENTER, "forward", at, at),
            (kinds.EXIT, "forward", at + lasts, at),
        ]
    path = write_segment(tmp_path, 0, [*events, (kinds.PAUSE, count * MS, ())])
    minute, *_ = summarize(path, FACTS, None)
    assert minute is not None
    assert minute.parts_ms == {"forward": pytest.approx(0.5)}


def test_device_work_is_in_its_own_step_on_both_sides_of_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work of a step is read at its end."""
    monkeypatch.setattr(retention, "RETAINED_BYTES", 1)
    looking = Retention(tmp_path)
    for number in range(20):
        events: list[tuple[Any, ...]] = []
        for step in range(number * STEPS, (number + 1) * STEPS):
            at = step * MS
            work = (kinds.DEVICE_WORK, "forward", at - MS + 1, at - MS + 2, at - MS + 3, at - MS + 4)
            events += [work, (kinds.STEP, at, (b"0 0 1\n",), step, 0, False)]
        path = write_segment(tmp_path, number, events)
        if not number:
            append(path, "note", ("device_clock", (0, 0)))
            append(path, "note", ("device_clock", (20 * STEPS * MS, 20 * STEPS * MS)))
        looking.look()
    (one,) = read(tmp_path)
    write_tables(one, {}, lambda block: tmp_path / str(block))
    works = [
        row["start_ns"]
        for path in sorted(tmp_path.glob("*/spans.parquet"))
        for row in pq.read_table(path).to_pylist()
        if row["role"] == "device"
    ]
    whole = [*range(6 * STEPS - 1), *range(17 * STEPS, 20 * STEPS - 1)]
    assert {start_ns // MS for start_ns in works} >= set(whole)


def test_a_minute_has_the_times_and_counts_of_its_steps(tmp_path: Path) -> None:
    """Step 10 lasts 9 ms, with two collections; step 20 holds an evaluation and is not measured."""
    events: list[tuple[Any, ...]] = []
    late_ns = 0
    for step in range(STEPS):
        at = step * MS + late_ns
        events += [
            (kinds.STEP, at, (b"%d %d 1\n" % (at, step * MS // 10),), step, 0, False),
            (kinds.ENTER, "forward", at, 0),
            (kinds.EXIT, "forward", at + MS // 2, 0),
            (kinds.RECEIVED, None, 50, 0, 4),
            (kinds.MEMORY_READ, 1000 + step, 500, 0),
        ]
        if step == 10:
            events += [(kinds.COLLECTED, 2, 4 * MS, 0), (kinds.COUNTED, kinds.COMPILED, 3)]
            late_ns = 8 * MS
        if step == 20:
            events.append((kinds.EVALUATION, True))
    events.append((kinds.PAUSE, STEPS * MS + late_ns, (b"0 %d 1\n" % (STEPS * MS // 10),)))
    path = write_segment(tmp_path, 0, events)
    facts = replace(FACTS, realtime_minus_monotonic_ns=10**9)
    minute, left_open, ended_ns = summarize(path, facts, None)
    assert (left_open, ended_ns) == (None, 38 * MS)
    assert minute is not None
    count = STEPS - 1
    assert (minute.first_step, minute.steps, minute.tokens, minute.samples) == (0, count, 50 * count, 4 * count)
    assert (minute.start_utc_s, minute.span_s) == (1.0, pytest.approx(0.038))
    assert (minute.wall_s, minute.evaluating_s) == (pytest.approx(0.037), pytest.approx(0.001))
    assert (minute.mean_ms, minute.p50_ms, minute.max_ms) == (pytest.approx(37 / count), 1.0, 9.0)
    assert minute.parts_ms == {"forward": pytest.approx(0.5)}
    assert (minute.waiting_ms, minute.collecting_ms) == (pytest.approx(0.1), pytest.approx(4 / count))
    assert minute.memory_bytes == 1000 + STEPS - 1 + 500
    (long,) = minute.long_steps
    assert long == LongStep(10, 1.01, 9.0, {"forward": 0.5}, 4.0, pytest.approx(0.1), {kinds.COMPILED: 3})


def test_a_block_ends_where_segments_were_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "RETAINED_BYTES", 1)
    program(tmp_path, 20, looks=True)
    (one,) = read(tmp_path)
    assert [segment.number for segment in one.segments] == [0, 1, 2, 3, 4, 5, 17, 18, 19]
    blocks = write_tables(one, {}, lambda block: tmp_path / str(block))
    steps = [pq.read_table(tmp_path / str(block) / "steps.parquet").to_pydict() for block in range(len(blocks))]
    measured = [
        step for table in steps for step, warmup in zip(table["step"], table["warmup"], strict=True) if not warmup
    ]
    # The open step of segment 5 ended in a deleted one; the step after the gap is a warm-up, as is the very first one.
    assert measured == [*range(6 * STEPS), *range(17 * STEPS + 1 + one.loader_warmup, 20 * STEPS - 1)]
    assert all(wall_ns == MS for table in steps for wall_ns in table["wall_ns"])
    assert sum(block.measured for block in blocks) == len(measured)
    assert max(max(table["turn"]) for table in steps) <= len(measured) // REPETITION_STEPS


def write_worker(raw: Path, name: str, begun_ns: int, ended_ns: int) -> Path:
    """Write the file of a loader worker that has ended, last changed at ``ended_ns``."""
    path = raw / f"{name}.frames"
    append(path, "process", asdict(replace(FACTS, pid=10**9, now_ns=begun_ns, series_ns=begun_ns)))
    append(path, "batch", (0, 0, (), 4))
    changed_ns = time.time_ns() - (time.monotonic_ns() - ended_ns)
    os.utime(path, ns=(changed_ns, changed_ns))
    return path


def test_files_of_workers_go_with_the_segments_that_they_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "RETAINED_BYTES", 1)
    monkeypatch.setattr(retention, "WORKER_MARGIN_NS", STEPS * MS)
    of_kept = write_worker(tmp_path, "of-kept", 2 * STEPS * MS, (2 * STEPS + 20) * MS)
    of_deleted = write_worker(tmp_path, "of-deleted", 10 * STEPS * MS, (10 * STEPS + 20) * MS)
    program(tmp_path, 20, looks=True)  # segments 6 to 16 are deleted
    assert (of_kept.exists(), of_deleted.exists()) == (True, False)


@pytest.mark.slow
def test_a_long_program_is_thinned_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loader workers live for an epoch each: the files of those that served deleted segments go as well."""
    monkeypatch.setattr(command, "RETENTION_LOOK_S", 0.2)
    monkeypatch.setattr(retention, "RETAINED_BYTES", 1)
    monkeypatch.setattr(retention, "FIRST", 1)
    monkeypatch.setattr(retention, "LAST", 1)
    monkeypatch.setattr(retention, "WORKER_MARGIN_NS", 0)
    (raw := tmp_path / "raw").mkdir()
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    settings = command.AgentSettings(warmup=5, segment_s=1)
    with fork_servers.shared():
        ended = command.run_command([sys.executable, str(script)], raw, settings)
    assert ended.code == 0
    processes = read(raw)
    assert 2 <= sum(bool(process.made) for process in processes) < 2 * EPOCHS
    (trainer,) = [process for process in processes if process.steps]
    made_by = {process.process.pid: process.made for process in processes}
    for stretch in trainer.stretches:
        steps = list(steps_of(events(segment.path for segment in stretch)))
        for step in steps[trainer.loader_warmup :]:
            batches = [event[1] for event in step.body if event[0] == kinds.RECEIVED and not data_ended(event)]
            assert all(number in made_by.get(pid, {}) for _, pid, _, number, _ in batches)
    (study := tmp_path / "study").mkdir()
    result = make_study(StudyFolder(study), raw, ["train.py"], ["harness", "exec"], "2026-11-30T00:00:00Z", ended)
    assert (result.trained, result.faults) == (("script",), ())
    history = read_history(study)
    assert history is not None
    minutes = history.minutes["script"]
    gone = thinned(trainer, minutes_of(trainer))
    assert history.thinned["script"] == len(gone) > 0
    assert sum(minute.steps for minute in minutes) == EPOCHS * EPOCH_STEPS - 5  # without warm-up
    facts = json.loads((study / "runs/script/0/run.json").read_text())["facts"]
    assert facts["thinned_steps"] == sum(minute.steps for minute in gone)
    build_report(study)
    assert "## The whole run" in (study / "summary.md").read_text()


EPOCHS, EPOCH_STEPS = 10, 36
# Its spans make the record of a second as large as a segment.
PROGRAM = f"""
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
span = sys.modules["_harness_agent"].span
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for epoch in range({EPOCHS}):
    for (batch,) in DataLoader(TensorDataset(torch.ones({2 * EPOCH_STEPS}, 8)), batch_size=2, num_workers=2):
        time.sleep(0.015)
        model(batch).pow(2).mean().backward()
        optimizer.step()
        for _ in range(60):
            with span("log", False):
                pass
"""


def test_a_profiled_window_in_files_that_were_not_read_is_no_part_of_the_steps(tmp_path: Path) -> None:
    program(tmp_path, 4, looks=False)
    append(tmp_path / "1-1-0.frames", "note", ("profiled", STEPS))
    ((whole,), (recent,)) = read(tmp_path), read(tmp_path, recent=2)
    assert (profiled_steps(whole), profiled_steps(recent)) == (STEPS, 0)
    assert [segment.number for segment in recent.segments] == [2, 3]
