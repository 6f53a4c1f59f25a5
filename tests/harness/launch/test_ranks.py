"""Runs of several ranks as the command line starts them: two real processes each, over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.study.store import StudyFolder
from tests.commands import harness
from trainer.json_types import integer

pytestmark = pytest.mark.slow

SOURCE = """
import os, signal, time
import torch
import torch.distributed as dist

class Rows(torch.utils.data.Dataset):
    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if dist.is_initialized() and dist.get_rank() == 1:
            if self.how == "raise" and index >= 16:
                raise ValueError("row 16 is broken")
            if self.how == "kill" and index >= 16:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "hang" and index >= 16:
                time.sleep(3600)
        return torch.arange(index, index + 16) % 50

def rows(how="well"):
    return Rows(how)
"""
SCENARIO = """
name: ranks
question: Does a rank that fails end its run with a line?
base:
  model: {layers: 1, width: 32, vocab_size: 64}
  data: {source: "two_ranks:rows", sequence_length: 16, batch_size: 4}
  compute: {device: cpu, threads: 1}
  launch: {torchrun: {nproc: 2}, timeout_s: 60}
  steps: 6
  warmup_steps: 1
arms:
  well: {}
  raised: {data.arguments: {how: raise}}
  killed: {data.arguments: {how: kill}}
  hung: {data.arguments: {how: hang}, launch.timeout_s: 10}
repeats: 1
interleave: runs
"""


def test_a_rank_that_fails_ends_its_run_with_a_line_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "two_ranks.py").write_text(SOURCE)
    (tmp_path / "ranks.yaml").write_text(SCENARIO)
    done = harness("run", "ranks.yaml", "--out", str(tmp_path / "out"), cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    (path,) = (tmp_path / "out" / "ranks").iterdir()
    runs = {run.record.arm: run for run in StudyFolder(path).runs()}
    errors = {arm: run.record.error for arm, run in runs.items()}
    assert errors["well"] is None, errors
    assert str(errors["raised"]).startswith("rank 1: ")
    assert "row 16 is broken" in str(errors["raised"])
    assert str(errors["killed"]).startswith("rank 1: its process was killed by signal 9; likely cause: ")
    assert "rank 1" in str(errors["hung"])
    assert "is sleeping" in str(errors["hung"])
    assert not any("\n" in str(error) for error in errors.values())

    well = runs["well"]
    facts = well.record.facts
    assert (facts.ranks, facts.parallel, facts.device_count) == (2, "ddp", 1)
    assert len(str(facts.parameters_digest)) == 64
    assert well.steps is not None
    rows = well.steps.to_pylist()
    assert len(rows) == 1 + 1 + 6
    assert all(row["samples"] == 8 for row in rows)  # of both ranks
    assert all(row["loss"] is not None for row in rows)
    assert {"steps.rank-1.parquet", "spans.rank-1.parquet"} <= set(well.record.digests)
    assert integer(well.record.config, "seed") == 0


def test_ranks_with_loader_workers_are_profiled_and_measured(tmp_path: Path) -> None:
    """The other ranks take as many steps as rank 0 is profiled in, however many that are."""
    (tmp_path / "two_ranks.py").write_text(SOURCE)
    (tmp_path / "ranks.yaml").write_text(SCENARIO)
    options = ("--arm", "well", "--set", "probes.torch_profiler=true", "--set", "data.workers=1")
    done = harness("run", "ranks.yaml", "--out", str(tmp_path / "out"), *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "well, 2 ranks (ddp): " in " ".join(done.stdout.split())
    (path,) = (tmp_path / "out" / "ranks").iterdir()
    profiled, measured = sorted(StudyFolder(path).runs(), key=lambda run: run.record.control is None)
    assert (profiled.record.control, measured.record.control) == ("profiled", None)
    assert profiled.folder is not None
    assert (profiled.folder / "torch_profile.json.gz").exists()
    assert measured.spans is not None
    assert {"main", "loader-0", "exchange"} <= set(measured.spans.column("role").to_pylist())
    # The other rank and its worker are of the run: what they compute is no load by other processes.
    assert measured.samples is not None
    sources = set(measured.samples.column("source").to_pylist())
    assert {"host:main", "host:loader-0", "host:rank-1", "host:rank-1-child-0"} <= sources
    # No document comes twice in an epoch: each of the ranks has its own half.
    assert (path / "summary.md").read_text().count("| well | ") >= 2
