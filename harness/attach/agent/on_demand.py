"""Profile steps of this process while it runs, when ``harness profile`` asks for it.

The command asks with a file in the record folder, which must belong to the user of this process:

    PID.profile.asked    {"id", "steps": N}: torch.profiler for N steps; {"id", "seconds": S}: py-spy, by the command;
                         "limit_s": seconds for which the command waits
    PID.profile.ready    by this module, for py-spy: this process may be sampled, and its steps are not measured
    PID.profile.over     by the command: py-spy has ended
    PID.profile.done     by this module, at the end: {"trace": FILE, "steps": N}, {} or {"error": TEXT}

Each answer has the "id" of its request. No step of a profile is measured, nor those on batches made during it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

from _harness_agent import batches, boundaries, profiling, record, watching
from _harness_agent.events import MOST_PROFILE_STEPS, PROFILE_ASKED, PROFILE_DONE, PROFILE_OVER, PROFILE_READY

LOOK_NS = 500_000_000  # time between two looks for a request
MOST_WAIT_NS = 3600 * 10**9  # longest time of one request


@dataclass(slots=True)
class _Request:
    """The request that this process answers now."""

    look_ns: int = 0  # time of the next look at the files
    first: int | None = None  # step at which the profile begins; None: no request
    steps: int = 0  # to profile with torch.profiler; 0: py-spy samples
    ready: bool = False  # True once py-spy may sample
    until_ns: int = 0  # time at which the profile ends in any case
    id: str = ""
    before: Any = None  # state of profiling.py before the request


state = _Request()


def patch() -> None:
    """Look for requests at ends of steps, and advance a profile at each step."""
    boundaries.on_step_end.append(_look)
    boundaries.on_step.append(_on_step)


def forget() -> None:
    global state
    state = _Request()


def _look() -> list[tuple[Any, ...]]:
    now_ns = monotonic_ns()
    if now_ns < state.look_ns or not record.folder():
        return []
    state.look_ns = now_ns + LOOK_NS
    if state.first is None:
        if os.path.exists(_path(PROFILE_ASKED)):
            _accept(now_ns)
    elif now_ns > state.until_ns:
        _abandon("its steps took too long")
    return []


def _accept(now_ns: int) -> None:
    """Begin to answer the request with the next step, or say why not."""
    try:
        owner = os.stat(_path(PROFILE_ASKED)).st_uid
        with open(_path(PROFILE_ASKED), "rb") as file:
            text = file.read()
        os.unlink(_path(PROFILE_ASKED))
    except OSError:  # The command has withdrawn it, or it is another user's.
        return
    try:
        request = json.loads(text)
        state.id = str(request["id"])
        steps, seconds = int(request.get("steps", 0)), float(request.get("seconds", 0))
        wait_ns = min(int((float(request["limit_s"]) + seconds) * 1e9), MOST_WAIT_NS)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        _answer({"error": f"its request cannot be read ({error!r})"})
        return
    if (reason := _refusal(owner, steps)) is not None:
        _answer({"error": reason})
        return
    state.first, state.steps, state.ready = boundaries.steps.begun, steps, False
    state.until_ns = now_ns + wait_ns
    state.before = profiling.begin_on_demand(_reported)
    boundaries.measuring.measured_from, boundaries.measuring.warming = None, True


def _refusal(owner: int, steps: int) -> str | None:
    """Return why a request of the user ``owner`` for ``steps`` steps is refused; None if it is not."""
    plan = boundaries.measuring
    if owner != os.getuid():
        return "another user asked for it"
    if not 0 <= steps <= MOST_PROFILE_STEPS:
        return f"at most {MOST_PROFILE_STEPS} steps are profiled"
    if plan.measured_from is None or plan.window_from is not None or plan.alternates or plan.controlled:
        return "this program is profiled already, or measured against another one"
    if steps and record.training_thread is not None:  # torch's profiler may have to end in the thread that began it
        return "torch.profiler needs a program that trains in its main thread; --kind py-spy does not"
    if plan.most_steps is not None and (record.ranks()[1] or 1) > 1:
        return "its ranks end together after --steps measured steps, which a profile of one of them would change"
    return None


def _on_step(number: int) -> None:
    if state.first is None or number < state.first or watching.busy():
        return
    if state.steps:
        profiling.carefully(profiling.advance, number, state.steps)
    elif not state.ready:
        state.ready = True
        profiling.allow_tracing()
        _create(PROFILE_READY, {})
    elif os.path.exists(_path(PROFILE_OVER)):
        _answer({})


def _abandon(reason: str) -> None:
    profiling.abandon()
    _answer({"error": reason})


def _reported(what: str, value: Any) -> None:
    """Answer the request with the outcome of torch's profiler: its trace, or why there is no trace."""
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
        if state.ready and not record.number("profile_seconds"):
            profiling.allow_tracing(False)
    _create(PROFILE_DONE, content)


def _create(what: str, content: dict[str, Any]) -> None:
    """Create a file of the request, if the disk has room."""
    with suppress(OSError):
        record.write_whole(_path(what), json.dumps({"id": state.id, **content}))


def _path(what: str) -> str:
    return os.path.join(record.folder(), f"{os.getpid()}.{what}")
