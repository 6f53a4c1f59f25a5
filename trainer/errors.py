"""Defines the errors that users meet, ``InputError`` above all, and formats errors as one line."""

from __future__ import annotations

import errno
import re
import unicodedata
from collections.abc import Sequence

# Nothing that the user wrote is wrong: the disk is full or failing, or a limit of this machine is reached.
MACHINE_FAULTS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN}
)


class InputError(ValueError):
    """Wrong input. Its message is one line: the file or dotted key, what is wrong and what is allowed.

    The command line prints that line without a traceback and exits with status 2. ``others``: what
    else is wrong, a line each.
    """

    def __init__(self, line: str, others: Sequence[str] = ()) -> None:
        super().__init__(line)
        self.others = tuple(others)


class LostBatchError(TimeoutError):
    """No loader worker delivered the next batch in the time that ``data.timeout_s`` allows."""


class EndedWorkerError(LostBatchError):
    """Loader workers have ended before the run did. ``codes``: their exit codes, negative for a signal."""

    def __init__(self, line: str, codes: Sequence[int]) -> None:
        super().__init__(line)
        self.codes = tuple(codes)


def cannot_write(place: object, error: OSError, remedy: str) -> Exception:
    """What to raise where ``place`` cannot be written: an InputError, or an OSError where this machine gave out.

    The command line exits with status 2 for the first, as the user chose the place, and with 1 for the second.
    """
    reason = error.strerror or str(error)
    if error.errno in MACHINE_FAULTS:
        return OSError(error.errno, f"{reason}; {remedy}", str(place))
    return InputError(f"{place}: cannot be written ({reason}); {remedy}")


_NUMBER = re.compile(r"^\[Errno -?\d+\] ")


def one_line(text: object) -> str:
    """Replace every run of white space in ``text`` by one space, so that a message stays on one line."""
    return " ".join(str(text).split())


def plain_reason(error: Exception) -> str:
    """Format an error as one line, without the error numbers that Python and pyarrow put before their words."""
    return re.sub(r"\.? Detail: \[errno -?\d+\] ", ": ", _NUMBER.sub("", one_line(error)))


def literal(value: object) -> str:
    """``value`` as Python writes it, on one line."""
    try:
        return one_line(repr(value))
    except ValueError:  # Python writes out no number of more than 4,300 digits
        return "a number of thousands of digits"


def visible(text: str) -> str:
    """Write every character that steers a terminal or a page as an escape, such as ``\\x1b``.

    These are control characters (line ends among them), lone surrogates, and what turns the direction of text around.
    """
    return text if text.isprintable() else "".join(one if _harmless(one) else _escaped(one) for one in text)


def visible_lines(text: str) -> str:
    """The same of a text of several lines, which stay lines."""
    return text if text.isprintable() else "\n".join(map(visible, text.split("\n")))


def _harmless(letter: str) -> bool:
    """Whether it shows as itself: a space of any width does, and so do the joiners within words and emoji."""
    return letter.isprintable() or letter in "\u200c\u200d" or unicodedata.category(letter) == "Zs"


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def in_words(error: Exception) -> str:
    """Format any error as one line. A timeout's message stands alone; other errors are preceded by their class."""
    text = one_line(error)
    if not text:  # such as a MemoryError of Python's own
        return type(error).__name__
    return text if isinstance(error, TimeoutError) else f"{type(error).__name__}: {text}"
