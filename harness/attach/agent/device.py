"""Times a CUDA device's work by events at the boundaries of the host's phases, for programs that train on one.

The events cut the stream into pieces, one for each phase and for what lies between two phases. They are read once they
are reached: nothing waits for the device but one look at both clocks in the program's first step. The other look, at
its end, has a time limit. What fails here ends this recording alone, and so does a program that changes its stream:
without the second look nothing of the device counts, for what is missing would be taken for idle time.
"""

from __future__ import annotations

import time
from collections import deque
from time import monotonic_ns
from typing import Any

import torch
from _harness_agent import guard, record

WORK = 9  # kind of event: (kind, name, launch start, launch end, start, end); the last two on the device's own clock
# What the host launches between two phases, by the phase before; anything else: "other".
BETWEEN = {"fetch": "h2d", "forward": "loss", "backward": "norm"}
# Limits of harness.explain.bounds for the time that events leave open.
TAIL_NS = 100_000
MOST_MOMENTS = 0.05
_LOOKS = 10
_LAST_LOOK_S = 5.0


class Open:
    """Time in which the device worked or waited for launches, in nanoseconds, since the first measured step."""

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
        """Share of the time until ``now_ns``."""
        moments_ns = self.moments_ns if self.moments_ns > MOST_MOMENTS * self.worked_ns else 0.0
        return (self.longer_ns + moments_ns) / max(1, now_ns - self.since_ns)


class _Recording:
    def __init__(self) -> None:
        self.noted = False  # a device that is no CPU trains
        self.device: Any = None
        self.stream: Any = None  # None: no CUDA device, or nothing is recorded any more
        self.pending: deque[tuple[str | None, int, int, Any]] = deque()  # name, launched from, until, event at its end
        self.reached: Any = None  # the last event that is known to be reached
        self.clock_ns = 0.0  # when that was, since the first look
        self.since_ns = 0  # when the host came to the last boundary
        self.look_ns = 0  # the first look, on the host's clock
        self.open = Open()
        self.free: list[Any] = []  # events that can be used again


state = _Recording()
_inherited: list[_Recording] = []  # a forked child must not destroy the events of its parent's device


def forget() -> None:
    global state
    _inherited.append(state)
    state = _Recording()


def trains_on(device: Any) -> None:
    """Note the device that a backward pass is about to run on; of a CUDA device, begin to record."""
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
        guard.let_through(error)
        _give_up(error)


def mark(ended: str | None) -> None:
    """The host is at a boundary of phases; ``ended``: what it launched since the last one (None: nothing)."""
    if state.stream is None:
        return
    try:
        if torch.cuda.is_current_stream_capturing():
            return
        if torch.cuda.current_stream(state.device) != state.stream:
            raise RuntimeError("the program went over to another stream")
        event = state.free.pop() if state.free else _event()
        now = monotonic_ns()
        event.record(state.stream)
        state.pending.append((ended, state.since_ns, now, event))
        state.since_ns = monotonic_ns()
    except Exception as error:
        guard.let_through(error)
        _give_up(error)


def collect() -> list[tuple[Any, ...]]:
    """The work that has been done since the last call, in its order."""
    found: list[tuple[Any, ...]] = []
    if state.stream is None:
        return found
    try:
        if torch.cuda.is_current_stream_capturing():  # asking for an event would end the capture
            return found
        while state.pending and state.pending[0][3].query():
            name, launched_ns, until_ns, event = state.pending.popleft()
            start_ns = state.clock_ns
            state.clock_ns += state.reached.elapsed_time(event) * 1e6
            state.free.append(state.reached)
            state.reached = event
            if name is not None:
                found.append((WORK, name, launched_ns, until_ns, round(start_ns), round(state.clock_ns)))
                state.open.add(state.look_ns + start_ns, state.look_ns + state.clock_ns, launched_ns, until_ns)
    except Exception as error:
        guard.let_through(error)
        _give_up(error)
    return found


def last() -> list[tuple[Any, ...]]:
    """As the program ends: the rest of the work, and the second look at both clocks, within a time limit."""
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
        found = collect()
        event, now = _look()
        record.note("device_clock", (now, round(state.clock_ns + state.reached.elapsed_time(event) * 1e6)))
        state.stream = None
        return found
    except Exception as error:
        guard.let_through(error)
        _give_up(error)
        return []


def _event() -> Any:
    cuda: Any = torch.cuda  # its events have no types
    return cuda.Event(enable_timing=True)


def _look() -> tuple[Any, int]:
    """An event of the idle stream, and when it was reached: the tightest of several pairs of readings."""
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
    return TimeoutError(f"the device was not done within {_LAST_LOOK_S:g} s")


def _give_up(error: Exception) -> None:
    state.stream = None
    state.pending.clear()
    record.note("device_fault", f"{type(error).__name__}: {error}"[:500])
