"""Prints to a terminal with control characters escaped, because text from files may contain them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.errors import visible_lines

# environment variable of GitHub's workflows with the path of a file that is shown as markdown
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


def say(text: str = "") -> None:
    """Print ``text``, with control characters escaped so that they cannot affect the terminal."""
    print(visible_lines(text))


def say_page(page: str) -> None:
    """Print the Markdown ``page``: laid out on a terminal, unchanged into a pipe or a file."""
    if not sys.stdout.isatty():
        say(page)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(visible_lines(page), hyperlinks=False))


def append_step_summary(page: str) -> None:
    """Append the Markdown ``page`` to the summary of a GitHub workflow's step; nothing outside of one."""
    path = os.environ.get(STEP_SUMMARY)
    if path:
        with copy_may_fail(STEP_SUMMARY), Path(path).open("a", encoding="utf-8") as file:
            file.write(page)


@contextmanager
def copy_may_fail(where: str) -> Iterator[None]:
    """Context manager for writing a second copy of a page: an OSError is printed and not raised. ``where``: name of the
    copy, for the message. The study's folder has the same page, so only the copy is lost.
    """
    try:
        yield
    except OSError as error:
        print(f"harness: {where}: {error.strerror}", file=sys.stderr)
