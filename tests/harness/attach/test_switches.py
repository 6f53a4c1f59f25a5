"""The agent's count of the main thread's switches, and what CPU time it takes to have passed without one."""

from __future__ import annotations

import importlib.util
import os
import time
from types import ModuleType, SimpleNamespace

import pytest

from harness.attach.command import SHIM

US = 1_000


def alone(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"agent_{name}", SHIM.parent / "agent" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def switches() -> ModuleType:
    return alone("switches")


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


def test_nothing_is_asked_for_under_a_filter_of_system_calls(
    switches: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some filters kill a process that makes a call which they do not know."""
    monkeypatch.setattr(switches, "_may", lambda: False)
    monkeypatch.setattr(switches, "_open", None)
    assert switches.count() is None


@pytest.mark.parametrize("why", ["machine", "kernel"])
def test_where_there_is_no_event_nobody_counts(switches: ModuleType, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(switches, "_may", lambda: True)
    if why == "machine":
        monkeypatch.setattr(switches.platform, "machine", lambda: "riscv64")
    else:
        monkeypatch.setattr(switches, "_CALL", dict.fromkeys(switches._CALL, 100_000))  # there is no such call
    assert switches.count() is None


@pytest.fixture
def core() -> SimpleNamespace:
    """A thread whose switches are counted, on clocks that are made up."""
    stages = alone("stages")
    clock = SimpleNamespace(now=10**12, cpu=10**9, count=[0])
    stages.monotonic_ns, stages.thread_time_ns = lambda: clock.now, lambda: clock.cpu  # type: ignore[attr-defined]
    reading = stages.CpuReading()
    reading.counts(clock.count, 5_000 * US)
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
