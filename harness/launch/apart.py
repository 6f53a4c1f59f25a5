"""Calls a function in a forked process: its imports, tokenizers and threads end with that process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TypeVar

from harness.launch.channel import KILLED_S, LOOK_S, looks
from trainer.errors import InputError
from trainer.lifetime import die_with_parent

Result = TypeVar("Result")
_INTERRUPTED = 130


def called_apart(call: Callable[[], Result], what: str, limit_s: float) -> Result:
    """Return the (picklable) result of ``call``, run in a forked process, or raise its exception.

    Call it before this process computes or tokenizes anything. Raises InputError after ``limit_s`` seconds, naming
    ``what``.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(call, sender, os.getpid()))
    process.start()
    sender.close()
    try:
        for _ in range(looks(limit_s)):
            if receiver.poll(min(LOOK_S, limit_s)):
                break
        else:
            raise InputError(f"{what} did not end within {limit_s:,.0f} s (process {process.pid})")
        with suppress(EOFError):
            payload, error = pickle.loads(receiver.recv_bytes())
            if error is not None:
                raise error
            result: Result = payload
            return result
        process.join(KILLED_S)
        if process.exitcode == _INTERRUPTED:
            raise KeyboardInterrupt
        raise InputError(f"{what} ended with status {process.exitcode} without a message")
    finally:
        if process.is_alive():
            process.join(1)
        if process.is_alive():
            process.terminate()  # Like after Ctrl-C, its own children end with it.
            process.join(KILLED_S)
            process.kill()
        receiver.close()


def _answer(call: Callable[[], object], channel: Connection, parent: int) -> None:
    die_with_parent(parent)
    result, raised = None, None
    try:
        result = call()
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)
    except Exception as error:
        raised = error
    try:
        answer = pickle.dumps((result, raised))
    except (pickle.PicklingError, TypeError, AttributeError) as error:  # Each class has another error for this.
        answer = pickle.dumps((None, RuntimeError(f"{raised or 'its result'} cannot be sent: {error}")))
    channel.send_bytes(answer)
