"""Run the py-spy program as a child: start it on this process, wait until it samples, and end it."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic_ns

from harness.machine.tracing import allow_tracing, find_py_spy, remedy

READY_S = 60.0  # seconds: py-spy first reads the symbols of every library, which is slow on a busy network disk
SPY_END_S = 60.0  # seconds from SIGINT until its file is written
# Output of py-spy 0.4.3 without permission to trace: the kernel's error from its log, or its own error if it may not
# even read /proc/PID/exe. With --subprocesses, the latter is the only sign.
_REFUSED = re.compile(
    r"permission denied|operation not permitted|EPERM|failed to get process executable", re.IGNORECASE
)
# Output for a process that it may not suspend; with --subprocesses, the reason is missing. For this process it means a
# refusal; a child may simply have ended meanwhile.
_NOT_STOPPED = "failed to suspend process"
_STARTED = b"Sampling process"
_TOTALS = re.compile(r"Samples: (\d+) Errors: (\d+)")
# Linux kills the program when this process ends, even if it is suspended (SIGSTOP). execv keeps this setting.
_DIE_WITH_PARENT = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
# Two sleeping processes: see Metronome. PyDLL keeps the interpreter lock, so that --gil samples them too.
_SLEEP = """\
import ctypes, os, sys
libc = ctypes.PyDLL(None)
libc.prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit()
child = os.fork()
libc.prctl(1, 9, 0, 0, 0)
libc.prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
if child:
    print(child, flush=True)
while True:
    libc.pause()
"""


class SpyFailed(Exception):  # noqa: N818 - an outcome, reported once
    """py-spy failed. The message is one line, with the fix if there is one."""


class SpyRecording:
    """One run of ``py-spy record``, which samples a process and its children from construction until :meth:`end`.

    ``pid``: the process; None: this one. ``options``: further arguments of py-spy, such as the format of its file.
    ``output``: the file that py-spy writes when it ends. ``metronome``: True to start a :class:`Metronome` too. Raises
    SpyFailed if py-spy does not start.
    """

    def __init__(
        self, options: Sequence[str], output: Path, *, metronome: bool = False, pid: int | None = None
    ) -> None:
        binary = find_py_spy()
        if binary is None:
            raise SpyFailed("py-spy: not found next to this Python or on PATH; fix: pip install 'py-spy>=0.4'")
        self._pid = pid or os.getpid()
        command = [binary, "record", "--pid", str(self._pid), "--subprocesses", "--hideprogress", *options]
        self.output = output
        self.samples = self.errors = 0
        self._printed = b""
        allow_tracing()
        self._metronome = Metronome() if metronome else None
        self.metronome_pids = self._metronome.pids if self._metronome is not None else []
        self.started_ns = monotonic_ns()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _close
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command, "--output", output],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, "RUST_LOG": "warn"},  # otherwise it hides why a process could not be sampled
            )
        except OSError as error:
            self._close_rest()
            raise SpyFailed(f"py-spy: {error}") from error
        try:
            self._wait_until_ready()
        except BaseException:
            self._close()
            raise
        self.ready_ns = monotonic_ns()

    def check(self) -> None:
        """Raise SpyFailed if py-spy reported that it cannot sample this process; it still samples the children."""
        if (reason := self._unsampled()) is not None:
            raise SpyFailed(_explain(reason))

    def end(self) -> None:
        """Make py-spy write its file and end, and set ``samples`` and ``errors``. Raises SpyFailed if it fails."""
        try:
            self._process.send_signal(signal.SIGINT)
            try:
                rest, _ = self._process.communicate(timeout=SPY_END_S)
            except subprocess.TimeoutExpired:
                raise SpyFailed(f"py-spy: killed, because it had not ended {SPY_END_S:.0f} s after SIGINT") from None
            self._printed += rest
            if self._process.returncode != 0 or not self.output.exists():
                raise self._failure()
            self.check()
            totals = _TOTALS.search(self._printed.decode(errors="replace"))
            if totals is not None:
                self.samples, self.errors = int(totals[1]), int(totals[2])
        finally:
            self._close()

    def _wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        deadline_ns = monotonic_ns() + int(READY_S * 1e9)
        while _STARTED not in self._printed:
            left_s = (deadline_ns - monotonic_ns()) / 1e9
            if left_s <= 0 or not select.select([self._process.stdout], [], [], left_s)[0]:
                raise SpyFailed(f"py-spy: not sampling {READY_S:.0f} s after its start")
            piece = os.read(self._process.stdout.fileno(), 4096)
            if not piece:
                self._process.wait()
                raise self._failure()
            self._printed += piece

    def _failure(self) -> SpyFailed:
        if self._process.returncode < 0:
            return SpyFailed(f"py-spy: ended by signal {-self._process.returncode}")
        log = self._read_log()
        printed = self._printed.decode(errors="replace")
        lines = [line for line in log.splitlines() if line.strip()] or printed.split("\n")
        errors = [line for line in lines if line.startswith("Error:")] + [log] * bool(_REFUSED.search(log))
        return SpyFailed(_explain(self._unsampled() or (errors or lines)[-1].removeprefix("Error:").strip()))

    def _unsampled(self) -> str | None:
        """Return why py-spy cannot sample this process, from its log; None if it can, or has not reported it yet."""
        failure = re.search(rf"Failed to profile python from process {self._pid}: (.*)", self._read_log())
        return None if failure is None else failure[1].strip()

    def _read_log(self) -> str:
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")

    def _close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._close_rest()

    def _close_rest(self) -> None:
        """Close the log file, and end the metronome if there is one."""
        self._log.close()
        if self._metronome is not None:
            self._metronome.close()


def _explain(reason: str) -> str:
    if _REFUSED.search(reason) or _NOT_STOPPED in reason.lower():
        return f"py-spy: no permission to trace this process; fix: {remedy()}"
    return f"py-spy: {reason or 'ended by itself'}"


class Metronome:
    """Two sleeping processes that make every sample of py-spy visible in its trace, which has only changes.

    py-spy 0.4 compares each stack with the last one of the same *pthread id*. A process and its fork share that id, but
    --subprocesses makes their roots differ, so each sample of the two leaves events.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _SLEEP, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        fork = self._process.stdout.readline()
        self.pids = [self._process.pid, *map(int, fork.split())]

    def close(self) -> None:
        """End both processes: the kernel kills the fork with its parent."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
