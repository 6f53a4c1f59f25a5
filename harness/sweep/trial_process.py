"""Drives trials from the sweep: forks each from a server with everything imported, waits, and enforces its limits."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from harness.launch.block import modules_of
from harness.launch.channel import BEAT_S, BEATS_PER_LIMIT, KILLED_S, Channel, looks
from harness.launch.diagnosis import diagnose, killed_by, look_at
from harness.launch.fork_server import ForkServer, ForkServerGone
from harness.launch.protocol import TrialEvent, TrialStart
from harness.sweep.model import TrialLimits
from trainer.json_types import JsonObject

ENTRY = "harness.sweep.trial_run"
PRELOADED = (ENTRY, "harness.launch.training", "trainer.evaluate", "trainer.checkpoint")
STOPPING_S = 120.0  # Time for a stopped trial to finish its step and its last checkpoint.

Order = Literal["step", "stop", "evaluate"]


class TrialFailed(Exception):  # noqa: N818 - an outcome, reported; the trial is tried again when the sweep is resumed
    """Error: a trial failed not by its rate but by memory or code. A resumed sweep tries it again."""


class TrialLate(Exception):  # noqa: N818 - an outcome of a trial
    """A trial took longer than ``limits.trial_hours``. The sweep goes on with the next one."""


class TrialServer:
    """Trains trials one after the other, each forked from a server with imports done, started with the first."""

    def __init__(self, configs: Sequence[JsonObject], limits: TrialLimits) -> None:
        self._modules = [*modules_of(configs), *PRELOADED]
        self._limits = limits
        self._server: ForkServer | None = None
        self._pid: int | None = None
        self.forked_s = 0.0  # time.monotonic() when the last trial was forked, with everything imported

    @property
    def beat_s(self) -> float:
        """Interval of a trial's heartbeat, in seconds."""
        return min(BEAT_S, self._limits.silence_s / BEATS_PER_LIMIT)

    def train(
        self,
        start: TrialStart,
        log: Path,
        before_s: float,
        decide: Callable[[TrialEvent], Order],
        going_on: Callable[[TrialEvent], bool] = lambda _: True,
    ) -> TrialEvent:
        """Train one trial in a new process and return its last event. ``before_s``: seconds of earlier parts.

        ``decide``: answers each milestone. ``going_on``: gets every event; False ends the trial. Raises TrialLate or
        TrialFailed.
        """
        own_end, child_end = socket.socketpair()
        channel, log_start = Channel(own_end), log.stat().st_size if log.exists() else 0
        end_s = time.monotonic() + self._limits.trial_hours * 3600 - before_s
        with own_end:
            with child_end:
                self._fork(child_end, log)
            try:
                with suppress(OSError):
                    channel.send(start)
                limit_s = self._limits.start_s
                while True:
                    event = self._receive(channel, limit_s, end_s, log, log_start)
                    limit_s = self._limits.silence_s
                    if event["event"] == "ended":
                        self._wait()
                        return event
                    continues = going_on(event)
                    if event["event"] == "milestone":
                        order: Order = decide(event) if continues else "stop"
                        with suppress(OSError):
                            channel.send({"do": order})
                    elif not continues:
                        self._signal(signal.SIGTERM)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    self._stop(channel)
                self._kill()
                raise

    def close(self) -> None:
        """End the server and the trial that may still run."""
        self._kill()
        if self._server is not None:
            self._server.close()

    def _fork(self, theirs: socket.socket, log: Path) -> None:
        if self._server is not None and self._server.ended:
            self._server.close()
            self._server = None
        if self._server is None:
            self._server = ForkServer(self._modules)
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._pid = self._server.fork(theirs, log, self._limits.start_s, ENTRY)
            self.forked_s = time.monotonic()
        except ForkServerGone as gone:
            raise TrialFailed(f"it did not start: {gone}") from gone

    def _receive(self, channel: Channel, limit_s: float, end_s: float, log: Path, log_start: int) -> TrialEvent:
        parts = looks(limit_s)
        for _ in range(parts):
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise TrialLate
            try:
                return channel.receive_trial_event(min(limit_s / parts, left_s))
            except TimeoutError:
                continue
            except (EOFError, OSError):
                raise TrialFailed(self._why_gone(log)) from None
        assert self._pid is not None
        finding = diagnose(look_at(self._pid, 0, log, log_start), "limits.silence_s")
        raise TrialFailed(f"no heartbeat for {limit_s:g} s: {finding}")

    def _why_gone(self, log: Path) -> str:
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)  # Its channel is closed.
        code = self._wait()
        if code is not None and code < 0:
            return f"its process was {killed_by(-code)}"
        return f"its process ended with status {code} without a message; see {log}"

    def _stop(self, channel: Channel) -> None:
        """Ask the trial to write a last checkpoint and end, and wait for that at most STOPPING_S seconds."""
        self._signal(signal.SIGTERM)
        end_s = time.monotonic() + STOPPING_S
        with suppress(EOFError, OSError, TimeoutError, KeyboardInterrupt):
            channel.send({"do": "stop"})  # The trial may wait for the answer to a milestone.
            while (left_s := end_s - time.monotonic()) > 0:
                event = channel.receive_trial_event(left_s)
                if event["event"] == "ended":
                    return
                if event["event"] == "milestone":
                    channel.send({"do": "stop"})

    def _signal(self, number: signal.Signals) -> None:
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _kill(self) -> None:
        """Kill the trial and its loader workers at once. Nothing if no trial runs."""
        if self._pid is None:
            return
        try:
            os.killpg(self._pid, signal.SIGKILL)
        except ProcessLookupError:
            self._signal(signal.SIGKILL)
        self._wait()

    def _wait(self) -> int | None:
        code = None
        if self._pid is not None and self._server is not None:
            with suppress(ForkServerGone):
                code = self._server.wait(self._pid, KILLED_S)
        self._pid = None
        return code
