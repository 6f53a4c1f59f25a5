"""Counters stand where their time began, and at nothing while a run was suspended between repetitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from harness.show.timeline.model import NO_SOURCES, Window, last_steps
from harness.show.timeline.tracks import sampled
from harness.study.run_data import RunData
from tests.harness.regress.tables import MS, run, steps_table
from tests.harness.show.timeline import tables

PAUSE = 5_000 * MS
LENGTH = 400 * MS  # of a repetition's measured steps


def two_repetitions(*rows: tuple[int, str, str, float, str], warmups: int = 0) -> RunData:
    """Two repetitions of four measured steps of 100 ms after ``warmups`` of 50 ms, PAUSE between them.

    ``rows``: the samples of each repetition, their times counted from its first measured step.
    """
    steps = steps_table(np.full((2, 4), 100.0), warmup_ms=50.0, warmups=warmups)
    starts = [
        start + PAUSE * repetition
        for start, repetition in zip(*(steps[n].to_pylist() for n in ("start_ns", "turn")), strict=True)
    ]
    steps = steps.set_column(steps.schema.get_field_index("start_ns"), "start_ns", pa.array(starts, pa.int64()))
    first = 50 * MS * warmups
    begun = (first, first + LENGTH + first + PAUSE)
    samples = tables.samples(*((since + row[0], *row[1:]) for since in begun for row in rows))
    return replace(run("x@base", 0, steps), samples=samples)


def counters(window: Window) -> dict[str, list[tuple[int, float]]]:
    return {one.name: one.points for one in sampled(window).counters}


def test_nothing_is_shown_while_the_run_stood_still() -> None:
    rows = [(0, "host", "available_bytes", 1.0, "bytes")]
    for number, t_ns in enumerate((200 * MS, LENGTH), start=1):
        rows.append((t_ns, "host", "interval_s", 0.2, "s"))
        rows.append((t_ns, "host:main", "cpu_cores", float(number), "cores"))
        rows.append((t_ns, "host", "disk_read_bytes", 100.0, "bytes"))
    found = counters(last_steps(two_repetitions(*rows), NO_SOURCES, None))
    second = LENGTH + PAUSE
    assert found["host:main cpu"] == [
        (0, 1.0), (200 * MS, 2.0), (LENGTH, 0.0), (second, 1.0), (second + 200 * MS, 2.0),
    ]  # fmt: skip
    assert found["host disk_read"] == [
        (0, 500.0), (200 * MS, 500.0), (LENGTH, 0.0), (second, 500.0), (second + 200 * MS, 500.0),
    ]  # fmt: skip
    assert [value for _, value in found["host available"]] == [1.0, 1.0]  # a level stays


AFTER = LENGTH + MS // 5  # when the last reading of a repetition is taken: just after its last step
ONCE = (
    (AFTER, "host", "interval_s", 0.4, "s"),
    (AFTER, "host:main", "cpu_cores", 0.5, "cores"),
    (AFTER, "host:main", "major_faults", 8.0, "faults"),
    (AFTER, "host:main", "resident_bytes", 7.0, "bytes"),
)


def test_one_reading_at_the_end_of_a_repetition_is_shown_over_it() -> None:
    run = two_repetitions(*ONCE)
    second = LENGTH + PAUSE
    shown = last_steps(run, NO_SOURCES, 20)
    assert shown.extent == (second, second + LENGTH)
    found = counters(shown)
    assert found == {
        "host:main cpu": [(second, 0.5)],
        "host:main major": [(second + MS // 5, 20.0)],
        "host:main resident": [(second, 7.0)],
    }
    last_two = second + 200 * MS
    assert counters(last_steps(run, NO_SOURCES, 2)) == {name: [(last_two, found[name][0][1])] for name in found}


def test_one_reading_in_each_repetition_leaves_the_time_between_them_at_nothing() -> None:
    found = counters(last_steps(two_repetitions(*ONCE), NO_SOURCES, None))
    second = LENGTH + PAUSE
    assert found == {
        "host:main cpu": [(0, 0.5), (LENGTH, 0.0), (second, 0.5)],
        "host:main major": [(MS // 5, 20.0), (LENGTH, 0.0), (second + MS // 5, 20.0)],
        "host:main resident": [(0, 7.0), (second, 7.0)],
    }
    # A mean tells of measured steps, and a level of the warm-up before them too.
    shown = last_steps(two_repetitions(*ONCE, warmups=2), NO_SOURCES, 20)
    since, _ = shown.extent
    assert counters(shown)["host:main cpu"] == [(since + 100 * MS, 0.5)]
    assert counters(shown)["host:main resident"] == [(since, 7.0)]


def test_what_was_read_long_before_the_window_is_shown_from_its_beginning() -> None:
    """Not from the beginning of the repetition: that was the time of another reading."""
    rows = [(t_ns, "host", "page_cache_bytes", value, "bytes") for t_ns, value in ((100 * MS, 1.0), (200 * MS, 2.0))]
    rows += [(t_ns, "host:main", "cpu_cores", value, "cores") for t_ns, value in ((100 * MS, 0.1), (AFTER, 0.2))]
    shown = last_steps(two_repetitions(*rows), NO_SOURCES, 1)
    assert counters(shown) == {
        "host page_cache": [(shown.extent[0], 2.0)],
        "host:main cpu": [(shown.extent[0], 0.2)],
    }
