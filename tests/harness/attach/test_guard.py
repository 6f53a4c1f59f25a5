"""Whose an exception within a hook is: a signal handler's is the program's, all else is ours."""

from __future__ import annotations

import ast
import signal
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from harness.attach import hooks
from harness.attach.command import SHIM


class TooLateError(Exception):
    pass


def late(*_given: Any) -> None:
    raise TooLateError


def late_and_gone(number: int, _frame: Any) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise TooLateError


class Late:
    def method(self, _number: int, _frame: Any) -> None:
        self()

    def __call__(self, *_given: Any) -> None:
        raise TooLateError


@pytest.fixture
def guard() -> Iterator[ModuleType]:
    hooks._agent()
    from _harness_agent import guard as found

    found.on, found.fault = True, None
    yield found
    found.on, found.fault = False, None


@pytest.fixture
def handled() -> Iterator[Callable[[Any], None]]:
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler) and None
    signal.signal(signal.SIGUSR1, before)


def hook() -> None:
    signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize("handler", [late, late_and_gone, Late(), Late().method, lambda *given: late(*given)])
def test_a_signal_handler_of_the_program_reaches_it(guard: ModuleType, handled: Any, handler: Any) -> None:
    handled(handler)
    with pytest.raises(TooLateError):
        guard.carefully(hook)
    assert (guard.on, guard.fault) == (True, None)


def test_a_fault_of_a_hook_is_swallowed_and_ends_the_recording(guard: ModuleType, handled: Any) -> None:
    handled(late)
    assert guard.carefully(lambda: {}["missing"]) is None
    assert not guard.on
    assert "KeyError" in guard.fault


def test_code_of_the_program_that_a_hook_calls_is_a_fault_of_the_hook(guard: ModuleType) -> None:
    class Batch:
        def keys(self) -> None:
            raise TooLateError

    assert guard.carefully(Batch().keys) is None
    assert "TooLateError" in guard.fault


def test_a_signal_handler_of_the_program_ends_the_profiling_and_reaches_it(guard: ModuleType, handled: Any) -> None:
    """A trace takes seconds to write: a deadline of the program was swallowed there, as a fault of profiling."""
    from _harness_agent import profiling

    handled(late)
    for part in (profiling._over, profiling.carefully):
        with pytest.raises(TooLateError):
            guard.carefully(part, lambda _step: hook(), 7)
    assert guard.on
    assert profiling._over(lambda step: {}[step], 7)  # a fault of ours is none of the program's


def test_whatever_of_the_agent_catches_an_exception_asks_whose_it_is() -> None:
    handlers = [
        (path.name, one)
        for path in (SHIM.parent / "agent").glob("*.py")
        for one in ast.walk(ast.parse(path.read_text()))
        if isinstance(one, ast.ExceptHandler) and one.type is not None and ast.unparse(one.type) == "Exception"
    ]
    assert len(handlers) > 5
    where = [
        f"{name}:{one.lineno}"
        for name, one in handlers
        if not any(
            isinstance(call, ast.Call) and ast.unparse(call.func).endswith(("let_through", "part_failed", "_give_up"))
            for call in ast.walk(one)
        )
    ]
    assert where == []


def test_an_interrupted_hook_leaves_no_phase_and_no_stage_open(guard: ModuleType, handled: Any) -> None:
    from _harness_agent import boundaries, events, phases, stages

    def begins() -> None:
        phases.enter("fetch")
        stages.enter("read")
        hook()

    handled(late)
    boundaries.forget()
    boundaries.steps.begun = 1
    with pytest.raises(TooLateError):
        guard.carefully(begins)
    assert phases.state.open == []
    assert not stages.busy()
    assert phases.state.events[-1] == (events.INTERRUPTED,)
    guard.carefully(stages.leave)  # of the wrapper around it
    guard.carefully(phases.leave, "fetch")
    assert guard.on
    boundaries.forget()
