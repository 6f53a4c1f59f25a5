"""Defines the errors that users meet, ``InputError`` above all, and formats errors as one line."""

from __future__ import annotations


class InputError(ValueError):
    """Wrong input. Its message is one line: the file or dotted key, what is wrong and what is allowed.

    The command line prints that line without a traceback and exits with status 2.
    """


class LostBatchError(TimeoutError):
    """No loader worker delivered the next batch in the time that ``data.timeout_s`` allows."""


def one_line(text: object) -> str:
    """Replace every run of white space in ``text`` by one space, so that a message stays on one line."""
    return " ".join(str(text).split())


def in_words(error: Exception) -> str:
    """Format any error as one line. A timeout's message stands alone; other errors are preceded by their class."""
    return one_line(error) if isinstance(error, TimeoutError) else f"{type(error).__name__}: {one_line(error)}"
