"""A run on a CUDA device that waits for its launches profiles three steps by itself, after the measured ones.

Run it there with `python -m pytest tests/gpu/test_closing_window.py`; it takes about 15 seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from harness.study.store import StudyFolder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CLOSED = 0.05  # share of a step
STEPS = 20
# A dozen layers of a few microseconds of work each: launching them takes longer than running them.
SCENARIO = f"""
name: gpu-closing-window
question: Does a run close what its events leave open?
base:
  model: {{preset: gpt2-small, layers: 12, width: 128, heads: 4, vocab_size: 2048}}
  data:
    tokenizer.train: {{kind: bpe, vocab_size: 2048}}
    path: text-stream
    sequence_length: 64
    batch_size: 2
    pin_memory: true
  compute: {{device: cuda, precision: bf16}}
  steps: {STEPS}
  log_every: 1000
arms: {{text: {{}}}}
repeats: 1
"""


def test_a_launch_bound_run_closes_its_range_by_itself(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    words = [sys.executable, "-m", "harness", "run", str(tmp_path / "scenario.yaml"), "--out", str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "out" / "gpu-closing-window").iterdir()
    study = StudyFolder(path)
    (first,) = study.runs()
    assert first.record.status == "done"
    assert first.probes.problems == ()
    ((*_, begun, ended),) = first.probes.torch_profiler.windows
    assert ended - begun + 1 == 3
    measured = [row["step"] for row in first.steps.to_pylist() if not row["warmup"]]
    assert len(measured) >= STEPS
    assert max(measured) < begun
    (arm,) = json.loads(study.summary_json.read_text())["arms"].values()
    step_ms = arm["step_ms"]["median"]
    open_ms = (arm["device_launch_bound_ms"] or 0.0) + (arm["device_open_ms"] or 0.0)
    assert open_ms > CLOSED * step_ms, "this machine launches quicker than it computes: nothing had to be closed"
    assert arm["device_busy_from"] == "profiled window"
    most_ms = sum(arm["phase_ms"].values()) - arm["device_starved_ms"]
    assert most_ms - open_ms - 2 * CLOSED * step_ms <= arm["device_busy_ms"] <= most_ms
    low, high = arm["waited_range_ms"] or (0.0, 0.0)
    assert high - low <= CLOSED * step_ms
