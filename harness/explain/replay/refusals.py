"""Defines the error of a run that cannot be replayed, with what its record lacks."""

from __future__ import annotations

from typing import Literal

from trainer.errors import InputError

ReplayGap = Literal[
    "no run",
    "no tables",
    "ranks",
    "no times",
    "no measured step",
    "damaged spans",
    "no fetch",
    "too far ahead",
    "no shared block",
]


class ReplayError(InputError):
    """A run that cannot be replayed. ``gap``: what its record lacks, or which limit an edit exceeds."""

    def __init__(self, gap: ReplayGap, line: str) -> None:
        super().__init__(line)
        self.gap = gap
