"""Sums up the host for each arm: its own processes' use of cores, disk and memory, its limits, and others' load.

Each sample of a counter is its growth over ``interval_s`` of measured steps, so every rate here is
sum of growth / sum of intervals, over all runs of an arm (docs of ``harness.probes.sampler.host``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from harness.explain.probes.samples import Split, mean, most, pooled, split, total
from harness.judge import policy
from harness.study.run_data import RunData

ROLES = ("main", "loaders", "ranks", "sampler")  # main and loaders: of rank 0, ranks: the others and their workers
HostFindingKind = Literal[
    "quota throttled", "threads over quota", "near the memory limit", "waited for memory", "waited for the disk",
    "waited for a core", "waited for the quota", "read from disk", "page faults", "other processes", "stolen cores",
    "missed readings",
]  # fmt: skip


@dataclass(frozen=True)
class HostFinding:
    """Something that held a run back, with the figure that shows it.

    ``value`` is a share of the time or of the quota's periods, a rate per second, cores, bytes or a count, as the kind
    says; ``limit`` what it is held against: the quota in cores, the memory limit, all readings, the most at a time.
    """

    kind: HostFindingKind
    value: float
    limit: float | None = None
    role: str = ""  # whose processes, where the finding is about those of one role


@dataclass(frozen=True)
class RoleLoad:
    """Processes of one role together; rates per second of measured steps. None: this kernel does not report it."""

    role: str
    processes: int
    cores: float
    delay: float | None  # seconds that threads were runnable without a core, per second; several threads add up
    resident_bytes: float | None  # the most at a time, of each, summed
    pss_bytes: float | None  # likewise, memory that is shared counted in parts
    disk_bytes_per_s: float | None  # fetched from storage: what the page cache had is not in it
    faults_per_s: float | None  # major page faults: waits for storage
    voluntary_per_s: float | None  # context switches: to wait for something
    involuntary_per_s: float | None  # because others were to run


@dataclass(frozen=True)
class HostLoad:
    """One arm's host, over the measured steps of all its runs."""

    arm: str
    seconds: float
    roles: list[RoleLoad]
    other_cores: float | None = None
    other_cores_max: float | None = None  # the most over half a second or longer
    stolen_cores: float | None = None
    page_cache_bytes: float | None = None  # of the machine, mean
    quota_cores: float | None = None
    throttled_share: float | None = None  # of the quota's periods in which anything ran
    memory_limit_bytes: float | None = None
    memory_bytes: float | None = None  # the most in use of that limit, page cache included
    pressure: dict[str, float] = field(default_factory=dict)  # share of the time that some process waited, by resource
    taken: int = 0
    missed: int = 0
    findings: tuple[HostFinding, ...] = ()


def host_load(arms: Mapping[str, Sequence[RunData]]) -> list[HostLoad]:
    """The host of each arm that was sampled, by all its finished runs; arms without samples are left out."""
    found = []
    for arm, runs in arms.items():
        finished = [run for run in runs if run.record.status == "done"]
        splits = [split(run.samples) for run in finished]
        seconds = total(splits, "host", "interval_s")
        if seconds:
            found.append(_arm(arm, finished, splits, seconds))
    return found


def _arm(arm: str, runs: Sequence[RunData], splits: Sequence[Split], seconds: float) -> HostLoad:
    def share(metric: str) -> float | None:
        grown = total(splits, "host", metric)
        return None if grown is None else grown / seconds

    sources = {source for one in splits for source, _ in one if source.startswith("host:")}
    by_role = {role: sorted(source for source in sources if _role(source) == role) for role in ROLES}
    periods = total(splits, "host", "cgroup_periods")
    throttled = total(splits, "host", "cgroup_throttled_periods")
    roles = [_of_role(role, names, splits, seconds) for role, names in by_role.items() if names]
    other_cores, most_others = _others(splits, share("others_cpu_s"), sum(role.cores for role in roles))
    load = HostLoad(
        arm=arm,
        seconds=seconds,
        roles=roles,
        other_cores=other_cores,
        other_cores_max=most_others,
        stolen_cores=share("stolen_cpu_s"),
        page_cache_bytes=mean(pooled(splits, "host", "page_cache_bytes")),
        quota_cores=mean(pooled(splits, "host", "cgroup_quota_cores")),
        throttled_share=None if throttled is None or not periods else throttled / periods,
        memory_limit_bytes=mean(pooled(splits, "host", "cgroup_memory_limit_bytes")),
        memory_bytes=most(pooled(splits, "host", "cgroup_memory_bytes")),
        pressure={
            resource: value
            for resource in ("cpu", "io", "memory")
            if (value := share(f"{resource}_pressure_s")) is not None
        },
        taken=_count((run.probes.taken_samples for run in runs), "host"),
        missed=_count((run.probes.missed_samples for run in runs), "host"),
    )
    threads = max(((run.record.facts.threads or 0) for run in runs), default=0)
    return replace(load, findings=tuple(_findings(load, threads)))


def _others(splits: Sequence[Split], cores: float | None, own_cores: float) -> tuple[float | None, float | None]:
    """(mean, most) cores that others used; None where the kernel does not count them.

    ``cores``: all that were used, less this run's: where that is below zero by more than a clock tick makes, the
    kernel did not count the rest.
    The most is over windows of ``OTHERS_WINDOW_S`` or more: the kernel counts others in ticks of 10 ms.
    """
    if cores is None or cores < -policy.UNCOUNTED_CPU_MAX * own_cores:
        return None, None
    most_cores = [most(pooled(splits, "host", "other_cpu_cores"))]  # over joined repetitions, >= 0.5 s
    for one in splits:
        if ("host", "others_cpu_s") in one and ("host", "interval_s") in one:
            used, interval_s = one["host", "others_cpu_s"].values, one["host", "interval_s"].values
            if len(used) == len(interval_s):
                long = interval_s >= policy.OTHERS_WINDOW_S
                most_cores.append(float((used[long] / interval_s[long]).max()) if long.any() else None)
    known = [value for value in most_cores if value is not None]
    return max(cores, 0.0), max(max(known), 0.0) if known else None


def _role(source: str) -> str:
    role = source.removeprefix("host:")
    if role.startswith("rank-"):
        return "ranks"
    return "loaders" if role.startswith("loader-") else role


def _of_role(role: str, sources: Sequence[str], splits: Sequence[Split], seconds: float) -> RoleLoad:
    def rate(metric: str) -> float | None:
        grown = [value for source in sources if (value := total(splits, source, metric)) is not None]
        return sum(grown) / seconds if grown else None

    def peak(metric: str) -> float | None:
        peaks = [value for source in sources if (value := most(pooled(splits, source, metric))) is not None]
        return sum(peaks) if peaks else None

    return RoleLoad(
        role=role,
        processes=len(sources),
        cores=rate("cpu_s") or 0.0,
        delay=rate("run_queue_delay_s"),
        resident_bytes=peak("resident_bytes"),
        pss_bytes=peak("pss_bytes"),
        disk_bytes_per_s=rate("disk_read_bytes"),
        faults_per_s=rate("major_faults"),
        voluntary_per_s=rate("voluntary_switches"),
        involuntary_per_s=rate("involuntary_switches"),
    )


def _count(by_run: Iterable[Mapping[str, int]], source: str) -> int:
    return sum(counts.get(source, 0) for counts in by_run)


def _findings(load: HostLoad, threads: int) -> Iterator[HostFinding]:
    """The gravest first."""
    yield from _limits(load, threads)
    held = (load.throttled_share or 0) > policy.QUOTA_THROTTLED_MIN
    for role in load.roles:
        if (role.delay or 0) > policy.CORE_DELAY_MIN:
            yield HostFinding("waited for the quota" if held else "waited for a core", role.delay or 0, role=role.role)
        if (role.disk_bytes_per_s or 0) > policy.DISK_BYTES_PER_S_MIN:
            yield HostFinding("read from disk", role.disk_bytes_per_s or 0, role=role.role)
        if (role.faults_per_s or 0) > policy.FAULTS_PER_S_MIN:
            yield HostFinding("page faults", role.faults_per_s or 0, role=role.role)
    if (load.other_cores or 0) > policy.OTHER_CORES_MAX:
        yield HostFinding("other processes", load.other_cores or 0, load.other_cores_max)
    if (load.stolen_cores or 0) > policy.OTHER_CORES_MAX:
        yield HostFinding("stolen cores", load.stolen_cores or 0)
    if load.missed > policy.READINGS_MISSED_MAX * (load.missed + load.taken):
        yield HostFinding("missed readings", load.missed, load.missed + load.taken)


def _limits(load: HostLoad, threads: int) -> Iterator[HostFinding]:
    quota, limit = load.quota_cores, load.memory_limit_bytes
    if quota is not None and (load.throttled_share or 0) > policy.QUOTA_THROTTLED_MIN:
        yield HostFinding("quota throttled", load.throttled_share or 0, quota)
    if quota is not None and threads > quota:
        yield HostFinding("threads over quota", threads, quota)
    if limit and (load.memory_bytes or 0) > policy.MEMORY_LIMIT_NEAR * limit:
        yield HostFinding("near the memory limit", load.memory_bytes or 0, limit)
    if load.pressure.get("memory", 0) > policy.MEMORY_PRESSURE_MIN:
        yield HostFinding("waited for memory", load.pressure["memory"])
    if load.pressure.get("io", 0) > policy.DISK_PRESSURE_MIN:
        yield HostFinding("waited for the disk", load.pressure["io"])
