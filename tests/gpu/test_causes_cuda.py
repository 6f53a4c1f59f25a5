"""``harness exec`` names where a program waits for a CUDA device, and how long."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu.jobs.exec_faults import FAULTS, PROGRAMS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
KINDS = {"item_each_step": "device wait", "blocking_copies": "copy"}
BATCH_BYTES = 64_000_000  # of blocking_copies, at least
IS_TIMED = sys.version_info >= (3, 12)  # sys.monitoring


@pytest.mark.parametrize(("program", "kind"), KINDS.items())
def test_a_wait_is_named_with_its_place(tmp_path: Path, program: str, kind: str) -> None:
    """torch's warnings of it never reach the program's output."""
    words = ["-m", "harness", "exec", "--steps", "12", "--warmup", "10", "--out", str(tmp_path), "--"]
    script = [sys.executable, str(PROGRAMS / f"{program}.py"), "slow"]
    done = subprocess.run([sys.executable, *words, *script], capture_output=True, text=True, check=True, timeout=120)
    print(done.stdout, done.stderr)
    (path,) = tmp_path.glob("exec/*/summary.json")
    (arm,) = json.loads(path.read_text())["arms"].values()
    (fault,) = (one for one in FAULTS if one.program == program)
    places = {f"{program}.py:{number}" for number in fault.lines()}
    (cause, *_) = [one for one in arm["slow_causes"] if one["place"] in places]
    assert (cause["kind"], cause["times"]) == (kind, 1)
    assert (cause["bytes"] > BATCH_BYTES) == (kind == "copy")
    assert not IS_TIMED or cause["ms"] > 0
    assert "synchroniz" not in done.stderr
