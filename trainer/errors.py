"""The one exception the trainer raises for input that a user can mend, and errors put on one line."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: one line that names the file or dotted key, what is wrong and what is allowed.

    The command line prints it as it is, without a traceback, and exits with status 2.
    """


def one_line(text: object) -> str:
    """``text`` with every run of white space made one space: an error message is one line."""
    return " ".join(str(text).split())


def in_words(error: Exception) -> str:
    """Any error on one line; that of a time limit speaks for itself, others by their kind too."""
    return one_line(error) if isinstance(error, TimeoutError) else f"{type(error).__name__}: {one_line(error)}"
