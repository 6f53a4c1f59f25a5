"""Measure how much of our cores other processes use, as the difference of two readings of /proc.

Only the CPUs that this process may use count, so jobs on other cores of the node are ignored. CPU time is counted in
clock ticks of 10 ms. Over half a second a tick is 2 % of a core.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns

from harness.machine.files import ROOT, read_text

LEAST_LOAD_S = 0.5
MOST_NAMED = 3
LEAST_NAMED = 0.05  # cores
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class LoadReading:
    """Counters in seconds at one moment, read by :func:`read_counters`. Two of them give the load."""

    t_s: float
    """CLOCK_MONOTONIC."""
    busy_s: float
    """CPU time of all processes on the allowed CPUs."""
    stolen_s: float
    """Time in which the hypervisor ran another machine although these CPUs were ready to run."""
    own_s: float
    """CPU time of this process and of its ended children."""
    processes: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Name and CPU time of every other visible process."""

    def missing_s(self) -> float:
        """Return the seconds until a second reading gives a meaningful load; 0 if it does already."""
        return max(self.t_s + LEAST_LOAD_S - monotonic_ns() / 1e9, 0.0)


@dataclass(frozen=True)
class Load:
    """Mean load by other processes (in cores) between two readings, made by :func:`load_between`."""

    elapsed_s: float
    other_cores: float
    stolen_cores: float
    busiest: tuple[tuple[str, float], ...]
    """Names and cores of the busiest processes, on any CPU; equal names are summed."""


def read_counters(allowed: Collection[int], root: Path = ROOT) -> LoadReading | None:
    """Read the counters of the CPUs ``allowed``, and the CPU time of all processes.

    None if /proc/stat is not available.
    """
    busy = stolen = 0
    has_cpu_line = False
    for line in (read_text(root / "proc/stat") or "").splitlines():
        name, *cells = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in allowed and len(cells) >= 8:
            user, nice, system, _, _, irq, softirq, steal = map(int, cells[:8])
            busy, stolen, has_cpu_line = busy + user + nice + system + irq + softirq, stolen + steal, True
    if not has_cpu_line:
        return None
    times = os.times()
    return LoadReading(
        t_s=monotonic_ns() / 1e9,
        busy_s=busy / _TICKS_PER_S,
        stolen_s=stolen / _TICKS_PER_S,
        own_s=times.user + times.system + times.children_user + times.children_system,
        processes=_processes(root),
    )


def load_between(before: LoadReading, after: LoadReading) -> Load:
    elapsed_s = after.t_s - before.t_s
    others_s = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    taken: dict[str, float] = {}  # cores by name, because workers share a name
    for pid, (name, cpu_s) in after.processes.items():
        cores = (cpu_s - before.processes.get(pid, (name, 0.0))[1]) / elapsed_s
        taken[name] = taken.get(name, 0.0) + cores
    busiest = [item for item in sorted(taken.items(), key=lambda item: -item[1]) if item[1] >= LEAST_NAMED][:MOST_NAMED]
    stolen_s = after.stolen_s - before.stolen_s
    return Load(elapsed_s, max(others_s, 0.0) / elapsed_s, max(stolen_s, 0.0) / elapsed_s, tuple(busiest))


def _processes(root: Path) -> dict[int, tuple[str, float]]:
    """Return (name, CPU time in seconds) of every visible process by process id, without this process."""
    times_by_process = {}
    try:
        ids = [int(entry.name) for entry in (root / "proc").iterdir() if entry.name.isdigit()]
    except OSError:
        return {}
    for pid in ids:
        text = read_text(root / "proc" / str(pid) / "stat")
        if text is None or pid == os.getpid():
            continue
        head, _, tail = text.rpartition(")")  # The name is in brackets and may contain brackets itself.
        fields = tail.split()
        if len(fields) > 12:
            times_by_process[pid] = (head.partition("(")[2], (int(fields[11]) + int(fields[12])) / _TICKS_PER_S)
    return times_by_process
