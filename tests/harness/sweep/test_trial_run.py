"""What a trial sees of its own training: divergence, milestones and their orders, and what earlier parts of it did."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.launch.channel import Channel
from harness.launch.protocol import TrialStart
from harness.launch.training_files import LossRow, LossTable
from harness.sweep.trial_run import Watching


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), Channel(theirs)


def start(folder: Path, **changes: object) -> TrialStart:
    found: TrialStart = {
        "scenario": "small", "arm": "trial", "config": {}, "steps": 100, "folder": str(folder), "command": [],
        "milestones": [10, 20], "above_start": 0.02, "window": 3, "beat_s": 1000.0,
    }  # fmt: skip
    found.update(changes)  # type: ignore[typeddict-item]
    return found


def ends_at(watching: Watching, losses: list[float], first: int = 1) -> int | None:
    """After how many steps it ends the training; None where it does not."""
    for steps, loss in enumerate(losses, first):
        if watching(steps, 64 * steps, loss):
            return steps
    return None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_it(tmp_path: Path, channels: tuple[Channel, Channel], value: float) -> None:
    watching = Watching(start(tmp_path), channels[1])
    assert ends_at(watching, [6.0, 5.9, value]) == 3
    assert watching.diverged == "its loss was not finite"


def test_a_mean_loss_above_its_start_ends_it(tmp_path: Path, channels: tuple[Channel, Channel]) -> None:
    watching = Watching(start(tmp_path), channels[1])
    assert ends_at(watching, [6.0, 5.0, 4.0, 7.0, 7.0, 7.0]) == 6  # a spike alone is none: the mean of 3 steps
    assert watching.diverged == "its loss was 7 over 3 steps, above 6 at its start"


def test_a_rate_that_learns_nothing_does_not_diverge(tmp_path: Path, channels: tuple[Channel, Channel]) -> None:
    assert ends_at(Watching(start(tmp_path), channels[1]), [6.0, 6.1, 6.1, 6.11, 6.09]) is None
    assert ends_at(Watching(start(tmp_path, above_start=None), channels[1]), [6.0, 90.0, 90.0, 90.0]) is None


@pytest.mark.parametrize(("order", "ended"), [("step", None), ("stop", 10)])
def test_a_milestone_waits_for_its_order(
    tmp_path: Path, channels: tuple[Channel, Channel], order: str, ended: int | None
) -> None:
    sweep, trial = channels
    sweep.send({"do": order})  # type: ignore[typeddict-item, misc]
    assert ends_at(Watching(start(tmp_path), trial), [6.0 - 0.1 * step for step in range(12)]) == ended
    event = sweep.receive_trial_event(1)
    assert event == {"event": "milestone", "steps": 10, "tokens": 640, "loss": pytest.approx(5.55)}


def test_a_resumed_trial_is_judged_as_a_whole_one(tmp_path: Path, channels: tuple[Channel, Channel]) -> None:
    """Its start is the first step of its first part, and the mean at a milestone holds the steps before the kill."""
    table = LossTable(tmp_path / "losses.csv", 0)
    for step in range(15):
        table.add(LossRow(step, 64 * (step + 1), 6.0 - 0.1 * step))
    table.close()
    sweep, trial = channels
    sweep.send({"do": "step"})
    watching = Watching(start(tmp_path), trial)
    assert ends_at(watching, [6.0 - 0.1 * step for step in range(12, 20)], first=13) is None  # after 12 steps
    assert sweep.receive_trial_event(1)["loss"] == pytest.approx(sum(6.0 - 0.1 * step for step in range(10, 20)) / 10)
    assert ends_at(watching, [6.2, 6.2, 6.2], first=21) == 23  # above 6.0, not above 4.8 alone


def test_a_sweep_that_is_gone_ends_it(tmp_path: Path, channels: tuple[Channel, Channel]) -> None:
    sweep, trial = channels
    watching = Watching(start(tmp_path, milestones=[1]), trial)
    sweep._socket.close()
    with pytest.raises((EOFError, OSError)):
        watching(1, 64, 6.0)
