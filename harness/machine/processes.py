"""Read what the processes of a session are doing, and end processes together with the process that started them."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.machine.files import ROOT, read_text, to_int

# prefix of the process name of ranks 1 and up, before their number; at most 15 characters in all
RANK_NAME = "run-rank-"
STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a disk or a driver",
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "dead",
    "X": "dead",
}
# Linux system calls in which a process may wait, by number. Other machines show the kernel's function instead.
_CALLS = {
    "x86_64": {0: "read", 1: "write", 2: "open", 7: "poll", 16: "ioctl", 17: "pread64", 23: "select", 35: "nanosleep",
               42: "connect", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 61: "wait4", 72: "fcntl", 73: "flock",
               202: "futex", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat",
               270: "pselect6", 271: "ppoll"},
    "aarch64": {22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 56: "openat", 63: "read", 64: "write",
                67: "pread64", 72: "pselect6", 73: "ppoll", 95: "waitid", 98: "futex", 101: "nanosleep",
                115: "clock_nanosleep", 203: "connect", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 260: "wait4"},
}  # fmt: skip
# calls whose first argument is a file
_OF_A_FILE = {"read", "write", "pread64", "recvfrom", "recvmsg", "sendmsg", "ioctl", "flock"}


@dataclass(frozen=True)
class ProcessState:
    """State of one process, read from its main thread in /proc by :func:`read_process` or :func:`read_session`."""

    pid: int
    name: str
    state: str  # State letter of proc_pid_stat(5)
    started_ticks: int
    place: str | None  # Current system call and its file, else the kernel function in which it sleeps
    open_files: int | None
    most_open_files: int | None

    @property
    def stopped(self) -> bool:
        return self.state in "Tt"

    @property
    def dead(self) -> bool:
        return self.state in "ZX"

    @property
    def out_of_files(self) -> bool:
        """True if the process is within 4 files of its limit: receiving a batch takes several."""
        count, most = self.open_files, self.most_open_files
        return count is not None and most is not None and count > most - 4


def read_session(session: int, root: Path = ROOT) -> list[ProcessState]:
    """Return the state of each process of a Unix session, in the order of their start. ``session``: its id."""
    members = []
    for folder in (root / "proc").iterdir():
        if folder.name.isdecimal() and (process := _read(folder)) is not None and process[0] == session:
            members.append(process[1])
    return sorted(members, key=lambda process: (process.started_ticks, process.pid))


def read_process(pid: int, root: Path = ROOT) -> ProcessState | None:
    """Return the state of one process; None if it does not exist."""
    process = _read(root / "proc" / str(pid))
    return None if process is None else process[1]


def descendants(pids: Sequence[int], root: Path = ROOT) -> list[int]:
    """Return the ids of the living processes that ``pids`` started, directly or indirectly, parents first."""
    children: dict[int, list[int]] = {}
    for folder in (root / "proc").iterdir():
        if folder.name.isdecimal():
            fields = (read_text(folder / "stat") or "").rpartition(")")[2].split()
            if len(fields) > 1:
                children.setdefault(int(fields[1]), []).append(int(folder.name))
    descendant_pids: list[int] = []
    waiting = list(pids)
    while waiting:
        child_pids = sorted(children.pop(waiting.pop(0), ()))
        descendant_pids += child_pids
        waiting += child_pids
    return descendant_pids


def children(pid: int, root: Path = ROOT) -> list[int]:
    """Return the ids of the living processes that any thread of ``pid`` started; empty if the kernel lists none."""
    lists = (root / "proc" / str(pid) / "task").glob("*/children")
    return sorted(int(child) for path in lists for child in (read_text(path) or "").split())


def ranks_below(pid: int, root: Path = ROOT) -> dict[int, str]:
    """Return {process id: role} of the ranks 1 and up that process ``pid`` started, and of all their descendants.

    Roles: ``rank-1`` for rank 1, ``rank-1-child-0`` for its first descendant.
    """
    roles: dict[int, str] = {}
    for rank in children(pid, root):
        name = (read_text(root / "proc" / str(rank) / "comm") or "").strip()
        if name.startswith(RANK_NAME):
            roles[rank] = f"rank-{name.removeprefix(RANK_NAME)}"
    for rank, role in list(roles.items()):
        roles |= {pid: f"{role}-child-{number}" for number, pid in enumerate(descendants([rank], root))}
    return roles


def by_variable(name: str, root: Path = ROOT) -> dict[str, list[int]]:
    """Return the ids of processes started with the environment variable ``name``, by its value; orphans included."""
    pids: dict[str, list[int]] = {}
    for folder in (root / "proc").iterdir():
        if folder.name.isdecimal():
            entries = (read_text(folder / "environ") or "").split("\0")
            for value in {entry.partition("=")[2] for entry in entries if entry.startswith(f"{name}=")}:
                pids.setdefault(value, []).append(int(folder.name))
    return {value: sorted(pids[value]) for value in sorted(pids)}


def with_variable(name: str, value: str, root: Path = ROOT) -> list[int]:
    """Return the ids of processes started with the environment variable ``name=value``, orphans included."""
    return by_variable(name, root).get(value, [])


def _read(folder: Path) -> tuple[int, ProcessState] | None:
    """Return the session id and state of the process of ``folder`` (``/proc/PID``); None if it has ended."""
    head, bracket, tail = (read_text(folder / "stat") or "").rpartition(")")
    fields = tail.split()
    if not bracket or len(fields) < 20:
        return None
    try:
        open_files = sum(1 for _ in (folder / "fd").iterdir())
    except OSError:
        open_files = None
    process = ProcessState(
        pid=int(folder.name),
        name=head.partition("(")[2],
        state=fields[0],
        started_ticks=int(fields[19]),
        place=_place(folder),
        open_files=open_files,
        most_open_files=_most_open_files(folder),
    )
    return int(fields[3]), process


def _place(folder: Path) -> str | None:
    fields = (read_text(folder / "syscall") or "").split()
    number = to_int(fields[0]) if fields else None
    call = None if number is None else _CALLS.get(platform.machine(), {}).get(number)
    if call is None:
        function = read_text(folder / "wchan")
        return function if function not in ("", "0") else None
    if call in _OF_A_FILE:
        try:
            return f"{call} of {(folder / 'fd' / str(int(fields[1], 16))).readlink()}"
        except (OSError, ValueError):
            return call
    return call


def _most_open_files(folder: Path) -> int | None:
    lines = (read_text(folder / "limits") or "").splitlines()
    soft = next((line.removeprefix("Max open files").split()[0] for line in lines if line.startswith("Max open")), None)
    return to_int(soft)


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

    :func:`trainer.lifetime.die_with_parent` covers only our own children, and no suspended processes.
    """

    def __init__(self, name: str, value: str) -> None:
        """Start the helper. No process but those to kill may have the environment variable ``name=value``."""
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
