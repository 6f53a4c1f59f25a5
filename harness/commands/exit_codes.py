"""Exit codes of the command line, and their meanings as the documentation prints them."""

from __future__ import annotations

import re

from trainer.errors import InputError

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as in shells
REGRESSION = 3
# Every exit code of the command line. `harness exec` returns the program's own code if it is not 0.
MEANINGS = {
    0: "done; of a check: faster or the same",
    1: "a run failed (finished runs are kept and reported), data differ, a check of `doctor` fails, the disk is full, "
    "or a `budget` was reached",
    2: "the input is wrong: one line with the file, the key and the allowed values",
    REGRESSION: "something got slower",
    4: "undecided: the check has no result (`--undecided-exit` sets another code)",
    EXIT_INTERRUPTED: "interrupted: Ctrl-C, SIGTERM or SIGHUP; finished runs are kept",
    141: "the reader of the output closed it, as in `| head`",
}
OF_STUDY = {"done": 0, "failed": 1, "interrupted": EXIT_INTERRUPTED}


def of_verdict(verdict: str, undecided: int) -> int:
    """Return the exit code for the verdict over all comparisons. ``undecided``: the code for an undecided one."""
    return {"slower": REGRESSION, "undecided": undecided}.get(verdict, 0)


def read_exit_code(text: str) -> int:
    """Parse the value of --undecided-exit. Raises InputError unless it is 0 to 125."""
    if not re.fullmatch("[0-9]{1,3}", text) or int(text) > 125:
        raise InputError(f"--undecided-exit {text[:60]!r}: allowed: 0 to 125")
    return int(text)
