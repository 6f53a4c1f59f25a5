"""Code of the user's may change the working directory: what was named relative to the first one stays where it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.study.store import StudyFolder
from tests.commands import harness

SOURCE = """
import os, torch
class Elsewhere(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        os.chdir("/")  # as some frameworks do when a job begins
        return {"input_ids": torch.full((16,), index % 7), "labels": torch.full((16,), index % 7)}
def make():
    return Elsewhere()
"""
SCENARIO = """
name: elsewhere
question: Where is it written?
base:
  data: {source: "away:make", sequence_length: 16, batch_size: 2}
  model: {preset: gpt2-tiny, vocab_size: 8}
  steps: 5
arms: {a: null, b: {data.prefetch: 3}}
controls: []
repeats: 1
"""


@pytest.mark.slow
def test_a_study_named_by_a_relative_path_is_whole(tmp_path: Path) -> None:
    (tmp_path / "away.py").write_text(SOURCE)
    (tmp_path / "s.yaml").write_text(SCENARIO)
    done = harness("run", "s.yaml", "--out", "there", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (study,) = (tmp_path / "there" / "elsewhere").iterdir()
    assert {run.record.arm: run.record.status for run in StudyFolder(study).runs()} == {"a": "done", "b": "done"}
    assert not Path("/there").exists()
