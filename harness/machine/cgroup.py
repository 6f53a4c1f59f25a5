"""Read the control-group limits on CPU, cores and memory of a process, in version 1, version 2 and hybrids.

A group's limit applies to everything below it, so the tightest limit between the process's group and the mount counts.
In a container the path ends at the mount; tighter limits outside are not visible there.

    /sys/fs/cgroup                      (mount)      cpu.max  max 100000
    /sys/fs/cgroup/slurm                             cpu.max  800000 100000   <- counts: 8 cores
    /sys/fs/cgroup/slurm/job_12         (process)    cpu.max  max 100000

See Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/, and Documentation/scheduler/sched-bwc.rst. Reading one file
costs about ten microseconds, so a sampler finds the groups once and then reads only their counters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.machine.files import ROOT, Mount, below, parse_list, read_fields, read_int, read_mounts, read_text, to_int

Controller = Literal["cpu", "cpuset", "memory", "pids"]
UNLIMITED_BYTES = 2**62  # version 1 writes "no limit" as the largest multiple of a page below 2^63


@dataclass(frozen=True)
class ControlGroup:
    """The control group of a process for one controller: the folder of its files, and the mount above it."""

    version: Literal[1, 2]
    folder: Path
    mount: Path

    def lineage(self) -> Iterator[Path]:
        """Yield the group's folder and each folder above it, up to and including the mount."""
        yield self.folder
        if self.folder != self.mount:
            for parent in self.folder.parents:
                yield parent
                if parent == self.mount:
                    return


@dataclass(frozen=True)
class CpuQuota:
    """CPU time that a control group may use: ``cores`` on average per period. A burst may use every core."""

    cores: float
    period_us: int
    folder: Path
    version: Literal[1, 2]  # Version of the group that sets the quota


@dataclass(frozen=True)
class Throttling:
    """Counts of a CPU quota's stops of a group, since the group was created."""

    periods: int
    throttled_periods: int
    throttled_ns: int


@dataclass(frozen=True)
class MemoryLimit:
    """The tightest memory limit above a process, and the memory used in the group that sets it."""

    limit_bytes: int
    used_bytes: int | None  # Page cache included
    reclaimable_bytes: int  # File pages not used recently, which the kernel drops when memory is needed
    oom_kills: int | None  # Processes that the kernel killed there for lack of memory since the group was created
    folder: Path
    version: Literal[1, 2]
    active_file_bytes: int = 0  # File pages used recently, which the kernel drops last

    @property
    def free_bytes(self) -> int | None:
        """Bytes that can still be allocated if reclaimable file pages count as free; None if unknown."""
        if self.used_bytes is None:
            return None
        return max(self.limit_bytes - self.used_bytes + self.reclaimable_bytes, 0)

    @property
    def most_free_bytes(self) -> int | None:
        """Bytes that could be allocated if the kernel dropped all file pages; None if the used memory is unknown."""
        return None if self.free_bytes is None else self.free_bytes + self.active_file_bytes


def find_group(controller: Controller, root: Path = ROOT) -> ControlGroup | None:
    """Return the control group of this process for ``controller``; None without control groups."""
    of_v1, of_v2 = _memberships(root)
    mounts = read_mounts(root)
    # A controller belongs to one version at a time. The other version then has no files for it.
    if controller in of_v1:
        candidates = [mount for mount in mounts if mount.kind == "cgroup" and controller in mount.options]
        return _group(1, of_v1[controller], candidates[-1], root) if candidates else None
    candidates = [mount for mount in mounts if mount.kind == "cgroup2"]
    return _group(2, of_v2, candidates[-1], root) if candidates and of_v2 is not None else None


def cpu_quota(group: ControlGroup | None) -> CpuQuota | None:
    """Return the tightest CPU quota from ``group`` (controller "cpu") up to the mount; None without one."""
    if group is None:
        return None
    read = _quota_v2 if group.version == 2 else _quota_v1
    quotas = [
        CpuQuota(quota_us / period_us, period_us, folder, group.version)
        for folder in group.lineage()
        for quota_us, period_us in read(folder)
    ]
    return min(quotas, key=lambda quota: quota.cores, default=None)


def throttling(folder: Path, version: Literal[1, 2]) -> Throttling | None:
    """Read how often the CPU quota stopped the group in ``folder``; None if the group does not count that."""
    fields = read_fields(folder / "cpu.stat")
    spent, unit_ns = (fields.get("throttled_usec"), 1000) if version == 2 else (fields.get("throttled_time"), 1)
    periods, throttled, time = to_int(fields.get("nr_periods")), to_int(fields.get("nr_throttled")), to_int(spent)
    if periods is None or throttled is None or time is None:
        return None
    return Throttling(periods, throttled, time * unit_ns)


def cpuset(group: ControlGroup | None) -> tuple[int, ...]:
    """Return the CPU numbers that ``group`` allows; () if no group lists any. ``group``: of the controller "cpuset"."""
    if group is None:
        return ()
    names = ("cpuset.cpus.effective",) if group.version == 2 else ("cpuset.effective_cpus", "cpuset.cpus")
    for folder in group.lineage():
        for name in names:
            if cpus := parse_list(read_text(folder / name)):
                return cpus
    return ()


def memory_limit(group: ControlGroup | None) -> MemoryLimit | None:
    """Return the tightest memory limit from ``group`` (controller "memory") up to the mount; None without one."""
    if group is None:
        return None
    name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
    limits = [(limit, folder) for folder in group.lineage() if (limit := read_int(folder / name)) is not None]
    limits = [(limit, folder) for limit, folder in limits if limit < UNLIMITED_BYTES]
    if not limits:
        return None
    limit, folder = min(limits, key=lambda item: item[0])
    v2 = group.version == 2
    pages = read_fields(folder / "memory.stat")
    inactive, active = (
        to_int(pages.get(f"{'' if v2 else 'total_'}{kind}_file")) or 0 for kind in ("inactive", "active")
    )
    kills = read_fields(folder / ("memory.events" if v2 else "memory.oom_control")).get("oom_kill")
    used = read_int(folder / ("memory.current" if v2 else "memory.usage_in_bytes"))
    return MemoryLimit(limit, used, inactive, to_int(kills), folder, group.version, active)


def _memberships(root: Path) -> tuple[dict[str, str], str | None]:
    """Return the group's path by controller (version 1) and its path in version 2, from /proc/self/cgroup."""
    of_v1: dict[str, str] = {}
    of_v2 = None
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        number, _, tail = line.partition(":")
        controllers, _, path = tail.partition(":")
        if number == "0" and not controllers:
            of_v2 = path
        else:
            of_v1 |= dict.fromkeys(controllers.split(","), path)
    return of_v1, of_v2


def _group(version: Literal[1, 2], path: str, mount: Mount, root: Path) -> ControlGroup:
    """Return the group at ``path`` below ``mount``; the mount itself if the path belongs to another namespace."""
    point = below(root, mount.point)
    relative = path.removeprefix(mount.root) if mount.root != "/" and Path(path).is_relative_to(mount.root) else path
    folder = point if ".." in Path(relative).parts else below(point, relative)
    return ControlGroup(version, folder if folder.is_dir() else point, point)


Quotas = Iterator[tuple[int, int]]


def _quota_v2(folder: Path) -> Quotas:
    """Yield (quota, period) in microseconds from cpu.max, such as "150000 100000"; nothing for "max 100000"."""
    quota, _, period = (read_text(folder / "cpu.max") or "").partition(" ")
    yield from _limited(to_int(quota), to_int(period))


def _quota_v1(folder: Path) -> Quotas:
    """Yield (quota, period) in microseconds from the two files of version 1; nothing for a quota of -1 (no limit)."""
    yield from _limited(read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us"))


def _limited(quota_us: int | None, period_us: int | None) -> Quotas:
    if quota_us is not None and period_us is not None and quota_us > 0 and period_us > 0:
        yield quota_us, period_us
