"""Check cores, quota, Slurm, clock source, frequency, NUMA, threads and other load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.machine.cgroup import ControlGroup, CpuQuota, Throttling
from harness.machine.checks.check import Check, count, ok, span, warn
from harness.machine.cpu import Clock, Frequency, Load, Processor
from harness.machine.software import BatchSystem
from trainer.errors import one_line

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
    return warn(
        "numa",
        f"the allowed CPUs lie on nodes {span(nodes)}: memory may be near in one run and far in the next",
        f"numactl --cpunodebind={nodes[0]} --membind={nodes[0]} harness run ...",
    )


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
    """Yield the line on the CPUs of a Slurm job: granted against allowed. Nothing outside of a job."""
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


def check_batch_system(found: BatchSystem) -> Check:
    """Return the line on whether ``launch.slurm`` can submit jobs from here. Missing commands are ok."""
    if found.missing:
        return ok("slurm jobs", f"no {', '.join(found.missing)} here: launch.slurm cannot submit, all else works")
    if found.problem is not None:
        fix = "where jobs are submitted (a login node); SLURM_CONF, if Slurm's configuration lies elsewhere"
        return warn("slurm jobs", f"sbatch is here, but no controller answers: {one_line(found.problem)}", fix)
    return ok("slurm jobs", f"sbatch is here; partitions: {', '.join(found.partitions) or 'none'}")


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
    return warn(
        "frequency",
        f"{finding}: the clock follows the load, and differs between arms",
        "sudo cpupower frequency-set -g performance (on the host, where this is a container)",
    )


def check_threads(threads: int, processor: Processor, quota: CpuQuota | None, environ: Mapping[str, str]) -> Check:
    """Return the line on torch's own number of threads. Warns if it exceeds the usable CPUs, or is 1 on many."""
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
