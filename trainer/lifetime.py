"""Ends a process together with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def die_with_parent(parent: int | None) -> None:
    """Ask Linux to kill this process, even a stopped one, with ``parent`` (its id; None: of a forkserver)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # linux/prctl.h
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
        if parent is not None and os.getppid() != parent:
            os._exit(1)
