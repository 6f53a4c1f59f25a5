"""Defines the errors that users meet, ``InputError`` above all, and formats errors as one line."""

from __future__ import annotations

import unicodedata


class InputError(ValueError):
    """Wrong input. Its message is one line: the file or dotted key, what is wrong and what is allowed.

    The command line prints that line without a traceback and exits with status 2.
    """


class LostBatchError(TimeoutError):
    """No loader worker delivered the next batch in the time that ``data.timeout_s`` allows."""


def one_line(text: object) -> str:
    """Replace every run of white space in ``text`` by one space, so that a message stays on one line."""
    return " ".join(str(text).split())


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
    return one_line(error) if isinstance(error, TimeoutError) else f"{type(error).__name__}: {one_line(error)}"
