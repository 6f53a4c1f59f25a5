"""Run calls that may hang: in a thread with a timeout, or in a process that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Generic, TypeVar

from trainer.json_types import JsonObject

T = TypeVar("T")


class Look(Generic[T]):
    """Reading that starts in a daemon thread when it is created. It may take ``limit_s`` seconds from its creation.

    :meth:`result` waits for the rest of this time.
    """

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
        except BaseException as error:  # ``result`` raises it again.
            self._error = error

    def result(self) -> T:
        """Wait for the reading and return its value. Raise the reading's own error, or TimeoutError after the limit."""
        self._thread.join(max(self._until - monotonic(), 0.0))
        if self._error is not None:
            raise self._error
        if not self._value:
            raise TimeoutError(f"no answer within {self._limit_s:g} s")
        return self._value[0]


def output_of(command: Sequence[str], limit_s: float, text: str | None = None) -> tuple[int, str, str]:
    """Run a program with input ``text``; return (status, output, errors). Raise TimeoutError or OSError."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, errors="replace", timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"no answer within {limit_s:g} s") from error
    return done.returncode, done.stdout, done.stderr


def facts_of_module(module: str, limit_s: float) -> JsonObject:
    """Return the last line that ``python -m module`` prints, parsed as JSON. Raises RuntimeError if the program fails
    or prints nothing, TimeoutError after ``limit_s`` seconds.
    """
    own_root = Path(__file__).resolve().parents[2]
    safe = [] if Path.cwd() == own_root else ["-P"]  # The user's folder may contain its own trainer.py or harness/.
    status, output, errors = output_of([sys.executable, *safe, "-m", module], limit_s)
    if status != 0 or not output:
        lines = errors.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"{module} ended with status {status}")
    facts: JsonObject = json.loads(output.splitlines()[-1])
    return facts


Result = TypeVar("Result")


class Worker:
    """Thread that runs the actions of :meth:`call`, one after the other. It ends with the process."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._results: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def call(self, action: Callable[[], Result], timeout_s: int) -> Result:
        """Run ``action`` in the thread. After a TimeoutError the thread hangs: do not use this worker again."""
        self._calls.put(action)
        for _ in range(timeout_s):  # one second at a time, because time while this process was suspended must not count
            try:
                result, error = self._results.get(timeout=1)
            except Empty:
                continue
            if error is not None:
                raise error
            returned: Result = result
            return returned
        raise TimeoutError(f"no answer within {timeout_s} s")

    def _work(self) -> None:
        while True:
            action = self._calls.get()
            try:
                self._results.put((action(), None))
            except Exception as error:  # raised again by call()
                self._results.put((None, error))
