"""Profile steps of this process while it runs, when ``harness profile`` asks for it.

The command asks with a file in the record folder, which must belong to the user of this process:

    PID.profile.asked    {"steps": N}: torch.profiler for N steps; {"seconds": S}: py-spy, run by the command
    PID.profile.ready    by this module, for py-spy: this process may be sampled, and its steps are not measured
    PID.profile.over     by the command: py-spy has ended
    PID.profile.done     by this module, at the end: {"trace": FILE, "steps": N}, {} or {"error": TEXT}

No step of a profile is measured, nor those on batches that were made during it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

from _harness_agent import batches, boundaries, profiling, record
from _harness_agent.events import PROFILE_ASKED, PROFILE_DONE, PROFILE_OVER, PROFILE_READY

LOOK_NS = 500_000_000  # time between two looks for a request
NEVER_NS = 1 << 63
OVERDUE_S = 120  # seconds after the end of py-spy's window, in which the command has to say that it is over


@dataclass(slots=True)
class _Request:
    """The request that this process answers now."""

    look_ns: int = 0  # time of the next look at the files
    first: int | None = None  # step at which the profile begins; None: no request
    steps: int = 0  # to profile with torch.profiler; 0: py-spy samples
    until_ns: int = 0  # time at which py-spy's window counts as over
    before: Any = None  # state of profiling.py before the request


state = _Request()


def patch() -> None:
    """Look for requests at ends of steps, and advance a profile at each step."""
    boundaries.on_step_end.append(_look)
    boundaries.on_step.append(_on_step)


def forget() -> None:
    """Forget the parent's request in a forked child."""
    global state
    state = _Request()


def _look() -> list[tuple[Any, ...]]:
    now_ns = monotonic_ns()
    if now_ns >= state.look_ns and record.folder():
        state.look_ns = now_ns + LOOK_NS
        if state.first is None and os.path.exists(_path(PROFILE_ASKED)):
            _accept(_path(PROFILE_ASKED))
    return []


def _accept(file_name: str) -> None:
    """Begin to answer the request in ``file_name`` with the next step, or say why not."""
    try:
        owner = os.stat(file_name).st_uid
        with open(file_name, encoding="utf-8") as file:
            text = file.read()
        os.unlink(file_name)
    except OSError:
        state.look_ns = NEVER_NS
        return
    if owner != os.getuid():
        return
    try:
        request = json.loads(text)
        steps, seconds = int(request.get("steps", 0)), float(request.get("seconds", 0))
    except (ValueError, TypeError, AttributeError) as error:
        _answer({"error": f"its request cannot be read ({error})"})
        return
    plan = boundaries.measuring
    if plan.measured_from is None or plan.window_from is not None or plan.alternates or plan.controlled:
        _answer({"error": "this program is profiled already, or measured against another one"})
        return
    state.first, state.steps = boundaries.steps.begun, steps
    state.until_ns = monotonic_ns() + int((seconds + OVERDUE_S) * 1e9)
    state.before = profiling.begin_on_demand(_reported)
    plan.measured_from, plan.warming = None, True
    if not steps:
        profiling.allow_tracing()
        _create(PROFILE_READY, {})


def _on_step(number: int) -> None:
    if state.first is None or number < state.first:
        return
    if state.steps:
        profiling.carefully(profiling.advance, number, state.steps)
    elif os.path.exists(_path(PROFILE_OVER)) or monotonic_ns() > state.until_ns:
        _answer({})


def _reported(what: str, value: Any) -> None:
    """Answer the request with what the profiler would have noted: the trace, or a reason why there is none."""
    if what == "torch_profiler":
        name, (_, _, first, last), _, _ = value
        _answer({"trace": name, "steps": last - first + 1})
    else:
        _answer({"error": str(value)})


def _answer(content: dict[str, Any]) -> None:
    """Write the answer, and measure again once the batches of the profile are used up."""
    if state.first is not None:
        profiling.end_on_demand(state.before)
        boundaries.measuring.measured_from = boundaries.steps.begun + batches.state.in_flight
        state.first = None
    _create(PROFILE_DONE, content)


def _create(what: str, content: dict[str, Any]) -> None:
    """Create a file of the request as a whole."""
    final = _path(what)
    with open(f"{final}.tmp", "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(f"{final}.tmp", final)


def _path(what: str) -> str:
    return os.path.join(record.folder(), f"{os.getpid()}.{what}")
