"""Part of ``harness exec`` that runs inside the user's processes. It imports the standard library and torch only.

The shim loads it as ``_harness_agent`` once torch is imported. It writes the step ledger of the main thread and the
stages of every batch to its own files (``record.py``), and changes nothing that the program computes. After its first
internal error, it disables all hooks (``guard.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

_RESET = ("boundaries", "controls", "watching", "causes", "inspection", "padding", "repeats", "own_time")
_HOOKED = ("loading", "updates", "tokenizing", "watching", "inspection", "causes", "own_time", "profiling", "on_demand")
_patched = False


def begin(folder: str) -> bool:
    """Patch torch and tokenizers (first call only) and start to record this process into ``folder``.

    Return False, and record nothing, if ``folder`` does not exist or a recording is already active.
    """
    global _patched
    from _harness_agent import guard, profiling, record

    if not record.begin(folder):
        return False
    for name in _RESET:
        import_module(f"{__name__}.{name}").forget()
    guard.on, guard.fault = True, None
    if not _patched:
        _patched = True
        for name in _HOOKED:
            guard.carefully(import_module(f"{__name__}.{name}").patch)
        guard.carefully(_hide_from_dynamo)
    guard.carefully(profiling.begin)
    return True


def end() -> None:
    """Stop recording: all hooks are disabled until :func:`begin`."""
    from _harness_agent import causes, guard, own_time, record, watching

    guard.carefully(watching.forget)
    guard.carefully(causes.forget)
    guard.carefully(record.end)
    guard.carefully(own_time.forget)
    guard.on = False


def step() -> None:
    """Start a new step, where the program marks its steps by hand. Do nothing while the hooks are disabled."""
    from _harness_agent import boundaries, guard

    if guard.on:
        guard.carefully(boundaries.step_by_hand)


@contextmanager
def span(name: str, stage: bool) -> Iterator[None]:
    """Time the code within the context as a phase of the step, or (``stage``) a stage of the batch in preparation."""
    from _harness_agent import boundaries, guard, stages

    enter, leave = (stages.enter, stages.leave) if stage else (boundaries.enter_by_hand, boundaries.leave_by_hand)
    entered = guard.on and (guard.carefully(enter, name), guard.on)[1]
    try:
        yield
    finally:
        if entered:
            guard.carefully(leave, *(() if stage else (name,)))


def _hide_from_dynamo() -> None:
    """Keep torch.compile from compiling the agent's functions; functions of the user that wrappers call may be."""
    import sys
    from types import CodeType, FunctionType
    from typing import Any

    import torch

    dynamo: Any = torch._C._dynamo.eval_frame
    if not hasattr(dynamo, "set_code_exec_strategy"):  # an older torch
        return
    skip, default = dynamo._FrameAction.SKIP, dynamo._FrameAction.DEFAULT

    def hide(code: CodeType, wrapper: bool) -> None:
        dynamo.set_code_exec_strategy(code, dynamo._FrameExecStrategy(skip, default if wrapper else skip))
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                hide(constant, True)

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == __name__:
            for member in vars(module).values():
                inner = isinstance(member, type)
                for function in vars(member).values() if inner else (member,):
                    if isinstance(function, FunctionType) and function.__module__.partition(".")[0] == __name__:
                        hide(function.__code__, inner)
