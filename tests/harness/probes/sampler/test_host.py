"""Host readings against what the processes themselves know, and the arithmetic against any numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.probes.sampler.counters import ProcessCounters
from harness.probes.sampler.host import LEAST_SAMPLED_S, HostCollector, RepetitionLoad
from harness.probes.sampler.messages import SampleSeries, Unpacked
from trainer.inject import spend

# Says what it had used, waits to be told, does its work, says what it had used then.
BURNER = """
import sys, time
print(time.process_time(), flush=True)
sys.stdin.readline()
end_s = time.process_time() + float(sys.argv[1])
while time.process_time() < end_s:
    pass
print(time.process_time(), flush=True)
sys.stdin.readline()
"""
DISK_READER = """
import os, re, sys
def read_bytes():
    return re.search(r"^read_bytes: (\\d+)", open("/proc/self/io").read(), re.M)[1]
file = os.open(sys.argv[1], os.O_RDONLY)
print(read_bytes(), flush=True)
sys.stdin.readline()
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
while os.read(file, 1 << 20):
    pass
print(read_bytes(), flush=True)
sys.stdin.readline()
"""


class Child:
    """A process that works when told, and whose own account of it is the truth."""

    def __init__(self, code: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        self.before = float(self._process.stdout.readline())

    def work(self) -> float:
        """What it did, by its own account."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline()) - self.before

    def end(self) -> None:
        self._process.communicate("\n")


def sampled(series: SampleSeries) -> dict[tuple[str, str], list[float]]:
    unpacked = Unpacked()
    unpacked.add(*series.take())
    found = defaultdict(list)
    columns = unpacked.columns()
    for source, metric, value in zip(columns["source"], columns["metric"], columns["value"], strict=True):
        found[source, metric].append(value)
    return found


@pytest.mark.slow
def test_a_worker_that_burns_a_core_is_seen_to_the_millisecond_and_one_that_ended_disturbs_nothing() -> None:
    worker = Child(BURNER, "0.2")
    series = SampleSeries()
    collector = HostCollector(series)
    pids = {os.getpid(): "main", worker.pid: "loader-0"}
    collector.begin(pids)
    truth_s = worker.work()
    collector.read(last=True)
    found = sampled(series)
    assert sum(found["host:loader-0", "cpu_s"]) == pytest.approx(truth_s, abs=0.01)
    assert sum(found["host:main", "cpu_s"]) < truth_s / 2  # it waited
    assert found["host:loader-0", "cpu_cores"][0] * found["host", "interval_s"][0] == pytest.approx(truth_s, rel=0.1)
    assert found["host:main", "resident_bytes"][0] > 1e6
    assert 0 < found["host:main", "pss_bytes"][0] <= found["host:main", "resident_bytes"][0] * 1.5
    assert ("host:sampler", "cpu_s") not in found  # this process is both here, and the main role comes first
    collector.begin(pids)
    worker.end()
    collector.read(last=False)
    collector.read(last=True)
    found = sampled(series)
    assert sum(found["host:main", "cpu_s"]) >= 0
    assert not found["host:loader-0", "cpu_s"]
    assert collector.problems == []
    collector.begin(pids)  # nor does naming it again


@pytest.mark.slow
def test_reads_from_disk_are_those_that_the_process_counts_itself(tmp_path) -> None:
    path = tmp_path / "data"
    with open(path, "wb") as file:
        file.write(os.urandom(8 << 20))
        os.fsync(file.fileno())
    reader = Child(DISK_READER, str(path))
    series = SampleSeries()
    collector = HostCollector(series)
    collector.begin({os.getpid(): "main", reader.pid: "loader-0"})
    truth = reader.work()
    collector.read(last=True)
    reader.end()
    if truth == 0:
        pytest.skip("temporary files are not on a disk here")
    assert sum(sampled(series)["host:loader-0", "disk_read_bytes"]) == truth


def test_counters_of_readings_add_up_to_those_of_the_repetition() -> None:
    """Growth since the reading before, however many readings there are: their sum is the growth over the repetition."""
    series = SampleSeries()
    collector = HostCollector(series)
    started = time.process_time()
    collector.begin({os.getpid(): "main"})
    for _ in range(5):
        spend(20, "busy")
        collector._full_due_ns = 0  # each of them a full one
        collector.read(last=False)
    collector.read(last=True)
    used = time.process_time() - started
    found = sampled(series)
    assert len(found["host:main", "cpu_s"]) == len(found["host", "interval_s"]) == 6
    # The collector's own work lies partly outside its readings; what was spent between them does not.
    assert 0.095 <= sum(found["host:main", "cpu_s"]) <= used
    assert sum(found["host:main", "voluntary_switches"]) >= 0
    assert sum(found["host:main", "run_queue_delay_s"]) >= 0


def test_a_process_s_clock_and_its_clock_ticks_agree() -> None:
    counters = ProcessCounters(os.getpid())
    spend(50, "busy")
    precise = counters.cpu_s()
    counters._clock = 0  # as on a kernel that has no such clock
    assert counters.cpu_s() == pytest.approx(precise, abs=0.05)
    counters.close()


repetitions = st.lists(st.tuples(*[st.floats(0.001, 2.0)] * 4), min_size=1, max_size=30)


@given(repetitions)
def test_repetitions_add_up_to_readings_of_at_least_half_a_second(steps) -> None:
    """What is reported covers whole repetitions in order, each once, and only the last ones can be missing."""
    load = RepetitionLoad()
    reported, now_s, own, busy, stolen = [], 100.0, 0.0, 0.0, 0.0
    for elapsed_s, used, others, taken in steps:
        now_s += 1000.0  # between repetitions everybody works, and none of it counts
        own, busy, stolen = own + 5, busy + 50, stolen + 5
        load.begin(round(now_s * 1e9), own, (busy, stolen))
        now_s, own, busy, stolen = now_s + elapsed_s, own + used, busy + used + others, stolen + taken
        reported.append(dict(load.end(round(now_s * 1e9), own, (busy, stolen))))
    pending = [0.0, 0.0, 0.0, 0.0]
    for step, cores in zip(steps, reported, strict=True):
        pending = [total + part for total, part in zip(pending, step, strict=True)]
        assert bool(cores) == (pending[0] >= LEAST_SAMPLED_S) or pending[0] == pytest.approx(LEAST_SAMPLED_S, rel=1e-6)
        if cores:
            assert cores["own_cpu_cores"] * pending[0] == pytest.approx(pending[1], rel=1e-3)
            assert cores["other_cpu_cores"] * pending[0] == pytest.approx(pending[2], rel=1e-3)
            assert cores["stolen_cpu_cores"] * pending[0] == pytest.approx(pending[3], rel=1e-3)
            pending = [0.0, 0.0, 0.0, 0.0]


def test_repetitions_that_the_machine_does_not_account_for_tell_nothing() -> None:
    load = RepetitionLoad()
    load.begin(0, 0.0, None)
    assert load.end(10**9, 1.0, (1.0, 0.0)) == []
    assert load.end(2 * 10**9, 1.0, (1.0, 0.0)) == []  # an end without a beginning


names = st.sampled_from(["host", "host:main", "nvml:0"]), st.sampled_from(["a", "b"]), st.sampled_from(["s", "%"])
samples = st.lists(st.tuples(st.integers(0, 2**62), *names[:2], st.floats(allow_nan=False), names[2]), max_size=30)


@given(st.lists(samples, max_size=4))
def test_samples_come_out_of_the_pipe_as_they_went_in(parts) -> None:
    series, unpacked = SampleSeries(), Unpacked()
    for part in parts:
        for row in part:
            series.add(*row)
        unpacked.add(*series.take())
    columns = unpacked.columns()
    rows = list(zip(*columns.values(), strict=True))
    assert list(columns) == ["t_ns", "source", "metric", "value", "unit"]
    assert all(first[0] <= second[0] for first, second in pairwise(rows))
    assert sorted(rows) == sorted(row for part in parts for row in part)
