"""A study over a data source of the user's own, as the command line runs it."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from harness.study.store import StudyFolder
from tests.commands import harness
from trainer.user_code import fingerprint

pytestmark = pytest.mark.slow

CODE = """
import os
import time
import torch
import own_helper
from torch.utils.data import DataLoader

class Items:
    def __init__(self, length, ms):
        self.length, self.ms = length, ms
    def __len__(self):
        return 40
    def __getitem__(self, index):
        os.chdir("/")  # as some frameworks do when a job begins
        time.sleep(self.ms / 1e3)
        return torch.full((self.length,), index)

def together(items):
    time.sleep(0.003)
    return {"input_ids": torch.stack(items)}

def make(sequence_length, ms=0.0):
    return DataLoader(Items(sequence_length, ms), batch_size=4, shuffle=True, collate_fn=together)
"""
SCENARIO = """
name: own
question: Would my data keep up?
base:
  model: {layers: 1, width: 32, vocab_size: 64}
  data: {source: "own_items:make", arguments: {ms: 2.0}, sequence_length: 16}
  compute: {device: cpu, threads: 1}
  steps: 6
  warmup_steps: 1
arms: {inline: {}}
controls: [ideal-data, dose]
repeats: 1
slice_steps: 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own_items.py").write_text(CODE)
    (tmp_path / "own_helper.py").touch()
    (tmp_path / "own.yaml").write_text(SCENARIO)
    return tmp_path


def made_ms(study: StudyFolder, arm: str, stage: str) -> float:
    """How long that stage took for the median batch, in milliseconds; 0 where it has none."""
    spans = pq.read_table(study.path / "runs" / arm / "0" / "spans.parquet")
    batches: dict[int, int] = {}
    for row in spans.filter(pc.equal(spans["name"], stage)).to_pylist():
        batches[row["batch"]] = batches.get(row["batch"], 0) + row["end_ns"] - row["start_ns"]
    return median(batches.values()) / 1e6 if batches else 0.0


def test_a_study_of_a_source_of_ones_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is named relative to the working directory, which the source leaves."""
    done = harness("run", "own.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "trying data.source own_items:make" in done.stderr
    (path,) = (folder / "results" / "own").iterdir()
    study = StudyFolder(path)
    runs = {run.record.arm: run for run in study.runs()}
    doses = [f"inline+dose-data-{times}" for times in (1, 2, 4)]
    assert {"inline", "inline+ideal-data", *doses} == runs.keys()
    assert {run.record.status for run in runs.values()} == {"done"}
    least_ms = {"inline": (8, 3), doses[0]: (16, 6), doses[2]: (40, 15)}
    for arm, least in least_ms.items():
        assert made_ms(study, arm, "read") >= least[0], arm
        assert made_ms(study, arm, "pack") >= least[1], arm
        assert made_ms(study, arm, "tokenize") == 0, arm
    assert made_ms(study, "inline+ideal-data", "read") == 0
    monkeypatch.chdir(folder)
    code = fingerprint("data.source", "own_items:make", others=[str(folder / "own_helper.py")])
    assert {run.record.facts.corpus_fingerprint for run in runs.values()} == {code}
    assert study.read_study().fingerprints == {"code of data.source own_items:make": code}
    assert runs["inline"].record.facts.epoch_steps == 10.0  # 40 items by 4
    assert "The arms also differ: corpus" not in (path / "summary.md").read_text()

    (folder / "own_helper.py").write_text("more = 1\n")
    (path / "runs" / "inline" / "0" / "run.json").unlink()
    again = harness("run", "--resume", str(path), cwd=folder)
    assert again.returncode == 2
    assert "code of data.source own_items:make changed since the study began" in again.stderr


@pytest.mark.parametrize(("file", "change", "problem"), [
    ("own_items.py", ("def make(", "def other("), "own_items has no function make"),
    ("own_items.py", ("self.length,), index", "self.length,), -1"), "gives ids from -1 to -1"),
    ("own_items.py", ("import torch\n", "import torch; os._exit(7)\n"), "ended its process (exit code 7): no output"),
    ("own_items.py", ("import torch\n", "os.kill(os.getpid(), 9)\n"), "was killed by SIGKILL (out of memory?): "),
    ("own.yaml", (", vocab_size: 64", ""),
     "arm inline: model.vocab_size: give it, because own_items:make does not define it"),
])  # fmt: skip
def test_a_source_that_cannot_work_is_one_line_before_anything_is_measured(
    folder: Path, file: str, change: tuple[str, str], problem: str
) -> None:
    text = (folder / file).read_text()
    (folder / file).write_text(text.replace(*change, 1))
    done = harness("run", "own.yaml", cwd=folder)
    assert done.returncode == 2
    assert problem in done.stderr.splitlines()[-1]
    assert not (folder / "results").exists()
