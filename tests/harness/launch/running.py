"""Studies of a tiny scenario that run in processes of their own, as tests watch and disturb them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from harness.machine.processes import descendants, read_process
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

    def __init__(self, folder: Path, *words: str, steps: int, module: str = "tests.commands") -> None:
        """``module``: the command as it is, "harness", or as it shares fork servers."""
        path = scenario(folder, SCENARIO.replace("steps: 6", f"steps: {steps}"))
        self._words = [sys.executable, "-m", module, "run", path, "--out", str(folder / "out"), *words]
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


def wait_for_study(out: Path) -> StudyFolder:
    wait_for(lambda: any(out.glob("tiny/*/study.json")))
    return only_study(out)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def fork_servers(pid: int) -> list[int]:
    """Of the harness ``pid``, which also starts other programs (git)."""
    found = []
    for child in children(pid):
        with suppress(OSError):
            if b"harness.launch.fork_server" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def wait_for_runs(pid: int, at_least: int = 1) -> list[int]:
    """The runs (and workers) below the fork server that the harness ``pid`` started."""

    def below() -> list[int]:
        return descendants(children(pid))

    wait_for(lambda: len(below()) >= at_least)
    return below()


def alive(pid: int) -> bool:
    state = read_process(pid)
    return state is not None and not state.dead
