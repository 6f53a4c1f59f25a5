"""Record the training in a ``with`` block of a notebook or script, like ``harness exec`` records a program.

    with harness.record(out="results") as recording:
        for batch in loader:
            ...
    recording.study  # the study's folder, with the tables, report and timeline of any other

Where steps and phases are not found, mark them: ``harness.step()`` begins a step, ``with harness.span("fetch"):`` is a
phase of it, and ``with harness.span("tokenize"):`` a stage of a batch. Imports nothing named ``trainer``: a user may
have a file of that name.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from harness.attach import LEAST_WARMUP
from harness.study.contract import PHASES, STAGES

AGENT = "_harness_agent"
_MARKED = tuple(name for name in (*PHASES, *STAGES) if name not in ("other", "transfer"))  # both are remainders


@dataclass
class RecordedBlock:
    """Result of :func:`record`, complete after the block.

    ``study``: the study's folder; None if the block had no step, or under ``harness exec``.
    """

    study: Path | None = None


@contextmanager
def record(out: str | Path = "results", *, warmup: int = 5) -> Iterator[RecordedBlock]:
    """Record the training steps within the block into a new study under ``out``, and print its first screen.

    ``warmup``: unmeasured steps at the start, at least 4. Raise ValueError for fewer, and RuntimeError if another block
    is recording already. Under ``harness exec``, which records anyway, do nothing.
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
            raise RuntimeError("harness.record: another harness.record block is active; end it first")
        try:
            yield recording
        finally:
            agent.end()
            recording.study = _make_study(raw, out)


def step() -> None:
    """Begin a step and end the previous one. Do nothing outside :func:`record` and ``harness exec``.

    After the first call, only this function begins steps.
    """
    if (agent := sys.modules.get(AGENT)) is not None:
        agent.step()


@contextmanager
def span(name: str) -> Iterator[None]:
    """Time the code within the context as a phase of the step (such as "fetch") or a stage of a batch ("read").

    A stage counts for the batch that is being made, or made next. Raises ValueError for a name that is neither. Do
    nothing outside :func:`record` and ``harness exec``.
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
    """Return the agent's module, loaded into this process as by the shim; the loaded one if it is loaded already."""
    if (agent := sys.modules.get(AGENT)) is not None:
        return agent
    import torch  # noqa: F401 - patched by the agent

    place = Path(__file__).parent / "agent"
    spec = spec_from_file_location(AGENT, place / "__init__.py", submodule_search_locations=[str(place)])
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[AGENT] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _make_study(raw: str, out: str | Path) -> Path | None:
    """Make the study in a new process, where no file of the user replaces a module; return its folder or None."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-P", "-m", "harness", "exec", "--recorded", raw, "--out", str(out)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="")
    last = done.stdout.splitlines()[-1:]
    return Path(last[0].removeprefix("study: ")) if last and last[0].startswith("study: ") else None


class TrainingRecording:
    """Recording of a training from :meth:`begin` to :meth:`end`; if the training fails, its study is made at exit."""

    def __init__(self, out: str | Path = "results", *, warmup: int = 5) -> None:
        self._out, self._warmup = out, warmup
        self._stack = ExitStack()
        self._block: RecordedBlock | None = None
        atexit.register(self.end)

    @property
    def study(self) -> Path | None:
        """Folder of the study after the training; None before, without a step, in other ranks or ``harness exec``."""
        return None if self._block is None else self._block.study

    def begin(self) -> None:
        if self._block is None:
            self._block = self._stack.enter_context(record(self._out, warmup=self._warmup))

    def end(self) -> None:
        self._stack.close()
