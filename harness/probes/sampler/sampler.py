"""Read the host and NVML at a steady rate in a separate, light process, and never on the training thread.

    this process    begin_steps      (measured steps)     end_repetition      wait
    the sampler         |baseline ... reading ... reading ...|last reading, samples of the repetition|

An order to begin or end is one write to a pipe. Call :meth:`Sampler.wait` while no step is measured: before the run
reports that it is ready (the sampler may still look for devices), and after a repetition, before the process group is
suspended (SIGSTOP), or its last reading is lost.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Self

from harness.machine.processes import ranks_below
from harness.probes.probe import Probe, ProbeReport
from harness.probes.sampler.messages import SamplerSettings, SamplingAnswer, SamplingOrder, Unpacked

if TYPE_CHECKING:
    from harness.study.contract import Columns

ANSWER_S = 60  # seconds to wait for an answer: NVML may need many to wake a node's devices
EXIT_S = 5


class Sampler(Probe):
    """Probe with a separate sampling process. If it fails, the run continues and ``problems`` has the reason. ``pids``
    returns the run's processes by role. ``taken`` and ``missed`` count readings by source.
    """

    settings_type = SamplerSettings

    def __init__(self, settings: SamplerSettings, pids: Callable[[], dict[int, str]]) -> None:
        self.samples: Columns = {}
        self.problems: list[str] = []
        self.missed: dict[str, int] = {}
        self.taken: dict[str, int] = {}
        self._pids = pids
        self._unpacked = Unpacked()
        self._buffer = b""
        self._outstanding = 1  # open answers: the first reports that it is ready
        self._process: subprocess.Popen[bytes] | None = None
        module = "harness.probes.sampler.sampler"
        command = [sys.executable, "-m", module, json.dumps(settings.to_json()), str(os.getpid())]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        except OSError as error:
            self._give_up(f"could not start ({error})")
            return
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)  # a hanging sampler must not block the training

    @classmethod
    def attach(cls, settings: SamplerSettings, folder: Path) -> Self:  # noqa: ARG003 - it writes no files
        return cls(settings, processes_of_the_run)

    @property
    def pid(self) -> int | None:
        """Process id of the sampling process; None if it has ended or did not start."""
        return None if self._process is None else self._process.pid

    def begin_steps(self) -> None:
        """Order the sampling process to start. Measured steps follow."""
        self.wait()
        self._send({"do": "start", "pids": self._pids()})

    def end_repetition(self) -> None:
        """Order the sampling process to take one last reading and stop. It does not wait; see :meth:`wait`."""
        self._send({"do": "stop", "t_ns": monotonic_ns()})
        self._outstanding += 1

    def wait(self) -> None:
        """Block until the sampling process has answered every order. Return immediately if no answer is open."""
        while self._process is not None and self._outstanding:
            self._take(self._answer())

    def close(self) -> None:
        """End the sampling process and unpack its readings. Further calls do nothing."""
        self._send({"do": "close"})
        self._outstanding += 1
        self.wait()
        if self._process is not None:
            self._end(EXIT_S)
        self.samples = self._unpacked.columns()

    def tables(self) -> Mapping[str, Columns]:
        return {"samples": self.samples}

    def report(self) -> ProbeReport:
        return ProbeReport(tuple(self.problems), {"missed_samples": self.missed, "taken_samples": self.taken})

    def _send(self, order: SamplingOrder) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        try:
            # Written whole or not at all as long as it fits into PIPE_BUF; else the rest must follow.
            line = memoryview(json.dumps(order).encode() + b"\n")
            while line:
                line = line[os.write(self._process.stdin.fileno(), line) :]
        except BlockingIOError:
            self._give_up("takes no orders")
        except OSError:
            self._gone()

    def _take(self, answer: tuple[SamplingAnswer, bytes] | None) -> None:
        if answer is None:
            return
        header, payload = answer
        self._outstanding -= 1
        self._unpacked.add(header["series"], payload)
        self.problems += header["problems"]
        self.missed, self.taken = header["missed"], header["taken"]

    def _answer(self) -> tuple[SamplingAnswer, bytes] | None:
        """Wait for the next answer (header, bytes of samples). None if the process ends or is silent for ANSWER_S."""
        while (end := self._buffer.find(b"\n")) < 0:
            if not self._more():
                return None
        header: SamplingAnswer = json.loads(self._buffer[:end])
        last = end + 1 + header["bytes"]
        while len(self._buffer) < last:
            if not self._more():
                return None
        payload, self._buffer = self._buffer[end + 1 : last], self._buffer[last:]
        return header, payload

    def _more(self) -> bool:
        assert self._process is not None
        assert self._process.stdout is not None
        answers = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(answers, select.POLLIN)
        for _ in range(ANSWER_S):  # second by second: time while both were stopped must not count in full
            if poll.poll(1000):
                data = os.read(answers, 1 << 20)
                if not data:
                    self._gone()
                self._buffer += data
                return bool(data)
        self._give_up(f"did not answer within {ANSWER_S} s")
        return False

    def _gone(self) -> None:
        status = self._end(EXIT_S)
        self._give_up(f"ended with status {status}; the run's log may say why")

    def _give_up(self, reason: str) -> None:
        if self._process is not None:
            self._end(0)
        self.problems.append(f"sampling: the sampling process {reason}; host and NVML samples stop here")

    def _end(self, timeout_s: float) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
        try:
            return process.wait(EXIT_S)
        except subprocess.TimeoutExpired:  # stuck in the kernel, for example in a hanging driver: the run does not wait
            return -signal.SIGKILL


def process_roles() -> dict[int, str]:
    """Return roles by process id: "main" for this process, "loader-K" for its loader workers in starting order."""
    workers = sorted(multiprocessing.active_children(), key=lambda child: (len(child.name), child.name))
    return {os.getpid(): "main"} | {child.pid: f"loader-{number}" for number, child in enumerate(workers) if child.pid}


def processes_of_the_run() -> dict[int, str]:
    """Return :func:`process_roles` and the roles of other ranks below this process: their CPU time is the run's."""
    return ranks_below(os.getpid()) | process_roles()


if __name__ == "__main__":
    from harness.probes.sampler.sampling import main

    sys.exit(main(SamplerSettings.from_json(json.loads(sys.argv[1])), int(sys.argv[2])))
