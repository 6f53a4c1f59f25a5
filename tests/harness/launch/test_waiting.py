"""How long the launcher waits: for a run with signs of life, for one of an older state, and within a budget."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from harness.launch.channel import Channel, Heartbeat, WaitLimits
from harness.launch.process import RunProcess
from harness.launch.protocol import RunEvent
from harness.probes.probe import RunProbes
from harness.study.records import RunRecord
from harness.study.store import StudyFolder
from trainer.config import TrainerConfig


@pytest.fixture
def ends() -> tuple[Channel, Channel]:
    ours, theirs = socket.socketpair()
    return Channel(ours), Channel(theirs)


def test_a_message_that_comes_in_pieces_or_with_others_is_read_whole() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    theirs.sendall(b'{"event": "alive"}\n{"event"')
    assert channel.receive_event(60) == {"event": "alive"}
    with pytest.raises(TimeoutError):
        channel.receive_event(0)
    theirs.sendall(b': "ready"}\n')
    assert channel.receive_event(0) == {"event": "ready"}
    theirs.close()
    with pytest.raises(EOFError):
        channel.receive_event(60)


def test_a_run_says_that_it_lives_at_once_and_not_again_before_its_time(ends: tuple[Channel, Channel]) -> None:
    launcher, run = ends
    Heartbeat(run, None).beat()  # of a launcher that asks for none
    heartbeat = Heartbeat(run, every_s=3600)
    heartbeat.beat()
    assert launcher.receive_event(0) == {"event": "alive"}
    with pytest.raises(TimeoutError):
        launcher.receive_event(0)
    always = Heartbeat(run, every_s=0)
    always.beat()
    assert [launcher.receive_event(0)["event"] for _ in range(2)] == ["alive", "alive"]


def test_a_run_of_an_older_state_may_take_the_limit_for_each_step(tmp_path: Path) -> None:
    """It sends no signs of life, so its silence says nothing before all of its steps may have ended."""
    config = TrainerConfig.model_validate({"warmup_steps": 3}).model_dump(mode="json")
    record = RunRecord(arm="a", block=0, status="interrupted", config=config)
    run = RunProcess(record, StudyFolder(tmp_path), RunProbes(), WaitLimits(start_s=100, silence_s=10))
    limits = [("ready", 0), ("turn", 7), ("profile", 100), ("done", 1)]
    assert [run._limit_s(*limit) for limit in limits] == [130, 70, 1000, 10]
    run._beats = True
    assert [run._limit_s(*limit) for limit in limits] == [100, 10, 10, 10]


def test_no_wait_is_longer_than_the_budget() -> None:
    forever = WaitLimits(start_s=100, silence_s=10)
    assert (forever.within(10), forever.spent, forever.beat_s) == (10, False, 2.5)
    over = WaitLimits(100, 10, time.monotonic_ns() - 1)
    assert (over.within(10), over.spent) == (0, True)
    later = WaitLimits(100, 10, time.monotonic_ns() + 3600 * 10**9)
    assert (later.within(10), later.spent) == (10, False)
    assert WaitLimits(900, 600).beat_s == 10


@pytest.mark.parametrize(("in_vain", "comes"), [(2, True), (3, False)])
def test_silence_is_counted_in_looks_whatever_the_clock_says(tmp_path: Path, in_vain: int, comes: bool) -> None:
    """A container that is paused stops launcher and run alike: that costs one look."""
    limits: list[float] = []

    class Late:
        def receive_event(self, timeout_s: float) -> RunEvent:
            limits.append(timeout_s)
            if len(limits) <= in_vain:
                raise TimeoutError
            return {"event": "alive"}

    record = RunRecord(arm="a", block=0, status="interrupted")
    run = RunProcess(record, StudyFolder(tmp_path), RunProbes(), WaitLimits(start_s=100, silence_s=27))
    if comes:
        assert run._receive(Late(), 27) == {"event": "alive"}  # type: ignore[arg-type]
    else:
        with pytest.raises(TimeoutError):
            run._receive(Late(), 27)  # type: ignore[arg-type]
    assert limits == [9.0, 9.0, 9.0]
