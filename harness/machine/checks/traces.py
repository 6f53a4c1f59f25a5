"""Check whether py-spy may sample a run (ptrace). perf's permission is shown for information."""

from __future__ import annotations

import re

from harness.machine.checks.check import REINSTALL, Check, ok, warn
from harness.machine.tracing import Permissions, PySpyTool

INSTALL = "python -m pip install py-spy"
BROKEN = f"{REINSTALL} py-spy, or do without: probes.py_spy: false in the scenario"
_REFUSED = re.compile(r"permission denied|operation not permitted|EPERM", re.IGNORECASE)  # py-spy 0.4.3
_SCOPES = {0: "0, own processes", 1: "1, processes that allow it", 2: "2, CAP_SYS_PTRACE only", 3: "3, nobody"}
_PERF = {-1: "everything", 0: "the kernel too", 1: "the kernel too", 2: "own processes in user space"}


def check_ptrace(permissions: Permissions, py_spy: PySpyTool, remedy: str) -> Check:
    """Return the line on whether py-spy may sample our processes. ``permissions``: what the kernel's settings allow.

    ``py_spy``: result of trying it. ``remedy``: the fix to show if the kernel refuses it.
    """
    kernel = describe(permissions)
    if py_spy.broken:
        return warn("ptrace", f"{kernel}; {py_spy.problem}: no stacks in reports", BROKEN)
    finding = f"{kernel}; py-spy {py_spy.version or 'not found'}"
    if py_spy.problem is None:
        return ok("ptrace", f"{finding}, tried: it may sample our processes")
    if py_spy.version is None:
        return warn("ptrace", f"{finding} ({py_spy.problem}): no stacks in reports", INSTALL)
    refused = _REFUSED.search(py_spy.problem) is not None
    return warn("ptrace", f"{finding}, tried: {py_spy.problem}", remedy if refused else f"{INSTALL} --upgrade")


def describe(permissions: Permissions) -> str:
    """Format Yama's scope, the capability CAP_SYS_PTRACE and the seccomp filter as one line."""
    scope = permissions.yama_scope
    parts = ["no Yama" if scope is None else f"Yama scope {_SCOPES.get(scope, scope)}"]
    if permissions.capable is not None:
        parts.append("CAP_SYS_PTRACE" if permissions.capable else "no CAP_SYS_PTRACE")
    if permissions.seccomp_filter:
        parts.append("a seccomp filter")
    return ", ".join(parts)


def check_perf(permissions: Permissions) -> Check:
    level = permissions.perf_event_paranoid
    if level is None:
        return ok("perf", "not in this kernel (the harness needs none)")
    return ok("perf", f"perf_event_paranoid {level}: {_PERF.get(level, 'nothing')} (the harness needs none)")
