"""What is kept of a long program's record: whole segments, a minute of each, every note, and nothing twice."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.attach import command, retention
from harness.attach.agent.events import PAUSE, STEP
from harness.attach.frames import Series, append, read
from harness.attach.retention import FIRST, LAST, RETAINED_BYTES, Retention, kept, minutes_of, thinned
from harness.attach.steps import write_tables
from harness.attach.study import make_study
from harness.attach.totals import REPETITION_STEPS
from harness.show.build import build_report
from harness.study.run_data import read_history
from harness.study.store import StudyFolder
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
    facts = replace(FACTS, warmup=0, now_ns=events[0][1], series_ns=SERIES[1], segment=number)
    append(path, "process", asdict(facts))
    append(path, "note", ("place", (number, f"train.py:{number}", "main", "", "")))
    append(path, "events", events)
    return path


def program(raw: Path, segments: int, looks: bool) -> None:
    """Record so many ``segments`` of STEPS steps each; the step that a segment begins ends in the next one."""
    events: list[tuple[Any, ...]] = []
    for number in range(segments):
        more = made_up(number * STEPS * MS)
        more = [(*event[:3], event[3] + number * STEPS, 0, False) if event[0] == STEP else event for event in more]
        more = [event for event in more if event[0] != PAUSE]
        events += more
    cuts = [place + 1 for place, event in enumerate(events) if event[0] == STEP and event[3] % STEPS == 0][1:]
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
    expected, minutes = minutes_of(whole, before), minutes_of(bound, after)
    # The last one is still open: its first step began in the segment before it, which is closed.
    assert minutes == {**expected, 39: minutes[39]}
    assert minutes[39].steps == expected[39].steps - 1
    assert [minute.first_step for minute in thinned(after, minutes)] == [
        STEPS * number for number in range(segments) if number not in {s.number for s in after.segments}
    ]
    assert all(
        minute.steps == STEPS and minute.p50_ms == pytest.approx(1.0)
        for minute in minutes.values()
        if minute.first_step < 39 * STEPS
    )


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


@pytest.mark.slow
def test_a_long_program_is_thinned_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loader workers live for an epoch each: the files of those that served deleted segments go as well."""
    monkeypatch.setattr(command, "RETENTION_LOOK_S", 0.2)
    monkeypatch.setattr(retention, "RETAINED_BYTES", 1)
    monkeypatch.setattr(retention, "FIRST", 1)
    monkeypatch.setattr(retention, "WORKER_MARGIN_NS", 0)
    (raw := tmp_path / "raw").mkdir()
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    settings = command.AgentSettings(warmup=5, segment_s=1)
    ended = command.run_command([sys.executable, str(script)], raw, settings)
    assert ended.code == 0
    processes = read(raw)
    assert 2 <= sum(bool(process.made) for process in processes) < 2 * EPOCHS
    (trainer,) = [process for process in processes if process.steps]
    (study := tmp_path / "study").mkdir()
    result = make_study(StudyFolder(study), raw, ["train.py"], ["harness", "exec"], 0, "2026-11-30T00:00:00Z", ended)
    assert (result.trained, result.faults) == (("script",), ())
    history = read_history(study)
    assert history is not None
    minutes = history.minutes["script"]
    assert history.thinned["script"] == len(minutes) - len(trainer.segments) > 0
    # Warm-up is in no minute. The step that a segment leaves open is in the next one, if that is closed while it runs.
    assert EPOCHS * EPOCH_STEPS - 5 - 2 <= sum(minute.steps for minute in minutes) <= EPOCHS * EPOCH_STEPS - 5
    build_report(study)
    assert "## The whole run" in (study / "summary.md").read_text()


EPOCHS, EPOCH_STEPS = 8, 500
PROGRAM = f"""
import time, torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for epoch in range({EPOCHS}):
    for (batch,) in DataLoader(TensorDataset(torch.ones({2 * EPOCH_STEPS}, 8)), batch_size=2, num_workers=2):
        time.sleep(0.001)
        model(batch).pow(2).mean().backward()
        optimizer.step()
"""
