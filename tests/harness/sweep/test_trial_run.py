"""What a trial sees of its own training: divergence, milestones and their orders, and what earlier parts of it did."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.launch.channel import Channel
from harness.launch.protocol import TrialStart
from harness.launch.training import Trained
from harness.launch.training_files import EVALUATIONS, EvaluationRow, EvaluationTable, LossRow, LossTable
from harness.sweep.trial_run import Watching, _ended


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
        watching.loss(steps - 1, loss)
        if watching.step(steps, 64 * steps):
            return steps
    return None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_it(tmp_path: Path, channels: tuple[Channel, Channel], value: float) -> None:
    watching = Watching(start(tmp_path), channels[1])
    assert ends_at(watching, [6.0, 5.9, value, value, 1.0]) == 4  # a step later: no device knows it before
    assert watching.diverged == "its loss was not finite"


def test_a_mean_loss_above_its_start_ends_it(tmp_path: Path, channels: tuple[Channel, Channel]) -> None:
    watching = Watching(start(tmp_path), channels[1])
    losses = [6.0, 5.0, 4.0, 7.0, 7.0, 7.0, 1.0]  # a spike alone is none: the mean of 3 steps counts
    assert ends_at(watching, losses) == 7
    assert watching.diverged == "its loss was 7 over 3 steps, above 6 at its start"


def test_a_rate_that_learns_nothing_does_not_diverge(tmp_path: Path, channels: tuple[Channel, Channel]) -> None:
    assert ends_at(Watching(start(tmp_path), channels[1]), [6.0, 6.1, 6.1, 6.11, 6.09, 6.1]) is None
    assert ends_at(Watching(start(tmp_path, above_start=None), channels[1]), [6.0, 90.0, 90.0, 90.0, 90.0]) is None


@pytest.mark.parametrize(("order", "ended"), [("step", None), ("stop", 10)])
@pytest.mark.parametrize("late", [False, True])
def test_a_milestone_waits_for_its_order(
    tmp_path: Path, channels: tuple[Channel, Channel], order: str, ended: int | None, late: bool
) -> None:
    """Its mean is the same where a loss is known one step later, as of an asynchronous device."""
    sweep, trial = channels
    sweep.send({"do": order})  # type: ignore[typeddict-item, misc]
    watching = Watching(start(tmp_path), trial)
    found = None
    for steps in range(1, 13):
        if steps - late > 0:
            watching.loss(steps - 1 - late, 6.0 - 0.1 * (steps - 1 - late))
        if watching.step(steps, 64 * steps):
            found = steps
            break
    assert found == ended
    event = sweep.receive_trial_event(1)
    assert event == {"event": "milestone", "steps": 10, "tokens": 640, "loss": pytest.approx(5.6)}


@pytest.mark.parametrize("resumed", [9, 10, 11, 15, 19])
@pytest.mark.parametrize("late", [False, True])
def test_a_resumed_trial_is_judged_as_a_whole_one(
    tmp_path: Path, channels: tuple[Channel, Channel], resumed: int, late: bool
) -> None:
    """Its start is the first step of its first part, and the mean at a milestone holds the steps before the kill."""
    losses = [6.0 - 0.1 * step for step in range(20)] + [6.2] * 4
    table = LossTable(tmp_path / "losses.csv", 0)
    for step in range(resumed):
        table.add(LossRow(step, 64 * (step + 1), losses[step]))
    table.close()
    sweep, trial = channels
    watching = Watching(start(tmp_path), trial)
    found = None
    for _ in range(2):
        sweep.send({"do": "step"})
    for steps in range(resumed + 1, 25):
        if steps - 1 - late >= resumed:
            watching.loss(steps - 1 - late, losses[steps - 1 - late])
        if watching.step(steps, 64 * steps):
            found = steps
            break
    assert found == 24  # above 6.0, not above its first loss of this part alone
    events = [sweep.receive_trial_event(1) for _ in range(2)]  # also what a kill kept from being decided
    assert [one["steps"] for one in events] == [10, 20]
    assert [one["loss"] for one in events] == pytest.approx([sum(losses[:9]) / 9, sum(losses[9:19]) / 10])


def test_a_sweep_that_is_gone_ends_it(tmp_path: Path, channels: tuple[Channel, Channel]) -> None:
    sweep, trial = channels
    watching = Watching(start(tmp_path, milestones=[1]), trial)
    sweep._socket.close()
    watching.loss(0, 6.0)
    with pytest.raises((EOFError, OSError)):
        watching.step(1, 64)


def test_what_earlier_parts_evaluated_is_told_apart(tmp_path: Path, channels: tuple[Channel, Channel]) -> None:
    """A pass over questions has no loss: taken for the last one, the trial would count as diverged."""
    table = EvaluationTable(tmp_path / EVALUATIONS, 0)
    for step, loss, share in ((4, 3.5, 0.25), (9, 3.0, 0.5)):
        table.add(EvaluationRow(step, loss, None, 64))
        table.add(EvaluationRow(step, None, None, None, 4, 0.75, share, share, 1.0))
    trained = Trained(tmp_path, "done", 10, 640, 3.1)
    event = _ended(trained, Watching(start(tmp_path), channels[0]), tmp_path)
    assert (event["status"], event["validation_loss"], event["right"]) == ("done", 3.0, 0.5)
