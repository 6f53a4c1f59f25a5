"""Handles external ends of a command: signals, and outputs without a reader."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn, TextIO

TERMINATING = (signal.SIGTERM, signal.SIGHUP)  # notice of a batch system; end of the terminal


@contextmanager
def handled(numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle these signals with ``handler`` within the context. An ignored signal (``nohup``) stays ignored."""
    before = {
        number: signal.signal(number, handler)
        for number in numbers
        if signal.getsignal(number) not in (signal.SIG_IGN, None)
    }
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP within the context like Ctrl-C, unless ignored (``nohup``), in the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    with handled(TERMINATING if is_main else (), _interrupt):
        yield


class Stopping:
    """Recorder of requests to end (Ctrl-C, SIGTERM, SIGHUP). The second signal raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Record SIGINT, SIGTERM and SIGHUP within the context. An ignored signal (``nohup``) stays ignored."""
        with handled((signal.SIGINT, *TERMINATING), self._note):
            yield

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def exit_with(serve: Callable[[], int]) -> NoReturn:
    """Call ``serve`` in this forked process and end it at once with the returned status; 1 after an error."""
    code = 1
    try:
        code = serve()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def signal_group(pid: int, number: int) -> None:
    """Send the signal ``number`` to the process group of ``pid``, or to it alone if it has none yet. It may be gone."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def open_missing_outputs() -> None:
    """Open closed outputs (``>&-``) as /dev/null: the next file would get their descriptor."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def silence_gone_outputs() -> None:
    """Redirect standard output or error to /dev/null if its pipe has no reader or its terminal was closed."""
    for stream in _outputs():
        poll = select.poll()
        poll.register(stream, select.POLLOUT)
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0)):
            _silence(stream)


def flush_outputs() -> None:
    """Write the buffered standard output and error. Drop it if that fails, so that Python ends without a message."""
    for stream in _outputs():
        try:
            stream.flush()
        except OSError:
            _silence(stream)
            with suppress(OSError):
                stream.flush()


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        silence_gone_outputs()
    raise KeyboardInterrupt


def _outputs() -> list[TextIO]:
    """Return standard output and error. Without a stream that was closed, or replaced by an object that is no file."""
    streams = []
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # The stream was replaced or closed.
            stream.fileno()
            streams.append(stream)
    return streams


def _silence(stream: TextIO) -> None:
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, stream.fileno())
    os.close(null_device)
