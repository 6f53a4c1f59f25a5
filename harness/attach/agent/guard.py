"""Keeps faults of ours away from the user's program: the first one is noted, and all hooks are off from then on."""

from __future__ import annotations

import traceback
from collections.abc import Callable
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
    except Exception:
        pass  # there is nobody left to tell


def carefully(action: Callable[..., Any], *given: Any) -> Any:
    """Call ``action``; None where it fails, which switches everything off."""
    if not on:
        return None
    try:
        return action(*given)
    except Exception as error:
        fail(error)
        return None
