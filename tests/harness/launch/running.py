"""Studies of a tiny scenario that run in processes of their own, as tests watch and disturb them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.launch import needs
from harness.launch.process import RunProcess
from harness.machine.processes import read_process
from harness.study.store import StudyFolder
from tests.commands import ROOT

SCENARIO = """
name: tiny
question: Does it hold together?
base:
  model: {layers: 1, width: 32}
  data:
    corpus: {builtin: python-docs, documents: 60}
    tokenizer: {train: {vocab_size: 512}}
    sequence_length: 16
    batch_size: 2
  steps: 6
  warmup_steps: 1
arms:
  text: {data.path: text-padded}
  tokens: {data.path: tokens-padded, data.workers: 1}
repeats: 2
slice_steps: 3
"""


def scenario(folder: Path, text: str = SCENARIO) -> str:
    path = folder / "tiny.yaml"
    path.write_text(text)
    return str(path)


def only_study(out: Path) -> StudyFolder:
    (path,) = (out / "tiny").iterdir()
    return StudyFolder(path)


class start:  # noqa: N801 - used like a function
    """A running ``harness run`` with ``steps`` steps of 5 ms without a model, killed at the end if it still runs."""

    def __init__(self, folder: Path, *words: str, steps: int) -> None:
        path = scenario(folder, SCENARIO.replace("steps: 6", f"steps: {steps}"))
        self._words = [sys.executable, "-m", "tests.commands", "run", path, "--out", str(folder / "out"), *words]
        self._words += ["--set", "compute.work=none", "--set", "compute.inject={forward_ms: 5, how: sleep}"]

    def __enter__(self) -> subprocess.Popen[bytes]:
        nowhere = subprocess.DEVNULL
        self._process = subprocess.Popen(self._words, cwd=ROOT, stdout=nowhere, stderr=nowhere)
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def wait_for(condition: Callable[[], bool], seconds: float = 240) -> None:
    """Poll: what is waited for happens in other processes."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def before_repetitions(monkeypatch: pytest.MonkeyPatch, act: Callable[[RunProcess, int], None]) -> None:
    """Call ``act`` with each run, and the number of its repetition, before the launcher asks for that."""
    repeat = RunProcess.repeat

    def acted(run: RunProcess, repetition: int, *given: int) -> None:
        act(run, repetition)
        repeat(run, repetition, *given)

    monkeypatch.setattr(RunProcess, "repeat", acted)


def server_of(run: RunProcess) -> int:
    """Process id of the fork server of a run that has started."""
    assert run._server is not None
    return run._server._process.pid


def alive(pid: int) -> bool:
    state = read_process(pid)
    return state is not None and not state.dead


def set_free_memory(monkeypatch: pytest.MonkeyPatch, host_gib: float | None, *cards_gib: float) -> None:
    """As launch.needs finds it here; None: not known."""
    size = None if host_gib is None else int(host_gib * needs.GIB)
    monkeypatch.setattr(needs, "available_memory_bytes", lambda: size)
    monkeypatch.setattr(needs, "free_host_bytes", lambda: size)
    monkeypatch.setattr(needs, "free_gpu_memory", lambda: [int(card * needs.GIB) for card in cards_gib])
