"""How the agent splits the making of a batch into stages, on clocks that are made up."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

from tests.harness.attach.running import agent_module

US = 1_000


@pytest.fixture
def stages() -> ModuleType:
    """The agent's module; its thread is on the core for half of the time, and reading that is counted."""
    module = agent_module("stages")
    clock = module.clock = SimpleNamespace(now=10**12, readings=0, process=0)

    def thread_time_ns() -> int:
        clock.readings += 1
        return int(clock.now) // 2

    module.monotonic_ns, module.thread_time_ns = lambda: clock.now, thread_time_ns  # type: ignore[attr-defined]
    module.process_time_ns = lambda: clock.process  # type: ignore[attr-defined]
    return module


def test_a_stage_within_another_takes_its_time_from_it(stages: ModuleType) -> None:
    assert stages.begin("read")
    stages.clock.now += 100 * US
    assert stages.enter_within("pack")
    stages.clock.now += 300 * US
    stages.leave()
    stages.clock.now += 50 * US
    stages.leave()
    assert [(name, end - start, cpu_ns) for name, start, end, cpu_ns in stages.take()] == [
        ("read", 100 * US, 50 * US), ("pack", 300 * US, 150 * US), ("read", 50 * US, 25 * US),
    ]  # fmt: skip
    assert stages.take() == []


def test_where_a_stage_may_begin(stages: ModuleType) -> None:
    assert not stages.enter_within("tokenize")  # no batch is being made
    assert stages.begin("read")
    assert not stages.begin("read")  # of a loader within the dataset
    assert stages.enter_within("tokenize")
    assert not stages.enter_within("tokenize")  # of a tokenizer that calls another one
    assert stages.busy()
    stages.leave()
    stages.leave()
    stages.leave()  # of a stage that a signal handler of the program ended
    assert not stages.busy()


def test_all_stages_end_with_the_batch(stages: ModuleType) -> None:
    stages.end()
    assert stages.take() == []
    stages.begin("read")
    stages.clock.now += 100 * US
    for _ in range(2):  # made again, where a control asks for it
        stages.enter_within("pack")
        stages.clock.now += 300 * US
        stages.end(1)
        stages.clock.now += 100 * US
    stages.enter_within("pack")
    stages.clock.now += 300 * US
    stages.end()
    assert not stages.busy()
    assert [(name, end - start) for name, start, end, _ in stages.take()] == [
        ("read", 100 * US), ("pack", 300 * US)
    ] * 3  # fmt: skip


def test_a_cpu_time_that_was_just_read_is_not_read_again(stages: ModuleType) -> None:
    """The thread is taken to have been on its core since: reading takes a system call."""
    stages.begin("read")
    assert stages.clock.readings == 1
    stages.clock.now += stages.NEAR_NS - 1
    stages.enter_within("pack")
    assert stages.clock.readings == 1
    stages.clock.now += 1
    stages.leave()
    assert stages.clock.readings == 2
    near, other = stages.take()
    assert near[3] == stages.NEAR_NS - 1
    assert other[3] == stages.NEAR_NS // 2 - (stages.NEAR_NS - 1)  # less, so that their sum is what was read


@pytest.mark.parametrize(
    ("on_core_us", "process_us", "found_us"),
    [
        (10, 90, 90),  # a thread of the library worked while this one waited
        (10, 10, 10),  # nothing worked: it waited for something else
        (10, 350, 100),  # two threads and whatever else: no more than one core's time is the stage's
        (60, 300, 60),  # this thread worked itself; what others did meanwhile is theirs
    ],
)
def test_threads_that_a_stage_waits_for(stages: ModuleType, on_core_us: int, process_us: int, found_us: int) -> None:
    clock = stages.clock
    stages.thread_time_ns = lambda: clock.on_core
    clock.on_core = clock.process = 7 * US
    assert stages.begin("read")
    stages.enter_within("tokenize")
    begun_ns = clock.process
    clock.now += 100 * US
    clock.on_core += on_core_us * US
    clock.process += process_us * US
    stages.add_others(begun_ns)
    stages.leave()
    stages.end()
    assert [(name, cpu_ns) for name, _, _, cpu_ns in stages.take()] == [("tokenize", found_us * US)]
