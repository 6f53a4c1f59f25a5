"""Limits of control groups, as each version and container shows them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.machine.cgroup import MemoryLimit, Throttling, cpu_quota, cpuset, find_group, memory_limit, throttling
from tests.harness.machine.tree import mount_line, plant, v1, v2

CPU_STAT_V2 = "usage_usec 90\nuser_usec 60\nnr_periods 40\nnr_throttled 7\nthrottled_usec 1500"
CPU_STAT_V1 = "nr_periods 40\nnr_throttled 7\nthrottled_time 1500000"


def test_v2_quota_of_the_process(tmp_path: Path) -> None:
    plant(tmp_path, v2("/job", {"job/cpu.max": "150000 100000", "job/cpu.stat": CPU_STAT_V2}))
    group = find_group("cpu", tmp_path)
    quota = cpu_quota(group)
    assert (quota.cores, quota.period_us, quota.version) == (1.5, 100_000, 2)
    assert quota.folder == group.folder == tmp_path / "sys/fs/cgroup/job"
    assert throttling(quota.folder, quota.version) == Throttling(40, 7, 1_500_000)


def test_v1_quota_of_the_process(tmp_path: Path) -> None:
    folder = "cpu,cpuacct/job"
    files = {f"{folder}/cpu.cfs_quota_us": "50000", f"{folder}/cpu.cfs_period_us": "20000"}
    plant(tmp_path, v1("/job", {**files, f"{folder}/cpu.stat": CPU_STAT_V1}))
    quota = cpu_quota(find_group("cpu", tmp_path))
    assert (quota.cores, quota.period_us, quota.version) == (2.5, 20_000, 1)
    assert throttling(quota.folder, quota.version) == Throttling(40, 7, 1_500_000)


@pytest.mark.parametrize("files", [
    v2("/", {}),
    v2("/job", {"job/cpu.max": "max 100000"}),
    v2("/gone", {"cpu.max": "max 100000"}),
    v1("/job", {"cpu,cpuacct/job/cpu.cfs_quota_us": "-1", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"}),
    v1("/job", {}),
    v2("/job", {"job/cpu.max": "nonsense"}),
    v2("/job", {"job/cpu.max": ""}),
])  # fmt: skip
def test_no_quota(tmp_path: Path, files: dict[str, str]) -> None:
    assert cpu_quota(find_group("cpu", plant(tmp_path, files))) is None


def test_no_control_groups_at_all(tmp_path: Path) -> None:
    assert find_group("cpu", tmp_path) is None
    assert (cpu_quota(None), memory_limit(None), cpuset(None)) == (None, None, ())
    assert throttling(tmp_path, 2) is None
    plant(tmp_path, {"proc/self/cgroup": "0::/job"})  # but nothing is mounted
    assert find_group("cpu", tmp_path) is None


def test_a_container_without_a_namespace_of_its_own(tmp_path: Path) -> None:
    """The process's path is the host's; of the tree only the part from it down is mounted."""
    plant(tmp_path, v2("/docker/12ab", {"cpu.max": "200000 100000"}, mounted="/docker/12ab"))
    quota = cpu_quota(find_group("cpu", tmp_path))
    assert quota.cores == 2


def test_a_process_outside_its_namespace(tmp_path: Path) -> None:
    plant(tmp_path, v2("/../other", {"cpu.max": "300000 100000"}))
    group = find_group("cpu", tmp_path)
    assert list(group.lineage()) == [tmp_path / "sys/fs/cgroup"]


def test_a_mount_point_with_a_blank(tmp_path: Path) -> None:
    line = mount_line("/my\\040groups", "cgroup2")
    plant(tmp_path, {"proc/self/cgroup": "0::/", "proc/self/mountinfo": line, "my groups/cpu.max": "100000 100000"})
    quota = cpu_quota(find_group("cpu", tmp_path))
    assert quota.cores == 1


def test_v2_memory(tmp_path: Path) -> None:
    files = {
        "job/memory.max": str(2**30),
        "job/memory.current": str(900 * 2**20),
        "job/memory.stat": f"anon 1\ninactive_file {300 * 2**20}\nactive_file {50 * 2**20}",
        "job/memory.events": "low 0\noom 3\noom_kill 2",
        "job/step/memory.max": "max",
    }
    plant(tmp_path, v2("/job/step", files))
    limit = memory_limit(find_group("memory", tmp_path))
    folder = tmp_path / "sys/fs/cgroup/job"
    assert limit == MemoryLimit(2**30, 900 * 2**20, 300 * 2**20, 2, folder, 2, 50 * 2**20)
    assert limit.free_bytes == (1024 - 900 + 300) * 2**20
    assert limit.most_free_bytes == (1024 - 900 + 300 + 50) * 2**20


def test_v1_memory(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712",  # none
        "memory/job/memory.limit_in_bytes": str(2**31),
        "memory/job/memory.usage_in_bytes": str(2**30),
        "memory/job/memory.stat": "inactive_file 5\ntotal_inactive_file 4096\nactive_file 7\ntotal_active_file 8192",
        "memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1",
    }
    plant(tmp_path, v1("/job", files))
    limit = memory_limit(find_group("memory", tmp_path))
    assert (limit.limit_bytes, limit.used_bytes, limit.oom_kills) == (2**31, 2**30, 1)
    assert limit.free_bytes == 2**30 + 4096
    assert limit.most_free_bytes == 2**30 + 4096 + 8192


def test_no_memory_limit(tmp_path: Path) -> None:
    plant(tmp_path, v1("/", {"memory/memory.limit_in_bytes": "9223372036854771712"}))
    assert memory_limit(find_group("memory", tmp_path)) is None


def test_memory_whose_use_is_not_told(tmp_path: Path) -> None:
    plant(tmp_path, v2("/job", {"job/memory.max": "4096"}))
    limit = memory_limit(find_group("memory", tmp_path))
    assert limit.free_bytes is None
    assert limit.most_free_bytes is None


def test_cpusets(tmp_path: Path) -> None:
    plant(tmp_path / "2", v2("/job/step", {"job/cpuset.cpus.effective": "0-2,8", "job/step/cgroup.procs": "1"}))
    plant(tmp_path / "1", v1("/job", {"cpuset/job/cpuset.cpus": "4-5"}))
    assert cpuset(find_group("cpuset", tmp_path / "2")) == (0, 1, 2, 8)
    assert cpuset(find_group("cpuset", tmp_path / "1")) == (4, 5)


quotas = st.one_of(st.none(), st.integers(1000, 10**8))


@given(st.lists(st.tuples(quotas, st.integers(1000, 10**6)), min_size=1, max_size=5), st.booleans())
def test_the_tightest_on_the_way_up_counts(levels: list[tuple[int | None, int]], new: bool) -> None:
    files = {}
    for depth, (quota, period) in enumerate(levels, 1):
        folder = "/".join(f"level{number}" for number in range(1, depth + 1))
        if new:
            files[f"{folder}/cpu.max"] = f"{'max' if quota is None else quota} {period}"
        else:
            files[f"cpu,cpuacct/{folder}/cpu.cfs_quota_us"] = str(-1 if quota is None else quota)
            files[f"cpu,cpuacct/{folder}/cpu.cfs_period_us"] = str(period)
    process = "/" + "/".join(f"level{number}" for number in range(1, len(levels) + 1))
    with tempfile.TemporaryDirectory() as folder:
        root = plant(Path(folder), (v2 if new else v1)(process, files))
        found = cpu_quota(find_group("cpu", root))
    ratios = [quota / period for quota, period in levels if quota is not None]
    assert (found.cores if found is not None else None) == min(ratios, default=None)


def test_this_machine_is_read_without_an_error() -> None:
    group = find_group("cpu")
    quota = cpu_quota(group)
    assert quota is None or quota.cores > 0
    limit = memory_limit(find_group("memory"))
    assert limit is None or limit.limit_bytes > 0
