"""Prints for a terminal: what came from a file shows as itself there, and steers nothing."""

from __future__ import annotations

from trainer.errors import visible_lines


def say(text: str = "") -> None:
    """Print lines of text, with every other character that steers a terminal written as an escape."""
    print(visible_lines(text))
