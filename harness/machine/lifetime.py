"""Ends processes together with the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress


def die_with_parent(parent: int | None) -> None:
    """Ask Linux to kill this process when its parent ends. A suspended (SIGSTOP) child would otherwise stay forever.

    ``parent`` is the process id that the parent had when it created this process. If the parent has ended already, this
    process exits here. ``parent`` is None where another process created this one (a forkserver, which ends with its own
    parent).
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # linux/prctl.h
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
        if parent is not None and os.getppid() != parent:
            os._exit(1)


# Reads lists of processes, the last of which counts. Where its input ends without "end", it kills those that are still
# the same (by when they were started). Python alone: none of our modules, nobody's site-packages.
_KEEP = """
import os, signal, sys

def started(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].split()[19]
    except OSError:
        return None

kept = {}
for line in sys.stdin:
    if line == "end\\n":
        sys.exit()
    kept = {int(word): started(int(word)) for word in line.split()}
for pid, begun in kept.items():
    if begun is not None and started(pid) == begun:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
"""


class Keeper:
    """A small process that kills others once this one is gone, however it went.

    What a command started itself does not end with us (:func:`die_with_parent` is asked for our own child alone), and
    while it is suspended (SIGSTOP) it cannot even notice.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _KEEP],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for us
        )

    def keep(self, pids: Iterable[int]) -> None:
        """From now on these are to end with this process, and no others."""
        self._say(" ".join(map(str, pids)))

    def end(self) -> None:
        """There is nothing left to end."""
        self._say("end")
        with suppress(OSError):  # nobody reads any more
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.wait()

    def _say(self, line: str) -> None:
        with suppress(OSError, ValueError):  # it was killed, or ended before
            assert self._process.stdin is not None
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
