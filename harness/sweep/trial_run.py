"""Train one trial in its own process, forked by ``launch.fork_server``, and decide when it ends early.

At each milestone it waits for the sweep's order, which depends on losses alone.
"""

from __future__ import annotations

import math
import socket
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from harness.launch.channel import Channel
from harness.launch.protocol import TrialEvent, TrialStart
from trainer.errors import InputError, in_words
from trainer.lifetime import die_with_parent

if TYPE_CHECKING:
    from harness.launch.training import Trained

RESULT = "result.json"


class Watching:
    """Watches every step of a trial: sends heartbeats, reports milestones, and ends it if it diverges.

    On every device, decisions after N steps use all losses but the last, because a device may be one step late.
    """

    def __init__(self, start: TrialStart, channel: Channel) -> None:
        self._channel, self._beat_s = channel, start["beat_s"]
        self._milestones = list(start["milestones"])
        self._above_start, self._window = start["above_start"], start["window"]
        self._losses: list[float] = []  # losses of every step from the first on, including earlier parts
        self._table = Path(start["folder"]) / "losses.csv"
        self._begun = False
        self._part_begin = 0  # index of the first loss in the next milestone's mean
        self._last_message_s = time.monotonic()
        self.diverged: str | None = None  # reason for which the training counts as diverged
        self.evaluates = False

    def loss(self, step: int, value: float) -> None:
        """Store the loss of step ``step`` (from 0)."""
        self._recall(step)
        self._losses.append(value)

    def step(self, steps: int, tokens: int) -> bool:
        """Check the training. Return True if it must end: it diverged, or the sweep orders it."""
        self._recall(steps - 1)
        completed = steps - 1
        if self.diverged is None:
            self.diverged = self._divergence(completed)
        if self.diverged is not None:
            return True
        # Milestones of earlier parts are repeated: a kill may have prevented their decision, or its execution.
        while self._milestones and steps >= self._milestones[0]:
            if (order := self._report(self._milestones.pop(0), tokens)) != "step":
                self.evaluates = order == "evaluate"
                return True
        if time.monotonic() - self._last_message_s >= self._beat_s:
            self._last_message_s = time.monotonic()
            self._channel.send({"event": "alive", "steps": steps, "tokens": tokens, "loss": None})
        return False

    def _report(self, milestone: int, tokens: int) -> str:
        """Send the mean loss since the last milestone to the sweep, and return its order: step, stop or evaluate."""
        losses = self._losses[self._part_begin : milestone - 1]
        self._part_begin = milestone - 1
        mean = sum(losses) / len(losses) if losses else None
        self._last_message_s = time.monotonic()
        self._channel.send({"event": "milestone", "steps": milestone, "tokens": tokens, "loss": mean})
        return self._channel.receive_order()["do"]

    def _recall(self, first: int) -> None:
        """Read the losses of the ``first`` steps, trained by earlier parts, from losses.csv, once."""
        from harness.launch.training_files import read_losses

        if not self._begun:
            self._begun = True
            rows = read_losses(self._table) if first and self._table.exists() else []
            self._losses = [row.loss for row in rows if row.step < first]

    def _divergence(self, known: int) -> str | None:
        """Return why the training diverged within its first ``known`` steps; None if it did not."""
        if not known:
            return None
        if not math.isfinite(self._losses[known - 1]):
            return "its loss was not finite"
        last = self._losses[max(0, known - self._window) : known]
        if self._above_start is None or len(last) < self._window:
            return None
        mean, first = sum(last) / len(last), self._losses[0]
        if mean <= first + self._above_start * abs(first):
            return None
        return f"its loss was {mean:.4g} over {len(last)} steps, above {first:.4g} at its start"


def main(descriptor: int, parent: int) -> int:
    """Train the trial of the first message on socket ``descriptor``, as child of ``parent``. Return 0: finished."""
    die_with_parent(parent)
    channel = Channel(socket.socket(fileno=descriptor))
    start = channel.receive_trial_start()
    watching = Watching(start, channel)
    try:
        event = _ended(_train(start, watching), watching, Path(start["folder"]))
    except EOFError:  # The sweep has ended.
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
    from harness.launch.train_arm import train_arm
    from harness.launch.training import TrainingOptions
    from harness.launch.training_progress import Goal
    from harness.scenario.model import Scenario
    from harness.scenario.plan import Arm, Plan
    from trainer.config import TrainerConfig

    config = TrainerConfig.model_validate(start["config"])
    scenario = Scenario(name=start["scenario"], question="", arms={start["arm"]: None})
    plan = Plan(scenario, (Arm(start["arm"], None, None, {}, config),), (), ())
    folder, goal = Path(start["folder"]), Goal(steps=start["steps"])
    options = TrainingOptions(resume=True, force=True, watch=watching)
    return train_arm(plan, goal, folder, start["command"], "", options)


def _ended(trained: Trained, watching: Watching, folder: Path) -> TrialEvent:
    """Return a trial's last event, with its losses; also write it to result.json, should the sweep be killed."""
    import json

    from harness.launch.training_files import EVALUATIONS, read_evaluations
    from trainer.files import write_text

    status, error = trained.status, trained.error
    diverged = trained.diverged or watching.diverged is not None
    validation = None if trained.validation is None else trained.validation.loss
    table = folder / EVALUATIONS
    # The table also has the passes of earlier parts.
    passes = read_evaluations(table) if not diverged and table.exists() else []
    last = [row for row in passes if row.step == trained.steps - 1]
    if validation is None or status != "done":  # The last pass of a trial that ended early may precede its end.
        validation = next((row.loss for row in last if row.kind == "loss"), None)
    right = next((row.acc_tokens if row.acc_norm is None else row.acc_norm for row in last if row.questions), None)
    event: TrialEvent = {
        "event": "ended", "steps": trained.steps, "tokens": trained.tokens, "loss": _finite(trained.loss),
        "status": "diverged" if diverged else status, "validation_loss": _finite(validation),
        "error": watching.diverged or error, "right": _finite(right),
    }  # fmt: skip
    if diverged or status == "done":
        write_text(folder / RESULT, json.dumps(event, indent=1) + "\n")
    return event


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
