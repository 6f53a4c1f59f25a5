"""Ends processes together with the process that started them."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

from trainer.lifetime import die_with_parent

__all__ = ["Keeper", "die_with_parent"]


# Where its input ends without "end", it kills every process that was started with the given environment variable, until
# none is left: those may start more meanwhile. Python alone: none of our modules, nobody's site-packages.
_KEEP = """
import os, signal, sys

def marked():
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if sys.argv[1].encode() in file.read().split(b"\\0"):
                    yield int(name)
        except OSError:
            pass

if sys.stdin.read() != "end":
    for _ in range(100):
        left = list(marked())
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        if not left:
            break
"""


class Keeper:
    """A small process that kills others once this one is gone, however it went.

    What a command started itself does not end with us (:func:`die_with_parent` is asked for our own child alone), and
    while it is suspended (SIGSTOP) it cannot even notice.
    """

    def __init__(self, name: str, value: str) -> None:
        """``name`` and ``value``: of an environment variable that only those were started with."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _KEEP, f"{name}={value}"],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for us
        )

    def end(self) -> None:
        """There is nothing left to end."""
        if self._process.returncode is not None:
            return
        with suppress(OSError):  # somebody has killed it
            self._process.communicate("end")
