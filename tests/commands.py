"""Commands called in this process, and fork servers that outlive a block.

A test that is about a process of its own (what is imported, a closed output) starts one itself; one that needs signals
only starts ``python -m tests.commands WORD ...``, a command that shares fork servers between its blocks. Those of
commands in this process start warm (tests/warm.py), as do trials of the user's code and training scripts in turns.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from harness.launch.code import Code
from harness.launch.fork_server import ForkServer
from tests import warm

ROOT = Path(__file__).parents[1]
WARM = "HARNESS_TEST_WARM"  # set: what this module's command starts is warm
VARIABLES = ("HARNESS_CACHE", "PYTHONPATH")  # what a fork server is kept with, of all that a run reads
# What one fork server imports for every study of this code: with the model, whether the study computes one or not.
MODULES = (
    "pyarrow.parquet", "torch.optim", "torch._dynamo", "trainer.model", "transformers.models.gpt2.modeling_gpt2",
)  # fmt: skip


@dataclass(frozen=True)
class Done:
    """What a command left, as of subprocess.run."""

    returncode: int
    stdout: str
    stderr: str


def harness(*words: str, cwd: Path = ROOT, cold: bool = False, **environment: str) -> Done:
    """Run one command of the command line in this process; the fork servers of its studies are shared.

    ``cold``: those of other states of the code start as a user's do, and his commands.
    """
    from harness.cli import main

    out, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        fork_servers.shared(cold),
    ):
        try:
            code = main(words)
        except SystemExit as ended:  # argparse's --help and --version
            code = int(ended.code or 0)
    return Done(code, out.getvalue(), errors.getvalue())


def harness_and_program(*words: str, cold: bool = False, **environment: str) -> Done:
    """The same of a command whose program writes to this process's own outputs (harness exec).

    ``cold``: the program starts as a user's does.
    """
    from harness.cli import main

    with (
        mock.patch.dict(os.environ, environment),
        _taken(1, "stdout") as out,
        _taken(2, "stderr") as errors,
        fork_servers.shared(cold),
    ):
        code = main(words)
    return Done(code, out[0], errors[0])


@contextlib.contextmanager
def _taken(number: int, name: str) -> Iterator[list[str]]:
    """A list that holds, when this ends, what this process and those that it starts wrote to an output."""
    text: list[str] = []
    before = os.dup(number)
    with tempfile.NamedTemporaryFile(prefix="harness-output-") as file:
        os.dup2(file.fileno(), number)
        try:
            with (
                os.fdopen(os.dup(file.fileno()), "w", encoding="utf-8") as ours,
                mock.patch.object(sys, name, ours),
            ):
                yield text
        finally:
            os.dup2(before, number)
            os.close(before)
        text.append(Path(file.name).read_text(encoding="utf-8", errors="replace"))


class KeptForkServer(ForkServer):
    """A fork server that outlives the block it was started for."""

    def __init__(self, modules: Sequence[str], code: Code | None, cold: bool) -> None:
        with mock.patch("subprocess.Popen", subprocess.Popen if cold else warm.Popen):
            super().__init__(modules, code)
        self.taken = True  # by a block that is running

    def close(self) -> None:
        self.taken = False

    def end(self) -> None:
        super().close()


class ForkServers:
    """Fork servers kept from one block and study to the next: each costs CPU to start, a cold one six seconds.

    One for each state of the code, working directory and environment; a second one of the same that a block asks for is
    another one.
    """

    # Kept: as many as a block needs, of two states of the code and their A/A control, and the one of this code that
    # the studies before and after it share.
    MOST = 4

    def __init__(self, modules: Sequence[str] = MODULES) -> None:
        """``modules``: what those of this code import besides what the block asks for."""
        self._modules = modules
        self._kept: list[tuple[tuple[object, ...], KeptForkServer]] = []

    @contextlib.contextmanager
    def shared(self, cold: bool = False) -> Iterator[None]:
        """Meanwhile the blocks that this process runs share them. ``cold``: new ones start as a user's do."""
        warmly = SimpleNamespace(Popen=warm.Popen, TimeoutExpired=subprocess.TimeoutExpired, PIPE=subprocess.PIPE)
        with (
            mock.patch("harness.launch.block.ForkServer", functools.partial(self._of, cold=cold)),
            mock.patch("harness.sweep.trial_run.ForkServer", functools.partial(self._of, cold=cold)),
            mock.patch("harness.launch.preparation.subprocess", subprocess if cold else warmly),
            mock.patch("harness.attach.command.subprocess", subprocess if cold else warmly),
        ):
            yield

    def end(self) -> None:
        for _, server in self._kept:
            server.end()
        self._kept.clear()
        warm.starter.end()

    def _of(self, modules: Sequence[str], code: Code | None = None, cold: bool = False) -> KeptForkServer:
        key = (code, Path.cwd(), *map(os.environ.get, VARIABLES))
        self._kept = [(of, one) for of, one in self._kept if not one.ended]
        for of, server in self._kept:
            if of == key and not server.taken:
                server.taken = True
                return server
        # Another state of the code was most likely made for one test, which has ended.
        idle = sorted((of[0] is None, place) for place, (of, one) in enumerate(self._kept) if not one.taken)
        if idle and len(self._kept) >= self.MOST:
            self._kept.pop(idle[0][1])[1].end()
        everything = dict.fromkeys((*modules, *self._modules)) if code is None else modules
        server = KeptForkServer(list(everything), code, cold)
        self._kept.append((key, server))
        return server


fork_servers = ForkServers()


if __name__ == "__main__":
    from harness.cli import main

    try:
        with ForkServers(modules=()).shared(cold=WARM not in os.environ):
            sys.exit(main())
    finally:
        warm.starter.end()
