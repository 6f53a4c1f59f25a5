"""Cores, clock, frequency, NUMA, threads, Slurm and load, from fixture trees to lines."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from harness.machine.cgroup import Throttling, cpu_quota, find_group
from harness.machine.cpu import (
    Clock,
    Load,
    LoadReading,
    Processor,
    check_clock,
    check_cores,
    check_frequency,
    check_load,
    check_numa,
    check_quota,
    check_slurm,
    check_threads,
    load_between,
    read_clock,
    read_counters,
    read_frequency,
    read_processor,
)
from harness.machine.software import BatchSystem, check_batch_system
from tests.harness.machine.tree import plant, v1, v2

CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"
CLOCKS = "sys/devices/system/clocksource/clocksource0"


def machine(root: Path, allowed: str = "0-3", online: str = "0-7", **more: str) -> Path:
    """Four cores with two CPUs each (0 and 4 are one core), two nodes."""
    files = {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: A Chip\nflags\t\t: fpu avx2 avx512_bf16\n",
        "proc/self/status": f"Name:\tharness\nCpus_allowed_list:\t{allowed}",
        f"{CPUS}/online": online,
        f"{CPUS}/smt/active": "1",
        f"{NODES}/online": "0-2",
        f"{NODES}/node0/cpulist": "0-1,4-5",
        f"{NODES}/node1/cpulist": "2-3,6-7",
        f"{NODES}/node2/cpulist": "",  # a GPU's memory
    }
    files |= {f"{CPUS}/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    return plant(root, files | more)


def processor(cpus: int) -> Processor:
    return Processor("A Chip", False, True, cpus, tuple(range(cpus)), cpus, False, (0,))


def test_topology(tmp_path: Path) -> None:
    found = read_processor(machine(tmp_path, allowed="0-1,4-5"))
    assert found == Processor("A Chip", False, True, 8, (0, 1, 4, 5), 2, True, (0,))
    line = check_cores(found)
    assert (line.status, line.finding) == ("ok", "4 of 8 CPUs allowed (by affinity), 2 physical cores, SMT on; A Chip")
    assert "(by cpuset 0-1,4-5)" in check_cores(found, (0, 1, 4, 5)).finding
    assert check_numa(found).finding == "node 0"


def test_allowed_on_both_nodes(tmp_path: Path) -> None:
    line = check_numa(read_processor(machine(tmp_path, allowed="0-7")))
    assert line.status == "warn"
    assert "nodes 0-1" in line.finding
    assert line.fix == "numactl --cpunodebind=0 --membind=0 harness run ..."


def test_one_cpu_and_no_bf16(tmp_path: Path) -> None:
    info = "model name : Old\nflags : fpu hypervisor"
    line = check_cores(read_processor(machine(tmp_path, allowed="2", **{"proc/cpuinfo": info})))
    assert line.status == "warn"
    assert line.finding.startswith(
        "1 of 8 CPUs allowed (by affinity), 1 physical core, SMT on; Old (virtual machine); no bf16"
    )


def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    found = read_processor(tmp_path)
    assert found.online == len(found.allowed) == os.cpu_count()
    assert (found.cores, found.smt_active, found.fast_bf16, found.numa_nodes) == (None, None, None, ())
    assert check_numa(found).status == "ok"
    assert check_frequency(read_frequency(found.allowed, tmp_path), found).status == "ok"
    clock = read_clock(tmp_path)
    assert (clock.source, clock.available) == (None, ())
    assert read_counters(found.allowed, tmp_path) is None
    assert check_load(None, found).finding == "not reported by this system"


@pytest.mark.parametrize(("governors", "driver", "boost", "status", "finding"), [
    (("performance",) * 4, "acpi-cpufreq", "1", "ok", "governor performance (acpi-cpufreq), turbo on"),
    (("powersave",) * 4, "intel_pstate", None, "warn", "governor powersave (intel_pstate): "),
    (("performance", "ondemand") * 2, "acpi-cpufreq", "0", "warn", "governor ondemand, performance"),
])  # fmt: skip
def test_governors(
    tmp_path: Path, governors: tuple[str, ...], driver: str, boost: str | None, status: str, finding: str
) -> None:
    files = {f"{CPUS}/cpu{cpu}/cpufreq/scaling_governor": name for cpu, name in enumerate(governors)}
    files |= {f"{CPUS}/cpu{cpu}/cpufreq/scaling_driver": driver for cpu in range(4)}
    files |= {} if boost is None else {f"{CPUS}/cpufreq/boost": boost}
    found = read_processor(machine(tmp_path, **files))
    line = check_frequency(read_frequency(found.allowed, tmp_path), found)
    assert line.status == status
    assert line.finding.startswith(finding)
    assert ("cpupower frequency-set -g performance" in line.fix) == (status == "warn")


def test_turbo_by_intel(tmp_path: Path) -> None:
    root = plant(tmp_path, {f"{CPUS}/intel_pstate/no_turbo": "1"})
    assert read_frequency((0,), root).turbo is False


def test_a_slow_clock_source(tmp_path: Path) -> None:
    files = {f"{CLOCKS}/current_clocksource": "hpet", f"{CLOCKS}/available_clocksource": "hpet tsc acpi_pm"}
    line = check_clock(read_clock(plant(tmp_path, files)))
    assert line.status == "warn"
    assert line.finding.startswith("hpet, read in ")
    assert line.fix == f"echo tsc | sudo tee /{CLOCKS}/current_clocksource"


def test_clocks() -> None:
    assert check_clock(Clock("tsc", ("tsc",), 60)).status == "ok"
    assert check_clock(Clock("kvm-clock", ("kvm-clock",), 60)).status == "ok"
    assert check_clock(Clock(None, (), 60)).status == "ok"
    slow = check_clock(Clock("tsc", ("tsc",), 900))  # a sandbox that catches every reading
    assert (slow.status, slow.finding) == ("warn", "tsc, read in 900 ns: each span costs two slow clock readings")
    assert "dmesg" in check_clock(Clock("hpet", ("hpet", "acpi_pm"), 1200)).fix


@pytest.mark.parametrize("version", [1, 2])
def test_a_quota_below_the_cpus(tmp_path: Path, version: int) -> None:
    if version == 2:
        files = v2("/job", {"job/cpu.max": "250000 100000"})
    else:
        folder = "cpu,cpuacct/job"
        files = v1("/job", {f"{folder}/cpu.cfs_quota_us": "250000", f"{folder}/cpu.cfs_period_us": "100000"})
    group = find_group("cpu", plant(tmp_path, files))
    line = check_quota(cpu_quota(group), Throttling(100, 20, 1_500_000_000), group, processor(8))
    assert line.status == "warn"
    limit = f"2.5 cores per 100 ms (cgroup v{version}) for 8 CPUs"
    assert line.finding == f"{limit}, throttled in 20 of 100 periods, 1.5 s"
    assert line.fix == "CPUs in place of the quota (docker run --cpuset-cpus=0-1), or OMP_NUM_THREADS=2"
    assert check_quota(cpu_quota(group), None, group, processor(2)).status == "ok"


def test_a_quota_below_one_core(tmp_path: Path) -> None:
    group = find_group("cpu", plant(tmp_path, v2("/job", {"job/cpu.max": "50000 100000"})))
    line = check_quota(cpu_quota(group), None, group, processor(1))
    assert (line.status, line.finding) == ("warn", "0.5 cores per 100 ms (cgroup v2) for 1 CPU")


def test_no_quota(tmp_path: Path) -> None:
    group = find_group("cpu", plant(tmp_path, v2("/", {})))
    assert check_quota(None, None, group, processor(2)).finding == "no CPU quota (cgroup v2)"
    assert check_quota(None, None, None, processor(2)).finding == "no control groups here"


def test_threads(tmp_path: Path) -> None:
    quota = cpu_quota(find_group("cpu", plant(tmp_path, v2("/job", {"job/cpu.max": "250000 100000"}))))
    too_many = check_threads(8, processor(8), quota, {})
    assert (too_many.status, too_many.fix) == ("warn", "export OMP_NUM_THREADS=2")
    assert check_threads(8, processor(8), None, {"OMP_NUM_THREADS": "8"}).status == "ok"
    one = check_threads(1, processor(8), None, {"OMP_NUM_THREADS": "1"})
    assert one.status == "warn"
    assert "1 thread on 8 usable CPUs; OMP_NUM_THREADS=1" in one.finding


@pytest.mark.parametrize(("environ", "allowed", "status", "fix"), [
    ({"SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "8"}, 8, "ok", ""),
    ({"SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "8"}, 1, "warn", "srun --cpus-per-task=8 ..."),
    ({"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "4"}, 64, "warn", "srun --cpus-per-task=4 --cpu-bind=cores"),
    ({"SLURM_JOB_ID": "1"}, 64, "ok", ""),
])  # fmt: skip
def test_slurm(environ: dict[str, str], allowed: int, status: str, fix: str) -> None:
    (line,) = check_slurm(environ, processor(allowed))
    assert line.status == status
    assert line.fix.startswith(fix)


@pytest.mark.parametrize(("found", "status", "words"), [
    (BatchSystem(("sbatch",)), "ok", "no sbatch here: launch.slurm cannot submit, all else works"),
    (BatchSystem((), ("main*", "gpu")), "ok", "sbatch is here; partitions: main*, gpu"),
    (BatchSystem((), problem="no answer within 12 s"), "warn", "no controller answers: no answer within 12 s"),
])  # fmt: skip
def test_whether_jobs_can_be_submitted(found: BatchSystem, status: str, words: str) -> None:
    line = check_batch_system(found)
    assert line.status == status
    assert words in line.finding


def test_no_slurm() -> None:
    assert list(check_slurm({"SLURM_CPUS_PER_TASK": "8"}, processor(8))) == []


def test_load_is_what_others_took_of_the_allowed_cpus(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")

    def counters(of_0: int, of_1: int, stolen: int, worker: int) -> LoadReading:
        stat = [f"cpu  9 0 0 0 0 0 0 0 0 0\ncpu0 {of_0} 0 0 0 0 0 0 {stolen} 0 0\ncpu1 {of_1} 0 0 0 0 0 0 0 0 0"]
        named = f"77 (a (b) c) S {' '.join(['0'] * 10)} {worker} 0 0 0"
        plant(tmp_path, {"proc/stat": "\n".join([*stat, "intr 5"]), "proc/77/stat": named})
        reading = read_counters((0,), tmp_path)
        assert reading is not None
        return reading

    before, after = counters(10, 10, 0, 0), counters(10 + 2 * ticks, 999, ticks, ticks)
    assert before.processes == {77: ("a (b) c", 0.0)}
    assert (after.busy_s - before.busy_s, after.stolen_s) == (2.0, 1.0)  # CPU 1 is nothing to us

    start = LoadReading(10.0, 5.0, 0.0, 1.0, {77: ("worker", 0.0), 78: ("worker", 0.0)})
    end = LoadReading(12.0, 9.0, 1.0, 2.0, {77: ("worker", 1.0), 78: ("worker", 2.0), 79: ("idle", 0.0)})
    assert load_between(start, end) == Load(2.0, 1.5, 0.5, (("worker", 1.5),))


@pytest.mark.parametrize(
    ("others", "stolen", "cores", "status"),
    [(0.05, 0, 2, "ok"), (0.5, 0, 2, "warn"), (0.5, 0, 64, "ok"), (0, 0.1, 2, "warn"), (2, 0, 64, "warn")],
)
def test_when_load_is_worth_a_warning(others: float, stolen: float, cores: int, status: str) -> None:
    assert check_load(Load(0.5, others, stolen, (("python", others),)), processor(cores)).status == status


def test_this_machine() -> None:
    found = read_processor()
    before = read_counters(found.allowed)
    assert set(found.allowed) == os.sched_getaffinity(0)
    assert before.t_s <= time.monotonic()
    assert 0 <= before.missing_s() <= 0.5
    assert 1 < read_clock().read_ns < 1e6
