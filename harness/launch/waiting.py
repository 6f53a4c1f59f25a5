"""Defines the time limits of the launcher for runs and studies."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

# Maximum seconds between two heartbeats of a run that takes steps. They cost one clock reading per step.
BEAT_S = 10.0
LOOK_S = 10.0  # one poll of the launcher; limits count timed-out polls, not elapsed time
BEATS_PER_LIMIT = 4  # so that a late beat does not end a run
# A run without heartbeats (older code) gets the limit for each of its steps; a profiled run gets it this many times.
PROFILED_STEPS = 100
KILLED_S = 30.0  # time for a killed process to end; with a dead disk it takes longer


def looks(limit_s: float) -> int:
    """Return the number of polls, of LOOK_S seconds each, in a time limit of ``limit_s`` seconds.

    Timed-out polls count instead of time, so a paused container loses one poll instead of the run.
    """
    return max(1, math.ceil(limit_s / LOOK_S))


class BudgetSpent(Exception):  # noqa: N818 - an outcome, reported and survived
    """The study's time was over in the middle of a block. The message names what ran."""


@dataclass(frozen=True)
class WaitLimits:
    """Limits of the launcher's waits. ``start_s``: for a run's start. ``silence_s``: for its next sign of life."""

    start_s: float
    silence_s: float
    end_ns: int | None = None
    """End of the study's time (CLOCK_MONOTONIC); None: no limit."""

    @property
    def beat_s(self) -> float:
        """Seconds between two heartbeats of a run."""
        return min(BEAT_S, self.silence_s / BEATS_PER_LIMIT)

    def within(self, limit_s: float) -> float:
        """Return the seconds to wait now: ``limit_s``, or less if the study's time ends earlier; never negative."""
        return limit_s if self.end_ns is None else max(min(limit_s, (self.end_ns - time.monotonic_ns()) / 1e9), 0.0)

    @property
    def spent(self) -> bool:
        """True if the study's time is over."""
        return self.end_ns is not None and time.monotonic_ns() >= self.end_ns
