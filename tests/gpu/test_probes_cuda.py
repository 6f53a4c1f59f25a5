"""The probes on a CUDA device: kernels on the timeline, and the device's ledger against its kernels."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from harness.report.timeline.sources import Sources, read_sources
from harness.results import RunData, StudyFolder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
# Large enough that its kernels follow one another without a gap: the ledger's phases hold nothing else.
SCENARIO = """
name: gpu-probes
question: Do ledger and profiler agree on a real device?
base:
  model: {preset: gpt2-small}
  data: {tokenizer.train: {kind: bpe, vocab_size: 2048}, path: tokens-padded, sequence_length: 512, batch_size: 16}
  compute: {device: cuda, precision: bf16}
  steps: 10
arms: {tokens: {}}
repeats: 1
probes: {torch_profiler: {active: 5}, timeline_steps: 5}
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    folder: Path = tmp_path_factory.mktemp("gpu")
    (folder / "scenario.yaml").write_text(SCENARIO)
    words = [sys.executable, "-m", "harness", "run", str(folder / "scenario.yaml"), "--out", str(folder / "out")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = (folder / "out" / "gpu-probes").iterdir()
    return StudyFolder(path)


def profiled(study: StudyFolder) -> tuple[RunData, Sources]:
    (run,) = [run for run in study.runs() if run.record.control == "profiled"]
    return run, read_sources(run)


def test_kernels_are_on_the_timeline(study: StudyFolder) -> None:
    events = json.loads(gzip.decompress(study.timeline.read_bytes()))["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert any("gemm" in event["name"].lower() or "cutlass" in event["name"].lower() for event in kernels)
    launched = {event["id"] for event in events if event["ph"] == "f"}
    assert launched, "no arrow leads from a launch to its kernel"


def test_the_ledger_says_what_the_kernels_say(study: StudyFolder) -> None:
    run, sources = profiled(study)
    assert sources.operators is not None
    assert run.spans is not None
    ((start_ns, end_ns, *_),) = run.probes["torch_profiler"]["windows"]
    table = sources.operators.to_pydict()
    kernels = sorted(
        (start, start + duration)
        for category, start, duration in zip(table["category"], table["start_ns"], table["duration_ns"], strict=True)
        if category in ("kernel", "gpu_memcpy", "gpu_memset") and start_ns <= start and start + duration <= end_ns
    )
    ours = [
        (row["start_ns"], row["end_ns"])
        for row in run.spans.to_pylist()
        if row["role"] == "device" and row["start_ns"] < kernels[-1][1] and row["end_ns"] > kernels[0][0]
    ]
    assert covered(ours, kernels[0][0], kernels[-1][1]) == pytest.approx(
        covered(kernels, kernels[0][0], kernels[-1][1]), rel=0.02
    )


def covered(spans: list[tuple[int, int]], since: int, until: int) -> int:
    """Nanoseconds of [since, until) that some span covers."""
    total, reached = 0, since
    for start, end in sorted(spans):
        total += max(0, min(end, until) - max(start, reached))
        reached = max(reached, min(end, until))
    return total
