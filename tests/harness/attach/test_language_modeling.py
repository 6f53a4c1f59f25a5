"""run_clm.py of transformers' examples, unmodified, offline, under ``harness exec``.

Skipped unless HARNESS_TRANSFORMERS_EXAMPLES names the folder that holds it (examples/pytorch/language-modeling of its
repository), and this Python has what it imports.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.study.contract import PHASES
from tests.campaigns.attached_truth import language_modeling
from tests.campaigns.attached_truth.common import HERE
from tests.commands import ROOT
from tests.harness.attach.test_exec import details, rows, study_in

VARIABLE = "HARNESS_TRANSFORMERS_EXAMPLES"
NEEDED = ("accelerate", "datasets", "evaluate")


@pytest.mark.slow
def test_run_clm_as_it_is(tmp_path: Path) -> None:
    """It tokenizes 20 batches at a time while it trains: that is found, and as long as its tokenizer sleeps."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        pytest.skip(f"{VARIABLE} does not name the folder of {language_modeling.SCRIPT}")
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        pytest.skip(f"{language_modeling.SCRIPT} imports what is not installed: {', '.join(missing)}")
    environment = {**os.environ, **language_modeling.prepare(tmp_path / "work")}
    path = os.pathsep.join([str(ROOT), str(HERE / "slow_transformers"), os.environ.get("PYTHONPATH", "")])
    environment |= {"PYTHONPATH": path, "SLOW": "tokenize=50", "SLOW_LOG": str(tmp_path / "slept")}
    program = language_modeling.command(Path(folder).absolute(), 50, 0, streaming=True)
    words = [sys.executable, "-m", "harness", "exec", "--out", str(tmp_path), "--steps", "30", "--", *program]
    done = subprocess.run(words, cwd=tmp_path / "work", env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    table = rows(study_in(tmp_path))
    assert len(table) == 35
    for row in table:
        assert sum(row[f"{phase}_ns"] for phase in PHASES) == row["wall_ns"]
    tokenized = [row["step"] for row in table if (row["work_tokenize_ns"] or 0) >= 50e6]  # a sleep is never shorter
    assert tokenized == [0, language_modeling.BATCHES_AT_ONCE - language_modeling.AHEAD]
    assert "forward: GPT2LMHeadModel; backward; optimizer: AdamW" in details(tmp_path)
