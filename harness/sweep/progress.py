"""Shows the progress of a sweep: a line for each ended trial, and one for the running trial."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from harness.launch.progress import PLAIN_INTERVAL_S, TERMINAL_INTERVAL_S, fitted, is_terminal
from harness.show.words import count, duration
from harness.sweep.messages import rate, trial_line
from harness.sweep.trials import Trial, TrialStage


class SweepProgress:
    """Progress of a running sweep on standard error.

    On a terminal, the line of the running trial is rewritten in place.
    """

    def __init__(self, stages: Sequence[TrialStage], trials: Sequence[Trial]) -> None:
        """Start the display. ``stages``: all planned trials. ``trials``: those of earlier starts of the sweep."""
        self._all = sum(stage.trials for stage in stages)
        self._exact = all(stage.exact for stage in stages)
        self._all_steps = sum(stage.trials * stage.steps for stage in stages)
        # Steps of a larger model take longer. Those of a smaller model do not predict the time left.
        self._is_alike = all(stage.overrides == stages[0].overrides for stage in stages)
        self._rewrites, self._line_open = is_terminal(), False
        self._begun_s = self._shown_s = time.monotonic()
        self._done_steps = 0  # planned steps of trials that ended in this part
        self._before = sum(trial.plan.steps for trial in trials if trial.status != "running")
        ended = sum(trial.status != "running" for trial in trials)
        if ended:
            self._say(f"{count(ended, 'trial')} of before, none of which is run again")

    def measuring(self, steps: int, group: str) -> None:
        """Print that ``steps`` steps of a trial of ``group`` are trained as a pilot, to measure their time."""
        trial = f"a trial of {group}" if group else "a trial"
        self._say(f"training {count(steps, 'step')} to know what {trial} takes")

    def begin(self, trial: Trial) -> None:
        """Show that a trial starts or is resumed."""
        self._show(trial, 0, None, force=self._rewrites)

    def step(self, trial: Trial, steps: int, loss: float | None) -> None:
        """Show how far the running trial is, at most every few seconds. ``loss``: None if not known."""
        self._show(trial, steps, loss)

    def ended(self, trial: Trial, trials: Sequence[Trial]) -> None:
        """Print how a trial ended, and the lowest loss so far. ``trials``: all trials of the sweep."""
        self._done_steps += trial.plan.steps
        best = min((done for done in trials if done.status == "done"), key=lambda done: done.score, default=None)
        so_far = "" if best is None else f"; lowest so far {best.score:.4f} at {rate(best.plan.learning_rate)}"
        self._say(f"{trial_line(trial)}{so_far}")

    def end(self) -> None:
        """Finish the line that was rewritten in place, so that later output starts on a new one."""
        if self._line_open:
            print(file=sys.stderr)
            self._line_open = False

    def _show(self, trial: Trial, steps: int, loss: float | None, force: bool = False) -> None:
        now_s = time.monotonic()
        if not force and now_s - self._shown_s < (TERMINAL_INTERVAL_S if self._rewrites else PLAIN_INTERVAL_S):
            return
        self._shown_s = now_s
        line = self.line(trial, steps, loss, now_s - self._begun_s)
        if self._rewrites:
            print(f"\r{fitted(line)}\x1b[K", end="", file=sys.stderr, flush=True)
            self._line_open = True
        else:
            print(line, file=sys.stderr, flush=True)

    def line(self, trial: Trial, steps: int, loss: float | None, seconds: float) -> str:
        """Return the progress line of a trial, ``seconds`` after this start of the sweep, with an estimate of the
        time left.
        """
        all_trials = f"{'' if self._exact else 'at most '}{self._all}"
        value = "" if loss is None else f", loss {loss:.4f}"
        done, remaining = self._done_steps + steps, ""
        rest = self._all_steps - self._before - done
        if done and rest > 0 and self._is_alike:
            remaining = f", {'about' if self._exact else 'at most about'} {duration(seconds * rest / done)} left"
        return (
            f"trial {trial.number + 1} of {all_trials}: learning rate {rate(trial.plan.learning_rate)}, step {steps:,} "
            f"of {trial.plan.steps:,}{value} | {duration(seconds)} gone{remaining}"
        )

    def _say(self, line: str) -> None:
        start = "\r\x1b[K" if self._line_open else ""
        self._line_open = False
        print(f"{start}{line}", file=sys.stderr, flush=True)
