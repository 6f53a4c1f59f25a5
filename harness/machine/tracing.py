"""Test whether py-spy may sample our processes (ptrace).

Yama's scope (admin-guide/LSM/Yama.rst), a missing CAP_SYS_PTRACE or a seccomp filter forbids ptrace. Filters cannot be
read, so it is tried.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.machine.check import REINSTALL, Check, ok, warn
from harness.machine.files import ROOT, read_fields, read_int, to_int
from harness.machine.limits import output_of

_PR_SET_PTRACER = 0x59616D61  # linux/prctl.h: "Yama"
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)


def allow_tracing() -> None:
    """Allow every process of this user to trace this one under Yama's scope 1. At scope 1, only a parent may trace its
    child, but here py-spy is the child. Children must ask for themselves.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)


def find_py_spy() -> str | None:
    """Return the path of py-spy: in this Python's folder, else the first on PATH; None if it is not installed."""
    installed = Path(sys.executable).with_name("py-spy")
    return str(installed) if os.access(installed, os.X_OK) else shutil.which("py-spy")


def remedy(root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> str:
    """Return the most likely fix, as one line, after the kernel refused that a tracer attaches to this process."""
    scope = read_int(root / "proc/sys/kernel/yama/ptrace_scope")
    container = _container(root, environment)
    if scope == 3:
        return "kernel.yama.ptrace_scope is 3, until a reboot: set it to 1 or less at boot, and reboot"
    if not _dumpable():
        return (
            "this process is not dumpable, because it has changed its user or group: start it as its final user, or "
            "give py-spy the capability: sudo setcap cap_sys_ptrace+ep PATH/TO/py-spy"
        )
    if scope == 2 and container is None:
        return _for_slurm("sudo sysctl kernel.yama.ptrace_scope=1", environment)
    if container == "kubernetes":
        return "add to the container's spec: securityContext: {capabilities: {add: [SYS_PTRACE]}}"
    if container == "apptainer":
        return (
            "have the node's administrator set sysctl kernel.yama.ptrace_scope=1, or as root: apptainer exec "
            "--add-caps CAP_SYS_PTRACE"
        )
    if container is not None:
        return f"start the container with: {container} run --cap-add SYS_PTRACE"
    if scope == 1:
        return _for_slurm("sudo sysctl kernel.yama.ptrace_scope=0", environment)
    return _for_slurm("give py-spy the capability: sudo setcap cap_sys_ptrace+ep PATH/TO/py-spy", environment)


def _container(root: Path, environment: Mapping[str, str]) -> str | None:
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if "APPTAINER_CONTAINER" in environment or "SINGULARITY_CONTAINER" in environment:
        return "apptainer"
    if (root / "run/.containerenv").exists():
        return "podman"
    return "docker" if (root / ".dockerenv").exists() else None


def _for_slurm(fix: str, environment: Mapping[str, str]) -> str:
    return (
        f"ask the cluster's administrators for: {fix} (on the compute nodes)" if "SLURM_JOB_ID" in environment else fix
    )


def _dumpable() -> bool:
    if sys.platform != "linux":
        return True
    pr_get_dumpable = 3  # linux/prctl.h
    return bool(ctypes.CDLL(None, use_errno=True).prctl(pr_get_dumpable, 0, 0, 0, 0) == 1)


CAP_SYS_PTRACE = 19  # capabilities(7)
TRACE_TRY_LIMIT_S = 10


@dataclass(frozen=True)
class Permissions:
    """The kernel settings that decide whether py-spy may sample. None: unknown."""

    yama_scope: int | None
    """Yama's scope: 0 same user, 1 descendants and processes that allow it, 2 CAP_SYS_PTRACE only, 3 none."""
    capable: bool | None  # True if the process has CAP_SYS_PTRACE
    seccomp_filter: bool | None


@dataclass(frozen=True)
class PySpyTool:
    """The installed py-spy, and whether it could sample this process. Made by :func:`try_py_spy`."""

    version: str | None  # None if py-spy is not installed
    problem: str | None  # Why it could not dump this process; None if it could.
    broken: bool = False  # True if it is installed but did not answer or could not be started


def read_permissions(root: Path = ROOT) -> Permissions:
    status = read_fields(root / "proc/self/status", ":")
    seccomp = to_int(status.get("Seccomp"))
    return Permissions(
        yama_scope=read_int(root / "proc/sys/kernel/yama/ptrace_scope"),
        capable=_has_capability(status.get("CapEff")),
        seccomp_filter=None if seccomp is None else seccomp == 2,
    )


def try_py_spy(limit_s: float = TRACE_TRY_LIMIT_S) -> PySpyTool:
    """Try to dump this process with py-spy. ``limit_s``: timeout in seconds of ``py-spy --version`` and of the dump."""
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


INSTALL_PY_SPY = "python -m pip install py-spy"
BROKEN = f"{REINSTALL} py-spy, or do without: probes.py_spy: false in the scenario"
_REFUSED = re.compile(r"permission denied|operation not permitted|EPERM", re.IGNORECASE)  # py-spy 0.4.3
_SCOPES = {0: "0, own processes", 1: "1, processes that allow it", 2: "2, CAP_SYS_PTRACE only", 3: "3, disabled"}


def check_ptrace(permissions: Permissions, py_spy: PySpyTool, remedy: str) -> Check:
    """Return the line on whether py-spy may sample our processes. ``remedy``: the fix if the kernel refuses it."""
    kernel = describe(permissions)
    if py_spy.broken:
        return warn("ptrace", f"{kernel}; {py_spy.problem}: no stacks in reports", BROKEN)
    finding = f"{kernel}; py-spy {py_spy.version or 'not found'}"
    if py_spy.problem is None:
        return ok("ptrace", f"{finding}, tested: it can sample harness processes")
    if py_spy.version is None:
        return warn("ptrace", f"{finding} ({py_spy.problem}): no stacks in reports", INSTALL_PY_SPY)
    refused = _REFUSED.search(py_spy.problem) is not None
    return warn("ptrace", f"{finding}, tested: {py_spy.problem}", remedy if refused else f"{INSTALL_PY_SPY} --upgrade")


def describe(permissions: Permissions) -> str:
    """Format Yama's scope, the capability CAP_SYS_PTRACE and the seccomp filter as one line."""
    scope = permissions.yama_scope
    parts = ["no Yama" if scope is None else f"Yama scope {_SCOPES.get(scope, scope)}"]
    if permissions.capable is not None:
        parts.append("CAP_SYS_PTRACE" if permissions.capable else "no CAP_SYS_PTRACE")
    if permissions.seccomp_filter:
        parts.append("a seccomp filter")
    return ", ".join(parts)
