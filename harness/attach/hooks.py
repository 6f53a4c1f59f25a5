"""For a notebook or a loop of one's own: records what runs within a ``with`` block, with the seams of ``harness exec``.

    with harness.record(out="results") as recording:
        for batch in loader:
            ...
    recording.study  # the study's folder, with the tables, report and timeline of any other

Steps and phases are found as in an attached program. Where they cannot be, say them: ``harness.step()`` begins a step,
``with harness.span("fetch"):`` is a phase of it, and ``with harness.span("tokenize"):`` a stage of a batch.

This runs in the user's process: it imports nothing named ``trainer``, which may be a file of his.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from harness.attach import LEAST_WARMUP
from harness.study.contract import PHASES, STAGES

AGENT = "_harness_agent"
_MARKED = tuple(name for name in (*PHASES, *STAGES) if name not in ("other", "transfer"))  # those are what is left


@dataclass
class RecordedBlock:
    """What :func:`record` gives. ``study``: the study's folder, once the block has ended; None without a step."""

    study: Path | None = None


@contextmanager
def record(out: str | Path = "results", *, warmup: int = 5) -> Iterator[RecordedBlock]:
    """Record the training steps within the block into a new study under ``out``, and print its first screen.

    ``warmup``: steps at the beginning that are not measured, at least 4. Raises ValueError for fewer, and RuntimeError
    where a block records already. Under ``harness exec``, which records anyway, it does nothing.
    """
    if warmup < LEAST_WARMUP:
        raise ValueError(f"warmup {warmup}: at least {LEAST_WARMUP}")
    recording = RecordedBlock()
    if os.environ.get("HARNESS_ATTACH"):
        yield recording
        return
    agent = _agent()
    with tempfile.TemporaryDirectory(prefix="harness-record-") as raw:
        Path(raw, "settings.json").write_text(json.dumps({"warmup": warmup, "steps": None}))
        if not agent.begin(raw):
            raise RuntimeError("harness.record: a block records already; end it first")
        try:
            yield recording
        finally:
            agent.end()
            recording.study = _make_study(raw, out)


def step() -> None:
    """Begin a step, and end the one before. Once it is called, nothing else begins one in this block."""
    if (agent := sys.modules.get(AGENT)) is not None:
        agent.step()


@contextmanager
def span(name: str) -> Iterator[None]:
    """Time a phase of a step (fetch, forward, ...) or, while a batch is made, a stage of it (read, tokenize, pack).

    Raises ValueError for another name. Does nothing outside of :func:`record`.
    """
    if name not in _MARKED:
        raise ValueError(f"span {name!r}: allowed: {', '.join(_MARKED)}")
    agent = sys.modules.get(AGENT)
    if agent is None:
        yield
        return
    with agent.span(name, name in STAGES):
        yield


def _agent() -> ModuleType:
    """The agent in this process, loaded as the shim would."""
    if (found := sys.modules.get(AGENT)) is not None:
        return found
    import torch  # noqa: F401 - what the agent patches

    place = Path(__file__).parent / "agent"
    spec = spec_from_file_location(AGENT, place / "__init__.py", submodule_search_locations=[str(place)])
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[AGENT] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _make_study(raw: str, out: str | Path) -> Path | None:
    """Make the study in a process of its own, which has no files of the user's before ours; print its first screen."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-P", "-m", "harness", "exec", "--recorded", raw, "--out", str(out)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="")
    last = done.stdout.splitlines()[-1:]
    return Path(last[0].removeprefix("study: ")) if last and last[0].startswith("study: ") else None
