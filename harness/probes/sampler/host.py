"""Read the host's side of one run: CPU use and waits of its processes, CPU use of others, and limits.

A counter's sample is its growth, and ``interval_s`` (source "host") its time, so sum / sum of ``interval_s`` is the
mean rate of any set of samples. Sources: "host" (machine), "host:ROLE" (process).
"""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic_ns

from harness.machine.files import ROOT
from harness.probes.sampler.counters import ProcessCounters, SystemCounters
from harness.probes.sampler.messages import SampleSeries

# Minimum nanoseconds between two full readings, and their maximum share of the time: a run with hundreds of threads
# makes readings costly. PSS has the same limits, and is read between repetitions only.
FULL_NS = 1_000_000_000
FULL_SHARE = 0.002
PSS_NS = 5_000_000_000
PSS_SHARE = 0.01
OWN = "sampler"  # role of the sampling process
LEAST_SAMPLED_S = 0.5  # minimum seconds of running for a rate: a clock tick of the kernel (10 ms) is then 2 % of a core
LEAST_NS = 5_000_000  # minimum interval of a rate in nanoseconds

UNITS = {
    "cpu_s": "s",
    "run_queue_delay_s": "s",
    "major_faults": "faults",
    "disk_read_bytes": "bytes",
    "voluntary_switches": "switches",
    "involuntary_switches": "switches",
}
Counters = dict[tuple[str, str, str], float]  # keyed by source, metric and unit


class RepetitionLoad:
    """Mean number of cores in use during repetitions, by this run, by others, and stolen by the hypervisor, reported
    once the repetitions together last LEAST_SAMPLED_S seconds.
    """

    def __init__(self) -> None:
        self._before: tuple[float, float, float, float] | None = None
        self._sums = [0.0, 0.0, 0.0, 0.0]  # seconds: elapsed, CPU of this run, CPU of all processes, stolen

    def begin(self, now_ns: int, own_s: float, machine: tuple[float, float] | None) -> None:
        """Start a repetition. ``own_s``: CPU seconds of this run. ``machine``: since boot (used, stolen)."""
        self._before = None if machine is None else (now_ns / 1e9, own_s, *machine)

    def end(self, now_ns: int, own_s: float, machine: tuple[float, float] | None) -> list[tuple[str, float]]:
        """End a repetition. Return (metric, cores) of own, other and stolen CPU time; empty if not yet due."""
        if machine is None or self._before is None:
            return []
        now = (now_ns / 1e9, own_s, *machine)
        self._sums = [
            total + after - before for total, after, before in zip(self._sums, now, self._before, strict=True)
        ]
        self._before = None
        elapsed_s, own, busy, stolen = self._sums
        if elapsed_s < LEAST_SAMPLED_S:
            return []
        self._sums = [0.0, 0.0, 0.0, 0.0]
        return [
            ("own_cpu_cores", own / elapsed_s),
            ("other_cpu_cores", max(busy - own, 0.0) / elapsed_s),
            ("stolen_cpu_cores", stolen / elapsed_s),
        ]


class HostCollector:
    """Collector of one run's host side: CPU time at every deadline, all else about once a second."""

    source = "host"

    def __init__(self, series: SampleSeries, root: Path = ROOT) -> None:
        self.problems: list[str] = []
        self._series = series
        self._system = SystemCounters(root)
        self._load = RepetitionLoad()
        self._processes: dict[tuple[int, str], ProcessCounters] = {}
        self._cpu: dict[str, tuple[int, float]] = {}  # keyed by role: time, and CPU seconds at that time
        self._counters: Counters = {}
        self._counted_ns = 0
        self._full_due_ns = 0
        self._pss_due_ns = 0
        self._own_cpu: dict[int, float] = {}  # last known CPU seconds by process id, including ended processes
        self._resident_bytes = 0.0  # main process, at the last reading
        self._reported: set[str] = set()

    def begin(self, pids: dict[int, str]) -> None:
        self._find({os.getpid(): OWN} | pids)
        now = monotonic_ns()
        cpu = self._system.cpu()
        self._own_cpu = {}
        self._cpu = {role: (now, cpu_s) for role, cpu_s in self._read_cpu()}
        self._load.begin(now, sum(self._own_cpu.values()), cpu)
        self._counters, self._counted_ns = self._read_counters(now, cpu, sample=False), now
        self._full_due_ns = now + FULL_NS

    def read(self, *, last: bool) -> bool:
        now = monotonic_ns()
        cpu = self._system.cpu() if last or now >= self._full_due_ns else None
        for role, cpu_s in self._read_cpu():
            before_ns, before_s = self._cpu.setdefault(role, (now, cpu_s))
            if now - before_ns >= LEAST_NS:
                self._add(now, f"host:{role}", "cpu_cores", (cpu_s - before_s) * 1e9 / (now - before_ns), "cores")
                self._cpu[role] = (now, cpu_s)
        if last or now >= self._full_due_ns:
            self._read_all(now, cpu)
        if last:
            self._end(now, cpu)
        return True

    def end(self) -> None:
        """Do nothing: everything is reported at the end of each repetition."""

    def _read_all(self, now: int, cpu: tuple[float, float] | None) -> None:
        self._add(now, "host", "interval_s", (now - self._counted_ns) / 1e9, "s")
        counters = self._read_counters(now, cpu, sample=True)
        for key, value in counters.items():
            if key in self._counters:  # a new process has no interval yet
                self._add(now, *key[:2], value - self._counters[key], key[2])
        for (metric, unit), value in self._system.gauges().items():
            self._add(now, "host", metric, value, unit)
        self._counters, self._counted_ns = counters, now
        self._full_due_ns = now + max(FULL_NS, round((monotonic_ns() - now) / FULL_SHARE))

    def _end(self, now: int, cpu: tuple[float, float] | None) -> None:
        """Read what is only read after a repetition: shares of CPU time, and PSS, which is costly."""
        for metric, cores in self._load.end(now, sum(self._own_cpu.values()), cpu):
            self._add(now, "host", metric, cores, "cores")
            if metric == "own_cpu_cores":
                self._add(now, "host", "resident_bytes", self._resident_bytes, "bytes")
        if now >= self._pss_due_ns:
            start_ns = monotonic_ns()
            for (_, role), process in self._processes.items():
                if role != OWN and (pss := process.pss_bytes()) is not None:
                    self._add(now, f"host:{role}", "pss_bytes", pss, "bytes")
            self._pss_due_ns = start_ns + max(PSS_NS, round((monotonic_ns() - start_ns) / PSS_SHARE))
        for process in self._processes.values():
            self._report_missing(process)

    def _find(self, pids: dict[int, str]) -> None:
        """Start to read new processes, and stop reading ended ones. ``pids``: roles by process id."""
        for key in [key for key in self._processes if pids.get(key[0]) != key[1]]:
            self._processes.pop(key).close()
        for pid, role in pids.items():
            if (pid, role) not in self._processes:
                try:
                    self._processes[pid, role] = ProcessCounters(pid)
                except OSError:  # the process has just ended
                    continue

    def _read_cpu(self) -> list[tuple[str, float]]:
        readings = []
        for pid, role, process in self._alive():
            try:
                self._own_cpu[pid] = process.cpu_s()
            except OSError:
                self._processes.pop((pid, role)).close()
                continue
            readings.append((role, self._own_cpu[pid]))
        return readings

    def _read_counters(self, now: int, cpu: tuple[float, float] | None, *, sample: bool) -> Counters:
        counts: Counters = {("host", metric, unit): value for (metric, unit), value in self._system.counters().items()}
        if cpu is not None:
            counts["host", "others_cpu_s", "s"] = cpu[0] - sum(self._own_cpu.values())
            counts["host", "stolen_cpu_s", "s"] = cpu[1]
        for pid, role, process in self._alive():
            if role == OWN:  # the sampling process only records its cost
                counts[f"host:{role}", "cpu_s", "s"] = self._own_cpu[pid]
                continue
            try:
                counters, resident_bytes = process.read()
            except OSError:
                self._processes.pop((pid, role)).close()
                continue
            counts |= {(f"host:{role}", metric, UNITS[metric]): value for metric, value in counters.items()}
            if role == "main":
                self._resident_bytes = resident_bytes
            if sample:
                self._add(now, f"host:{role}", "resident_bytes", resident_bytes, "bytes")
        return counts

    def _alive(self) -> list[tuple[int, str, ProcessCounters]]:
        return [(pid, role, process) for (pid, role), process in self._processes.items()]

    def _report_missing(self, process: ProcessCounters) -> None:
        for name, reason in process.missing.items():
            if name not in self._reported:
                self._reported.add(name)
                self.problems.append(f"host: no {name} ({reason})")

    def _add(self, t_ns: int, source: str, metric: str, value: float, unit: str) -> None:
        self._series.add(t_ns, source, metric, value, unit)
