"""Time a CUDA device's work with events at the boundaries of the host's phases, in programs that train on one.

The events cut the stream into a piece per phase, and one between two phases. They are read once the device has reached
them. The device's and host's clocks are compared in the first step (the only wait for the device), and at the program's
end, with a time limit. An error here, or a change of the stream, ends this recording. Without the second comparison no
device time counts, because missing work would be taken for idle time.
"""

from __future__ import annotations

import time
from collections import deque
from time import monotonic_ns
from typing import Any

import torch
from _harness_agent import guard, record
from _harness_agent.events import DEVICE_WORK

# Name of the work launched between two phases, by the phase before. Other work is named "other".
BETWEEN = {"fetch": "h2d", "forward": "loss", "backward": "norm"}
# Limits for unexplained time, as in harness.explain.bounds.
TAIL_NS = 100_000
MOST_MOMENTS = 0.05
_LOOKS = 10
_LAST_LOOK_S = 5.0


class Open:
    """Device time (ns) since ``since_ns`` (host time; 0: not begun) that may be work or waits for launches."""

    __slots__ = ("longer_ns", "moments_ns", "since_ns", "worked_ns")

    def __init__(self, since_ns: int = 0) -> None:
        self.since_ns = since_ns
        self.longer_ns = self.moments_ns = self.worked_ns = 0.0

    def add(self, start_ns: float, end_ns: float, launched_ns: int, until_ns: int) -> None:
        start_ns = max(start_ns, launched_ns)
        meanwhile_ns = min(until_ns, end_ns) - start_ns
        self.worked_ns += max(0.0, end_ns - start_ns)
        if meanwhile_ns > TAIL_NS:
            self.longer_ns += meanwhile_ns
        elif meanwhile_ns > 0:
            self.moments_ns += meanwhile_ns

    def share(self, now_ns: int) -> float:
        """Return the share (0 to 1) of the time from ``since_ns`` to ``now_ns`` for which work and waits look alike."""
        moments_ns = self.moments_ns if self.moments_ns > MOST_MOMENTS * self.worked_ns else 0.0
        return (self.longer_ns + moments_ns) / max(1, now_ns - self.since_ns)


class _Recording:
    def __init__(self) -> None:
        self.noted = False  # True once training on a device other than the CPU was noted
        self.device: Any = None
        self.stream: Any = None  # CUDA stream; None without one, and after the recording
        self.pending: deque[tuple[str | None, int, int, Any]] = deque()  # name, launch start and end, event
        self.reached: Any = None  # last event known to be reached
        self.clock_ns = 0.0  # nanoseconds from the first look to that event
        self.since_ns = 0  # host time of the last phase boundary
        self.look_ns = 0  # host time of the first look
        self.open = Open()
        self.free: list[Any] = []  # reusable events


state = _Recording()
_inherited: list[_Recording] = []  # kept alive: a forked child must not destroy its parent's device events


def forget() -> None:
    global state
    _inherited.append(state)
    state = _Recording()


def trains_on(device: Any) -> None:
    """Note the device of the first backward pass that is not on the CPU. Start the recording if it is a CUDA device."""
    if state.noted or device.type == "cpu":
        return
    state.noted = True
    if device.type != "cuda":
        record.note("device", device.type)
        return
    record.note("device", torch.cuda.get_device_name(device))
    try:
        if torch.cuda.is_current_stream_capturing():
            return
        state.device, state.stream = device, torch.cuda.current_stream(device)
        state.stream.synchronize()
        state.reached, now = _look()
        state.since_ns = state.look_ns = now
        record.note("device_clock", (now, 0))
    except Exception as error:
        _give_up(error)


def mark(ended: str | None) -> None:
    """Record a CUDA event at a phase boundary. ``ended``: name of the work launched since the last one; None: none."""
    if state.stream is None:
        return
    try:
        if torch.cuda.is_current_stream_capturing():
            return
        if torch.cuda.current_stream(state.device) != state.stream:
            raise RuntimeError("the program switched to another CUDA stream")
        event = state.free.pop() if state.free else _event()
        now = monotonic_ns()
        event.record(state.stream)
        state.pending.append((ended, state.since_ns, now, event))
        state.since_ns = monotonic_ns()
    except Exception as error:
        _give_up(error)


def collect() -> list[tuple[Any, ...]]:
    """Return DEVICE_WORK events of work completed since the last call, oldest first; none without a recording."""
    completed: list[tuple[Any, ...]] = []
    if state.stream is None:
        return completed
    try:
        if torch.cuda.is_current_stream_capturing():  # querying an event would end the capture
            return completed
        while state.pending and state.pending[0][3].query():
            name, launched_ns, until_ns, event = state.pending.popleft()
            start_ns = state.clock_ns
            state.clock_ns += state.reached.elapsed_time(event) * 1e6
            state.free.append(state.reached)
            state.reached = event
            if name is not None:
                completed.append((DEVICE_WORK, name, launched_ns, until_ns, round(start_ns), round(state.clock_ns)))
                state.open.add(state.look_ns + start_ns, state.look_ns + state.clock_ns, launched_ns, until_ns)
    except Exception as error:
        _give_up(error)
    return completed


def last() -> list[tuple[Any, ...]]:
    """Wait for the remaining device work (_LAST_LOOK_S at most), end the recording, and return its events."""
    if state.stream is None:
        return []
    until = time.monotonic() + _LAST_LOOK_S
    try:
        if torch.cuda.is_current_stream_capturing():
            return []
        while state.pending and not state.pending[-1][3].query():
            if time.monotonic() > until:
                raise _late()
            time.sleep(0.0005)
        completed = collect()
        event, now = _look()
        record.note("device_clock", (now, round(state.clock_ns + state.reached.elapsed_time(event) * 1e6)))
        state.stream = None
        return completed
    except Exception as error:
        _give_up(error)
        return []


def _event() -> Any:
    cuda: Any = torch.cuda  # torch.cuda's events have no types
    return cuda.Event(enable_timing=True)


def _look() -> tuple[Any, int]:
    """Return (CUDA event, host time in ns) of one moment of the idle device. Raises TimeoutError after _LAST_LOOK_S."""
    best: tuple[int, Any, int] | None = None
    for _ in range(_LOOKS):
        event = _event()
        before = monotonic_ns()
        event.record(state.stream)
        while not event.query():
            if monotonic_ns() - before > _LAST_LOOK_S * 1e9:
                raise _late()
        after = monotonic_ns()
        if best is None or after - before < best[0]:
            best = after - before, event, (before + after) // 2
    assert best is not None
    return best[1], best[2]


def _late() -> TimeoutError:
    return TimeoutError(f"the device did not finish within {_LAST_LOOK_S:g} s")


def _give_up(error: Exception) -> None:
    guard.part_failed("device", error)
    state.stream = None
    state.pending.clear()
