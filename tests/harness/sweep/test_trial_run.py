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


@pytest.mark.parametrize(("losses", "settings", "ended", "why"), [
    # a step later: no device knows it before
    ([6.0, 5.9, math.nan, math.nan, 1.0], {}, 4, "its loss was not finite"),
    ([6.0, 5.9, math.inf, math.inf, 1.0], {}, 4, "its loss was not finite"),
    # a spike alone is none: the mean of 3 steps counts
    ([6.0, 5.0, 4.0, 7.0, 7.0, 7.0, 1.0], {}, 7, "its loss was 7 over 3 steps, above 6 at its start"),
    ([6.0, 6.1, 6.1, 6.11, 6.09, 6.1], {}, None, None),  # a rate that learns nothing
    ([6.0, 90.0, 90.0, 90.0, 90.0], {"above_start": None}, None, None),
])  # fmt: skip
def test_a_training_that_diverges_ends(tmp_path, channels, losses, settings, ended, why):
    watching = Watching(start(tmp_path, **settings), channels[1])
    assert (trained(watching, losses), watching.diverged) == (ended, why)


def trained(watching: Watching, losses: list[float], late: bool = False, first: int = 0) -> int | None:
    """Steps after which it ends the training, whose steps before ``first`` an earlier part did; None if it does not.

    ``late``: a loss is known one step later, as of an asynchronous device.
    """
    for steps in range(first + 1, len(losses) + 1):
        if steps - 1 - late >= first:
            watching.loss(steps - 1 - late, losses[steps - 1 - late])
        if watching.step(steps, 64 * steps):
            return steps
    return None


@pytest.mark.parametrize(("order", "ended"), [("step", None), ("stop", 10)])
@pytest.mark.parametrize("late", [False, True])
def test_a_milestone_waits_for_its_order(tmp_path, channels, order, ended, late):
    """Its mean is the same where a loss is known one step later."""
    sweep, trial = channels
    sweep.send({"do": order})
    assert trained(Watching(start(tmp_path), trial), [6.0 - 0.1 * step for step in range(12)], late) == ended
    event = sweep.receive_trial_event(1)
    assert event == {"event": "milestone", "steps": 10, "tokens": 640, "loss": pytest.approx(5.6)}


@pytest.mark.parametrize("resumed", [9, 10, 15])
@pytest.mark.parametrize("late", [False, True])
def test_a_resumed_trial_is_judged_as_a_whole_one(tmp_path, channels, resumed, late):
    """Its start is the first step of its first part, and the mean at a milestone holds the steps before the kill."""
    losses = [6.0 - 0.1 * step for step in range(20)] + [6.2] * 4
    table = LossTable(tmp_path / "losses.csv", 0)
    for step in range(resumed):
        table.add(LossRow(step, 64 * (step + 1), losses[step]))
    table.close()
    sweep, trial = channels
    for _ in range(2):
        sweep.send({"do": "step"})
    # above 6.0, not above its first loss of this part alone
    assert trained(Watching(start(tmp_path), trial), losses, late, resumed) == 24
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
    whole = Trained(tmp_path, "done", 10, 640, 3.1)
    event = _ended(whole, Watching(start(tmp_path), channels[0]), tmp_path)
    assert (event["status"], event["validation_loss"], event["right"]) == ("done", 3.0, 0.5)
