"""Defines the goal of a training, and the line that shows its progress: loss, tokens per second and the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from harness.launch.progress import PLAIN_INTERVAL_S, TERMINAL_INTERVAL_S, fitted, is_terminal
from trainer.errors import InputError, visible
from trainer.sample import Sample
from trainer.telemetry import Validation


@dataclass(frozen=True)
class Goal:
    """End of a training as a number of steps, of epochs of the corpus, or of tokens. Exactly one is given."""

    steps: int | None = None
    epochs: float | None = None
    tokens: int | None = None

    def share(self, steps: int, tokens: int, epochs: float | None) -> float:
        """Return the finished share, 1 at the goal. Raises InputError for epochs if ``epochs`` is None (unknown)."""
        if self.steps is not None:
            return steps / self.steps
        if self.tokens is not None:
            return tokens / self.tokens
        assert self.epochs is not None
        if epochs is None:
            raise InputError("--epochs: the length of an epoch of these batches is unknown; give --steps or --tokens")
        return epochs / self.epochs

    def __str__(self) -> str:
        if self.steps is not None:
            return f"{self.steps:,} steps"
        return f"{self.tokens:,} tokens" if self.tokens is not None else f"{self.epochs:g} epochs"


class TrainingProgress:
    """Progress line of a training, shown at intervals: redrawn on a terminal, plain lines in a log."""

    def __init__(self, goal: Goal, share: float, tokens: int) -> None:
        """``share`` and ``tokens``: finished share (0 to 1) and tokens of earlier parts of the training."""
        self._goal = goal
        self._rewrites = is_terminal()
        self._interval_s = TERMINAL_INTERVAL_S if self._rewrites else PLAIN_INTERVAL_S
        self._begun_s = self._shown_s = time.monotonic()
        self._share, self._tokens = share, tokens
        self._sampling_s = 0.0

    def step(
        self, steps: int, tokens: int, share: float, loss: float | None, passes: Sequence[Validation] = ()
    ) -> None:
        """Show the line if it is due. ``passes``: evaluations so far, which tokens per second exclude."""
        now_s = time.monotonic()
        if now_s - self._shown_s >= self._interval_s:
            self._shown_s = now_s
            evaluating_s = (
                sum(validation.end_ns - validation.start_ns for validation in passes) / 1e9 + self._sampling_s
            )
            self._print(self.line(steps, tokens, share, loss, now_s - self._begun_s, evaluating_s))

    def line(
        self, steps: int, tokens: int, share: float, loss: float | None, seconds: float, evaluating_s: float = 0.0
    ) -> str:
        """Return the progress line after ``seconds`` of this part, ``evaluating_s`` seconds of them in evaluations."""
        done = share - self._share
        left_s = (1 - share) * seconds / done if done > 0 else 0.0
        remaining = f", {_clock(left_s)} left" if left_s >= 1 else ""
        value = "" if loss is None else f"loss {loss:.4f}, "
        training_s = seconds - evaluating_s
        speed = (tokens - self._tokens) / training_s if training_s > 0 else 0.0
        return f"step {steps:,} ({min(share, 1):.1%} of {self._goal}): {value}{speed:,.0f} tokens/s{remaining}"

    def sampled(self, sample: Sample) -> None:
        """Print the sample text that the model wrote after a step."""
        self._sampling_s += sample.seconds
        cleared = "\r\x1b[K" if self._rewrites else ""
        text = visible(sample.text).strip()
        print(f"{cleared}after {sample.step + 1:,} steps it generates: {text}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """End the progress line on a terminal, so that later output begins on a new line."""
        if self._rewrites:
            print(file=sys.stderr)

    def _print(self, line: str) -> None:
        text, end = (f"\r{fitted(line)}\x1b[K", "") if self._rewrites else (line, "\n")
        print(text, end=end, file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
