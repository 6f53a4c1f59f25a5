"""Show progress of a study, a training or work on a corpus: a live line on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from trainer.errors import InputError, visible
from trainer.evaluate import Sample
from trainer.telemetry import Validation

if TYPE_CHECKING:
    from rich.live import Live

    from trainer.config import TrainerConfig

TERMINAL_INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 15.0  # seconds between two lines in a log
LONG_S = 10.0  # Longer work is shown with its duration.
ALIVE_INTERVAL_S = 30.0  # maximum seconds without a line in a log


class SignsOfLife:
    """Context with a thread that prints ``line()`` to a log after :data:`ALIVE_INTERVAL_S` without other output."""

    def __init__(self, line: Callable[[], str]) -> None:
        self._line = line
        self._ended = threading.Event()
        self._shown_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="signs-of-life", daemon=True)

    def __enter__(self) -> Self:
        if not is_terminal():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def silent_s(self) -> float:
        """Seconds since the last line was printed by this object."""
        return time.monotonic() - self._shown_s

    def show(self, line: str) -> None:
        """Print ``line`` to standard error now. This postpones the next sign of life."""
        self._shown_s = time.monotonic()
        print(line, file=sys.stderr, flush=True)

    def _run(self) -> None:
        while not self._ended.wait(max(ALIVE_INTERVAL_S - self.silent_s, 0.001)):
            if self.silent_s >= ALIVE_INTERVAL_S:
                with suppress(OSError, ValueError):  # The log has no reader any more. The study continues.
                    self.show(self._line())


def announced(what: str) -> SignsOfLife:
    """Print that the work ``what`` begins. Return a context: a log gets a line with the time every ALIVE_INTERVAL_S."""
    begun_s = time.monotonic()
    signs = SignsOfLife(lambda: f"{what}, for {_clock(time.monotonic() - begun_s)}")
    signs.show(what)
    return signs


def is_terminal() -> bool:
    """True if standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


class _Display:
    """Shows the line of a subclass while its context is open: redrawn on a terminal, at intervals in a log."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self._signs = SignsOfLife(self._line)
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if is_terminal():
            self._live = _live(self._line)
            self._live.start()
        else:
            self._signs.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        (self._signs.__exit__ if self._live is None else self._live.stop)()

    def _line(self) -> str:
        raise NotImplementedError

    def _maybe_show(self) -> None:
        if self._live is None and self._signs.silent_s >= PLAIN_INTERVAL_S:
            self._signs.show(self._line())


class Progress(_Display):
    """Context that displays a study's progress: runs, steps, steps per second and time left."""

    def __init__(self, total_runs: int | None, total_steps: int, heard: Callable[[], None] = lambda: None) -> None:
        """Set up for the planned runs (None: unknown) and all their steps. ``heard``: called after each repetition."""
        super().__init__()
        self._heard = heard
        self._total_runs = total_runs
        self._total_steps = max(total_steps, 1)
        self._runs = 0
        self._failed = 0
        self._steps = 0
        self._stepping_s = 0.0
        self._doing, self._since_s = "starting", time.monotonic()
        self._repetition_begun_s = self._begun_s

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._live is None:
            self._signs.show(self._line())

    def starting(self, arm: str, block: int) -> None:
        self._do(f"block {block}: starting {arm}")
        self._maybe_show()

    def repetition(self, arm: str, block: int, number: int, count: int) -> None:
        self._do(f"block {block}: {arm}, repetition {number + 1}/{count}")
        self._repetition_begun_s = time.monotonic()

    def stepped(self, steps: int, extra: int = 0) -> None:
        """Count the steps of a repetition: ``steps`` planned ones, ``extra`` unplanned warm-up steps."""
        self._steps += steps + extra
        self._total_steps += extra
        self._stepping_s += time.monotonic() - self._repetition_begun_s
        self._heard()
        self._maybe_show()

    def finished(self, arm: str, block: int) -> None:
        self._runs += 1
        self._do(f"block {block}: {arm} done")

    def failed(self, arm: str, block: int, error: str) -> None:
        self._failed += 1
        self.note(f"run {arm}/{block} failed: {error}")

    def note(self, text: str) -> None:
        """Print a line that stays on the screen above the progress line."""
        text = visible(text)
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def _line(self) -> str:
        elapsed_s = time.monotonic() - self._begun_s
        rate = f"{self._steps / self._stepping_s:.1f} steps/s" if self._stepping_s > 0 else "- steps/s"
        failed = f", {self._failed} failed" if self._failed else ""
        doing_s = time.monotonic() - self._since_s
        doing = self._doing + (f" for {_clock(doing_s)}" if doing_s >= LONG_S else "")
        if self._total_runs is None:
            return f"{self._runs} runs{failed} | {rate} | {_clock(elapsed_s)} gone | {doing}"
        share = min(self._steps / self._total_steps, 1.0)
        remaining = _left(elapsed_s, share)
        return f"{self._runs}/{self._total_runs} runs{failed} | {rate} | {_clock(elapsed_s)} gone{remaining} | {doing}"

    def _do(self, what: str) -> None:
        self._doing, self._since_s = what, time.monotonic()


class TextProgress(_Display):
    """Progress of work (``what``) on a corpus, called with the documents and bytes since the last call."""

    def __init__(self, what: str, documents: int) -> None:
        super().__init__()
        self.documents = 0
        self._what, self._all = what, documents
        self._kept: int | None = None
        self._bytes = 0

    @property
    def kept(self) -> int:
        """Number of documents that an earlier process had finished; 0 until the first call of this object."""
        return self._kept or 0

    def __call__(self, documents: int, text_bytes: int) -> None:
        """Add finished documents and bytes of text. The first call gives those of an earlier process."""
        if self._kept is None:
            self._kept = documents
        self.documents += documents
        self._bytes += text_bytes
        self._maybe_show()

    def _line(self) -> str:
        elapsed_s = max(time.monotonic() - self._begun_s, 1e-9)
        if self._kept is None:
            return f"{visible(self._what)}: {_clock(elapsed_s)} gone"
        done = self.documents - self.kept
        remaining = _left(elapsed_s, done / (self._all - self.kept) if done else 0.0)
        rate = f"{self._bytes / 1e6 / elapsed_s:.1f} MB/s | " if self._bytes else ""
        kept = f", {self.kept:,} of them earlier" if self.kept else ""
        return (
            f"{visible(self._what)}: {self.documents:,} of {self._all:,} documents{kept} | {rate}"
            f"{_clock(elapsed_s)} gone{remaining}"
        )


def fitted(line: str) -> str:
    """Return ``line``, cut to the width of the terminal: a longer line could not be redrawn in place."""
    from rich.console import Console
    from rich.text import Text

    text = Text(line)
    # A character in the last column makes some terminals begin a new line.
    text.truncate(max(Console(stderr=True).width - 1, 1), overflow="ellipsis")
    return text.plain


def _live(line: Callable[[], str]) -> Live:
    """Return a live display (rich) on standard error that shows the text of ``line()`` in one terminal line."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    # Only four refreshes per second, because drawing is load on the measured cores.
    return Live(
        console=Console(stderr=True),
        refresh_per_second=4,
        get_renderable=lambda: Text(line(), no_wrap=True, overflow="ellipsis"),
    )


def _left(elapsed_s: float, share: float) -> str:
    """Return a text like ", about 1:30 left", if ``share`` (0 to 1) of the work took ``elapsed_s``; "" under 1 s."""
    if share <= 0:
        return ", time left unknown"
    left_s = elapsed_s * (1 - share) / share
    return f", about {_clock(left_s)} left" if left_s >= 1 else ""


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


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

    def steps_of(self, config: TrainerConfig) -> int | None:
        """Return the training's number of steps; None for epochs, whose length is not known in advance."""
        if self.tokens is None:
            return self.steps
        batch = config.data.batch_size * config.data.sequence_length * config.optimizer.accumulation * config.ranks
        return -(-self.tokens // batch)

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
            evaluated_ns = sum(validation.end_ns - validation.start_ns for validation in passes)
            evaluating_s = evaluated_ns / 1e9 + self._sampling_s
            self._print(self.line(steps, tokens, share, loss, now_s - self._begun_s, evaluating_s))

    def line(
        self, steps: int, tokens: int, share: float, loss: float | None, seconds: float, evaluating_s: float = 0.0
    ) -> str:
        """Return the progress line of the whole training so far. ``seconds``: time since this part of the training
        began, ``evaluating_s`` of them in evaluations.
        """
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
