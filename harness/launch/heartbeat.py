"""Sends a run's heartbeat between steps, so that the launcher can tell a slow run from one that hangs."""

from __future__ import annotations

import time

from harness.launch.channel import Channel


class Heartbeat:
    """Heartbeat of a run: at once, and after steps, at most every ``every_s`` seconds.

    Between two beats a step costs one reading of the clock. ``every_s``: None without a heartbeat.
    """

    def __init__(self, channel: Channel, every_s: float | None) -> None:
        self._channel = channel
        self._every_ns = None if every_s is None else round(every_s * 1e9)
        self._next_ns = 0
        self.beat()

    def waiting_for(self, steps: int) -> None:
        """Report that this process waits for up to ``steps`` steps of the device."""
        if self._every_ns is not None:
            self._channel.send({"event": "alive", "steps": steps})

    def beat(self) -> None:
        if self._every_ns is None:
            return
        now_ns = time.monotonic_ns()
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + self._every_ns
            self._channel.send({"event": "alive"})
