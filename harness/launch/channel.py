"""Send messages (JSON objects, one per line) between launcher and run, and define how long each side waits."""

from __future__ import annotations

import json
import math
import select
import socket
import time
from dataclasses import dataclass
from typing import cast

from harness.launch.protocol import NodeEvent, NodeOrder, RunEvent, RunOrder, StartMessage, TrialEvent, TrialStart

# Maximum seconds between two heartbeats of a run that takes steps. They cost one clock reading per step.
BEAT_S = 10.0
LOOK_S = 10.0  # one poll of the launcher; limits count timed-out polls, not elapsed time
BEATS_PER_LIMIT = 4  # so that a late beat does not end a run
# A run without heartbeats (older code) gets the limit for each of its steps; a profiled run gets it this many times.
PROFILED_STEPS = 100
KILLED_S = 30.0  # time for a killed process to end; with a dead disk it takes longer


def looks(limit_s: float) -> int:
    """Return the polls of LOOK_S seconds in ``limit_s``. They are counted, so a paused container loses only one."""
    return max(1, math.ceil(limit_s / LOOK_S))


class BudgetSpent(Exception):  # noqa: N818 - an outcome, reported and survived
    """The study's time was over in the middle of a block. The message names what ran."""


@dataclass(frozen=True)
class WaitLimits:
    """Seconds that the launcher waits: ``start_s`` for a run's start, ``silence_s`` for a run's next sign of life."""

    start_s: float
    silence_s: float
    end_ns: int | None = None  # End of the study's time (CLOCK_MONOTONIC); None: no limit.

    @property
    def beat_s(self) -> float:
        """Seconds between two heartbeats of a run."""
        return min(BEAT_S, self.silence_s / BEATS_PER_LIMIT)

    def within(self, limit_s: float) -> float:
        """Return the seconds to wait now: ``limit_s``, or less if the study's time ends earlier; never negative."""
        return limit_s if self.end_ns is None else max(min(limit_s, (self.end_ns - time.monotonic_ns()) / 1e9), 0.0)

    @property
    def spent(self) -> bool:
        """True if the study's time is over."""
        return self.end_ns is not None and time.monotonic_ns() >= self.end_ns


_MAX_MESSAGE_BYTES = 65536  # bytes received at once


class Channel:
    """Connection between the launcher and a process that it started: JSON objects over a socket, one per line."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = b""  # bytes after the last complete line

    def send(
        self, message: StartMessage | RunOrder | RunEvent | NodeOrder | NodeEvent | TrialStart | TrialEvent
    ) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    # Each waits for the other side's next message. Raises EOFError if that is gone, TimeoutError after ``timeout_s``.
    def receive_start(self) -> StartMessage:
        return cast("StartMessage", self._receive(None))

    def receive_order(self) -> RunOrder:
        return cast("RunOrder", self._receive(None))

    def receive_event(self, timeout_s: float | None = None) -> RunEvent:
        return cast("RunEvent", self._receive(timeout_s))

    def receive_trial_start(self) -> TrialStart:
        return cast("TrialStart", self._receive(None))

    def receive_trial_event(self, timeout_s: float) -> TrialEvent:
        return cast("TrialEvent", self._receive(timeout_s))

    def receive_node_order(self) -> NodeOrder:
        return cast("NodeOrder", self._receive(None))

    def receive_node_event(self, timeout_s: float) -> NodeEvent:
        return cast("NodeEvent", self._receive(timeout_s))

    def _receive(self, timeout_s: float | None) -> object:
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._received:
            if not readable(self._socket, None if end_s is None else end_s - time.monotonic()):
                raise TimeoutError(f"no message within {timeout_s:g} s")
            chunk = self._socket.recv(_MAX_MESSAGE_BYTES)
            if not chunk:
                raise EOFError("the other side closed the channel")
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)


def readable(connection: socket.socket, timeout_s: float | None) -> bool:
    """Return True once data arrive or the other side is gone, False after ``timeout_s`` (None: no limit)."""
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    return bool(waiting.poll(None if timeout_s is None else math.ceil(max(timeout_s, 0.0) * 1e3)))


class Heartbeat:
    """Sender of a run's heartbeats: at its start and after steps, at most one in ``every_s`` seconds (None: never)."""

    def __init__(self, channel: Channel, every_s: float | None) -> None:
        self._channel = channel
        self._every_ns = None if every_s is None else round(every_s * 1e9)
        self._next_ns = 0
        self.beat()

    def waiting_for(self, steps: int) -> None:
        """Send a heartbeat that allows more time: this process now waits for up to ``steps`` steps of the device."""
        if self._every_ns is not None:
            self._channel.send({"event": "alive", "steps": steps})

    def beat(self) -> None:
        if self._every_ns is None:
            return
        now_ns = time.monotonic_ns()
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + self._every_ns
            self._channel.send({"event": "alive"})
