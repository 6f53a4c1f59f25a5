"""Read facts of the processor: allowed CPUs, shared cores and memory, and clock settings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from harness.machine.files import ROOT, parse_list, read_fields, read_int, read_text

_CPUS = "sys/devices/system/cpu"
BF16_FLAGS = {"amx_bf16", "avx512_bf16", "bf16", "svebf16"}  # x86 flags, and arm64 features


@dataclass(frozen=True)
class Processor:
    """The machine's processor and the CPUs that this process may use of it, read by :func:`read_processor`."""

    name: str
    virtual: bool
    """True if a hypervisor is visible."""
    fast_bf16: bool | None
    """True if it has bf16 instructions; None if the kernel lists no instruction sets."""
    online: int
    allowed: tuple[int, ...]
    """CPUs that this process may use (affinity, which a cpuset narrows)."""
    cores: int | None
    """Physical cores among the allowed CPUs; None if the system does not report the topology."""
    smt_active: bool | None
    numa_nodes: tuple[int, ...]
    """NUMA nodes with allowed CPUs."""


@dataclass(frozen=True)
class Frequency:
    """Clock settings (driver, governors, turbo) of the allowed CPUs, read by :func:`read_frequency`.

    None: not reported.
    """

    driver: str | None
    governors: tuple[str, ...]
    """Distinct governors, sorted; () if the system reports none, as most virtual machines."""
    turbo: bool | None


def read_processor(root: Path = ROOT) -> Processor:
    info = read_fields(root / "proc/cpuinfo", ":")
    flags = set((info.get("flags") or info.get("Features") or "").split())
    online = parse_list(read_text(root / _CPUS / "online")) or tuple(range(os.cpu_count() or 1))
    allowed = allowed_cpus(root) or online
    siblings = {read_text(root / _CPUS / f"cpu{cpu}/topology/thread_siblings_list") for cpu in allowed}
    smt = read_int(root / _CPUS / "smt/active")
    return Processor(
        name=info.get("model name") or info.get("CPU part") or "unknown",
        virtual="hypervisor" in flags,
        fast_bf16=bool(flags & BF16_FLAGS) if flags else None,
        online=len(online),
        allowed=allowed,
        cores=None if None in siblings else len(siblings),
        smt_active=None if smt is None else smt == 1,
        numa_nodes=_nodes(root, set(allowed)),
    )


def allowed_cpus(root: Path = ROOT) -> tuple[int, ...]:
    """Return the CPUs that this process may run on; () if the system does not report them."""
    return parse_list(read_fields(root / "proc/self/status", ":").get("Cpus_allowed_list"))


def read_frequency(allowed: tuple[int, ...], root: Path = ROOT) -> Frequency:
    folders = [root / _CPUS / f"cpu{cpu}/cpufreq" for cpu in allowed]
    governors = {governor for folder in folders if (governor := read_text(folder / "scaling_governor"))}
    drivers = {driver for folder in folders if (driver := read_text(folder / "scaling_driver"))}
    no_turbo, boost = read_int(root / _CPUS / "intel_pstate/no_turbo"), read_int(root / _CPUS / "cpufreq/boost")
    turbo = no_turbo == 0 if no_turbo is not None else None if boost is None else boost == 1
    return Frequency(", ".join(sorted(drivers)) or None, tuple(sorted(governors)), turbo)


def _nodes(root: Path, allowed: set[int]) -> tuple[int, ...]:
    """Return the NUMA nodes that have any of the CPUs ``allowed``.

    Nodes without CPUs, such as a GPU's memory, do not count.
    """
    folder = root / "sys/devices/system/node"
    nodes = parse_list(read_text(folder / "online"))
    return tuple(node for node in nodes if allowed & set(parse_list(read_text(folder / f"node{node}/cpulist"))))
