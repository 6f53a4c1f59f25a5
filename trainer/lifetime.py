"""Ends a process together with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def die_with_parent(parent: int | None) -> None:
    """Ask Linux to kill this process when its parent ends. A suspended (SIGSTOP) child would otherwise stay forever.

    ``parent``: process id of the parent when it created this process, which exits here if the parent has ended already.
    None if another process created this one (a forkserver, which ends with its own parent).
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # linux/prctl.h
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
        if parent is not None and os.getppid() != parent:
            os._exit(1)
