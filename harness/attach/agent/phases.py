"""Time the phases of the recorded thread (fetch, forward, backward, optimizer), and collect its events.

Every hook calls :func:`enter` and :func:`leave`, or appends an event to ``state.events``. ``boundaries.py`` cuts the
events into steps and writes them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from threading import get_ident
from time import monotonic_ns, thread_time_ns
from typing import Any

from _harness_agent import device, forks, guard, run_queue, stages, switches
from _harness_agent.events import ENTER, EXIT, INTERRUPTED, UNKNOWN_NUMBER
from torch.compiler import is_compiling


@dataclass(slots=True)
class _Phases:
    """Phases and unwritten events of the recorded thread."""

    events: list[tuple[Any, ...]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)  # open phases, innermost last
    last: str | None = None  # phase that ended last, while the device is recorded
    making: stages.Making | None = None  # batch in preparation by the recorded thread
    core: stages.CpuReading = field(default_factory=stages.CpuReading)  # CPU clock of the recorded thread, once known
    origin: tuple[str, int, int, int] | None = None  # see origin(), once known
    on_device: bool = False  # True if phase boundaries are marked on a device


state = _Phases()
# Identifier (threading.get_ident) of the thread whose steps are recorded: the main thread, or one that
# boundaries.adopt() took.
recorded_thread = threading.main_thread().ident


def forget(thread: int | None = None) -> None:
    global state, recorded_thread
    state, recorded_thread = _Phases(), thread or threading.main_thread().ident


def watched() -> bool:
    """True if this call has to be recorded: hooks are on, this is the recorded thread, and no compiler traces it."""
    return guard.on and get_ident() == recorded_thread and not is_compiling()


def enter(name: str) -> None:
    recording = state
    if recording.on_device:
        _mark()
    core = recording.core
    now = monotonic_ns()
    if now < core.near_ns and core.here[0] and core.count[0] == core.counted:
        cpu_ns = now + core.ahead_ns
    else:
        cpu_ns, now = _read_core()
    recording.events.append((ENTER, name, now, cpu_ns))
    recording.open.append(name)


def leave(name: str) -> None:
    recording = state
    open_ = recording.open
    if not open_ or open_[-1] != name:
        if name not in open_:
            return
        leave(open_[-1])  # close inner phases first
        leave(name)
        return
    core = recording.core
    now = monotonic_ns()
    if now < core.near_ns and core.here[0] and core.count[0] == core.counted:
        cpu_ns = now + core.ahead_ns
    else:
        cpu_ns, now = _read_core()
    if recording.on_device:
        _mark()
        recording.last = name
    del open_[-1]
    recording.events.append((EXIT, name, now, cpu_ns))


def _read_core() -> tuple[int, int]:
    """Return (CPU time of the recorded thread, CLOCK_MONOTONIC), both in ns, by a system call."""
    now: tuple[int, int] = (state.making or making()).core.read()
    return now


def making() -> stages.Making:
    """Return the calling thread's batch in preparation; the recorded thread's is stored in ``state`` as well."""
    current = stages.making()
    if get_ident() == recorded_thread:
        state.making, state.core = current, current.core
        if forks.known and (count := switches.count()) is not None:
            current.core.counts(count, switches.LASTS_NS, forks.here)
            run_queue.follow(current.core)
    return current


def origin() -> tuple[str, int, int, int]:
    """Return and store the recorded thread's maker of batches: ("main", process id, thread id, UNKNOWN_NUMBER)."""
    state.origin = ("main", *stages.origin(), UNKNOWN_NUMBER)
    return state.origin


def trains_on(where: Any) -> None:
    """Handle a backward pass on device ``where``: the first one off the CPU is noted; CUDA is timed from then on."""
    if not device.state.noted:
        device.trains_on(where)
        state.on_device = device.state.stream is not None


def _mark() -> None:
    """Mark a phase boundary on the device, with the name of the work launched since the last one."""
    if not state.open:
        device.mark(device.BETWEEN.get(state.last or "", "other"))
    else:
        device.mark(None if state.open[-1] == "fetch" else state.open[-1])


def interrupted(*, in_step: bool) -> None:
    """Reset stages, CPU clock and, ``in_step``, open phases, after a program's signal handler raised in a hook."""
    stages.forget()
    state.making = None
    state.core = stages.CpuReading()
    if in_step:
        cpu_ns, now = thread_time_ns(), monotonic_ns()
        while state.open:
            state.events.append((EXIT, state.open.pop(), now, cpu_ns))
        state.events.append((INTERRUPTED,))
