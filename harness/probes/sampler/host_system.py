"""Read counters of the whole machine and of the run's control groups: CPU, memory, pressure, limits, throttling."""

from __future__ import annotations

import os
from pathlib import Path

from harness.machine.cgroup import cpu_quota, find_group, memory_limit, throttling
from harness.machine.files import ROOT, read_int

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class SystemCounters:
    """Reader of counters of the whole machine and of the run's control groups. HostCollector makes it.

    ``root``: parent folder of /proc and /sys. Missing files are skipped.
    """

    def __init__(self, root: Path = ROOT) -> None:
        proc = root / "proc"
        self._stat = _open(proc / "stat")
        self._meminfo = _open(proc / "meminfo")
        group = find_group("cpu", root)
        self._quota = cpu_quota(group)
        self._memory = memory_limit(find_group("memory", root))
        inside = group.folder if group is not None and group.version == 2 else None
        self._pressure = {}
        for resource in ("cpu", "io", "memory"):
            # The run's own group if it has one: the machine's pressure includes waits of other processes.
            own = None if inside is None else _open(inside / f"{resource}.pressure")
            self._pressure[resource] = own if own is not None else _open(proc / "pressure" / resource)

    def cpu(self) -> tuple[float, float] | None:
        """Return (CPU seconds of all cores since boot, CPU seconds stolen by the hypervisor).

        None if /proc/stat cannot be read or is incomplete.
        """
        if self._stat is None:
            return None
        try:
            cells = os.pread(self._stat, 256, 0).split(None, 9)[1:9]
        except OSError:  # a substitute for /proc has disappeared
            return None
        if len(cells) < 8:
            return None
        user, nice, system, _, _, irq, softirq, steal = map(int, cells)
        return (user + nice + system + irq + softirq) / _TICKS_PER_S, steal / _TICKS_PER_S

    def counters(self) -> dict[tuple[str, str], float]:
        """Return counts so far by (metric, unit): pressure, and throttling by the CPU quota if there is one.

        ``*_pressure_s``: seconds in which some process waited for that resource (Documentation/accounting/psi.rst).
        """
        totals: dict[tuple[str, str], float] = {}
        for resource, descriptor in self._pressure.items():
            if descriptor is not None and (total_us := _pressure_us(descriptor)) is not None:
                totals[f"{resource}_pressure_s", "s"] = total_us / 1e6
        if self._quota is not None and (counts := throttling(self._quota.folder, self._quota.version)) is not None:
            totals["cgroup_periods", "periods"] = float(counts.periods)
            totals["cgroup_throttled_periods", "periods"] = float(counts.throttled_periods)
            totals["cgroup_throttled_s", "s"] = counts.throttled_ns / 1e9
        return totals

    def gauges(self) -> dict[tuple[str, str], float]:
        """Return current values by (metric, unit): page cache, available memory, and limits of the control groups."""
        values: dict[tuple[str, str], float] = {}
        if self._meminfo is not None:
            text = os.pread(self._meminfo, 512, 0)
            for metric, name in (("page_cache_bytes", b"\nCached:"), ("available_memory_bytes", b"\nMemAvailable:")):
                if (position := text.find(name)) >= 0:
                    values[metric, "bytes"] = float(text[position + len(name) :].split(None, 1)[0]) * 1024
        if self._quota is not None:
            values["cgroup_quota_cores", "cores"] = self._quota.cores
        if self._memory is not None:
            values["cgroup_memory_limit_bytes", "bytes"] = float(self._memory.limit_bytes)
            file = "memory.current" if self._memory.version == 2 else "memory.usage_in_bytes"
            if (used := read_int(self._memory.folder / file)) is not None:
                values["cgroup_memory_bytes", "bytes"] = float(used)
        return values


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _pressure_us(descriptor: int) -> int | None:
    """Return the total waiting time in us from an open pressure file; None if pressure is switched off.

    The file begins like "some avg10=0.00 avg60=0.00 avg300=0.00 total=12345".
    """
    try:
        text = os.pread(descriptor, 256, 0)
    except OSError:
        return None
    return int(text[text.index(b"total=") + 6 :].split(None, 1)[0]) if text.startswith(b"some") else None
