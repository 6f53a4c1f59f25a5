"""What a process shares with the one that started it: its end, and its niceness."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path


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


def keep_niceness() -> None:
    """Give way in a new session as the session did that this process came from.

    Linux shares cores among sessions first (autogroup, sched(7)), and a new one is as important as any other, however
    nice its processes are: a study that was started with ``nice`` would take half of the machine.
    """
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if nice:
        with suppress(OSError):  # a kernel without autogroups, or one that may not be told
            Path("/proc/self/autogroup").write_text(str(nice))
