"""The timeline of a real study with every probe: every rule holds, the clocks agree, Perfetto reads all of it."""

from __future__ import annotations

import pytest
import yaml

from tests.studies import run_study
from tests.timeline_check import perfetto
from tests.timeline_check.check import check

pytestmark = pytest.mark.slow

SCENARIO = yaml.safe_load("""
name: looked-into
question: Does the timeline of a real study hold?
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
arms:
  text: {}
repeats: 1
probes:
  timeline_steps: 6
  torch_profiler: {active: 3, repeat: 2, shapes: true, memory: true}
  py_spy: {seconds: 1}
""")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return run_study(SCENARIO, tmp_path_factory.mktemp("study")).path


def test_it_keeps_every_rule_and_the_clocks_agree_within_50_us(study):
    result = check((study / "timeline.json.gz").read_bytes())
    assert result.problems == []  # a shift beyond 50 us is one
    assert len(result.figures["alignment"]) >= 1  # of the worker, whose stages torch's profiler shows
    for measured in result.figures["alignment"].values():
        assert measured["spans"] > 0
    assert result.figures["arrows"] >= 6


@pytest.mark.skipif(perfetto.missing() is not None, reason=perfetto.missing() or "")
def test_perfetto_reads_all_of_it(study):
    path = study / "timeline.json.gz"
    with perfetto.Perfetto(path) as opened:
        answers, compared = perfetto.ask(opened), perfetto.compare(opened, path)
    assert perfetto.problems(answers, compared) == []
    assert {"step", "phase", "stage", "waits", "cpu_op"} <= set(answers["slices"])
    rows = {process for process, _, _ in answers["threads"]}
    assert {"text: main", "text: loader-0", "text+profiled: main", "text+profiled: loader-0"} <= rows
    assert ["text: main", "queue depth batches ready"] in [counter[:2] for counter in answers["counters"]]
