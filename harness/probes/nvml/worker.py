"""Run calls that may hang in a thread, with a timeout."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")


class Worker:
    """Thread that runs the actions of :meth:`call`, one after the other. It ends with the process."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._results: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def call(self, action: Callable[[], Result], timeout_s: int) -> Result:
        """Run ``action`` in the thread: return its result or raise its error.

        Raises TimeoutError after ``timeout_s`` seconds. The thread then hangs: do not use this worker again.
        """
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
