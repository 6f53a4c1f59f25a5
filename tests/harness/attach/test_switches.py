"""The agent's count of the main thread's switches, and what CPU time it takes to have passed without one."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.attach.frames import append, events
from tests.harness.attach.running import agent_module

US = 1_000


@pytest.fixture
def switches() -> ModuleType:
    return agent_module("switches")


@pytest.mark.slow
def test_the_count_changes_where_the_thread_leaves_its_core_in_a_forked_child_too(switches: ModuleType) -> None:
    count = switches.count()
    if count is None:
        pytest.skip("no performance events here")
    assert switches.count() is count
    before = count[0]
    time.sleep(0.001)
    assert count[0] != before
    if (pid := os.fork()) == 0:
        try:
            switches.forget()
            own = switches.count()
            before = own[0]
            time.sleep(0.001)
            os._exit(0 if own is not count and own[0] != before else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("why", ["filter", "machine", "kernel"])
def test_where_there_is_no_event_nobody_counts(switches: ModuleType, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """Some filters of system calls kill a process that makes a call which they do not know."""
    monkeypatch.setattr(switches, "_may", lambda: why != "filter")
    if why == "filter":
        monkeypatch.setattr(switches, "_open", None)
    elif why == "machine":
        monkeypatch.setattr(switches.platform, "machine", lambda: "riscv64")
    else:
        monkeypatch.setattr(switches, "_CALL", dict.fromkeys(switches._CALL, 100_000))  # there is no such call
    assert switches.count() is None


@pytest.fixture
def core() -> SimpleNamespace:
    """A thread whose switches are counted, on clocks that are made up."""
    stages = agent_module("stages")
    clock = SimpleNamespace(now=10**12, cpu=10**9, count=[0], here=[1])
    stages.monotonic_ns, stages.thread_time_ns = lambda: clock.now, lambda: clock.cpu  # type: ignore[attr-defined]
    reading = stages.CpuReading()
    reading.counts(clock.count, 5_000 * US, clock.here)
    reading.read()

    def after(wall_us: int, cpu_us: int) -> None:
        clock.now += wall_us * US
        clock.cpu += cpu_us * US

    return SimpleNamespace(reading=reading, clock=clock, after=after, near=stages.NEAR_NS)


def lasts(core: SimpleNamespace) -> int:
    return int(core.reading.near_ns - core.clock.now)


def test_a_reading_will_do_for_milliseconds_where_switches_are_counted(core: SimpleNamespace) -> None:
    assert lasts(core) == 5_000 * US
    core.after(4_000, 1_000)
    core.clock.count[0] += 2  # it was switched, and waited: no time is lost
    core.reading.read()
    assert lasts(core) == 5_000 * US


def test_where_cpu_time_is_lost_without_a_switch_a_reading_soon_has_to_be_repeated(core: SimpleNamespace) -> None:
    """A hypervisor takes the core away, and the guest's kernel does not switch."""
    core.after(1_000, 960)  # 4 %
    core.reading.read()
    assert lasts(core) == 5_000 * US
    core.after(1_000, 900)
    core.reading.read()
    assert lasts(core) == core.near
    core.after(30, 30)
    core.reading.read()
    assert lasts(core) == 5_000 * US


class Threads:
    """Run-queue readings of threads whose lines and switches are made up, the main thread's first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, core: SimpleNamespace) -> None:
        self.core, self.lines, self.counts, self.read = core, [b"1000 70 3\n"], [core.clock.count], 0
        agent = ModuleType("_harness_agent")
        agent.switches = SimpleNamespace(count_of=lambda tid: self.counts[tid])  # type: ignore[attr-defined]
        agent.forks = SimpleNamespace(here=core.clock.here)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "_harness_agent", agent)
        self.module = module = agent_module("run_queue")
        self.descriptors: list[int] = module._descriptors
        module.monotonic_ns = lambda: core.clock.now  # type: ignore[attr-defined]
        module.os = SimpleNamespace(  # type: ignore[attr-defined]
            pread=self._line, listdir=lambda _: map(str, range(len(self.lines))), open=os.open,
            O_RDONLY=os.O_RDONLY, O_CLOEXEC=os.O_CLOEXEC,
        )  # fmt: skip
        module.threading = SimpleNamespace(get_native_id=lambda: 0, enumerate=list)  # type: ignore[attr-defined]
        module._open = self._open  # type: ignore[attr-defined]
        module.follow(core.reading)

    def _line(self, thread: int, _size: int, _at: int) -> bytes:
        self.read += 1
        return self.lines[thread]

    def _open(self, thread: int) -> bool:
        self.descriptors.append(thread)
        self.module._known.add(thread)
        return True

    def asked(self) -> tuple[tuple[Any, ...], int]:
        """A reading, and how many lines of the kernel it took."""
        before = self.read
        found = self.module.read()
        return found, self.read - before


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch, core: SimpleNamespace) -> Threads:
    return Threads(monkeypatch, core)


def test_lines_are_read_after_a_switch_alone(threads: Threads, core: SimpleNamespace) -> None:
    assert threads.asked() == ((b"1000 70 3\n",), 1)
    core.after(40, 40)
    assert threads.asked() == (((core.clock.cpu, b"1000 70 3\n"),), 0)
    core.after(6_000, 5_900)  # longer than a reading of CPU time will do
    assert threads.asked() == (((core.clock.cpu, b"1000 70 3\n"),), 0)
    core.clock.count[0] += 1
    threads.lines[0] = b"7000 95 4\n"
    assert threads.asked() == ((b"7000 95 4\n",), 1)


def test_a_switch_of_any_thread_counts_and_one_that_nobody_counts_is_always_read(
    threads: Threads, core: SimpleNamespace
) -> None:
    threads.asked()
    threads.lines.append(b"5 6 7\n")
    threads.counts.append([0])
    threads.module.find_threads()
    assert threads.asked() == ((b"1000 70 3\n", b"5 6 7\n"), 2)
    core.after(10, 10)
    assert threads.asked() == (((core.clock.cpu, b"1000 70 3\n"), b"5 6 7\n"), 0)
    threads.counts[1][0] += 1
    threads.lines[1] = b"9 9 9\n"
    assert threads.asked() == ((b"1000 70 3\n", b"9 9 9\n"), 2)
    for count in (None, [0]):  # one whose switches nobody counts, and one after it
        threads.lines.append(b"1 1 1\n")
        threads.counts.append(count)
    threads.module.find_threads()
    for _ in range(2):
        assert threads.asked()[1] == 4
    threads.module.forget()  # in a forked child
    threads.lines, threads.read = [b"2 2 2\n"], 0
    assert [threads.asked()[1] for _ in range(2)] == [1, 1]


def test_a_program_that_stops_the_counting_is_found_and_lines_are_read_again(
    threads: Threads, core: SimpleNamespace
) -> None:
    threads.asked()
    read = 0
    for step in range(100):
        core.after(10, 10)
        threads.lines[0] = b"1000 %d %d\n" % (70 + step, 3 + step)
        read += threads.asked()[1]
    last, most = threads.module.MOST_UNCOUNTED + 1, threads.module.MOST_SKIPPED + 1
    assert read == last + 100 - last * most
    assert lasts(core) <= core.near
    core.after(10, 10)
    assert threads.asked() == ((b"1000 169 102\n",), 1)


def test_as_long_as_nothing_is_switched_lines_are_seldom_read(threads: Threads) -> None:
    most = threads.module.MOST_SKIPPED + 1
    assert sum(threads.asked()[1] for _ in range(10 * most)) == 10


def test_in_a_forked_child_nobody_looks_at_the_counts(threads: Threads, core: SimpleNamespace) -> None:
    """The kernel does not copy the page that they are in."""
    threads.asked()
    core.clock.here[0] = 0
    core.clock.count.clear()
    core.after(10, 10)
    assert threads.asked()[0] == (b"1000 70 3\n",)
    core.reading.read()
    assert lasts(core) == core.near


def test_the_time_since_a_line_is_put_into_it_and_what_is_no_line_of_the_kernel_is_no_reading(tmp_path: Path) -> None:
    """A program closed all descriptors, and opened a file of its own under the number of one."""
    step = (2, 5, ((4_321, b"1000 70 3\n"), b"5 6 7\n"), 0, 0, False)
    entered, ended = (0, "fetch", 6, 1), (3, 9, (b"1 2 3\n", b""))
    others = [(3, 9, (b"hello\n",)), (3, 9, (b"1 2 3\n", b"12.5"))]
    append(tmp_path / "1.frames", "events", [step, entered, ended, *others])
    found = list(events([tmp_path / "1.frames"]))
    assert found[:2] == [[(2, 5, (b"4321 70 3\n", b"5 6 7\n"), 0, 0, False)], [entered, ended]]
    assert found[2:] == [[(3, 9, ())], [(3, 9, ())]]


@pytest.mark.slow
def test_a_thread_that_waits_for_a_core_is_switched(switches: ModuleType) -> None:
    """The kernel's wait of this thread grows with its count of switches alone."""
    count = switches.count()
    if count is None:
        pytest.skip("no performance events here")
    descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    waited: dict[int, set[bytes]] = {}
    for _ in range(20_000):
        before, line, after = count[0], os.pread(descriptor, 96, 0), count[0]
        if before == after:
            waited.setdefault(before, set()).add(line.split()[1])
    os.close(descriptor)
    assert waited
    assert all(len(found) == 1 for found in waited.values())
