"""Read the kernel's counters of the machine, the run's control groups, and one process, from outside (proc(5)).

A full reading takes 20 to 30 microseconds, and 20 more per thread. CPU time alone costs one, and is precise to the
nanosecond.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from harness.machine.cgroup import cpu_quota, find_group, memory_limit, throttling
from harness.machine.files import ROOT, read_int

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class SystemCounters:
    """Reader of counters of the machine and of the run's control groups. Missing files are skipped."""

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
        """Return CPU seconds of all cores since boot (used, stolen by the hypervisor); None if not available."""
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
        """Return counts so far by (metric, unit): waits (accounting/psi.rst), and throttling by the CPU quota."""
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
    """Return the waiting time in us ("some ... total=12345"); None if pressure is switched off."""
    try:
        text = os.pread(descriptor, 256, 0)
    except OSError:
        return None
    return int(text[text.index(b"total=") + 6 :].split(None, 1)[0]) if text.startswith(b"some") else None


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MAX_SAMPLED_THREADS = 64  # maximum threads per process; with more, sums over threads are lower bounds
_STATUS_BYTES = 8192
_CPUCLOCK_SCHED = 2  # lower bits of a process's clock id, see clock_getcpuclockid(3); the upper bits are ~pid


class ProcessCounters:
    """Reader of one process's counters. :meth:`cpu_s` and :meth:`read` raise ``OSError`` once it has ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.missing: dict[str, str] = {}  # unreadable counters, and the reason
        self._clock = (~pid << 3) | _CPUCLOCK_SCHED
        self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._io = self._open("disk reads", f"/proc/{pid}/io")
        self._threads: dict[int, _Thread] = {}
        self._too_many = False
        # Delay in seconds, voluntary and involuntary switches, of the threads read so far.
        self._of_threads = [0.0, 0.0, 0.0]
        try:
            time.clock_gettime_ns(self._clock)
        except OSError:  # unsupported by the kernel
            self._clock = 0

    def cpu_s(self) -> float:
        """Return the CPU seconds of all threads of the process since its start, including ended threads."""
        if self._clock:
            return time.clock_gettime_ns(self._clock) / 1e9
        fields = self._stat_fields()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S  # utime, stime

    def read(self) -> tuple[dict[str, float], float]:
        """Return ({metric: count since the process started}, resident bytes). Sums over threads are lower bounds."""
        fields = self._stat_fields()  # counted after "comm)": majflt is 12 and rss is 24 in proc(5)
        counters = {"cpu_s": self.cpu_s(), "major_faults": float(fields[9])}
        if self._io is not None:
            # Bytes fetched from storage. Reads served by the page cache do not count.
            text = os.pread(self._io, 512, 0)
            counters["disk_read_bytes"] = float(text[text.index(b"\nread_bytes:") + 12 :].split(None, 1)[0])
        if self._read_threads():
            names = ("run_queue_delay_s", "voluntary_switches", "involuntary_switches")
            counters |= zip(names, self._of_threads, strict=True)
        return counters, float(fields[21]) * _PAGE_BYTES

    def pss_bytes(self) -> float | None:
        """Return the proportional set size in bytes, if readable. It takes milliseconds for gigabytes."""
        try:
            with open(f"/proc/{self.pid}/smaps_rollup", "rb") as file:
                text = file.read()
        except ProcessLookupError:  # the process has ended, but its parent has not waited for it yet
            return None
        except OSError as error:
            if Path(f"/proc/{self.pid}").exists():
                self.missing["PSS"] = f"/proc/PID/smaps_rollup: {error.strerror}"
            return None
        return float(text[text.index(b"\nPss:") + 5 :].split(None, 1)[0]) * 1024

    def close(self) -> None:
        for descriptor in (self._stat, self._io):
            if descriptor is not None:
                os.close(descriptor)
        for thread in self._threads.values():
            thread.close()

    def _stat_fields(self) -> list[bytes]:
        return os.pread(self._stat, 1024, 0).rpartition(b")")[2].split()

    def _read_threads(self) -> bool:
        """Add each thread's delay and switches since its last reading. Return False if they are not counted."""
        with os.scandir(f"/proc/{self.pid}/task") as tasks:
            tids = sorted(int(task.name) for task in tasks)
        self._too_many |= len(tids) > MAX_SAMPLED_THREADS
        for tid in tids[:MAX_SAMPLED_THREADS]:
            if tid not in self._threads:
                try:
                    self._threads[tid] = _Thread(self.pid, tid, from_birth=not self._too_many)
                except (OSError, ValueError):  # the thread has just ended, or this kernel does not count it
                    if tid == self.pid:
                        self.missing["run-queue delay and context switches"] = "/proc/PID/task/TID/schedstat, status"
                        return False
        for tid, thread in list(self._threads.items()):
            try:
                self._of_threads = [a + b for a, b in zip(self._of_threads, thread.advance(), strict=True)]
            except OSError:  # the thread has ended; its activity since the last reading is lost
                thread.close()
                del self._threads[tid]
        return True

    def _open(self, what: str, path: str) -> int | None:
        descriptor = None
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.pread(descriptor, 1, 0)  # the kernel checks permission on reading
        except OSError as error:
            self.missing[what] = f"{path.replace(str(self.pid), 'PID')}: {error.strerror}"
            if descriptor is not None:
                os.close(descriptor)
            return None
        return descriptor


class _Thread:
    """Reader of one thread's run-queue delay and switches. ``from_birth``: count from its start, because it is new."""

    def __init__(self, pid: int, tid: int, *, from_birth: bool) -> None:
        self._schedstat = os.open(f"/proc/{pid}/task/{tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._status = os.open(f"/proc/{pid}/task/{tid}/status", os.O_RDONLY | os.O_CLOEXEC)
        self._before = (0.0, 0, 0)
        now = self._read()
        if not from_birth:
            self._before = now

    def advance(self) -> tuple[float, int, int]:
        """Return (run-queue delay in seconds, voluntary switches, involuntary switches) since the last call."""
        now = self._read()
        before, self._before = self._before, now
        return now[0] - before[0], now[1] - before[1], now[2] - before[2]

    def close(self) -> None:
        os.close(self._schedstat)
        os.close(self._status)

    def _read(self) -> tuple[float, int, int]:
        delay_s = int(os.pread(self._schedstat, 96, 0).split()[1]) / 1e9
        status = os.pread(self._status, _STATUS_BYTES, 0)
        start = status.index(b"\nvoluntary_ctxt_switches:")
        fields = status[start:].split(None, 4)
        return delay_s, int(fields[1]), int(fields[3])
