"""What the agent wrote of a program as the tables have it, from events that are made up."""

from __future__ import annotations

import marshal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from harness.attach.frames import AttachedProcess, ProcessFacts
from harness.attach.steps import write_tables
from harness.probes.ledger.rows import ENTER, EXIT, PAUSE, RECEIVED, STEP

STEPS, WARMUP = 30, 4
MS = 1_000_000
FACTS = ProcessFacts(1, 1, None, None, "3", "2", 1, 1, WARMUP, 0, 0)


def made_up() -> list[tuple[Any, ...]]:
    """Steps of 1 ms, each with a fetch of 200 us and a forward pass of 500."""
    events: list[tuple[Any, ...]] = []
    for step in range(STEPS):
        at = step * MS
        cpu = at // 2
        reading = (b"%d 0 1\n" % cpu,)
        read = ("read", at + 10_000, at + 190_000, 90_000)
        events += [
            (STEP, at, reading, step, 0, step < WARMUP),
            (ENTER, "fetch", at, cpu),
            (EXIT, "fetch", at + 200_000, cpu + 100_000),
            (RECEIVED, ("main", 1, 1, -1, (read,)), 0, 0, 4),
            (ENTER, "forward", at + 300_000, cpu + 150_000),
            (EXIT, "forward", at + 800_000, cpu + 400_000),
        ]
    events.append((PAUSE, STEPS * MS, (b"%d 0 1\n" % (STEPS * MS // 2),)))
    return events


def write_frames(path: Path, events: list[tuple[Any, ...]]) -> AttachedProcess:
    """A file with one frame a step."""
    portions: list[list[Any]] = [[]]
    for event in events:
        portions[-1].append(event)
        if event[0] == STEP:
            portions.append([])
    with path.open("wb") as file:
        for word, content in [("process", asdict(FACTS)), *(("events", portion) for portion in portions)]:
            frame = marshal.dumps((word, content), 2)
            file.write(len(frame).to_bytes(4, "little") + frame)
    return AttachedProcess(path, FACTS, (), (), STEPS)


def test_a_span_that_was_on_its_core_for_less_than_was_assumed_has_no_negative_cpu_time(tmp_path: Path) -> None:
    """The agent takes a thread to have run for some microseconds since a reading: the next one may say it did not."""
    events = made_up()
    events = [(*event[:3], event[3] - 401_000) if event[:2] == (EXIT, "forward") else event for event in events]
    totals = write_tables(write_frames(tmp_path / "1.frames", events), {}, lambda block: tmp_path / str(block), 0)
    assert sum(block.measured for block in totals) == STEPS - WARMUP
    spans = [
        row for block in range(len(totals)) for row in pq.read_table(tmp_path / f"{block}/spans.parquet").to_pylist()
    ]
    assert {row["cpu_ns"] for row in spans if row["name"] == "forward"} == {0}
    assert {row["cpu_ns"] for row in spans if row["name"] == "fetch"} == {100_000}
