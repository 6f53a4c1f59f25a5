"""Read and check the processor: CPUs, memory nodes, clock settings, clock source, and load by other processes.

Only the CPUs that this process may use count. CPU time is in ticks of 10 ms: 2 % of a core over half a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns

from harness.machine.cgroup import ControlGroup, CpuQuota, Throttling
from harness.machine.check import Check, count, ok, span, warn
from harness.machine.files import ROOT, parse_list, read_fields, read_int, read_text

_CPUS = "sys/devices/system/cpu"
BF16_FLAGS = {"amx_bf16", "avx512_bf16", "bf16", "svebf16"}  # x86 flags, and arm64 features


@dataclass(frozen=True)
class Processor:
    """The machine's processor and the CPUs that this process may use of it, read by :func:`read_processor`."""

    name: str
    virtual: bool  # True if a hypervisor is visible
    fast_bf16: bool | None  # True if it has bf16 instructions; None if the kernel lists no instruction sets.
    online: int
    allowed: tuple[int, ...]  # CPUs that this process may use (affinity, which a cpuset narrows)
    cores: int | None  # Physical cores among the allowed CPUs; None if the system does not report the topology.
    smt_active: bool | None
    numa_nodes: tuple[int, ...]  # NUMA nodes with allowed CPUs


@dataclass(frozen=True)
class Frequency:
    """Clock settings of the allowed CPUs, read by :func:`read_frequency`. None: not reported."""

    driver: str | None
    governors: tuple[str, ...]  # Distinct governors, sorted; () if the system reports none, as most virtual machines.
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
    """Return the NUMA nodes that have any of the CPUs ``allowed``."""
    folder = root / "sys/devices/system/node"
    nodes = parse_list(read_text(folder / "online"))
    return tuple(node for node in nodes if allowed & set(parse_list(read_text(folder / f"node{node}/cpulist"))))


_READINGS, _BATCHES = 2000, 5  # some milliseconds even if each reading is a system call


@dataclass(frozen=True)
class Clock:
    """The kernel's clock source, its alternatives, and the ns that one reading takes. Read by :func:`read_clock`."""

    source: str | None
    available: tuple[str, ...]
    read_ns: float  # Cost of ``time.monotonic_ns()`` from Python: the minimum over several batches.


def read_clock(root: Path = ROOT) -> Clock:
    folder = root / "sys/devices/system/clocksource/clocksource0"
    available = tuple((read_text(folder / "available_clocksource") or "").split())
    return Clock(read_text(folder / "current_clocksource"), available, min(_cost_ns() for _ in range(_BATCHES)))


def _cost_ns() -> float:
    read = time.monotonic_ns
    start = read()
    for _ in range(_READINGS):
        read()
    return (read() - start) / (_READINGS + 1)


LEAST_LOAD_S = 0.5
MOST_NAMED = 3
LEAST_NAMED = 0.05  # cores
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class LoadReading:
    """Counters in seconds at one moment, read by :func:`read_counters`. Two of them give the load."""

    t_s: float  # CLOCK_MONOTONIC
    busy_s: float  # CPU time of all processes on the allowed CPUs
    stolen_s: float  # Time in which the hypervisor ran another machine although these CPUs were ready to run
    own_s: float  # CPU time of this process and of its ended children
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
    """Read the counters of the CPUs ``allowed``, and the CPU time of all processes; None without /proc/stat."""
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


# Clocks with one rate that are read without a system call: the processor's counter, or the hypervisor's page.
GOOD_CLOCKS = {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase"}
SLOW_READING_NS = 500.0  # Two readings per span and tens of spans per step make their cost visible beyond this.
OTHER_CORES, OTHER_SHARE = 0.1, 0.02  # the report's own limit, or 2 % of the cores of a large machine
STOLEN_SHARE = 0.01
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_PROC_BIND", "KMP_AFFINITY", "GOMP_CPU_AFFINITY")


def check_cores(processor: Processor, cpuset: tuple[int, ...] = ()) -> Check:
    """Return the line on the CPUs that this process may use. ``cpuset``: CPUs that the control group allows, if any."""
    allowed = len(processor.allowed)
    topology = f", {count(processor.cores, 'physical core')}" if processor.cores is not None else ""
    smt = {True: ", SMT on", False: ", SMT off", None: ""}[processor.smt_active]
    machine = f"{processor.name}{' (virtual machine)' if processor.virtual else ''}"
    bf16 = "; no bf16 instructions" if processor.fast_bf16 is False else ""
    source = ""
    if allowed < processor.online:
        source = f" (by cpuset {span(cpuset)})" if set(cpuset) == set(processor.allowed) else " (by affinity)"
    finding = f"{allowed} of {count(processor.online, 'CPU')} allowed{source}{topology}{smt}; {machine}{bf16}"
    if allowed > 1:
        return ok("cores", finding)
    return warn("cores", f"{finding}: loader workers and the trainer share one CPU", "allow 2 CPUs or more")


def check_numa(processor: Processor) -> Check:
    nodes = processor.numa_nodes
    if len(nodes) <= 1:
        return ok("numa", f"node {span(nodes)}" if nodes else "not reported by this system")
    finding = f"the allowed CPUs lie on nodes {span(nodes)}: memory may be near in one run and far in the next"
    return warn("numa", finding, f"numactl --cpunodebind={nodes[0]} --membind={nodes[0]} harness run ...")


def check_quota(
    quota: CpuQuota | None, throttled: Throttling | None, group: ControlGroup | None, processor: Processor
) -> Check:
    if quota is None:
        return ok("quota", "no control groups here" if group is None else f"no CPU quota (cgroup v{group.version})")
    allowed = len(processor.allowed)
    limit = f"{quota.cores:.3g} cores per {quota.period_us / 1000:g} ms (cgroup v{quota.version})"
    finding = f"{limit} for {count(allowed, 'CPU')}"
    if throttled is not None:
        periods = f"{throttled.throttled_periods} of {throttled.periods} periods"
        finding += f", throttled in {periods}, {throttled.throttled_ns / 1e9:.1f} s"
    if quota.cores >= allowed:
        return ok("quota", finding)
    if quota.cores < 1:
        return warn("quota", finding, "a quota of at least one core, or none (docker run --cpus)")
    usable = int(quota.cores)
    fix = f"CPUs in place of the quota (docker run --cpuset-cpus={span(range(usable))}), or OMP_NUM_THREADS={usable}"
    return warn("quota", finding, fix)


def check_slurm(environ: Mapping[str, str], processor: Processor) -> Iterator[Check]:
    """Yield the line that compares the CPUs that Slurm granted to this task with those that it may use. Yields nothing
    outside of a Slurm job.
    """
    if "SLURM_JOB_ID" not in environ:
        return
    granted = environ.get("SLURM_CPUS_PER_TASK") or environ.get("SLURM_CPUS_ON_NODE") or ""
    allowed = len(processor.allowed)
    finding = f"in a job, {granted or 'an unknown number of'} CPUs for this task, {allowed} allowed"
    if granted.isdigit() and allowed < int(granted):
        fix = f"srun --cpus-per-task={granted} ... (since Slurm 22.05 srun does not inherit it from sbatch)"
        yield warn("slurm", finding, fix)
    elif granted.isdigit() and allowed > int(granted):
        fix = f"srun --cpus-per-task={granted} --cpu-bind=cores ... (this task is not bound to its CPUs)"
        yield warn("slurm", finding, fix)
    else:
        yield ok("slurm", finding)


def check_clock(clock: Clock) -> Check:
    finding = f"{clock.source or 'source not reported'}, read in {clock.read_ns:.0f} ns"
    is_good = clock.source is None or clock.source in GOOD_CLOCKS
    if is_good and clock.read_ns < SLOW_READING_NS:
        return ok("clock", finding)
    alternative = next((source for source in clock.available if source in GOOD_CLOCKS and source != clock.source), None)
    folder = "/sys/devices/system/clocksource/clocksource0"
    if not is_good and alternative is not None:
        fix = f"echo {alternative} | sudo tee {folder}/current_clocksource"
    else:
        fix = "boot with tsc=reliable if the processor's TSC is (dmesg | grep -i tsc says why it is not used)"
    return warn("clock", f"{finding}: each span costs two slow clock readings", fix)


def check_frequency(frequency: Frequency, processor: Processor) -> Check:
    turbo = {True: ", turbo on", False: ", turbo off", None: ""}[frequency.turbo]
    if not frequency.governors:
        explanation = "set by the host of this virtual machine" if processor.virtual else "not reported by this system"
        return ok("frequency", f"{explanation}{turbo}")
    finding = f"governor {', '.join(frequency.governors)} ({frequency.driver or 'driver not reported'}){turbo}"
    if frequency.governors == ("performance",):
        return ok("frequency", finding)
    fix = "sudo cpupower frequency-set -g performance (on the host, where this is a container)"
    return warn("frequency", f"{finding}: the clock follows the load, and differs between arms", fix)


def check_threads(threads: int, processor: Processor, quota: CpuQuota | None, environ: Mapping[str, str]) -> Check:
    """Return the line on ``threads``, torch's default number of threads. ``quota``: CPU quota, if any. It warns if
    there are more threads than usable CPUs, or only 1 thread for 4 or more.
    """
    allowed = len(processor.allowed)
    usable = max(min(allowed, int(quota.cores)), 1) if quota is not None else allowed
    named = [f"{name}={environ[name]}" for name in THREAD_VARIABLES if name in environ]
    settings = ", ".join(named) or "OMP_NUM_THREADS not set"
    finding = f"torch computes with {count(threads, 'thread')} on {count(usable, 'usable CPU')}; {settings}"
    if threads > usable:
        return warn("threads", f"{finding}: they compete for CPUs", f"export OMP_NUM_THREADS={usable}")
    if threads == 1 and usable >= 4:
        return warn("threads", finding, "unset OMP_NUM_THREADS MKL_NUM_THREADS, or set compute.threads in the scenario")
    return ok("threads", finding)


def check_load(load: Load | None, processor: Processor) -> Check:
    if load is None:
        return ok("load", "not reported by this system")
    cores = len(processor.allowed)
    busiest = ", ".join(f"{name} {taken:.2f}" for name, taken in load.busiest)
    finding = (
        f"others use {load.other_cores:.2f} of {count(cores, 'CPU')} over {load.elapsed_s:.1f} s"
        f"{f' ({busiest})' if busiest else ''}, the hypervisor takes {load.stolen_cores:.2f} CPUs (steal time)"
    )
    if load.other_cores > max(OTHER_CORES, OTHER_SHARE * cores):
        return warn("load", finding, "end them, or wait (top -o %CPU); reports show the load during each arm")
    if load.stolen_cores > STOLEN_SHARE * cores:
        return warn("load", finding, "use a machine with dedicated cores, or more blocks (--repeats)")
    return ok("load", finding)
