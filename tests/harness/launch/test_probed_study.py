"""A real study with every probe and their calibration: what each run leaves, what the report makes of it, and its
timeline, in which every rule holds and the clocks agree."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from harness.study.contract import PHASES
from harness.study.run_data import RunData
from harness.study.store import StudyFolder
from tests.studies import run_study
from tests.timeline_check import perfetto
from tests.timeline_check.check import check

pytestmark = pytest.mark.slow
SCENARIO = yaml.safe_load("""
name: probed
question: Does everything that probes record reach the report?
base:
  model: {layers: 1, width: 32}
  data:
    corpus: {builtin: python-docs, documents: 60}
    tokenizer: {train: {vocab_size: 512}}
    path: text-padded
    sequence_length: 32
    batch_size: 2
    workers: 1
  steps: 12
  warmup_steps: 1
arms: {text: {}}
repeats: 1
slice_steps: 6
probes:
  timeline_steps: 6
  torch_profiler: {active: 3, shapes: true, memory: true}
  py_spy: {seconds: 0.5}
  calibrate: true
""")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    return run_study(SCENARIO, tmp_path_factory.mktemp("probed"))


@pytest.fixture(scope="module")
def runs(study: StudyFolder) -> dict[tuple[str, int], RunData]:
    return {(run.record.arm, run.record.block): run for run in study.runs()}


def test_every_probe_has_its_control_and_each_run_what_its_probes_leave(runs: dict[tuple[str, int], RunData]) -> None:
    controls = ["bare", "with-ledger", "with-host", "with-torch_profiler", "with-py_spy", "profiled"]
    assert set(runs) == {("text", 0), *((f"text+{control}", 0) for control in controls)}

    run = runs["text+profiled", 0]
    assert run.steps is not None
    assert all(run.steps.column("warmup").to_pylist())
    assert run.folder is not None
    left = {path.name for path in run.folder.iterdir()}
    assert "torch_profile.json.gz" in left
    assert run.probes.torch_profiler
    if shutil.which("py-spy") or (Path(sys.executable).parent / "py-spy").exists():
        assert {"stacks.speedscope.json", "stacks.svg"} <= left or run.probes.problems

    bare, whole = runs["text+bare", 0], runs["text", 0]  # the first knows its steps and nothing inside them
    assert bare.steps is not None
    assert whole.steps is not None
    assert sum(not warmup for warmup in bare.steps.column("warmup").to_pylist()) == 12
    assert min(bare.steps.column("wall_ns").to_pylist()) > 0
    for phase in PHASES:
        assert set(bare.steps.column(f"{phase}_ns").to_pylist()) == {None}, phase
        assert None not in whole.steps.column(f"{phase}_ns").to_pylist(), phase
    assert bare.spans is not None
    assert len(bare.spans) == 0
    for arm, sampled in {"text": True, "text+with-host": True, "text+bare": False}.items():
        samples = runs[arm, 0].samples
        assert samples is not None
        assert ("host" in samples.column("source").to_pylist()) == sampled == bool(len(samples)), arm


def test_the_report_has_what_every_probe_found(study: StudyFolder) -> None:
    text = study.summary_md.read_text()
    for heading in ("## Operators", "## The machine", "## Probes"):
        assert f"\n{heading}\n" in text
    assert "aten::" in text
    assert "step ledger (always on)" in text
    assert "ledger and host together: every measured run" in text
    assert "\n## Stacks\n" in text or "py-spy" in text
    summary = json.loads(study.summary_json.read_text())
    assert summary["probe_costs"][0]["probe"] == "step ledger (always on)"
    assert len(summary["probe_costs"]) == 5


def test_the_timeline_keeps_every_rule_and_the_clocks_agree_within_50_us(study: StudyFolder) -> None:
    result = check((study.path / "timeline.json.gz").read_bytes())
    assert result.problems == []  # a shift beyond 50 us is one
    assert len(result.figures["alignment"]) >= 1  # of the worker, whose stages torch's profiler shows
    for measured in result.figures["alignment"].values():
        assert measured["spans"] > 0
    assert result.figures["arrows"] >= 6


@pytest.mark.skipif(perfetto.missing() is not None, reason=perfetto.missing() or "")
def test_perfetto_reads_all_of_it(study: StudyFolder) -> None:
    path = study.path / "timeline.json.gz"
    with perfetto.Perfetto(path) as opened:
        answers, compared = perfetto.ask(opened), perfetto.compare(opened, path)
    assert perfetto.problems(answers, compared) == []
    assert {"step", "phase", "stage", "waits", "cpu_op"} <= set(answers["slices"])
    rows = {process for process, _, _ in answers["threads"]}
    assert {"text: main", "text: loader-0", "text+profiled: main", "text+profiled: loader-0"} <= rows
    assert ["text: main", "queue depth batches ready"] in [counter[:2] for counter in answers["counters"]]
