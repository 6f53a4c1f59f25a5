"""The real Perfetto reads our timelines to the last slice, to the nanosecond, without an import error."""

from __future__ import annotations

import gzip
import json
from importlib.util import find_spec

import pytest

from harness.show.timeline.build import SizeLimits, timeline
from harness.show.timeline.formats import PROTOBUF_NAME
from tests.harness.show.timeline.test_timeline import ARMS, profiled
from tests.harness.synthetic import build
from tests.timeline_check import perfetto

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(perfetto.missing() is not None, reason=perfetto.missing() or ""),
]


def test_perfetto_shows_everything_that_was_written(tmp_path):
    study, runs = build(ARMS)
    run, sources = profiled(study, runs)
    path = tmp_path / "timeline.json.gz"
    path.write_bytes(timeline(study, [*runs, run], {("worker+profiled", 0): sources}).content)
    with perfetto.Perfetto(path) as opened:
        answers, compared = perfetto.ask(opened), perfetto.compare(opened, path)
        opened.pictures(tmp_path)
    assert perfetto.problems(answers, compared) == []
    assert compared["slices_read"] > 50
    assert answers["arrows"] == [["stage", "pack", "h2d", 6]]  # 3 of each run with a worker
    assert {"step", "phase", "stage", "waits", "cpu_op", "user_annotation", "sample"} == set(answers["slices"])
    assert ["worker: main", "queue depth batches ready"] in [row[:2] for row in answers["counters"]]
    assert (tmp_path / "screenshot.png").stat().st_size > 10_000


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("perfetto") is None, reason="perfetto is not installed (extra: trace)")
def test_perfetto_reads_its_own_format_as_it_reads_chromes(tmp_path):
    study, runs = build(ARMS)
    run, sources = profiled(study, runs)
    answers = []
    for events in (10**6, 50):
        made = timeline(study, [*runs, run], {("worker+profiled", 0): sources}, limits=SizeLimits(events, 10**6))
        (tmp_path / made.name).write_bytes(made.content)
        with perfetto.Perfetto(tmp_path / made.name) as opened:
            answers.append(perfetto.ask(opened))
            facts = opened.query("select str_value from metadata where name = 'cr-harness'")
    chrome, protobuf = answers
    assert (tmp_path / PROTOBUF_NAME).exists()
    assert json.loads(facts[0][0])["scenario"] == study.scenario
    assert perfetto.problems(protobuf, None) == []
    assert protobuf == chrome


@pytest.mark.nightly
def test_perfetto_tells_of_what_it_had_to_drop(tmp_path):
    """The check would notice: a file with overlapping slices loses one of them."""
    study, runs = build(ARMS)
    content = json.loads(gzip.decompress(timeline(study, runs).content))
    fetch = next(event for event in content["traceEvents"] if event["name"] == "fetch")
    fetch["dur"] *= 3
    path = tmp_path / "timeline.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    with perfetto.Perfetto(path) as opened:
        found = perfetto.problems(perfetto.ask(opened), perfetto.compare(opened, path))
    assert any("slices" in problem for problem in found)
