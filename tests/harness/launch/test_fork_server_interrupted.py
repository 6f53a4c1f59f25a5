"""A fork server says in one line what it cannot import, and outlives the SIGINT that goes to a whole tree."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from harness.launch.fork_server import ForkServer, ForkServerGone
from tests.commands import KeptForkServer


def run_that_hears_nothing(server: ForkServer, log: Path) -> int:
    """Fork a run whose launcher is gone at once; its exit status."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = server.fork(theirs, log)
    return server.wait(pid)


@pytest.mark.slow
def test_a_fork_server_leaves_an_interrupt_to_its_parent_and_names_what_cannot_be_imported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A library that a limit of address space or open files keeps from being mapped, say."""
    server, broken = (KeptForkServer(modules, None, cold=False) for modules in ([], ["no_such_module"]))
    try:
        ended = run_that_hears_nothing(server, tmp_path / "log.txt")
        os.kill(server._process.pid, signal.SIGINT)
        assert run_that_hears_nothing(server, tmp_path / "log.txt") == ended
        with pytest.raises(ForkServerGone, match="status 1"):
            run_that_hears_nothing(broken, tmp_path / "log.txt")
    finally:
        server.end()
        broken.end()
    assert capfd.readouterr().err.splitlines() == [
        "fork server: no_such_module cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"
    ]
