"""Limits, throttling and pressure from trees of files like those of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.probes.sampler.counters import SystemCounters
from harness.probes.sampler.host import HostCollector
from harness.probes.sampler.messages import SampleSeries, Unpacked

STAT = "cpu  1000 100 200 5000 50 10 20 30 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n"
MEMINFO = "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable:  600 kB\nBuffers: 5 kB\nCached:    300 kB\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def version_2(root: Path, throttled: int = 40) -> None:
    """A Slurm step: the quota is the job's, the process sits two levels below it."""
    write(
        root,
        {
            "proc/stat": STAT,
            "proc/meminfo": MEMINFO,
            "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=9000000\n",
            "proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 total=1\n",
            "proc/self/cgroup": "0::/slurm/job_7/step_0/task_0\n",
            "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/slurm/cpu.max": "max 100000\n",
            "sys/fs/cgroup/slurm/job_7/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/slurm/job_7/cpu.stat": (
                f"usage_usec 1\nnr_periods 100\nnr_throttled {throttled}\nthrottled_usec {throttled * 10_000}\n"
            ),
            "sys/fs/cgroup/slurm/job_7/memory.max": "8000000000\n",
            "sys/fs/cgroup/slurm/job_7/memory.current": "6000000000\n",
            "sys/fs/cgroup/slurm/job_7/step_0/cpu.max": "max 100000\n",
            "sys/fs/cgroup/slurm/job_7/step_0/memory.max": "max\n",
            "sys/fs/cgroup/slurm/job_7/step_0/task_0/cpu.max": "max 100000\n",
            "sys/fs/cgroup/slurm/job_7/step_0/task_0/memory.max": "max\n",
            "sys/fs/cgroup/slurm/job_7/step_0/task_0/cpu.pressure": "some avg10=1.00 total=7000000\nfull total=0\n",
        },
    )


def version_1(root: Path) -> None:
    """A container of old: one mount for each controller, the quota in two files, times in nanoseconds."""
    write(
        root,
        {
            "proc/stat": STAT,
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n",
            "proc/self/mountinfo": (
                "31 23 0:27 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
                "32 23 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
            ),
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.stat": "nr_periods 50\nnr_throttled 5\nthrottled_time 2000000000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "4000000000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "3900000000\n",
        },
    )


def test_a_quota_set_above_the_process_s_own_group_counts(tmp_path) -> None:
    version_2(tmp_path)
    system = SystemCounters(tmp_path)
    assert system.gauges() == {
        ("page_cache_bytes", "bytes"): 300 * 1024,
        ("available_memory_bytes", "bytes"): 600 * 1024,
        ("cgroup_quota_cores", "cores"): 1.5,
        ("cgroup_memory_limit_bytes", "bytes"): 8e9,
        ("cgroup_memory_bytes", "bytes"): 6e9,
    }
    assert system.counters() == {
        ("cpu_pressure_s", "s"): 7.0,  # the group's own: the machine's includes what others wait for
        ("io_pressure_s", "s"): 2.5,
        ("cgroup_periods", "periods"): 100,
        ("cgroup_throttled_periods", "periods"): 40,
        ("cgroup_throttled_s", "s"): 0.4,
    }


def test_version_1_says_the_same_in_other_files_and_units(tmp_path) -> None:
    version_1(tmp_path)
    system = SystemCounters(tmp_path)
    assert system.gauges()["cgroup_quota_cores", "cores"] == 2.0
    assert system.gauges()["cgroup_memory_bytes", "bytes"] == 3.9e9
    assert system.counters() == {
        ("cgroup_periods", "periods"): 50,
        ("cgroup_throttled_periods", "periods"): 5,
        ("cgroup_throttled_s", "s"): 2.0,
    }


def test_the_machine_s_cpu_is_all_that_was_not_idle_or_waiting_where_it_is_told(tmp_path) -> None:
    nothing = SystemCounters(tmp_path)
    assert (nothing.cpu(), nothing.gauges(), nothing.counters()) == (None, {}, {})
    version_2(tmp_path)
    assert SystemCounters(tmp_path).cpu() == (pytest.approx(13.30), pytest.approx(0.30))  # ticks of 10 ms
    for cut_short in ("", "cpu  1 2\n"):
        (tmp_path / "proc" / "stat").write_text(cut_short)
        assert SystemCounters(tmp_path).cpu() is None


def test_throttling_during_a_repetition_is_sampled_as_what_it_grew_by(tmp_path) -> None:
    version_2(tmp_path)
    series = SampleSeries()
    collector = HostCollector(series, tmp_path)
    collector.begin({})
    version_2(tmp_path, throttled=55)
    collector.read(last=True)
    unpacked = Unpacked()
    unpacked.add(*series.take())
    columns = unpacked.columns()
    found = dict(zip(columns["metric"], columns["value"], strict=True))
    assert found["cgroup_throttled_periods"] == 15
    assert found["cgroup_throttled_s"] == pytest.approx(0.15)
    assert found["cgroup_periods"] == 0
    assert found["cgroup_quota_cores"] == 1.5
