"""Host load per turn: cores used by this run, by other processes, and taken by the hypervisor (Linux /proc)."""

from __future__ import annotations

import multiprocessing
import os
from time import monotonic_ns

from harness.results import Columns

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class HostProbe:
    """Differences between :meth:`start` and :meth:`stop`; the resolution is a clock tick (10 ms of CPU)."""

    def __init__(self) -> None:
        self.samples: Columns = {"t_ns": [], "source": [], "metric": [], "value": [], "unit": []}
        self._before: tuple[int, float, float, float] | None = None

    def start(self) -> None:
        self._before = self._read()

    def stop(self) -> None:
        """Record the interval since :meth:`start`; nothing where /proc does not tell."""
        now = self._read()
        if now is None or self._before is None:
            return
        elapsed_s = (now[0] - self._before[0]) / 1e9
        own, busy, stolen = (
            (after - before) / elapsed_s for after, before in zip(now[1:], self._before[1:], strict=True)
        )
        self._add(now[0], "own_cpu_cores", own, "cores")
        self._add(now[0], "other_cpu_cores", max(busy - own, 0.0), "cores")
        self._add(now[0], "stolen_cpu_cores", stolen, "cores")
        self._add(now[0], "resident_bytes", float(_resident_bytes()), "bytes")

    def _add(self, t_ns: int, metric: str, value: float, unit: str) -> None:
        for column, cell in zip(self.samples, (t_ns, "host", metric, value, unit), strict=True):
            self.samples[column].append(cell)

    @staticmethod
    def _read() -> tuple[int, float, float, float] | None:
        """(CLOCK_MONOTONIC ns, CPU seconds of this process and its workers, of everyone, stolen)."""
        try:
            with open("/proc/stat") as file:
                user, nice, system, _, _, irq, softirq, steal = (int(cell) for cell in file.readline().split()[1:9])
        except (OSError, ValueError):
            return None
        own = _cpu_s(os.getpid()) + sum(_cpu_s(child.pid) for child in multiprocessing.active_children() if child.pid)
        return monotonic_ns(), own, (user + nice + system + irq + softirq) / _TICKS_PER_S, steal / _TICKS_PER_S


def _cpu_s(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S  # utime, stime: proc(5), counted after "comm)"


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
