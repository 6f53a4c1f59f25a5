"""A call in a forked process: its result, its error, or one line where it ends without either."""

from __future__ import annotations

import os
import signal
import threading
from typing import NoReturn

import pytest

from harness.launch.costing import MeasurementFailed, called_apart
from trainer.errors import InputError

pytestmark = pytest.mark.slow  # each starts a process


def test_it_returns_what_the_call_returns_and_leaves_no_trace() -> None:
    def call() -> tuple[int, int]:
        os.environ["LEFT_BEHIND"] = "yes"
        return os.getpid(), os.getppid()

    pid, parent = called_apart(call, "the call", 60)
    assert parent == os.getpid() != pid
    assert "LEFT_BEHIND" not in os.environ


@pytest.mark.parametrize(
    "error", [InputError("x: wrong"), MeasurementFailed("arm a: no", "interrupted", "log.txt"), ValueError("odd")]
)
def test_it_raises_what_the_call_raises(error: Exception) -> None:
    def call() -> NoReturn:
        raise error

    with pytest.raises(type(error), match=str(error)) as raised:
        called_apart(call, "the call", 60)
    assert vars(raised.value) == vars(error)


def test_what_cannot_be_sent_is_named() -> None:
    with pytest.raises(RuntimeError, match="lock"):
        called_apart(threading.Lock, "the call", 60)


def test_a_call_that_was_interrupted_interrupts() -> None:
    def call() -> NoReturn:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        called_apart(call, "the call", 60)


def test_a_killed_process_and_one_that_never_answers_are_one_line() -> None:
    with pytest.raises(InputError, match="the call ended with status -9 without a message"):
        called_apart(lambda: os.kill(os.getpid(), signal.SIGKILL), "the call", 60)
    with pytest.raises(InputError, match=r"the call did not end within 0 s \(process \d+\)"):
        called_apart(signal.pause, "the call", 0.01)
