"""Prints for a terminal: what came from a file shows as itself there, and steers nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.errors import visible_lines

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"  # environment variable of GitHub's workflows: a file, shown as markdown


def say(text: str = "") -> None:
    """Print lines of text, with every other character that steers a terminal written as an escape."""
    print(visible_lines(text))


def say_page(page: str) -> None:
    """Print ``page``, which is markdown: laid out on a terminal, as it is into a pipe or a file."""
    if not sys.stdout.isatty():
        say(page)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(visible_lines(page), hyperlinks=False))


def append_step_summary(page: str) -> None:
    """Append ``page``, which is markdown, to the summary of a GitHub workflow's step, where this is one."""
    path = os.environ.get(STEP_SUMMARY)
    if path:
        with copy_may_fail(STEP_SUMMARY), Path(path).open("a", encoding="utf-8") as file:
            file.write(page)


@contextmanager
def copy_may_fail(where: str) -> Iterator[None]:
    """Prints an OSError instead of raising it: the study's folder has the same page, so the verdict stands."""
    try:
        yield
    except OSError as error:
        print(f"harness: {where}: {error.strerror}", file=sys.stderr)
