"""Host load while a run has its turns: cores used by this run, by others, and taken by the hypervisor (/proc)."""

from __future__ import annotations

import multiprocessing
import os
from time import monotonic_ns

from harness.results import Columns

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LEAST_S = 0.5  # of running: a clock tick is then 2 % of a core
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class HostProbe:
    """Sums the intervals between :meth:`start` and :meth:`stop`, and takes a sample whenever they come to enough.

    The kernel counts CPU time in clock ticks of 10 ms, so that a single short turn says nothing.
    """

    def __init__(self) -> None:
        self.samples: Columns = {"t_ns": [], "source": [], "metric": [], "value": [], "unit": []}
        self._before: tuple[float, ...] | None = None
        self._sums = [0.0, 0.0, 0.0, 0.0]  # seconds: elapsed, and CPU by this run, by everyone, stolen

    def start(self) -> None:
        self._before = self._read()

    def stop(self) -> None:
        """Add the interval since :meth:`start`; nothing where /proc does not tell."""
        now = self._read()
        if now is None or self._before is None:
            return
        self._sums = [
            total + after - before for total, after, before in zip(self._sums, now, self._before, strict=True)
        ]
        elapsed_s, own_s, busy_s, stolen_s = self._sums
        if elapsed_s < LEAST_S:
            return
        t_ns = monotonic_ns()
        self._add(t_ns, "own_cpu_cores", own_s / elapsed_s, "cores")
        self._add(t_ns, "other_cpu_cores", max(busy_s - own_s, 0.0) / elapsed_s, "cores")
        self._add(t_ns, "stolen_cpu_cores", stolen_s / elapsed_s, "cores")
        self._add(t_ns, "resident_bytes", float(_resident_bytes()), "bytes")
        self._sums = [0.0, 0.0, 0.0, 0.0]

    def _add(self, t_ns: int, metric: str, value: float, unit: str) -> None:
        for column, cell in zip(self.samples, (t_ns, "host", metric, value, unit), strict=True):
            self.samples[column].append(cell)

    @staticmethod
    def _read() -> tuple[float, ...] | None:
        """(CLOCK_MONOTONIC, CPU of this process and its workers, of everyone, stolen), all in seconds."""
        try:
            with open("/proc/stat") as file:
                user, nice, system, _, _, irq, softirq, steal = (int(cell) for cell in file.readline().split()[1:9])
        except (OSError, ValueError):
            return None
        own = _cpu_s(os.getpid()) + sum(_cpu_s(child.pid) for child in multiprocessing.active_children() if child.pid)
        return monotonic_ns() / 1e9, own, (user + nice + system + irq + softirq) / _TICKS_PER_S, steal / _TICKS_PER_S


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
