"""Make a program take turns with others: at the start of a step, it waits until the launcher lets it continue.

This happens only if the settings name a ``gate``, a Unix socket of the launcher. Messages are lines of JSON, see
``attach/alternation.py``:

    agent -> launcher   {"pid", "rank", "world"} once it is warm, {"event": "done"} after each turn, {"event": "alive"}
                        between steps, and {"event": "fault", "error"} if the recording was switched off
    launcher -> agent   {"repetition", "steps", "beat_s"}: run that many measured steps, with a heartbeat that often;
                        or {"end": true}: leave

A turn begins with unmeasured steps (batches made before it, cold caches) in a number that varies: an event every n
steps (a checkpoint, a slow batch) could else always or never fall into them.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from _harness_agent import record

MORE_UNMEASURED = (0, 3, 1, 4, 2)  # additional unmeasured steps, by turn
LEAST_WARM = 6  # steps before the first turn: the watched steps are over by then


class _Gate:
    def __init__(self) -> None:
        self.file: Any = None  # connection; None until the program is at the gate
        self.repetition: int | None = None
        self.unmeasured = 0  # unmeasured steps left in this turn; they come first
        self.measured = 0
        self.warmup = True  # True if the step that begins is not measured
        self.over = False
        self.asked = False  # True if the launcher knows that this program waits for its turn
        self.beat_s = 0.0  # time of the last heartbeat
        self.beat_every_s = 5.0


state = _Gate()


def forget() -> None:
    global state
    state = _Gate()


def open_now() -> bool:
    """Return True once this program's first turn has begun, also between its turns and after the last one."""
    return state.repetition is not None


def before_step(steps: int, unmeasured: int, pause: Callable[[], None]) -> bool:
    """Handle the start of a step; if this program's turn is over, ``pause`` and wait for the next one.

    Return False if the launcher ends it. ``steps``: begun so far. ``unmeasured``: minimum at the start of a turn.
    """
    if state.unmeasured or state.measured:
        state.warmup = state.unmeasured > 0
        if state.warmup:
            state.unmeasured -= 1
        else:
            state.measured -= 1
        _beat()
        return True
    if state.file is None and steps < max(LEAST_WARM, record.number("warmup") or 0):
        return True
    if not state.asked:  # else a signal handler of the program (a deadline, for example) raised during the wait
        pause()
        if state.file is None:
            _arrive()
        else:
            _send({"event": "done"})
        state.asked = True
    order = json.loads(state.file.readline() or '{"end": true}')  # end if the launcher is gone
    state.asked = False
    if "repetition" not in order:
        state.over = True
        return False
    state.repetition = int(order["repetition"])
    state.beat_every_s = float(order["beat_s"])
    state.unmeasured = unmeasured + MORE_UNMEASURED[state.repetition % len(MORE_UNMEASURED)]
    state.measured = int(order["steps"])
    return before_step(steps, unmeasured, pause)


def give_up(error: str) -> None:
    """Send ``error`` to the launcher: this program takes no more turns. The program then runs on without pauses."""
    file, state.over = state.file, True
    if file is not None:
        file.write(json.dumps({"event": "fault", "error": error}).encode() + b"\n")


def _arrive() -> None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(record.settings["gate"]))
    state.file = connection.makefile("rwb", buffering=0)
    _send({"pid": os.getpid(), "rank": record.ranks()[0], "world": _ranks_here()})


def _ranks_here() -> int:
    """Return the number of this training's ranks on this machine; WORLD_SIZE may describe an outer job."""
    distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    processes = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(processes) if processes.isdecimal() else int(distributed.get_world_size())


def _beat() -> None:
    now_s = time.monotonic()
    if now_s - state.beat_s > state.beat_every_s:
        _send({"event": "alive"})


def _send(message: dict[str, Any]) -> None:
    state.beat_s = time.monotonic()
    state.file.write(json.dumps(message).encode() + b"\n")
