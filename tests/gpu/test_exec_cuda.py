"""``harness exec`` on a loop that trains on a CUDA device: what the device did is recorded, and no loss changes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.study.contract import STAGES
from harness.study.store import StudyFolder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
LOOP = Path(__file__).parent / "attached_loop.py"
STEPS = 100
WITHOUT = "0:0"  # milliseconds of data work for each batch, and loader workers
CASES = ("40:0", "24:2")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True, timeout=300)


def losses(text: str) -> list[str]:
    return re.findall(r"^\d+ \S+$", text, re.MULTILINE)


def step_ms(text: str) -> float:
    found = re.search(r"milliseconds a step (\S+)", text)
    return float(found[1])


@pytest.fixture(scope="module")
def alone() -> dict[str, str]:
    """Return what the loop prints without ``harness exec``, by case; one process runs all."""
    printed = run(str(LOOP), str(STEPS), WITHOUT, *CASES).stdout
    return {part.split()[0]: part for part in printed.split("case ")[1:]}


@pytest.mark.parametrize("case", CASES)
def test_idle_for_data_is_what_a_run_without_data_gains(tmp_path: Path, alone: dict[str, str], case: str) -> None:
    """The truth is the same loop without data work; on a device that is behind its host, data in the loop is hidden."""
    plain, without = alone[case], alone[WITHOUT]
    words = [sys.executable, str(LOOP), str(STEPS), case]
    done = run("-m", "harness", "exec", "--out", str(tmp_path), "--", *words)
    assert losses(done.stdout) == losses(plain)
    (path,) = (tmp_path / "exec").iterdir()
    runs = list(StudyFolder(path).runs())
    assert {one.record.facts.device for one in runs} == {torch.cuda.get_device_name()}
    rows = [row for one in runs if one.steps is not None for row in one.steps.to_pylist() if not row["warmup"]]
    spans = [row for one in runs if one.spans is not None for row in one.spans.to_pylist()]
    names = [row["name"] for row in spans if row["role"] == "device"]
    print(done.stderr)
    assert {"h2d", "forward", "loss", "backward", "norm", "optimizer"} <= set(names)
    assert names.count("forward") >= STEPS - 25
    wall_ms = np.mean([row["wall_ns"] for row in rows]) / 1e6
    idle_ms = np.mean([sum(row[f"starved_{stage}_ns"] for stage in STAGES) for row in rows]) / 1e6
    cost_ms = step_ms(plain) - step_ms(without)
    print(f"{case} (ms of data: workers): {step_ms(plain):.2f} ms a step, {step_ms(without):.2f} without data;")
    print(f"attached {step_ms(done.stdout):.2f}, by the ledger {wall_ms:.2f}; idle for data {idle_ms:.2f}")
    print(done.stdout[-900:])
    assert wall_ms == pytest.approx(step_ms(done.stdout), rel=0.1)
    assert idle_ms == pytest.approx(cost_ms, abs=max(0.15 * cost_ms, 1.0))
