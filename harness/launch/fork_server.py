"""Fork runs from a process that has done all imports, which cost six seconds of CPU per block instead of per run.

One server (``python -m harness.launch.fork_server FD PARENT MODULE...``) serves the runs of a block, so that they share
its memory layout. It never computes, tokenizes or uses a device, so it can be forked safely.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from harness.launch.channel import KILLED_S, looks, readable
from harness.launch.diagnosis import diagnose_process
from harness.launch.ending import exit_with
from harness.launch.protocol import OWN, ForkAnswer, ForkRequest, WaitRequest

if TYPE_CHECKING:
    from harness.launch.code import Code

RUN = "harness.launch.child"  # default entry of a forked process
_MAX_REPLY_BYTES = 4096  # reply to one request
_CLOSED_S = 10.0  # limit for a server to end after it closed its socket


class ForkServerGone(Exception):  # noqa: N818 - an outcome, reported and survived
    """The fork server has ended, together with the runs that it forked. The message has its exit status."""


class ForkServerSilent(ForkServerGone):
    """The fork server did not answer in time, and was killed with its runs."""


class ForkServer:
    """Client of one fork server. Its methods raise ForkServerGone if it has ended. If it does not answer within
    ``timeout_s``, it and its runs are killed (ForkServerSilent).
    """

    def __init__(self, modules: Sequence[str], code: Code | None = None) -> None:
        """Start the server. ``modules``: additional imports. ``code``: state of the code to run; None: this one."""
        self._begun_ns = time.monotonic_ns()
        self.import_ns: int | None = None  # time until the first answer
        self._socket, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Imported here because the server itself does not need it.
        from harness.launch.code import OWN_FOLDER, environment_for

        # Only the threads of tokenizers are switched off: a fork after their start would deadlock.
        environment = {
            **(environment_for(OWN_FOLDER) if code is None else code.environment()),
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
        }
        paths = OWN if code is None else code.paths
        arguments = ["-m", paths.fork_server, str(child_end.fileno()), str(os.getpid()), *paths.preloaded, *modules]
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, *arguments] if code is None else code.command(*arguments),
                stdin=subprocess.DEVNULL,
                cwd=None if code is None else code.directory,
                env=environment,
                pass_fds=[child_end.fileno()],
                start_new_session=True,  # the parent answers Ctrl-C
            )

    def fork(self, channel: socket.socket, log: Path, timeout_s: float | None = None, entry: str | None = None) -> int:
        """Fork a run (or ``entry``, a module with a ``main``) that appends its output to ``log``. Return its pid."""
        with open(log, "ab") as file:
            request: ForkRequest = {"do": "fork"} if entry is None else {"do": "fork", "entry": entry}
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], [channel.fileno(), file.fileno()])
            except OSError as error:
                raise self._gone() from error
        while "code" in (answer := self._answer(timeout_s)):  # answer to an earlier wait that Ctrl-C interrupted
            pass
        if self.import_ns is None:
            self.import_ns = time.monotonic_ns() - self._begun_ns
        return answer["pid"]

    def wait(self, pid: int, timeout_s: float | None = None) -> int:
        """Return the exit status of run ``pid``, -N for signal N. ``timeout_s``: limit; None: no limit."""
        request: WaitRequest = {"do": "wait", "pid": pid}
        try:
            self._socket.send(json.dumps(request).encode())
        except OSError as error:
            raise self._gone() from error
        # Other answers belong to requests that Ctrl-C interrupted. A repeated request gets the same answer.
        while (answer := self._answer(timeout_s))["pid"] != pid or "code" not in answer:
            pass
        return answer["code"]

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        """Kill the fork server, even while it imports. Its remaining runs end with it (parent-death signal)."""
        self._end()
        self._socket.close()

    def _end(self) -> int | None:
        """Kill the server and return its exit status; None if a dead disk keeps it in the kernel."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(KILLED_S)
        return None

    def _answer(self, timeout_s: float | None) -> ForkAnswer:
        if not self._readable(timeout_s):
            state = diagnose_process(self._process.pid, "fork server", "limits.start_s")
            self._end()
            raise ForkServerSilent(f"the fork server did not answer for {timeout_s:g} s: {state}")
        try:
            answer = self._socket.recv(_MAX_REPLY_BYTES)
        except OSError as error:
            raise self._gone() from error
        if not answer:
            raise self._gone()
        return cast("ForkAnswer", json.loads(answer))

    def _readable(self, timeout_s: float | None) -> bool:
        """Wait for an answer in several polls. Return False after ``timeout_s`` seconds (None: no limit)."""
        parts = 1 if timeout_s is None else looks(timeout_s)
        each_s = None if timeout_s is None else timeout_s / parts
        return any(readable(self._socket, each_s) for _ in range(parts))

    def _gone(self) -> ForkServerGone:
        try:
            status: int | None = self._process.wait(_CLOSED_S)
        except subprocess.TimeoutExpired:
            status = self._end()
        return ForkServerGone(f"the fork server ended with status {status}")


def main() -> int:
    from trainer.errors import in_words
    from trainer.lifetime import die_with_parent

    # The parent handles signals to all processes, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(int(sys.argv[2]))
    gc.disable()  # Imported modules stay, and garbage collection would take a quarter of the import time.
    connection = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[3:]:
        try:
            importlib.import_module(module)
        except (ImportError, MemoryError, OSError) as error:  # too little address space or too few open files
            print(f"fork server: {module} cannot be imported: {in_words(error)}", file=sys.stderr)
            return 1
    gc.collect()
    gc.freeze()  # Objects stay in shared pages, because no garbage collection in a run touches them.
    gc.enable()
    codes: dict[int, int] = {}
    while True:
        request, descriptors, _, _ = socket.recv_fds(connection, _MAX_REPLY_BYTES, 2)
        if not request:
            return 0
        message: ForkRequest | WaitRequest = json.loads(request)
        answer: ForkAnswer
        if message["do"] == "wait":
            pid = message["pid"]
            if pid not in codes:
                codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            answer = {"pid": pid, "code": codes[pid]}
        else:
            server = os.getpid()
            with warnings.catch_warnings():
                # Python 3.12 warns about threads. They belong to BLAS libraries, which support forks.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                connection.close()
                # An error is written into the log: the parent only sees that the run has ended.
                exit_with(partial(_run, server, message.get("entry", RUN), *descriptors))
            for descriptor in descriptors:
                os.close(descriptor)
            answer = {"pid": pid}
        connection.send(json.dumps(answer).encode())


def _run(server: int, entry: str, channel: int, log: int) -> int:
    """Call ``main(channel, server)`` of module ``entry`` in a new session, with output in ``log``."""
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return int(importlib.import_module(entry).main(channel, server))


if __name__ == "__main__":
    sys.exit(main())
