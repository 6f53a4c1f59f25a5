"""Ask the kernel to allow tracing of this process, and find the exact fix if a tracer is refused."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.machine.files import ROOT, read_int

_PR_SET_PTRACER = 0x59616D61  # linux/prctl.h: "Yama"
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)


def allow_tracing() -> None:
    """Allow every process of this user to trace this one under Yama (kernel.yama.ptrace_scope 1).

    At scope 1, the default of Debian and Ubuntu, only a parent may trace its child, but here py-spy is the child. The
    permission applies to this process only; its children must ask for themselves. Without Yama nothing happens.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)


def find_py_spy() -> str | None:
    """Return the path of the py-spy program: in this Python's folder, else the first on PATH.

    None if it is not installed.
    """
    installed = Path(sys.executable).with_name("py-spy")
    return str(installed) if os.access(installed, os.X_OK) else shutil.which("py-spy")


def remedy(root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> str:
    """Return the most likely fix, as one line, after the kernel refused that a tracer attaches to this process.

    ``root``: file system with /proc and /run. ``environment``: variables that reveal containers and batch systems.
    """
    scope = read_int(root / "proc/sys/kernel/yama/ptrace_scope")
    container = _container(root, environment)
    if scope == 3:
        return "kernel.yama.ptrace_scope is 3, which only a reboot lifts: start the machine with it at 1 or less"
    if not _dumpable():
        return (
            "this process is not dumpable, as it has changed its user or group: start it as its final user, or give "
            "py-spy the capability: sudo setcap cap_sys_ptrace+ep PATH/TO/py-spy"
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
