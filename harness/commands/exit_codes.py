"""Exit codes that several commands share; harness/cli.py lists them all."""

from __future__ import annotations

import re

from trainer.errors import InputError

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
REGRESSION = 3
OF_STUDY = {"done": 0, "failed": 1, "interrupted": INTERRUPTED}


def of_verdict(verdict: str, undecided: int) -> int:
    """The exit code of a verdict over all comparisons."""
    return {"slower": REGRESSION, "undecided": undecided}.get(verdict, 0)


def read_exit_code(text: str) -> int:
    """Read the exit code for undecided checks; InputError for an impossible one."""
    if not re.fullmatch("[0-9]{1,3}", text) or int(text) > 125:
        raise InputError(f"--undecided-exit {text[:60]!r}: allowed: 0 to 125")
    return int(text)
