"""Shows progress: a line that rewrites itself on a terminal (rich), plain lines in a batch log."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from trainer.errors import visible

PLAIN_INTERVAL_S = 15.0  # often enough to see that it is alive, rare enough for a log file


class Progress:
    """Counts runs and steps; shows runs done, steps per second and the time left."""

    def __init__(self, total_runs: int | None, total_steps: int) -> None:
        """``total_runs``: None where nobody knows how many it will take."""
        self._total_runs = total_runs
        self._total_steps = max(total_steps, 1)
        self._runs = 0
        self._failed = 0
        self._steps = 0
        self._stepping_s = 0.0
        self._doing = "starting"
        self._begun_s = time.monotonic()
        self._repetition_begun_s = self._begun_s
        self._shown_s = self._begun_s
        self._live: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            # Four refreshes a second: drawing is load on the cores that are being measured.
            self._live = Live(console=Console(stderr=True), refresh_per_second=4, get_renderable=self._line)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        else:
            self._show()

    def starting(self, arm: str, block: int) -> None:
        self._doing = f"block {block}: starting {arm}"
        self._maybe_show()

    def repetition(self, arm: str, block: int, number: int, count: int) -> None:
        self._doing = f"block {block}: {arm}, repetition {number + 1}/{count}"
        self._repetition_begun_s = time.monotonic()

    def stepped(self, steps: int) -> None:
        self._steps += steps
        self._stepping_s += time.monotonic() - self._repetition_begun_s
        self._maybe_show()

    def finished(self, arm: str, block: int) -> None:
        self._runs += 1
        self._doing = f"block {block}: {arm} done"

    def failed(self, arm: str, block: int, error: str) -> None:
        self._failed += 1
        self.note(f"run {arm}/{block} failed: {error}")

    def note(self, text: str) -> None:
        """A line that stays."""
        text = visible(text)
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def _line(self) -> str:
        elapsed_s = time.monotonic() - self._begun_s
        rate = f"{self._steps / self._stepping_s:.1f} steps/s" if self._stepping_s > 0 else "- steps/s"
        failed = f", {self._failed} failed" if self._failed else ""
        if self._total_runs is None:
            return f"{self._runs} runs{failed} | {rate} | {_clock(elapsed_s)} gone | {self._doing}"
        share = min(self._steps / self._total_steps, 1.0)
        left = f"about {_clock(elapsed_s * (1 - share) / share)} left" if share > 0 else "time left unknown yet"
        return (
            f"{self._runs}/{self._total_runs} runs{failed} | {rate} | {_clock(elapsed_s)} gone, {left} | {self._doing}"
        )

    def _maybe_show(self) -> None:
        if self._live is None and time.monotonic() - self._shown_s >= PLAIN_INTERVAL_S:
            self._show()

    def _show(self) -> None:
        self._shown_s = time.monotonic()
        print(self._line(), file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
