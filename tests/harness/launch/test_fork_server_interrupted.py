"""A fork server outlives the SIGINT that goes to a whole tree of processes, and prints nothing of it."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from harness.launch.fork_server import ForkServer


def run_that_hears_nothing(server: ForkServer, log: Path) -> int:
    """Fork a run whose launcher is gone at once; its exit status."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = server.fork(theirs, log)
    return server.wait(pid)


@pytest.mark.slow
def test_a_fork_server_leaves_an_interrupt_to_its_parent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    server = ForkServer([])
    try:
        ended = run_that_hears_nothing(server, tmp_path / "log.txt")
        os.kill(server._process.pid, signal.SIGINT)
        assert run_that_hears_nothing(server, tmp_path / "log.txt") == ended
    finally:
        server.close()
    assert "Traceback" not in capfd.readouterr().err
