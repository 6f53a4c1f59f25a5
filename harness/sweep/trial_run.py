"""Train one trial in its own process, forked by ``launch.fork_server``, and end it early by the sweep's orders."""

from __future__ import annotations

import math
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.launch.block import modules_of
from harness.launch.channel import BEAT_S, BEATS_PER_LIMIT, KILLED_S, Channel, looks
from harness.launch.diagnosis import diagnose, killed_by, look_at
from harness.launch.ending import signal_group
from harness.launch.fork_server import ForkServer, ForkServerGone
from harness.launch.protocol import TrialEvent, TrialStart
from harness.sweep.model import TrialLimits
from trainer.errors import InputError, in_words
from trainer.json_types import JsonObject
from trainer.lifetime import die_with_parent

if TYPE_CHECKING:
    from harness.launch.training import Trained


RESULT = "result.json"


class Watching:
    """Sends heartbeats and milestones, and ends a trial that diverges. It uses all losses but the last: one may be
    late.
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
        """Send the mean loss since the last milestone, and return the order: step, stop, or evaluate (and end)."""
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
    """Train the trial that the socket ``descriptor`` sends; die with ``parent``, the fork server. 0: it trained all."""
    die_with_parent(parent)
    channel = Channel(socket.socket(fileno=descriptor))
    start = channel.receive_trial_start()
    watching = Watching(start, channel)
    try:
        event = _ended(_train(start, watching), watching, Path(start["folder"]))
    except EOFError:  # The sweep has ended.
        return 1
    except Exception as error:
        event = {"event": "ended", "steps": 0, "tokens": 0, "loss": None, "status": "failed", "error": in_words(error)}
        if isinstance(error, InputError):
            event |= {"error": str(error), "wrong_input": True}
        else:
            traceback.print_exc()
    channel.send(event)
    return 0 if event.get("status") == "done" else 1


def _train(start: TrialStart, watching: Watching) -> Trained:
    from harness.launch.progress import Goal
    from harness.launch.train_arm import train_arm
    from harness.launch.training import TrainingOptions
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
    """Return a trial's last event, with its losses. If done or diverged, write it to result.json too, for a resume."""
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
        "event": "ended", "steps": trained.steps, "tokens": trained.tokens, "loss": finite(trained.loss),
        "status": "diverged" if diverged else status, "validation_loss": finite(validation),
        "error": watching.diverged or error, "right": finite(right),
    }  # fmt: skip
    if diverged or status == "done":
        write_text(folder / RESULT, json.dumps(event, indent=1) + "\n")
    return event


def finite(value: object) -> float | None:
    """Return a finite number as float; None for anything else."""
    return float(value) if isinstance(value, Real) and math.isfinite(value) else None


ENTRY = "harness.sweep.trial_run"
PRELOADED = (ENTRY, "harness.launch.training", "trainer.evaluate", "trainer.checkpoint")
STOPPING_S = 120.0  # Time for a stopped trial to finish its step and its last checkpoint.

Order = Literal["step", "stop", "evaluate"]


class TrialFailed(Exception):  # noqa: N818 - an outcome, reported; the trial is tried again when the sweep is resumed
    """Error: a trial failed not by its rate but by memory or code. A resumed sweep tries it again."""


class TrialLate(Exception):  # noqa: N818 - an outcome of a trial
    """A trial took longer than ``limits.trial_hours``. The sweep goes on with the next one."""


class TrialServer:
    """Trains trials one after the other, each forked by one server that has imported everything."""

    def __init__(self, configs: Sequence[JsonObject], limits: TrialLimits) -> None:
        self._modules = [*modules_of(configs), *PRELOADED]
        self._limits = limits
        self._server: ForkServer | None = None
        self._pid: int | None = None
        self.forked_s = 0.0  # time.monotonic() when the last trial was forked, with everything imported

    @property
    def beat_s(self) -> float:
        """Interval of a trial's heartbeat, in seconds."""
        return min(BEAT_S, self._limits.silence_s / BEATS_PER_LIMIT)

    def train(
        self,
        start: TrialStart,
        log: Path,
        before_s: float,
        decide: Callable[[TrialEvent], Order],
        going_on: Callable[[TrialEvent], bool] = lambda _: True,
    ) -> TrialEvent:
        """Train one trial in a new process and return its last event.

        ``before_s``: seconds of earlier parts. ``decide``: returns the order at a milestone. ``going_on``: False asks
        the trial to end. Raises TrialLate after ``limits.trial_hours``, TrialFailed if the process ends or is silent
        too long.
        """
        own_end, child_end = socket.socketpair()
        channel, log_start = Channel(own_end), log.stat().st_size if log.exists() else 0
        end_s = time.monotonic() + self._limits.trial_hours * 3600 - before_s
        with own_end:
            with child_end:
                self._fork(child_end, log)
            try:
                with suppress(OSError):
                    channel.send(start)
                limit_s = self._limits.start_s
                while True:
                    event = self._receive(channel, limit_s, end_s, log, log_start)
                    limit_s = self._limits.silence_s
                    if event["event"] == "ended":
                        self._wait()
                        return event
                    continues = going_on(event)
                    if event["event"] == "milestone":
                        order: Order = decide(event) if continues else "stop"
                        with suppress(OSError):
                            channel.send({"do": order})
                    elif not continues:
                        self._signal(signal.SIGTERM)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    self._stop(channel)
                self._kill()
                raise

    def close(self) -> None:
        """End the server and the trial that may still run."""
        self._kill()
        if self._server is not None:
            self._server.close()

    def _fork(self, theirs: socket.socket, log: Path) -> None:
        if self._server is not None and self._server.ended:
            self._server.close()
            self._server = None
        if self._server is None:
            self._server = ForkServer(self._modules)
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._pid = self._server.fork(theirs, log, self._limits.start_s, ENTRY)
            self.forked_s = time.monotonic()
        except ForkServerGone as gone:
            raise TrialFailed(f"it did not start: {gone}") from gone

    def _receive(self, channel: Channel, limit_s: float, end_s: float, log: Path, log_start: int) -> TrialEvent:
        parts = looks(limit_s)
        for _ in range(parts):
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise TrialLate
            try:
                return channel.receive_trial_event(min(limit_s / parts, left_s))
            except TimeoutError:
                continue
            except (EOFError, OSError):
                raise TrialFailed(self._why_gone(log)) from None
        assert self._pid is not None
        finding = diagnose(look_at(self._pid, 0, log, log_start), "limits.silence_s")
        raise TrialFailed(f"no heartbeat for {limit_s:g} s: {finding}")

    def _why_gone(self, log: Path) -> str:
        if self._pid is not None:
            signal_group(self._pid, signal.SIGKILL)  # Its channel is closed.
        code = self._wait()
        if code is not None and code < 0:
            return f"its process was {killed_by(-code)}"
        return f"its process ended with status {code} without a message; see {log}"

    def _stop(self, channel: Channel) -> None:
        """Ask the trial to write a last checkpoint and end, and wait for that at most STOPPING_S seconds."""
        self._signal(signal.SIGTERM)
        end_s = time.monotonic() + STOPPING_S
        with suppress(EOFError, OSError, TimeoutError, KeyboardInterrupt):
            channel.send({"do": "stop"})  # The trial may wait for the answer to a milestone.
            while (left_s := end_s - time.monotonic()) > 0:
                event = channel.receive_trial_event(left_s)
                if event["event"] == "ended":
                    return
                if event["event"] == "milestone":
                    channel.send({"do": "stop"})

    def _signal(self, number: signal.Signals) -> None:
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _kill(self) -> None:
        """Kill the trial and its loader workers at once. Nothing if no trial runs."""
        if self._pid is None:
            return
        signal_group(self._pid, signal.SIGKILL)
        self._wait()

    def _wait(self) -> int | None:
        code = None
        if self._pid is not None and self._server is not None:
            with suppress(ForkServerGone):
                code = self._server.wait(self._pid, KILLED_S)
        self._pid = None
        return code
