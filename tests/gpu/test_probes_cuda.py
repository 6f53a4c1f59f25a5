"""The probes on a CUDA device: kernels on the timeline, and the device's ledger against its kernels."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from harness.show.timeline.model import Sources, read_sources
from harness.study.run_data import RunData
from harness.study.store import StudyFolder
from tests.gpu.kernel_times import EDGE_NS, compare, stray_arrows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
PROFILED_STEPS = 5
# So much work for each launch that the host stays ahead: kernels follow one another without a gap, and the ledger's
# phases hold nothing else. fp32 in few and wide layers: kernels of hundreds of microseconds, in about 15 GB. Nothing of
# the loop's own waits for the device: no value of the gradient norm or of a loss, no copy from pageable memory.
SCENARIO = f"""
name: gpu-probes
question: Do ledger and profiler agree on a real device?
base:
  model: {{preset: gpt2-small, layers: 4, width: 2048, heads: 16, vocab_size: 2048}}
  data:
    tokenizer.train: {{kind: bpe, vocab_size: 2048}}
    path: tokens-stream
    sequence_length: 512
    batch_size: 16
    pin_memory: true
  compute: {{device: cuda, precision: fp32, check_finite: false, sync: norm}}
  steps: 10
  log_every: 1000
arms: {{tokens: {{}}}}
repeats: 1
probes: {{torch_profiler: {{active: {PROFILED_STEPS}}}, timeline_steps: {PROFILED_STEPS}}}
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
    arrows, stray = stray_arrows(events)
    assert arrows, "no arrow leads from a launch to its kernel"
    assert not stray, f"{len(stray)} of {arrows} arrows from launches end elsewhere than at a kernel: {stray[:3]}"


def test_the_ledger_says_what_the_kernels_say(study: StudyFolder) -> None:
    run, sources = profiled(study)
    assert run.spans is not None
    ((*_, first, last),) = run.probes.torch_profiler.windows
    rows = [row for row in run.steps.to_pylist() if first <= row["step"] <= last]
    assert len(rows) == PROFILED_STEPS
    steps = [(row["start_ns"], row["start_ns"] + row["wall_ns"]) for row in rows]
    found = compare(run.spans, sources.profiles[0], steps)  # the main process's one window; workers launch nothing
    print("", *found, sep="\n")
    assert [one.span_ns > 10 * EDGE_NS for one in found if one.name in ("forward", "backward")] == [True, True]
    assert not [line for one in found for line in one.problems()]
