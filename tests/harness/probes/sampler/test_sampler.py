"""The sampling process from the run's side: its samples, its deadlines, and every way in which it can be lost."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from time import monotonic_ns
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.probes.sampler.host import LEAST_SAMPLED_S, HostCollector
from harness.probes.sampler.messages import ClosableSeries, SamplerSettings, SampleSeries, Unpacked
from harness.probes.sampler.sampler import Sampler
from harness.probes.sampler.sampling import LATE_NS, Deadlines, Sampling
from trainer.inject import spend

HOST = SamplerSettings(host=True, nvml=False, rate_hz=50)
NO_DESCRIPTOR = -7  # no open file has it
REPETITION_METRICS = ("own_cpu_cores", "other_cpu_cores", "stolen_cpu_cores", "resident_bytes")


def roles() -> dict[int, str]:
    return {os.getpid(): "main"}


def repetition(sampler: Sampler, milliseconds: float) -> float:
    """Spend that on CPU in a repetition; how many seconds it took, which is longer where others take the core."""
    begun_ns = monotonic_ns()
    sampler.begin_steps()
    spend(milliseconds, "busy")
    sampler.end_repetition()
    sampler.wait()
    return (monotonic_ns() - begun_ns) / 1e9


def values(sampler: Sampler, source: str, metric: str) -> list[float]:
    rows = zip(*(sampler.samples[name] for name in ("source", "metric", "value")), strict=True)
    return [value for at, name, value in rows if (at, name) == (source, metric)]


@pytest.mark.slow
def test_repetitions_are_sampled_and_what_lies_between_is_not() -> None:
    sampler = Sampler(HOST, roles)
    took_s = 0.0
    for _ in range(3):
        took_s += repetition(sampler, 60)
        spend(60, "busy")
    sampler.close()
    assert sampler.problems == []
    intervals_s = values(sampler, "host", "interval_s")
    assert len(intervals_s) >= 3  # a long one has several: there is a sample each second
    assert 0.15 <= sum(intervals_s) <= took_s
    assert 0.06 < sum(values(sampler, "host:main", "cpu_s")) < 0.27  # of 0.36; it may get a core late on a busy machine
    assert sampler.taken["host"] >= 3
    assert sampler.samples["t_ns"] == sorted(sampler.samples["t_ns"])
    assert values(sampler, "host:sampler", "cpu_s")
    assert sampler.pid is None


@pytest.mark.slow
def test_whose_cpu_it_was_is_reported_once_half_a_second_of_repetitions_has_come_together() -> None:
    sampler = Sampler(HOST, roles)
    repetition(sampler, 0)  # too short by itself
    sampler.wait()
    spent_s = time.process_time()
    took_s = sum(repetition(sampler, 62) for _ in range(10))
    cores = (time.process_time() - spent_s) / took_s  # less than one where others take the core
    sampler.close()
    found = {metric: values(sampler, "host", metric) for metric in REPETITION_METRICS}
    assert {len(readings) for readings in found.values()} == {len(found["own_cpu_cores"])}
    assert 1 <= len(found["own_cpu_cores"]) <= (took_s + 0.1) / LEAST_SAMPLED_S
    assert len(values(sampler, "host", "interval_s")) >= 11
    # A reading is of some of the repetitions, of which others may take more of the core.
    assert 0.1 * cores < max(found["own_cpu_cores"]) < 1.5
    assert found["resident_bytes"][0] > 1e6


class Fails:
    """A collector whose second reading fails."""

    source = "odd"

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.readings = 0

    def begin(self, pids: dict[int, str]) -> None:
        pass

    def read(self, *, last: bool) -> bool:
        self.readings += 1
        if self.readings == 2:
            self.problems.append("odd: said before")
            raise ValueError("not a\nnumber")
        return True

    def end(self) -> None:
        pass


def orders(*given: dict[str, object]) -> dict[str, object]:
    """The last answer of a loop with the host's collector and Fails to these orders."""
    series, failing = SampleSeries(), Fails()
    (read, write), (answered, answer) = os.pipe(), os.pipe()
    for order in given:
        os.write(write, json.dumps(order).encode() + b"\n")
    Sampling([failing, HostCollector(series)], series, 1.0, [], read, answer).run()
    os.close(answer)
    with open(answered, "rb") as file:
        content = file.read()
    for descriptor in (read, write):
        os.close(descriptor)
    found = {}
    while content:
        line, _, content = content.partition(b"\n")
        found = {**json.loads(line), "problems": [*found.get("problems", []), *json.loads(line)["problems"]]}
        content = content[found["bytes"] :]
    return found


def test_a_collector_that_fails_is_given_up_and_a_late_last_reading_is_none_of_the_repetition() -> None:
    start, stop, end = {"do": "start", "pids": {}}, {"do": "stop", "t_ns": monotonic_ns()}, {"do": "close"}
    last = orders(*[start, stop] * 3, end)
    assert last["problems"] == ["odd: said before", "odd: ValueError: not a number; its samples stop here"]
    assert last["taken"] == {"odd": 1, "host": 3}
    assert last["missed"] == {"odd": 2, "host": 0}
    last = orders(start, {"do": "stop", "t_ns": monotonic_ns() - 2 * LATE_NS}, end)
    assert (last["taken"], last["missed"]) == ({"odd": 0, "host": 0}, {"odd": 1, "host": 1})


@pytest.mark.slow
def test_a_sampling_process_that_is_killed_leaves_what_it_had_and_one_line() -> None:
    sampler = Sampler(HOST, roles)
    repetition(sampler, 50)
    sampler.begin_steps()
    os.kill(sampler.pid, signal.SIGKILL)
    os.waitid(os.P_PID, sampler.pid, os.WEXITED | os.WNOWAIT)
    for _ in range(3):
        sampler.end_repetition()
        sampler.begin_steps()
    sampler.close()
    sampler.close()
    assert len(sampler.problems) == 1
    assert "ended with status -9" in sampler.problems[0]
    assert len(values(sampler, "host", "interval_s")) == 1
    assert sampler.taken["host"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "problem"), [
    (HOST, "could not start"), (replace(HOST, rate_hz=0), "ended with status 1"),
])  # fmt: skip
def test_a_sampling_process_that_cannot_start_or_fails_at_once_is_one_line(monkeypatch, settings, problem) -> None:
    if settings is HOST:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
    sampler = Sampler(settings, roles)
    repetition(sampler, 0)
    sampler.close()
    (found,) = sampler.problems
    assert problem in found
    assert sampler.samples["t_ns"] == []


@pytest.mark.slow
def test_a_last_reading_after_a_stop_is_missed_and_not_charged_to_the_repetition() -> None:
    """Who stops the run's processes before :meth:`Sampler.wait` finds the sampler with its reading still to do."""
    sampler = Sampler(replace(HOST, rate_hz=1), roles)
    repetition(sampler, 20)
    sampler.begin_steps()
    os.kill(sampler.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, sampler.pid, os.WSTOPPED | os.WNOWAIT)
    sampler.end_repetition()
    os.kill(sampler.pid, signal.SIGCONT)
    sampler.wait()
    sampler.close()
    assert (sampler.taken, sampler.missed) == ({"host": 1}, {"host": 1})
    assert len(values(sampler, "host", "interval_s")) == 1


@pytest.mark.slow
def test_it_ends_with_the_run() -> None:
    """Killed without a word, as a stopped run is."""
    code = (
        "import os, sys; from harness.probes.sampler.sampler import Sampler, SamplerSettings\n"
        "sampler = Sampler(SamplerSettings(host=True, nvml=False), lambda: {os.getpid(): 'main'})\n"
        "sampler.begin_steps(); print(sampler.pid, flush=True); sys.stdin.readline()"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    sampler = os.pidfd_open(int(run.stdout.readline()))
    run.kill()
    run.communicate()
    poll = select.poll()
    poll.register(sampler, select.POLLIN)
    assert poll.poll(30_000)  # a process's descriptor becomes readable when it ends
    os.close(sampler)


@pytest.mark.slow
def test_it_is_light() -> None:
    """It starts with every run, beside processes whose memory and cores are measured."""
    code = (
        "import sys, harness.probes.sampler.sampler, harness.probes.sampler.sampling\n"
        "import harness.probes.sampler.host, harness.probes.nvml.collector\n"
        "print({'torch', 'pydantic', 'numpy', 'pyarrow', 'pynvml'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@given(st.integers(1, 10**9), st.lists(st.integers(0, 10**10), min_size=1, max_size=20))
def test_readings_and_missed_deadlines_are_all_deadlines(period_ns, gaps_ns) -> None:
    start_ns = now_ns = 10**12
    deadlines = Deadlines(start_ns, period_ns)
    served = missed = 0
    for gap_ns in gaps_ns:
        now_ns = max(now_ns + gap_ns, deadlines.next_ns)  # the loop sleeps until then at least
        missed += deadlines.reach(now_ns)
        served += 1
        assert now_ns < deadlines.next_ns <= now_ns + period_ns
        assert (deadlines.next_ns - start_ns) % period_ns == 0  # a late reading makes the next no later
    assert served + missed == (now_ns - start_ns) // period_ns


def test_a_long_order_is_written_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe takes a part of what is longer than PIPE_BUF, and the sampler waited for the rest of the line."""
    write, written = os.write, []

    def write_part(descriptor: int, data: memoryview) -> int:
        if descriptor != NO_DESCRIPTOR:
            return write(descriptor, data)
        written.append(bytes(data[:4096]))
        return len(written[-1])

    sampler = object.__new__(Sampler)
    sampler._process = cast("Any", SimpleNamespace(stdin=SimpleNamespace(fileno=lambda: NO_DESCRIPTOR)))
    monkeypatch.setattr(os, "write", write_part)
    sampler._send({"do": "start", "pids": list(range(3000))})
    monkeypatch.undo()
    assert len(written) > 1
    assert json.loads(b"".join(written)) == {"do": "start", "pids": list(range(3000))}


def test_a_gate_passes_samples_on_until_it_is_shut() -> None:
    def taken(series: SampleSeries) -> list[float]:
        unpacked = Unpacked()
        unpacked.add(*series.take())
        values: list[float] = unpacked.columns()["value"]
        return values

    series = SampleSeries()
    gate = ClosableSeries(series)
    gate.add(1, "nvml:0", "power_w", 300.0, "W")
    assert taken(series) == [300.0]
    gate.add(2, "nvml:0", "power_w", 301.0, "W")
    gate.shut()
    gate.add(3, "nvml:0", "power_w", 302.0, "W")
    assert taken(series) == [301.0]
    assert taken(gate) == []
