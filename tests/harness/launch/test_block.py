"""What a block decides before any process runs: fork servers by side, and interleaving by memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from harness.launch import block, study
from harness.launch.block import MAX_PLANNED_BATCHES, Repetitions, plan_repetitions
from harness.launch.code import Code
from harness.machine.environment import has_nvidia_driver
from harness.study.records import ArmRecord, StudyRecord
from harness.study.store import StudyFolder
from tests.commands import ROOT
from trainer.config import TrainerConfig


def process(code: Code | None, control: str | None = None) -> Any:
    return SimpleNamespace(code=code, record=SimpleNamespace(control=control))


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> block._ForkServers:
    made = lambda _modules, code: SimpleNamespace(code=code, ended=False, close=lambda: None)  # noqa: E731
    monkeypatch.setattr(block, "ForkServer", made)
    return block._ForkServers([])


def test_runs_of_a_state_share_a_fork_server_unless_it_was_killed_but_not_with_its_control(
    servers: block._ForkServers,
) -> None:
    """Two states differ by the luck of their fork servers too, so the noise floor must hold that luck."""
    first: Any = servers.of(process(None))
    assert servers.of(process(None, "a-a")) is first  # of this code
    first.ended = True
    second = servers.of(process(None))
    assert second is not first
    assert servers.of(process(None)) is second
    base, head = Code("/base", "python", "base"), Code("/head", "python", "head")
    mine = [servers.of(one) for one in (process(base), process(base, "a-a"), process(head))]
    assert len({id(one) for one in mine}) == 3
    assert servers.of(process(base)) is mine[0]
    assert servers.of(process(base, "a-a")) is mine[1]


@pytest.mark.parametrize(("interleave", "steps", "accumulation", "expected"), [
    ("slices", 10, 1, Repetitions(1, 5, 10)),
    ("slices", 11, 1, Repetitions(2, 5, 10)),
    ("runs", 1, 1, Repetitions(1, 5, 1)),
    ("runs", MAX_PLANNED_BATCHES, 1, Repetitions(1, 5, MAX_PLANNED_BATCHES)),
    ("runs", MAX_PLANNED_BATCHES + 1, 1, Repetitions(2, 5, MAX_PLANNED_BATCHES // 2 + 1)),
    ("runs", MAX_PLANNED_BATCHES, 8, Repetitions(8, 5, MAX_PLANNED_BATCHES // 8)),
    ("runs", 10, 2 * MAX_PLANNED_BATCHES, Repetitions(10, 5, 1)),  # a repetition has one step at least
    ("runs", 100, MAX_PLANNED_BATCHES * 7 // 10, Repetitions(100, 5, 1)),  # two would be too many batches
    ("runs", 7, MAX_PLANNED_BATCHES // 5, Repetitions(2, 5, 4)),
])  # fmt: skip
def test_a_run_of_its_own_is_one_repetition_unless_its_recorder_would_grow(
    interleave: str, steps: int, accumulation: int, expected: Repetitions
) -> None:
    config = TrainerConfig.model_validate(
        {"steps": steps, "optimizer": {"accumulation": accumulation}, "data": {"workers": 2, "prefetch": 2}}
    )
    found = plan_repetitions(config, interleave, slice_steps=10)
    assert found == expected
    assert steps <= found.count * found.steps < steps + found.steps  # no repetition is only surplus


class Stub:
    """A run that only says what it was told to do."""

    def __init__(self, arm: str, done: list[str], control: str | None = None, of: str | None = None) -> None:
        self.code, self.profiled, self.extra_steps = None, False, 3 if control is None else 0
        self.record = SimpleNamespace(arm=arm, block=0, control=control, of=of, config={"compute": {"work": "none"}})
        self.warmed: list[int] = []
        self._done = done

    def repeat(self, repetition: int, warmup: int, steps: int, most_extra: int) -> None:
        self._done.append(f"{self.record.arm}{repetition}")
        self.warmed.append(warmup)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def test_arms_alternate_there_and_back_again_from_one_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a drift of the machine's speed hits them alike; one that needs fewer repetitions is done earlier."""
    started: list[Any] = []

    def start(*_: object) -> Any:
        started.append(SimpleNamespace(ended=False, close=lambda: None))
        return started[-1]

    monkeypatch.setattr(block, "ForkServer", start)
    done: list[str] = []
    planned = {"a": Repetitions(4, 1, 1), "b": Repetitions(4, 1, 1), "c": Repetitions(2, 1, 1)}
    processes: list[Any] = [Stub(arm, done) for arm in planned]
    for interleave, expected in {
        "slices": ["a0", "b0", "c0", "c1", "b1", "a1", "a2", "b2", "b3", "a3"],
        "runs": ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3", "c0", "c1"],
    }.items():
        started.clear()
        done.clear()
        block.run_block(processes, planned, interleave, MagicMock(), 1)
        assert (done, len(started)) == (expected, 1)


def test_a_run_that_records_no_batches_warms_up_for_as_long_as_its_arm_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, "ForkServer", lambda *_: SimpleNamespace(ended=False, close=lambda: None))
    planned = {"a": Repetitions(2, 5, 1), "a+bare": Repetitions(2, 5, 1), "a+ledger": Repetitions(2, 5, 1)}
    arm, bare = Stub("a", []), Stub("a+bare", [], "bare", "a")
    ledger = Stub("a+ledger", [], "with-ledger", "a")
    processes: list[Any] = [arm, bare, ledger]
    progress = MagicMock()
    block.run_block(processes, planned, "slices", progress, 1)
    assert (arm.warmed, bare.warmed, ledger.warmed) == ([5, 5], [8, 8], [5, 5])
    assert [one.args for one in progress.stepped.call_args_list] == [(6, 3), (6, 3), (6, 0), (6, 0), (6, 3), (6, 3)]


@pytest.mark.parametrize(("contest", "at_once"), [(None, 8), ("base against head", 1)])
def test_each_block_has_a_seed_for_all_its_arms_and_compared_startups_do_not_overlap(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, contest: str | None, at_once: int
) -> None:
    begun: list[tuple[list[Any], int]] = []
    monkeypatch.setattr(study.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(study, "environment_of", lambda _: {})
    monkeypatch.setattr(study, "RunProcess", lambda record, *_: record)
    monkeypatch.setattr(study, "run_block", lambda runs, *_: begun.append((runs, _[-1])))
    config = TrainerConfig.model_validate({"seed": 7}).model_dump(mode="json")
    arms = [ArmRecord(name, config=config, contest=contest) for name in ("a", "b")]
    record = StudyRecord("s", "q?", "running", arms=arms, scenario_text={"probes": {"host": False}}, id="0a1b")
    for number in range(2):
        runner = study._BlockRunner(StudyFolder(tmp_path), record, MagicMock(), {}, MagicMock(), MagicMock())
        runner.run(number, ["a", "b"])
    assert [[run.config["seed"] for run in runs] for runs, _ in begun] == [[7, 7], [8, 8]]
    sessions = {run.session for runs, _ in begun for run in runs}
    assert len(sessions) == 2
    assert all(session.startswith("0a1b.") for session in sessions)
    assert [most for _, most in begun] == [at_once, at_once]


BUILDING = """
import sys, torch
before = set(sys.modules)
torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
print(len(set(sys.modules) - before))
"""


COMPUTING = {"compute": {"work": "model", "device": "cpu"}, "model": {"family": None, "preset": "gpt2-tiny"}}


def test_a_fork_server_without_a_card_has_the_compiler_of_the_first_optimizer() -> None:
    modules = block.modules_of([COMPUTING])
    assert "torch.optim" in modules
    assert ("torch._dynamo" in modules) != has_nvidia_driver()


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(has_nvidia_driver(), reason="its fork server imports no compiler")
def test_a_run_that_computes_imports_nothing_of_its_optimizer_anew() -> None:
    """Torch's compiler comes with the first optimizer, for a second of CPU: the fork server has it already."""
    modules = block.modules_of([COMPUTING])
    program = "".join(f"import {name}\n" for name in modules if name.startswith("torch.")) + BUILDING
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) == 0
