"""Runs of several ranks as the command line starts them, over gloo; of two machines: two node agents on this one."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.launch import nodes
from harness.launch.nodes import Nodes, interface_of, own_addresses
from harness.study.run_data import RunData
from harness.study.store import StudyFolder
from tests import warm
from tests.commands import ROOT, harness
from trainer.errors import InputError
from trainer.json_types import integer

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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.nightly
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


NODES = """
name: nodes
question: Do two machines train as one, and does a rank that fails there end its run with a line?
base:
  model: {layers: 1, width: 32, vocab_size: 64}
  data: {source: "two_ranks:rows", sequence_length: 16, batch_size: 4}
  compute: {device: cpu, threads: 1}
  launch: {torchrun: {nproc: 1, nnodes: 2}, timeout_s: 60, slurm: {}}
  steps: 6
  warmup_steps: 1
arms:
  two-machines: {}
  one-machine: {launch.torchrun: {nproc: 2, nnodes: 1}}
  killed: {data.arguments: {how: kill}}
repeats: 1
slice_steps: 3
interleave: slices
"""


def here(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """An agent of node 1 on this machine, in place of srun's on another."""
    return warm.Popen(command, env={**environment, "HARNESS_NODE": "1", "PYTHONPATH": str(ROOT)})


def test_addresses_are_read_without_resolving_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a name was to be resolved")

    for name in ("getaddrinfo", "gethostbyname", "getfqdn"):
        monkeypatch.setattr(socket, name, never)
    found = own_addresses()
    assert found.get("lo") == "127.0.0.1"
    assert list(found.values())[-1] == "127.0.0.1"  # tried last: every machine has one
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") == ""


@pytest.mark.slow
def test_an_agent_that_does_not_come_is_named() -> None:
    def gone(_command: list[str], _environment: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["false"])

    with pytest.raises(InputError, match=r"srun ended with exit code 1 before node 1, node 2 joined; its output is"):
        Nodes(3, [], 20, gone)

    def silent(_command: list[str], _environment: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "60"])

    with pytest.raises(InputError, match=r"node 1 of 2 did not come within 0\.1 s \(limits\.start_s\)"):
        Nodes(2, [], 0.1, silent)


@pytest.mark.slow
def test_two_machines_train_as_one_and_a_rank_that_fails_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two_ranks.py").write_text(SOURCE)
    (tmp_path / "nodes.yaml").write_text(NODES)
    monkeypatch.setattr(nodes, "_srun", lambda _count: here)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    done = harness("run", "nodes.yaml", "--here", "--out", str(tmp_path / "out"), cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    (path,) = (tmp_path / "out" / "nodes").iterdir()
    runs = {run.record.arm: run for run in StudyFolder(path).runs()}
    errors = {arm: run.record.error for arm, run in runs.items()}
    assert errors["two-machines"] is None, errors
    assert errors["one-machine"] is None, errors
    gone = f"rank 1: its process on {socket.gethostname()} or that machine is gone; see the job's log"
    assert str(errors["killed"]).startswith(gone)

    two, one = runs["two-machines"], runs["one-machine"]
    facts = two.record.facts
    assert (facts.ranks, facts.nodes, one.record.facts.nodes) == (2, 2, None)
    # The same numbers in the same order, wherever the ranks are.
    assert facts.parameters_digest == one.record.facts.parameters_digest is not None
    assert losses(two) == losses(one)
    # How long an answer of the other machine took bounds the error: a busy machine makes it longer.
    assert facts.clock_error_ns is not None
    assert facts.clock_error_ns > 0
    assert one.record.facts.clock_error_ns is None
    page = (path / "summary.md").read_text()
    assert "clocks of 2 machines" in page


def losses(run: RunData) -> list[float]:
    assert run.steps is not None
    found = run.steps.column("loss").to_pylist()
    assert len(found) == 1 + 2 * (1 + 3)
    return found
