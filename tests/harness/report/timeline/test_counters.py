"""Counters stand where their time began, and at nothing while a run stood still between turns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from harness.report.timeline.counters import sampled
from harness.report.timeline.sources import NO_SOURCES
from harness.report.timeline.windows import last_steps
from harness.results import SAMPLE_COLUMNS, RunData, arrow_schema
from tests.harness.analysis.regression.tables import MS, run, steps_table

PAUSE = 5_000 * MS


def two_turns() -> RunData:
    """Two turns of four steps of 100 ms, PAUSE between them; a reading at each end of a turn, one in the middle."""
    steps = steps_table(np.full((2, 4), 100.0))
    starts = [
        start + PAUSE * turn for start, turn in zip(*(steps[n].to_pylist() for n in ("start_ns", "turn")), strict=True)
    ]
    steps = steps.set_column(steps.schema.get_field_index("start_ns"), "start_ns", pa.array(starts, pa.int64()))
    rows = []
    for begun in (0, 400 * MS + PAUSE):
        rows.append((begun, "host", "available_bytes", 1.0, "bytes"))
        for number, t_ns in enumerate((begun + 200 * MS, begun + 400 * MS), start=1):
            rows.append((t_ns, "host", "interval_s", 0.2, "s"))
            rows.append((t_ns, "host:main", "cpu_cores", float(number), "cores"))
            rows.append((t_ns, "host", "disk_read_bytes", 100.0, "bytes"))
    columns = {name: [row[place] for row in rows] for place, (name, _) in enumerate(SAMPLE_COLUMNS)}
    made = run("x@base", 0, steps)
    made.samples = pa.table(columns, schema=arrow_schema(SAMPLE_COLUMNS))
    return made


def test_nothing_is_shown_while_the_run_stood_still() -> None:
    found = {one.name: one.points for one in sampled(last_steps(two_turns(), NO_SOURCES, None)).counters}
    second = 400 * MS + PAUSE
    assert found["host:main cpu"] == [(200 * MS, 2.0), (400 * MS, 0.0), (second, 1.0), (second + 200 * MS, 2.0)]
    growth = found["host disk_read"]
    assert growth == [
        (0, 500.0), (200 * MS, 500.0), (400 * MS, 0.0), (second, 500.0), (second + 200 * MS, 500.0),
    ]  # fmt: skip
    assert [value for _, value in found["host available"]] == [1.0, 1.0]  # a level stays
