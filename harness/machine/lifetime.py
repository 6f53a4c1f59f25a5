"""End processes together with the process that started them."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

from trainer.lifetime import die_with_parent

__all__ = ["Keeper", "die_with_parent"]


# If the input ends without "end", this program kills every process that was started with the given environment
# variable. It repeats until none is left, because they may start more. It imports only the standard library, without
# site-packages.
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
    """Helper process that kills marked processes once this process has ended, whatever the reason.

    :func:`die_with_parent` covers only our own children, not the processes that these start. Suspended processes
    (SIGSTOP) cannot even notice our end.
    """

    def __init__(self, name: str, value: str) -> None:
        """Start the helper.

        It kills processes with the environment variable ``name=value``, which no other process may have.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _KEEP, f"{name}={value}"],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process only.
        )

    def end(self) -> None:
        """End the helper process. The marked processes live on. Later calls do nothing."""
        if self._process.returncode is not None:
            return
        with suppress(OSError):  # The process may have been killed.
            self._process.communicate("end")
