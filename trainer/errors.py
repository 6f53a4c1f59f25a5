"""Defines the errors that users see, above all ``InputError``, and formats errors as one line."""

from __future__ import annotations

import errno
import re
import unicodedata
from collections.abc import Sequence

# The user's input is not wrong: the disk is full or failing, or a limit of this machine is reached.
MACHINE_FAULTS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN}
)


class InputError(ValueError):
    """Wrong input, in one line, without a traceback and with exit status 2. ``others``: further lines."""

    def __init__(self, line: str, others: Sequence[str] = ()) -> None:
        super().__init__(line)
        self.others = tuple(others)


class LostBatchError(TimeoutError):
    """No loader worker delivered the next batch in the time that ``data.timeout_s`` allows."""


class EndedWorkerError(LostBatchError):
    """Loader workers ended before the run did. ``codes``: their exit codes, negative for a signal."""

    def __init__(self, line: str, codes: Sequence[int]) -> None:
        super().__init__(line)
        self.codes = tuple(codes)


def cannot_write(place: object, error: OSError, remedy: str) -> Exception:
    """Return the error for ``place``: InputError (exit 2), or OSError for a fault of this machine (exit 1)."""
    reason = error.strerror or str(error)
    if error.errno in MACHINE_FAULTS:
        return OSError(error.errno, f"{reason}; {remedy}", str(place))
    return InputError(f"{place}: cannot be written ({reason}); {remedy}")


_NUMBER = re.compile(r"^\[Errno -?\d+\] ")


def one_line(text: object) -> str:
    """Return ``text`` with one space in place of every run of white space, so that a message stays on one line."""
    return " ".join(str(text).split())


def plain_reason(error: Exception) -> str:
    """Return the error's message on one line, without the error numbers of Python and pyarrow."""
    return re.sub(r"\.? Detail: \[errno -?\d+\] ", ": ", _NUMBER.sub("", one_line(error)))


def literal(value: object) -> str:
    """Return Python's repr of ``value`` on one line."""
    try:
        return one_line(repr(value))
    except ValueError:  # Python prints no number of more than 4,300 digits.
        return "a number of thousands of digits"


def visible(text: str) -> str:
    """Replace each character that controls a terminal or a page, or is no character, by an escape like ``\\x1b``."""
    return text if text.isprintable() else "".join(char if _harmless(char) else _escaped(char) for char in text)


def visible_lines(text: str) -> str:
    """Apply :func:`visible` to each line of a text."""
    return text if text.isprintable() else "\n".join(map(visible, text.split("\n")))


def _harmless(letter: str) -> bool:
    """Return True if the character shows as itself: also any space, and the joiners within words and emoji."""
    return letter.isprintable() or letter in "\u200c\u200d" or unicodedata.category(letter) == "Zs"


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def in_words(error: Exception) -> str:
    """Return any error as one line. A timeout's message stands alone; other errors are preceded by their class."""
    text = one_line(error)
    if not text:  # such as Python's own MemoryError
        return type(error).__name__
    return text if isinstance(error, TimeoutError) else f"{type(error).__name__}: {text}"
