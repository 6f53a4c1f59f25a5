"""Runs jobs on the emulated device through the whole lease runner."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.gpu.lease.place import EMULATED
from tests.gpu.lease.sheet import DONE, Result

ROOT = Path(__file__).parents[2]


def leased(job: str, folder: Path, environment: Mapping[str, str] | None = None) -> tuple[Path, Result]:
    """Run one job with ``folder`` as the runner's results. Return the folder of its result, and the result."""
    words = ["-m", "tests.gpu.lease", "--device", EMULATED, "--only", job, "--minutes", "30", "--commit", "c"]
    done = subprocess.run(
        [sys.executable, *words, "--results", str(folder), "--archive", str(folder / "all.tar.gz")],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (folder / "all.tar.gz").exists()
    result = Result.read(folder / EMULATED / job)
    assert (result.status, result.problem) == (DONE, "")
    assert all(one.holds is None for one in result.figures), "an emulated card meets no target"
    return folder / EMULATED / job, result
