"""Test whether py-spy may sample our processes (ptrace), and read whether perf may count.

Three things can forbid ptrace: Yama's scope (Documentation/admin-guide/LSM/Yama.rst), a missing CAP_SYS_PTRACE, and a
seccomp filter. Only the presence of a filter can be read, so ptrace is also tried. This process gives the permission
that our runs give (PR_SET_PTRACER_ANY), and py-spy dumps it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from harness.machine.files import ROOT, read_fields, read_int, to_int
from harness.machine.limits import output_of
from harness.machine.ptrace import allow_tracing, find_py_spy

CAP_SYS_PTRACE = 19  # capabilities(7)
TRACE_TRY_LIMIT_S = 10


@dataclass(frozen=True)
class Permissions:
    """The kernel settings that decide whether py-spy may sample and perf may count. None: unknown."""

    yama_scope: int | None
    """Yama's scope: 0 same user, 1 descendants and processes that allow it, 2 CAP_SYS_PTRACE only, 3 none."""
    capable: bool | None
    """True if the process has CAP_SYS_PTRACE."""
    seccomp_filter: bool | None
    perf_event_paranoid: int | None
    """perf may count: -1 everything, 0 and 1 also the kernel, 2 own processes in user space, 3 and more nothing."""


@dataclass(frozen=True)
class PySpyTool:
    """The installed py-spy, and whether it could sample this process. Made by :func:`try_py_spy`."""

    version: str | None
    """None if py-spy is not installed."""
    problem: str | None
    """Why it could not dump this process; None if it could."""
    broken: bool = False
    """True if it is installed but did not answer or could not be started."""


def read_permissions(root: Path = ROOT) -> Permissions:
    status = read_fields(root / "proc/self/status", ":")
    kernel = root / "proc/sys/kernel"
    seccomp = to_int(status.get("Seccomp"))
    return Permissions(
        yama_scope=read_int(kernel / "yama/ptrace_scope"),
        capable=_has_capability(status.get("CapEff")),
        seccomp_filter=None if seccomp is None else seccomp == 2,
        perf_event_paranoid=read_int(kernel / "perf_event_paranoid"),
    )


def try_py_spy(limit_s: float = TRACE_TRY_LIMIT_S) -> PySpyTool:
    """Let py-spy dump this process, to test whether it may sample a run. Takes some tenths of a second.

    ``limit_s``: timeout of each call in seconds.
    """
    program = find_py_spy()
    if program is None:
        return PySpyTool(None, "not installed")
    try:
        status, output, errors = output_of([program, "--version"], limit_s)
    except OSError as error:  # A timeout is an OSError.
        return PySpyTool(None, f"py-spy --version: {error}", broken=True)
    version = output.split()[-1] if status == 0 and output.split() else None
    if version is None:
        return PySpyTool(None, _first_line(errors) or f"{program} --version ended with status {status}")
    allow_tracing()
    try:
        status, _, errors = output_of([program, "dump", "--pid", str(os.getpid())], limit_s)
    except OSError as error:
        return PySpyTool(version, f"py-spy dump: {error}", broken=True)
    return PySpyTool(version, None if status == 0 else _first_line(errors) or f"py-spy dump ended with status {status}")


def _has_capability(mask: str | None) -> bool | None:
    try:
        return None if mask is None else bool(int(mask, 16) >> CAP_SYS_PTRACE & 1)
    except ValueError:
        return None


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
