"""Fixture trees: the files of /proc and /sys that a machine would have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def plant(root: Path, files: Mapping[str, str]) -> Path:
    """Write ``files`` (path below the root: content, with the newline that the kernel ends with)."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def mount_line(point: str, kind: str, options: str = "rw", root: str = "/", of_mount: str = "rw,relatime") -> str:
    """A line of mountinfo."""
    return f"22 1 0:21 {root} {point} {of_mount} shared:9 - {kind} {kind} {options}"


def v2(process: str, files: Mapping[str, str], mounted: str = "/") -> dict[str, str]:
    """A version 2 hierarchy at /sys/fs/cgroup, this process in ``process``; ``files`` below the mount."""
    return {
        "proc/self/cgroup": f"0::{process}",
        "proc/self/mountinfo": mount_line("/sys/fs/cgroup", "cgroup2", root=mounted),
        **{f"sys/fs/cgroup/{name}": content for name, content in files.items()},
    }


def v1(process: str, files: Mapping[str, str], mounted: str = "/") -> dict[str, str]:
    """Version 1, cpu together with cpuacct as systemd has it; ``files`` below /sys/fs/cgroup; an empty version 2."""
    controllers = ("cpu,cpuacct", "cpuset", "memory")
    lines = [mount_line(f"/sys/fs/cgroup/{name}", "cgroup", f"rw,{name}", mounted) for name in controllers]
    numbered = [f"{number}:{name}:{process}" for number, name in enumerate(controllers, 2)]
    return {
        "proc/self/cgroup": "\n".join([*numbered, "1:name=systemd:/init.scope", "0::/"]),
        "proc/self/mountinfo": "\n".join([*lines, mount_line("/sys/fs/cgroup/unified", "cgroup2")]),
        **{f"sys/fs/cgroup/{name}": content for name, content in files.items()},
    }
