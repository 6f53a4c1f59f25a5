"""Ends a process together with the process that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def die_with_parent(parent: int | None) -> None:
    """Ask Linux to kill this process when its parent ends: a stopped (SIGSTOP) child would otherwise stay for ever.

    ``parent`` is the process id that the parent had when it made this one: one that ended before it could be asked to
    take this process along is noticed by it, and this process ends here. None where another process made this one
    (a forkserver, which ends with its own parent).
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # linux/prctl.h
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
        if parent is not None and os.getppid() != parent:
            os._exit(1)
