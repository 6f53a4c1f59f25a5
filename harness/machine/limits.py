"""Running something that might hang: in a thread of its own with a time limit, or in a process that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Look(Generic[T]):
    """A reading that has begun, in a thread that nobody waits for at exit: a dead file server blocks it alone."""

    def __init__(self, read: Callable[[], T], limit_s: float) -> None:
        self._until, self._limit_s = monotonic() + limit_s, limit_s
        self._value: list[T] = []
        self._error: BaseException | None = None
        self._read = read
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value.append(self._read())
        except BaseException as error:  # whatever it is, it is raised where the value is asked for
            self._error = error

    def result(self) -> T:
        """The value, once it is there; raises what the reading raised, or TimeoutError."""
        self._thread.join(max(self._until - monotonic(), 0.0))
        if self._error is not None:
            raise self._error
        if not self._value:
            raise TimeoutError(f"no answer within {self._limit_s:g} s")
        return self._value[0]


def output_of(command: Sequence[str], limit_s: float, text: str | None = None) -> tuple[int, str, str]:
    """(status, output, errors) of a program; TimeoutError after ``limit_s``, OSError where it cannot be started."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, errors="replace", timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"no answer within {limit_s:g} s") from error
    return done.returncode, done.stdout, done.stderr


def facts_of_module(module: str, limit_s: float) -> Mapping[str, Any]:
    """The JSON object that ``python -m module`` prints: libraries that may hang or crash do so away from us."""
    status, output, errors = output_of([sys.executable, "-m", module], limit_s)
    if status != 0 or not output:
        lines = errors.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"{module} ended with status {status}")
    facts: Mapping[str, Any] = json.loads(output.splitlines()[-1])
    return facts
