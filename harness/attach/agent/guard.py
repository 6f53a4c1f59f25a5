"""Keeps faults of ours away from the user's program: the first one is noted, and all hooks are off from then on.

What a signal handler of the program raises while a hook runs is no fault of ours, and the program's to see: a deadline
by SIGALRM, or torch's word that a worker of a DataLoader was killed. It goes on to where the program called.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterator
from inspect import CO_VARARGS
from itertools import pairwise
from types import CodeType, FrameType, TracebackType
from typing import Any

on = True  # read by every hook before it does anything
fault: str | None = None


def fail(error: BaseException) -> None:
    """Note what went wrong and switch everything off."""
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
        let_through(another)  # else there is nobody left to tell


def carefully(action: Callable[..., Any], *given: Any) -> Any:
    """Call ``action``; None where it fails, which switches everything off. Raises what the program's handlers raise."""
    if not on:
        return None
    try:
        return action(*given)
    except BaseException as error:
        if not swallows(error):
            raise
        return None


def swallows(error: BaseException) -> bool:
    """Whether ``error``, raised within a hook, is a fault of ours, which switches everything off; else it is to go on.

    What every step calls catches by itself and asks this: a call of :func:`carefully` costs as much as a small hook.
    """
    if isinstance(error, KeyboardInterrupt) or of_the_program(error):
        _interrupted()
        return False
    if not isinstance(error, Exception):  # the end that somebody asked for
        return False
    fail(error)
    return True


def let_through(error: Exception) -> None:
    """Raise ``error`` again where it is the program's: whatever else of the agent catches an Exception asks this."""
    if of_the_program(error):
        raise error


def of_the_program(error: BaseException) -> bool:
    """Whether a signal handler raised ``error``, in the middle of whatever ran.

    Python calls a handler with a signal's number and the frame that it interrupts, as no other call is made.
    """
    handlers = set(_codes_of_handlers())
    return any(frame.f_code in handlers or _called_as_handler(frame) for frame in _frames(error.__traceback__))


def _frames(at: TracebackType | None) -> Iterator[FrameType]:
    while at is not None:
        yield at.tb_frame
        at = at.tb_next


def _called_as_handler(frame: FrameType) -> bool:
    code, values = frame.f_code, frame.f_locals
    given = [values.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & CO_VARARGS:
        more = values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        given += more if isinstance(more, tuple) else ()
    return frame.f_back is not None and any(
        isinstance(number, int) and interrupted is frame.f_back for number, interrupted in pairwise(given)
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
