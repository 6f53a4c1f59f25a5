"""A run's ledger against numbers worked out by hand."""

from __future__ import annotations

import pyarrow as pa
import pytest

from harness.explain.ledger import mean_over, measure
from harness.study.contract import PHASES, STEP_COLUMNS, arrow_schema
from harness.study.records import RunRecord
from harness.study.run_data import RunData
from tests.harness.synthetic import Arm, build


def run_of(rows, **record):
    columns = {name: [row.get(name) for row in rows] for name, _ in STEP_COLUMNS}
    table = pa.table(columns, schema=arrow_schema(STEP_COLUMNS))
    return RunData(RunRecord(arm="a", block=0, status="done", **record), table, None, None)


def row(wall_ms, repetition=0, warmup=False, **others):
    phases = {f"{phase}_ns": 0 for phase in PHASES}
    phases |= {"fetch_ns": int(wall_ms * 0.25e6), "forward_ns": int(wall_ms * 0.75e6)}
    return {"turn": repetition, "warmup": warmup, "wall_ns": int(wall_ms * 1e6), **phases, **others}


def test_warmup_is_left_out_and_repetitions_are_apart():
    rows = [
        row(1000, warmup=True, tokens=7),
        row(10, tokens=100),
        row(30, tokens=100),
        row(20, repetition=1, tokens=100),
    ]
    ledger = measure(run_of(rows))
    assert (ledger.repetitions[0].tokens, ledger.repetitions[0].wall_ns, ledger.repetitions[0].steps) == (200, 40e6, 2)
    assert (ledger.repetitions[1].tokens, ledger.repetitions[1].wall_ns, ledger.repetitions[1].steps) == (100, 20e6, 1)
    assert ledger.phase_ms["fetch"] == pytest.approx(5)
    assert sum(ledger.phase_ms.values()) == pytest.approx(ledger.mean_step_ms)


def test_what_was_not_measured_is_none_and_never_zero():
    ledger = measure(run_of([row(10), row(10, exposed_read_ns=2_000_000)]))
    assert ledger.repetitions[0].tokens is None
    assert ledger.contended_ms is None
    assert ledger.loss is None
    assert ledger.exposed_ms == {"read": 2.0}
    assert ledger.hidden_ms == {}
    assert measure(run_of([row(10)])).waited_ms == pytest.approx(2.5)  # the fetch phase, where stages are unknown


@pytest.mark.parametrize("rows", [[], [row(10, warmup=True)]])
def test_a_run_without_measured_steps_has_no_ledger(rows):
    assert measure(run_of(rows)) is None


def test_a_failed_run_has_no_ledger():
    _, runs = build([Arm("a", failed_blocks=(0,))], blocks=1)
    assert measure(runs[0]) is None


def test_other_processes_load_is_the_mean_of_the_host_samples():
    _, runs = build([Arm("a", other_cpu_cores=0.7)], blocks=1)
    assert measure(runs[0]).other_cpu_cores == pytest.approx(0.7)


def test_load_elsewhere_for_which_the_hypervisor_took_cores_counts_as_others():
    rows = [
        (1, "host", "other_cpu_cores", 0.5),
        (2, "host", "other_cpu_cores", 0.3),
        (2, "host", "stolen_cpu_cores", 0.2),
    ]
    names = ("t_ns", "source", "metric", "value")
    samples = pa.Table.from_pylist([dict(zip(names, one, strict=True)) for one in rows])
    run = run_of([row(10)])
    assert measure(RunData(run.record, run.steps, None, samples)).other_cpu_cores == pytest.approx(0.4 + 0.2)


def test_device_busy_time_is_unknown_where_one_step_leaves_it_open():
    """Such steps are not like the others: the mean of the others would be no mean of the run."""
    known = {"device_busy_ns": 5_000_000}
    assert measure(run_of([row(10, **known), row(10, **known)])).device_busy_ms == 5
    assert measure(run_of([row(10, **known), row(10)])).device_busy_ms is None


def test_a_mean_over_runs_is_one_over_their_steps():
    long, short = measure(run_of([row(10, contended_ns=0)] * 3)), measure(run_of([row(10, contended_ns=4_000_000)]))
    assert mean_over([long, short], lambda run: run.contended_ms) == 1
    assert mean_over([long, measure(run_of([row(10)]))], lambda run: run.contended_ms) == 0
    assert mean_over([], lambda run: run.contended_ms) is None
