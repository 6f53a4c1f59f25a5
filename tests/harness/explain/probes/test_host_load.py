from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.explain.probes.samples import split, total
from harness.judge.probes.machine_load import host_load
from harness.show.text.findings import host_finding
from harness.study.contract import SAMPLE_COLUMNS, arrow_schema
from harness.study.records import RunFacts, RunRecord
from harness.study.run_data import ProbesRecord, RunData

Rows = list[tuple[str, str, float]]


def run(*readings: Rows, status: str = "done", threads: int = 2, probes: dict | None = None) -> RunData:
    """A run whose samples are ``readings``: (source, metric, value) at one time each."""
    rows = [(t, source, metric, value, "") for t, reading in enumerate(readings) for source, metric, value in reading]
    columns = {name: [row[index] for row in rows] for index, (name, _) in enumerate(SAMPLE_COLUMNS)}
    samples = pa.table(columns, schema=arrow_schema(SAMPLE_COLUMNS))
    record = RunRecord("arm", 0, status, facts=RunFacts(threads=threads))
    return RunData(record, None, None, samples, ProbesRecord(**(probes or {})))


def reading(interval_s: float = 1.0, **metrics: float) -> Rows:
    """Keys are metrics of the host; ``main__cpu_s`` is the metric cpu_s of the process main, __ for a hyphen too."""
    rows = [("host", "interval_s", interval_s)]
    for name, value in metrics.items():
        role, _, metric = name.rpartition("__")
        rows.append((f"host:{role.replace('__', '-')}" if role else "host", metric, value))
    return rows


def findings(*readings: Rows, **options) -> list[str]:
    return [*map(host_finding, host_load({"arm": [run(*readings, **options)]})[0].findings)]


def test_rates_are_what_counters_grew_by_over_the_time_that_they_took() -> None:
    short = reading(0.5, main__cpu_s=0.5, loader__0__cpu_s=0.25, loader__1__cpu_s=0.25, main__disk_read_bytes=1e6)
    long = reading(2.0, main__cpu_s=1.0, loader__0__cpu_s=2.0, loader__1__cpu_s=1.0, main__disk_read_bytes=0.0)
    load = host_load({"arm": [run(short), run(long)]})[0]
    main, loaders = load.roles
    assert load.seconds == 2.5
    assert (main.role, main.processes, main.cores) == ("main", 1, pytest.approx(0.6))
    assert (loaders.role, loaders.processes, loaders.cores) == ("loaders", 2, pytest.approx(1.4))
    assert main.disk_bytes_per_s == pytest.approx(4e5)
    assert main.delay is None  # nobody told


@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 10)), min_size=1, max_size=20), st.integers(1, 4))
def test_how_samples_are_spread_over_runs_changes_no_rate(steps, parts) -> None:
    readings = [reading(interval_s, main__cpu_s=cpu_s) for interval_s, cpu_s in steps]
    whole = host_load({"arm": [run(*readings)]})[0]
    spread = host_load({"arm": [run(*readings[part::parts]) for part in range(parts) if readings[part::parts]]})[0]
    assert spread.seconds == pytest.approx(whole.seconds)
    assert spread.roles[0].cores == pytest.approx(whole.roles[0].cores)
    assert whole.roles[0].cores == pytest.approx(sum(cpu_s for _, cpu_s in steps) / sum(dt for dt, _ in steps))


def test_a_run_that_failed_and_an_arm_without_samples_are_left_out() -> None:
    unsampled = RunData(RunRecord("other", 0, "done"), None, None, None)
    assert host_load({"arm": [run(reading(), status="failed")], "other": [unsampled]}) == []


def test_memory_is_the_most_of_each_process_added_up() -> None:
    early = reading(main__resident_bytes=5e9, loader__0__resident_bytes=1e9, loader__0__pss_bytes=2e8)
    late = reading(main__resident_bytes=4e9, loader__0__resident_bytes=2e9, loader__0__pss_bytes=3e8)
    main, loaders = host_load({"arm": [run(early, late)]})[0].roles
    assert (main.resident_bytes, loaders.resident_bytes, loaders.pss_bytes) == (5e9, 2e9, 3e8)


def test_a_quiet_machine_has_nothing_to_say() -> None:
    quiet = reading(
        main__cpu_s=1.0,
        main__run_queue_delay_s=0.001,
        main__major_faults=0.0,
        main__disk_read_bytes=0.0,
        others_cpu_s=0.01,
        stolen_cpu_s=0.0,
        cpu_pressure_s=0.5,
        io_pressure_s=0.0,
        memory_pressure_s=0.0,
        cgroup_quota_cores=4.0,
        cgroup_periods=10.0,
        cgroup_throttled_periods=0.0,
    )
    assert findings(quiet, probes={"taken_samples": {"host": 100}, "missed_samples": {"host": 0}}) == []


def test_waiting_under_a_quota_that_throttles_is_not_blamed_on_the_cores() -> None:
    throttled = {"cgroup_quota_cores": 4.0, "cgroup_periods": 50.0, "cgroup_throttled_periods": 21.0}
    quota, waited = findings(reading(2.0, main__run_queue_delay_s=0.5, **throttled))
    assert "CPU quota" in quota
    assert waited.endswith("0.25 s in every second, time held back by the quota included")


def test_the_most_that_others_used_is_over_windows_long_enough_to_count_ticks() -> None:
    def most(*readings: Rows) -> float | None:
        return host_load({"arm": [run(*readings)]})[0].other_cores_max

    assert most(reading(0.04, others_cpu_s=0.08), reading(1.0, others_cpu_s=0.3)) == pytest.approx(0.3)
    repetition = reading(0.04, others_cpu_s=0.08, other_cpu_cores=0.4)  # of repetitions put together
    assert most(repetition) == pytest.approx(0.4)
    assert most(reading(0.04, others_cpu_s=0.08)) is None
    assert most(reading(1.0, main__cpu_s=1.0, others_cpu_s=-0.01)) == 0.0


def test_a_kernel_that_counts_nobody_else_is_not_a_quiet_machine() -> None:
    load = host_load({"arm": [run(reading(1.0, main__cpu_s=1.0, others_cpu_s=-1.0))]})[0]
    assert (load.other_cores, load.other_cores_max) == (None, None)


def test_missed_readings_are_said() -> None:
    (text,) = findings(reading(), probes={"taken_samples": {"host": 90}, "missed_samples": {"host": 10}})
    assert text.startswith("10 of 100 host readings were missed")


def test_rows_without_a_value_are_no_samples() -> None:
    rows = {"t_ns": [2, 1, 3], "source": ["a"] * 3, "metric": ["b"] * 3, "value": [2.0, 1.0, None], "unit": ["s"] * 3}
    found = split(pa.table(rows, schema=arrow_schema(SAMPLE_COLUMNS)))
    assert found["a", "b"].values.tolist() == [1.0, 2.0]
    assert found["a", "b"].t_ns.tolist() == [1, 2]
    assert total([found, {}], "a", "b") == 3.0
    assert total([found], "a", "c") is None
    assert split(None) == {}
