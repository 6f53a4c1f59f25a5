"""Has a program take turns with others: at the beginning of a step it waits until the launcher lets it go on.

Only where the settings name a ``gate``, a Unix socket of the launcher's. Lines of JSON, see ``attach/alternation.py``:

    agent -> launcher   {"pid", "rank", "world"} once it is warm, {"event": "done"} after each turn, {"event": "alive"}
                        between steps, and {"event": "fault", "error"} where the recording was switched off
    launcher -> agent   {"repetition", "steps", "beat_s"}: take that many measured steps, with signs of life that often;
                        or {"end": true}: leave

The first steps of a turn are not measured: their batches were made before it, and they find cold caches. They are a
few more or less from turn to turn: what comes every so many steps (a checkpoint, a slow batch) would otherwise fall
among them always, or never, where that is as many as a turn has.
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

MORE_UNMEASURED = (0, 3, 1, 4, 2)  # by turn
LEAST_WARM = 6  # steps before the first turn: by then the watched ones are over


class _Gate:
    def __init__(self) -> None:
        self.file: Any = None  # None: not at the gate yet
        self.repetition: int | None = None
        self.unmeasured = 0  # steps of this turn that have not begun: those that are not measured come first
        self.measured = 0
        self.warmup = True  # the step that begins is not measured
        self.over = False
        self.asked = False  # the launcher knows that this program waits for its turn
        self.beat_s = 0.0  # when the last sign of life was given
        self.beat_every_s = 5.0


state = _Gate()


def forget() -> None:
    """In a forked child: it has no turn."""
    global state
    state = _Gate()


def open_now() -> bool:
    """Whether a turn has begun, now or before."""
    return state.repetition is not None


def before_step(steps: int, unmeasured: int, pause: Callable[[], None]) -> bool:
    """A step is about to begin: wait where a turn has ended. Whether it may begin; else the program is to end.

    ``steps``: that began before; ``unmeasured``: at the beginning of each turn; ``pause`` ends the last step.
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
    if not state.asked:  # else a signal handler of the program, a deadline say, raised while it waited here
        pause()
        if state.file is None:
            _arrive()
        else:
            _send({"event": "done"})
        state.asked = True
    order = json.loads(state.file.readline() or '{"end": true}')  # the launcher is gone: so is the reason to go on
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
    """Tell the launcher that this program takes no more turns: it goes on by itself."""
    file, state.over = state.file, True
    if file is not None:
        file.write(json.dumps({"event": "fault", "error": error}).encode() + b"\n")


def _arrive() -> None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(record.settings["gate"]))
    state.file = connection.makefile("rwb", buffering=0)
    _send({"pid": os.getpid(), "rank": record.ranks()[0], "world": _ranks_here()})


def _ranks_here() -> int:
    """How many processes train together here. WORLD_SIZE, or the size of a Slurm job, may be left from elsewhere."""
    distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(here) if here.isdecimal() else int(distributed.get_world_size())


def _beat() -> None:
    now_s = time.monotonic()
    if now_s - state.beat_s > state.beat_every_s:
        _send({"event": "alive"})


def _send(message: dict[str, Any]) -> None:
    state.beat_s = time.monotonic()
    state.file.write(json.dumps(message).encode() + b"\n")
