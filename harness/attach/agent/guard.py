"""Keep the agent's errors away from the user's program: the first error is noted and disables all hooks.

An exception that a signal handler of the program raises within a hook (a deadline by SIGALRM, torch's report of a
killed DataLoader worker) is the program's, and propagates to it.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterator
from inspect import CO_VARARGS
from itertools import pairwise
from types import CodeType, FrameType, TracebackType
from typing import Any

on = True  # every hook checks this first
fault: str | None = None


def fail(error: BaseException) -> None:
    """Note the traceback of the agent's ``error``, disable all hooks, and end this program's turns and profiling."""
    global on, fault
    if fault is None:
        fault = "".join(traceback.format_exception(error))[-2000:]
    on = False
    try:
        from _harness_agent import gate, profiling, record

        record.note("fault", fault)
        gate.give_up(fault.strip().splitlines()[-1])
        profiling.abandon()
    except Exception as another:
        let_through(another)  # nothing is left to report to


def carefully(action: Callable[..., Any], *given: Any) -> Any:
    """Return ``action(*given)``; None if hooks are disabled, or by an error of the agent, which disables them."""
    if not on:
        return None
    try:
        return action(*given)
    except BaseException as error:
        if not swallows(error):
            raise
        return None


def swallows(error: BaseException) -> bool:
    """Return True, and disable all hooks, if ``error`` is the agent's; False if the caller has to raise it again.

    Hooks of every step call this in their ``except``: :func:`carefully` would cost as much as the hook itself.
    """
    if isinstance(error, KeyboardInterrupt) or of_the_program(error):
        _interrupted()
        return False
    if not isinstance(error, Exception):  # a requested exit
        return False
    fail(error)
    return True


def let_through(error: Exception) -> None:
    """Raise ``error`` again if it belongs to the program. Every other ``except Exception`` of the agent calls this."""
    if of_the_program(error):
        raise error


def part_failed(part: str, error: Exception) -> None:
    """Note that a part of the agent (such as "device") ended by ``error``; raise it again if it is the program's."""
    let_through(error)
    from _harness_agent import record

    record.note(f"{part}_fault", f"{type(error).__name__}: {error}"[:500])


def of_the_program(error: BaseException) -> bool:
    """True if a signal handler of the program (registered, or called with number and frame) raised ``error``."""
    handlers = set(_codes_of_handlers())
    return any(frame.f_code in handlers or _called_as_handler(frame) for frame in _frames(error.__traceback__))


def _frames(at: TracebackType | None) -> Iterator[FrameType]:
    while at is not None:
        yield at.tb_frame
        at = at.tb_next


def _called_as_handler(frame: FrameType) -> bool:
    code, values = frame.f_code, frame.f_locals
    arguments = [values.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & CO_VARARGS:
        variadic = values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        arguments += variadic if isinstance(variadic, tuple) else ()
    return frame.f_back is not None and any(
        isinstance(number, int) and interrupted is frame.f_back for number, interrupted in pairwise(arguments)
    )


def _codes_of_handlers() -> Iterator[CodeType]:
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        code = getattr(handler, "__code__", None) or getattr(getattr(handler, "__func__", None), "__code__", None)
        if isinstance(code, CodeType):
            yield code


def _interrupted() -> None:
    try:
        from _harness_agent import boundaries

        boundaries.interrupted()
    except Exception as error:
        let_through(error)
        fail(error)
