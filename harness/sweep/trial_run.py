"""Trains one trial in a process of its own, forked by ``launch.fork_server``: its training, and when it ends early.

At each milestone it reports and waits for the sweep's order: what is decided there depends on losses alone, not on when
a message arrives. Standard output and error are the trial's log.
"""

from __future__ import annotations

import math
import socket
import time
import traceback
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from harness.launch.channel import Channel
from harness.launch.protocol import TrialEvent, TrialStart
from harness.machine.lifetime import die_with_parent
from trainer.errors import InputError, in_words

if TYPE_CHECKING:
    from harness.launch.training import Trained

RESULT = "result.json"


class Watching:
    """Sees every step of a training: says that it lives, reports milestones, and ends it where it diverged."""

    def __init__(self, start: TrialStart, channel: Channel) -> None:
        self._channel, self._beat_s = channel, start["beat_s"]
        self._milestones = set(start["milestones"])
        self._above_start = start["above_start"]
        self._last: deque[float] = deque(maxlen=start["window"])
        self._since: list[float] = []  # losses since the last milestone
        self._first: float | None = None
        self._last_message_s = time.monotonic()
        self._losses = Path(start["folder"]) / "losses.csv"
        self._begun = False
        self.diverged: str | None = None  # why

    def __call__(self, steps: int, tokens: int, loss: float | None) -> bool:
        """A step was done; whether the training ends with it."""
        if not self._begun:
            self._begun = True
            self._recall(steps - 1)
        if loss is not None:
            self._add(loss)
        if self.diverged is not None:
            return True
        if steps in self._milestones:
            self._milestones.discard(steps)
            mean = sum(self._since) / len(self._since) if self._since else None
            self._since.clear()
            self._last_message_s = time.monotonic()
            self._channel.send({"event": "milestone", "steps": steps, "tokens": tokens, "loss": mean})
            return self._channel.receive_order()["do"] == "stop"
        if time.monotonic() - self._last_message_s >= self._beat_s:
            self._last_message_s = time.monotonic()
            self._channel.send({"event": "alive", "steps": steps, "tokens": tokens, "loss": None})
        return False

    def _recall(self, steps: int) -> None:
        """Take the losses of earlier parts of the training, so that one that was resumed is judged as a whole one."""
        from harness.launch.training_files import read_losses

        for row in read_losses(self._losses) if steps and self._losses.exists() else ():
            if row.step < steps:
                self._add(row.loss)
                if row.step + 1 in self._milestones:
                    self._milestones.discard(row.step + 1)
                    self._since.clear()

    def _add(self, loss: float) -> None:
        if not math.isfinite(loss):
            self.diverged = "its loss was not finite"
            return
        if self._first is None:
            self._first = loss
        self._last.append(loss)
        self._since.append(loss)
        if self._above_start is None or len(self._last) < (self._last.maxlen or 0):
            return
        mean = sum(self._last) / len(self._last)
        if mean > self._first + self._above_start * abs(self._first):
            self.diverged = (
                f"its loss was {mean:.4g} over {len(self._last)} steps, above {self._first:.4g} at its start"
            )


def main(descriptor: int, parent: int) -> int:
    """Train the trial that the first message describes; the exit status."""
    die_with_parent(parent)
    channel = Channel(socket.socket(fileno=descriptor))
    start = channel.receive_trial_start()
    watching = Watching(start, channel)
    try:
        event = _ended(_train(start, watching), watching, Path(start["folder"]))
    except EOFError:  # the sweep is gone
        return 1
    except InputError as error:
        event = {
            "event": "ended", "steps": 0, "tokens": 0, "loss": None, "status": "failed", "error": str(error),
            "wrong_input": True,
        }  # fmt: skip
    except Exception as error:
        traceback.print_exc()
        event = {
            "event": "ended", "steps": 0, "tokens": 0, "loss": None, "status": "failed", "error": in_words(error),
        }  # fmt: skip
    channel.send(event)
    return 0 if event.get("status") == "done" else 1


def _train(start: TrialStart, watching: Watching) -> Trained:
    from harness.launch.training import train_arm
    from harness.launch.training_progress import Goal
    from harness.scenario.model import Scenario
    from harness.scenario.plan import Arm, Plan
    from trainer.config import TrainerConfig

    config = TrainerConfig.model_validate(start["config"])
    scenario = Scenario(name=start["scenario"], question="", arms={start["arm"]: None})
    plan = Plan(scenario, (Arm(start["arm"], None, None, {}, config),), (), ())
    folder, goal = Path(start["folder"]), Goal(steps=start["steps"])
    return train_arm(plan, goal, folder, True, start["command"], "", watching)


def _ended(trained: Trained, watching: Watching, folder: Path) -> TrialEvent:
    """What is said of a training that has ended, and kept beside it, so that a killed sweep finds it."""
    import json

    from harness.launch.training import EVALUATIONS
    from harness.launch.training_files import read_evaluations
    from trainer.files import write_text

    status, error = trained.status, trained.error
    diverged = trained.diverged or watching.diverged is not None
    validation = trained.validation_loss
    table = folder / EVALUATIONS
    if status == "done" and validation is None and table.exists():  # of a part before this one
        last = [row for row in read_evaluations(table) if row.step == trained.steps - 1]
        validation = last[-1].loss if last else None
    event: TrialEvent = {
        "event": "ended", "steps": trained.steps, "tokens": trained.tokens, "loss": _finite(trained.loss),
        "status": "diverged" if diverged else status, "validation_loss": _finite(validation),
        "error": watching.diverged or error,
    }  # fmt: skip
    if diverged or status == "done":
        write_text(folder / RESULT, json.dumps(event, indent=1) + "\n")
    return event


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
