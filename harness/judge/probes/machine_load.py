"""Summarize, for each arm, the counters of its NVIDIA cards and its use of the host.

Every rate is the sum of growth / sum of ``interval_s`` (``harness.probes.sampler.host``) over all runs of an arm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from harness.explain.probes.samples import Array, Split, mean, most, pooled, split, total
from harness.explain.spans import column
from harness.judge import policy
from harness.judge.confounds import Confound
from harness.study.run_data import RunData

if TYPE_CHECKING:
    import pyarrow as pa

# NVML_CLOCKS_EVENT_REASON_* that slow down a busy card, by bit. Idle (1), application clocks (2), sync boost (0x10) and
# display clocks (0x100) are settings, not events.
REASONS = {
    0x4: "its power limit",
    0x8: "a hardware slowdown",
    0x20: "its temperature (software)",
    0x40: "its temperature (hardware)",
    0x80: "an external power brake",
}
IDLE = 0x1
DeviceFindingKind = Literal["clock fell", "slowed down", "other processes", "missed readings"]


@dataclass(frozen=True)
class DeviceFinding:
    """Event that slowed an NVIDIA card, or a problem of its readings, with its figures by kind: "clock fell": from
    ``value`` to ``other`` MHz. "slowed down": by ``reason`` in the share ``value`` of the samples. "other processes":
    ``value`` processes that hold ``other`` bytes. "missed readings": ``value`` of ``other``."""

    kind: DeviceFindingKind
    value: float
    other: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class DeviceHealth:
    """Counters of one NVIDIA card during the measured steps of one arm: means over samples. None: not recorded."""

    arm: str
    device: int  # CUDA device number
    utilisation: float | None  # fraction, as the following fields up to dram_active
    sm_active: float | None
    tensor_active: float | None
    dram_active: float | None
    power_w: float | None
    energy_j: float | None  # over all measured steps
    joules_per_token: float | None  # unset also for a card that the run did not compute on
    joules_per_trained_token: float | None
    sm_clock_mhz: float | None
    sm_clock_min_mhz: float | None
    memory_clock_mhz: float | None
    temperature_max_c: float | None
    memory_used_bytes: float | None  # maximum
    memory_total_bytes: float | None
    traffic: dict[str, float] = field(default_factory=dict)  # bytes per second by link and direction: pcie_rx, ...
    throttled: dict[str, float] | None = None  # share of the samples by reason, most common first
    other_processes: float | None = None  # maximum at a time
    other_memory_bytes: float | None = None
    taken: int = 0
    missed: int = 0
    findings: tuple[DeviceFinding, ...] = ()


def device_health(arms: Mapping[str, Sequence[RunData]]) -> list[DeviceHealth]:
    """Return the health of each sampled NVIDIA card of each arm, over its finished runs."""
    health_list = []
    for arm, runs in arms.items():
        finished = [run for run in runs if run.record.status == "done"]
        splits = [split(run.samples) for run in finished]
        sources = {source for run_split in splits for source, _ in run_split if source.startswith("nvml:")}
        for device in sorted(int(source.removeprefix("nvml:")) for source in sources):
            health_list.append(_device(arm, device, finished, splits))
    return health_list


def differences(devices: Sequence[DeviceHealth], baseline: str, candidate: str) -> list[Confound]:
    """Return undeclared differences between the cards of two arms: clocks, throttling, work of other processes."""
    confounds = []
    names = (baseline, candidate)
    for base_health in (health for health in devices if health.arm == baseline):
        counterpart = next(
            (health for health in devices if (health.arm, health.device) == (candidate, base_health.device)), None
        )
        if counterpart is None:
            continue
        clocks = base_health.sm_clock_mhz, counterpart.sm_clock_mhz
        if clocks[0] and clocks[1] and abs(clocks[1] - clocks[0]) > policy.SM_CLOCKS_WITHIN * max(clocks[0], clocks[1]):
            confounds.append(Confound("SM clock", names, values=clocks, device=base_health.device))
        recorded = [health.throttled for health in (base_health, counterpart) if health.throttled is not None]
        for reason in sorted(set().union(*recorded)) if len(recorded) == 2 else ():
            shares = recorded[0].get(reason, 0.0), recorded[1].get(reason, 0.0)
            if abs(shares[1] - shares[0]) > policy.THROTTLED_APART_MAX:
                confounds.append(Confound("throttled", names, reason, shares, device=base_health.device))
        if base_health.other_processes or counterpart.other_processes:
            confounds.append(Confound("other processes", names, device=base_health.device))
    return confounds


def _device(arm: str, device: int, runs: Sequence[RunData], splits: Sequence[Split]) -> DeviceHealth:
    source = f"nvml:{device}"

    def average(metric: str, factor: float = 1.0) -> float | None:
        value = mean(pooled(splits, source, metric))
        return None if value is None else value * factor

    def largest(metric: str) -> float | None:
        return most(pooled(splits, source, metric))

    clocks = pooled(splits, source, "sm_clock_mhz")
    links = [f"{link}_{way}" for link in ("pcie", "nvlink", "c2c") for way in ("rx", "tx")]
    per_token, per_trained = _per_token(device, runs, splits)
    health = DeviceHealth(
        arm=arm,
        device=device,
        utilisation=average("utilisation_percent", 0.01),
        sm_active=average("sm_active_percent", 0.01),
        tensor_active=average("tensor_active_percent", 0.01),
        dram_active=average("dram_active_percent", 0.01),
        power_w=average("power_w"),
        energy_j=total(splits, source, "energy_j"),
        joules_per_token=per_token,
        joules_per_trained_token=per_trained,
        sm_clock_mhz=mean(clocks),
        sm_clock_min_mhz=float(clocks.min()) if clocks.size else None,
        memory_clock_mhz=average("memory_clock_mhz"),
        temperature_max_c=largest("temperature_c"),
        memory_used_bytes=largest("memory_used_bytes"),
        memory_total_bytes=largest("memory_total_bytes"),
        traffic={link: value for link in links if (value := average(f"{link}_bytes_per_s")) is not None},
        throttled=throttled(pooled(splits, source, "throttle_reasons")),
        other_processes=largest("other_processes"),
        other_memory_bytes=largest("other_memory_bytes"),
        taken=sum(run.probes.taken_samples.get("nvml", 0) for run in runs),
        missed=sum(run.probes.missed_samples.get("nvml", 0) for run in runs),
    )
    falls = [
        fall
        for run_split in splits
        if (source, "sm_clock_mhz") in run_split and (fall := _fall(run_split, source)) is not None
    ]
    fall = max(falls, key=lambda fall: fall[0] - fall[1], default=None)
    return replace(health, findings=tuple(_device_findings(health, fall)))


def _per_token(device: int, runs: Sequence[RunData], splits: Sequence[Split]) -> tuple[float | None, float | None]:
    """Return joules per token and per trained token over runs on this card; None without energy or tokens."""
    joules, tokens, trained = 0.0, 0.0, 0.0
    for run, run_split in zip(runs, splits, strict=True):
        facts, energy = run.record.facts, run_split.get((f"nvml:{device}", "energy_j"))
        computed = (
            facts.asynchronous
            and not facts.emulated
            and device < (1 if facts.device_count is None else facts.device_count)
        )
        if energy is None or not computed:
            continue
        steps = run.step_columns(["turn", "start_ns", "warmup", "tokens", "trained_tokens"])
        if steps is None:
            continue
        # A lost card has no energy readings in later repetitions, so their tokens do not count either.
        rows, readings = _fully_read(steps, energy.t_ns)
        measured = np.not_equal(column(steps, "warmup"), 1) & rows
        joules += float(energy.values[readings].sum())
        tokens += float(column(steps, "tokens")[measured].sum())
        trained += float(column(steps, "trained_tokens")[measured].sum())
    return (joules / tokens if tokens > 0 else None, joules / trained if trained > 0 else None)


def _fully_read(steps: pa.Table, t_ns: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return (mask of steps, mask of energy readings) for repetitions that have a reading after their last step began.

    ``t_ns``: times of the readings (CLOCK_MONOTONIC)."""
    repetitions, start = column(steps, "turn"), column(steps, "start_ns")
    begins = sorted(
        (start[repetitions == number].min(), start[repetitions == number].max(), number)
        for number in np.unique(repetitions)
    )
    rows, readings = np.zeros(len(repetitions), dtype=np.bool_), np.zeros(len(t_ns), dtype=np.bool_)
    for (begin, last_step, number), following in zip(begins, [*[b for b, _, _ in begins[1:]], np.inf], strict=True):
        in_range = (t_ns > begin) & (t_ns < following)
        if (t_ns[in_range] > last_step).any():
            rows |= repetitions == number
            readings |= in_range
    return rows, readings


def throttled(reasons: Array) -> dict[str, float] | None:
    """Return the share of samples by throttling reason (NVML's bit mask), most common first; None if not recorded."""
    if not reasons.size:
        return None
    bits = reasons.astype(np.int64)
    shares = {reason: float(((bits & bit) != 0).mean()) for bit, reason in REASONS.items()}
    return dict(sorted(((reason, share) for reason, share in shares.items() if share), key=lambda item: -item[1]))


def clock_fall(t_ns: Array, mhz: Array) -> tuple[float, float] | None:
    """Return (from, to) in MHz of the largest fall between median clocks of equal parts of a run; None if small."""
    parts = [
        float(np.median(part))
        for part in np.array_split(mhz[np.argsort(t_ns, kind="stable")], policy.CLOCK_PARTS)
        if part.size
    ]
    falls = [(parts[i], parts[j]) for i in range(len(parts)) for j in range(i + 1, len(parts))]
    start_mhz, end_mhz = max(falls, key=lambda pair: pair[0] - pair[1], default=(0.0, 0.0))
    return (start_mhz, end_mhz) if start_mhz - end_mhz > policy.CLOCK_FALL_MIN * start_mhz else None


def _fall(one: Split, source: str) -> tuple[float, float] | None:
    """Return :func:`clock_fall`, or None, of one card's samples with work: an idle card lowers its clock."""
    clocks, reasons = one[source, "sm_clock_mhz"], one.get((source, "throttle_reasons"))
    busy = np.ones(len(clocks.values), dtype=bool)
    if reasons is not None and len(reasons.values) == len(busy):
        busy = (reasons.values.astype(np.int64) & IDLE) == 0
    return clock_fall(clocks.t_ns[busy].astype(np.float64), clocks.values[busy])


def _device_findings(health: DeviceHealth, fall: tuple[float, float] | None) -> Iterator[DeviceFinding]:
    if fall is not None:
        yield DeviceFinding("clock fell", *fall)
    for reason, share in (health.throttled or {}).items():
        if share > policy.GPU_THROTTLED_MIN:
            yield DeviceFinding("slowed down", share, reason=reason)
    if health.other_processes:
        yield DeviceFinding("other processes", health.other_processes, health.other_memory_bytes or 0.0)
    if health.missed > policy.READINGS_MISSED_MAX * (health.missed + health.taken):
        yield DeviceFinding("missed readings", health.missed, health.missed + health.taken)


ROLES = ("main", "loaders", "ranks", "sampler")  # main and loaders: of rank 0; ranks: the others and their workers
HostFindingKind = Literal[
    "quota throttled", "threads over quota", "near the memory limit", "waited for memory", "waited for the disk",
    "waited for a core", "waited for the quota", "read from disk", "page faults", "other processes", "stolen cores",
    "missed readings",
]  # fmt: skip


@dataclass(frozen=True)
class HostFinding:
    """Event that slowed a run on its host, with one figure; ``kind`` decides its unit."""

    kind: HostFindingKind
    value: float  # share of time or quota periods, rate per second, cores, bytes, or count
    limit: float | None = None  # quota in cores, memory limit, all readings, or the maximum
    role: str = ""  # role of the affected processes, if only one role is affected


@dataclass(frozen=True)
class RoleLoad:
    """Load by all processes of one role (such as "loaders") in an arm's runs; rates per second of the measured steps.

    None: the kernel does not report this figure."""

    role: str
    processes: int
    cores: float
    delay: float | None  # seconds that threads were runnable without a core, per second, summed over threads
    resident_bytes: float | None  # maximum of each process, summed
    pss_bytes: float | None  # maximum of each process, summed; shared memory counted in parts
    disk_bytes_per_s: float | None  # fetched from storage, without page cache hits
    faults_per_s: float | None  # major page faults: waits for storage
    voluntary_per_s: float | None  # context switches to wait
    involuntary_per_s: float | None  # context switches forced by the scheduler


@dataclass(frozen=True)
class HostLoad:
    """Use of the host by the runs of one arm and by other processes, over the measured steps of all its runs."""

    arm: str
    seconds: float
    roles: list[RoleLoad]
    other_cores: float | None = None
    other_cores_max: float | None = None  # maximum over half a second or longer
    stolen_cores: float | None = None
    page_cache_bytes: float | None = None  # mean over samples, of the whole machine
    quota_cores: float | None = None
    throttled_share: float | None = None  # share of the quota's active periods
    memory_limit_bytes: float | None = None
    memory_bytes: float | None = None  # maximum use of that limit, page cache included
    pressure: dict[str, float] = field(default_factory=dict)  # share of the time that some process waited, by resource
    taken: int = 0
    missed: int = 0
    findings: tuple[HostFinding, ...] = ()


def host_load(arms: Mapping[str, Sequence[RunData]]) -> list[HostLoad]:
    """Return the host load of each sampled arm, over all its finished runs; arms without samples are left out."""
    loads = []
    for arm, runs in arms.items():
        finished = [run for run in runs if run.record.status == "done"]
        splits = [split(run.samples) for run in finished]
        seconds = total(splits, "host", "interval_s")
        if seconds:
            loads.append(_arm(arm, finished, splits, seconds))
    return loads


def _arm(arm: str, runs: Sequence[RunData], splits: Sequence[Split], seconds: float) -> HostLoad:
    def share(metric: str) -> float | None:
        grown = total(splits, "host", metric)
        return None if grown is None else grown / seconds

    sources = {source for run_split in splits for source, _ in run_split if source.startswith("host:")}
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
    return replace(load, findings=tuple(_host_findings(load, threads)))


def _others(splits: Sequence[Split], cores: float | None, own_cores: float) -> tuple[float | None, float | None]:
    """Return (mean, maximum) cores used by other processes; None if the kernel does not count them. ``cores``: all used
    cores minus this run's, clearly negative if the kernel did not count all processes. Maximum: over windows of at
    least ``OTHERS_WINDOW_S``, because the kernel counts in ticks of 10 ms."""
    if cores is None or cores < -policy.UNCOUNTED_CPU_MAX * own_cores:
        return None, None
    most_cores = [most(pooled(splits, "host", "other_cpu_cores"))]  # over joined repetitions, at least 0.5 s
    for run_split in splits:
        if ("host", "others_cpu_s") in run_split and ("host", "interval_s") in run_split:
            used, interval_s = run_split["host", "others_cpu_s"].values, run_split["host", "interval_s"].values
            if len(used) == len(interval_s):
                long = interval_s >= policy.OTHERS_WINDOW_S
                most_cores.append(float((used[long] / interval_s[long]).max()) if long.any() else None)
    peaks = [value for value in most_cores if value is not None]
    return max(cores, 0.0), max(max(peaks), 0.0) if peaks else None


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


def _host_findings(load: HostLoad, threads: int) -> Iterator[HostFinding]:
    """Yield the findings about one arm's host, most severe first. ``threads``: compute threads of the main process."""
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
