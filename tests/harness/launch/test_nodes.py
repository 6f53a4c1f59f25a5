"""Two machines' worth of ranks: two node agents' processes on this one, as srun would start them on others."""

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
from tests.harness.launch.test_ranks import SOURCE
from trainer.errors import InputError

SCENARIO = """
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
    (tmp_path / "nodes.yaml").write_text(SCENARIO)
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
