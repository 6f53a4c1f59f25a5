"""A study whose run profiled some steps after the measured ones: its pages know what the events leave open."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from harness.show.build import build_report
from harness.study.contract import SPAN_COLUMNS, STEP_COLUMNS
from harness.study.records import ArmRecord, StudyRecord
from harness.study.run_data import RunData
from harness.study.store import StudyFolder
from tests.cuda_stream import record
from tests.harness.explain.test_profiled_window import SHAPES

SHAPE = SHAPES["mixed, no check"]


def written(study: StudyFolder, run: RunData, block: int) -> None:
    one = replace(run.record, block=block)
    assert run.steps is not None
    assert run.spans is not None
    tables = [
        {name: table.column(name).to_pylist() for name, _ in columns if name in table.column_names}
        for table, columns in ((run.steps, STEP_COLUMNS), (run.spans, SPAN_COLUMNS))
    ]
    study.write_tables(one.arm, block, tables[0], tables[1], {})
    study.write_probes(one.arm, block, asdict(run.probes))
    study.write_whole_run(one)


@pytest.mark.parametrize("is_profiled", [True, pytest.param(False, marks=(pytest.mark.slow, pytest.mark.nightly))])
def test_the_page_of_a_run_with_a_closing_window(is_profiled: bool, tmp_path: Path) -> None:
    study = StudyFolder(tmp_path)
    first = study.run("cuda", 0)
    first.mkdir(parents=True)
    runs = [record(SHAPE, first if is_profiled else None), record(SHAPE)]
    for block, one in enumerate(runs):
        written(study, one.run, block)
    study.write_study(StudyRecord(scenario="on-paper", question="?", status="done", blocks=2, arms=[ArmRecord("cuda")]))
    build_report(tmp_path)
    (arm,) = json.loads(study.summary_json.read_text())["arms"].values()
    step_ms = arm["step_ms"]["median"]
    if is_profiled:
        assert arm["device_busy_from"] == "profiled window"
        assert arm["device_busy_ms"] == pytest.approx(runs[0].busy_ms, abs=0.05 * step_ms)
        low, high = arm["waited_range_ms"] or (0.0, 0.0)
        assert high - low <= 0.05 * step_ms
        assert "**main**, steps 34 to 36, " in study.summary_md.read_text()
    else:
        assert arm["device_busy_ms"] is None
        low, high = arm["waited_range_ms"]
        assert high - low > 0.2 * step_ms
    assert arm["blocks"] == 2
    assert arm["steps"] == 2 * SHAPE.steps
