"""What spoils a run, from tables made by hand."""

from __future__ import annotations

import pyarrow as pa
import pytest

from harness.study.contract import SAMPLE_COLUMNS, STEP_COLUMNS, arrow_schema
from harness.study.records import RunRecord
from harness.study.run_data import RunData
from tests.campaigns.known_truth.waited import allowance, mean_waited, waited_share

SAMPLES = [("host", "interval_s", 2.0), ("host:main", "run_queue_delay_s", 0.9)]
WORKERS = [("host:loader-0", "run_queue_delay_s", 0.1), ("host:loader-1", "run_queue_delay_s", 0.3)]


def run(delay_ns: int | None, samples: list[tuple[str, str, float]]) -> RunData:
    steps = [{"wall_ns": 100, "contended_ns": 90, "warmup": True}]
    steps += [{"wall_ns": 100, "contended_ns": delay_ns, "warmup": False}] * 2
    rows = [dict(zip(("source", "metric", "value"), one, strict=True)) for one in samples]
    return RunData(
        RunRecord("a", 0, "done"),
        pa.Table.from_pylist(steps, schema=arrow_schema(STEP_COLUMNS)),
        None,
        pa.Table.from_pylist(rows, schema=arrow_schema(SAMPLE_COLUMNS)),
    )


def test_main_thread_and_workers_count_in_measured_steps() -> None:
    inline, workers, unknown = run(10, SAMPLES), run(10, [*SAMPLES, *WORKERS]), run(None, [])
    assert [waited_share(one) for one in (inline, workers, unknown)] == [pytest.approx(0.1), pytest.approx(0.3), 0]
    assert mean_waited([inline, workers]) == pytest.approx(0.2)


def test_a_quiet_machine_is_allowed_nothing() -> None:
    assert [allowance(share) for share in (0.0, 0.009, 0.2)] == [0, 0, 0.2]
