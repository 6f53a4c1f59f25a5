"""Record this machine, its installation and the commit of a checkout with every run, so that arms can be compared."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from pathlib import Path

from harness.machine.capacity import read_memory
from harness.machine.cgroup import cpu_quota, find_group, memory_limit
from harness.machine.cpu import allowed_cpus, read_frequency
from harness.machine.files import ROOT, read_fields
from harness.machine.gpu import driver_loaded
from harness.machine.packages import PACKAGES, package_version
from trainer.json_types import JsonObject

_GIT_S = 120  # seconds; a worktree of a large repository on a slow disk takes tens of seconds
# A git hook sets these variables, which would redirect git to another repository.
_OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


def git(folder: Path, *arguments: str) -> str:
    """Return the output of ``git -C folder arguments``. Raise OSError or subprocess.SubprocessError if it fails."""
    clean = {key: value for key, value in os.environ.items() if key not in _OF_A_HOOK}
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        encoding="utf-8",
        errors="replace",  # A file's content may have another encoding.
        check=True,
        timeout=_GIT_S,
        env=clean,
    )
    return done.stdout.strip()


def describe_checkout(folder: Path) -> str | None:
    """Return the short commit, with "+changes" if tracked files differ from it. None outside of a checkout."""
    try:
        head = git(folder, "rev-parse", "--short=12", "HEAD")
        return head + ("+changes" if git(folder, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def is_ignored(path: Path) -> bool:
    """Return True if git's ignore rules keep ``path`` out of commits; False outside of a checkout."""
    try:
        return bool(git(path.parent, "check-ignore", str(path.absolute())))
    except (OSError, subprocess.SubprocessError):  # ``path`` is not ignored, or there is no checkout.
        return False


def checkout_fingerprint(folder: Path) -> str:
    """Return a fingerprint that changes with the files tracked by git; empty outside of a checkout."""
    but_bytecode = ":/", ":(top,exclude)*.pyc"  # Running code writes bytecode, which may be committed.
    try:
        changes = git(folder, "diff", "HEAD", "--", *but_bytecode)
        return hashlib.sha256(changes.encode()).hexdigest() + git(folder, "rev-parse", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return ""


def record_environment(checkout: Path = Path(__file__).parent) -> JsonObject:
    """Return facts of this machine and installation, and the commit of the folder ``checkout``, as JSON. null: unknown.

    Imports no package and reads no host name. Other revisions call it by name (``harness.launch.protocol``).
    """
    quota, clock = cpu_quota(find_group("cpu")), read_frequency(allowed_cpus())
    return {
        "python": platform.python_version(),
        **{package: package_version(package) for package in PACKAGES},  # null: not installed
        "git_commit": describe_checkout(checkout),
        "os": f"{platform.system()} {platform.release()}",
        "cpu": read_fields(ROOT / "proc/cpuinfo", ":").get("model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu_quota_cores": None if quota is None else quota.cores,
        "cpu_governor": ", ".join(clock.governors) or None,
        "cpu_turbo": clock.turbo,
        "nvidia_driver": driver_loaded(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def record_user_environment() -> JsonObject:
    """Return the environment as JSON, with the commit of the current folder's checkout, not of the harness's own."""
    return record_environment(Path.cwd())


def has_nvidia_driver() -> bool:
    """Return True if an NVIDIA driver is loaded. It looks for a device file, because importing torch takes seconds."""
    return Path("/dev/nvidiactl").exists()


def available_memory_bytes() -> int | None:
    """Return the bytes for new processes without swapping, within the control group's limit; None if unknown."""
    available = read_memory().available_bytes
    if available is None:
        return None
    limit = memory_limit(find_group("memory"))
    return available if limit is None or limit.free_bytes is None else min(available, limit.free_bytes)
