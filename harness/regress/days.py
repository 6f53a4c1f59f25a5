"""Knows how much a machine differs from one day to another, from the sessions of a baseline that were kept.

Two studies of different days differ by more than their blocks scatter: the machine's clocks, neighbours and temperature
are another draw. No number of blocks shows that, and more of them only make a false "slower" surer. Sessions do: the
scatter of their medians is that of days. Below :data:`MIN_SESSIONS` of them it is assumed, not known
(:data:`DAY_DEVIATION`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from statistics import NormalDist, fmean, median

import numpy as np

from harness.explain.statistics import Estimate, student_t, widening
from harness.regress.policy import DAY_DEVIATION, MIN_SESSIONS, SESSION_APART_H
from harness.regress.series import BlockSeries

STARTUP = "startup"  # the name of the startup among the parts of a session


@dataclass(frozen=True)
class Session:
    """One study of a baseline: medians over its blocks, in milliseconds per step by part, and of the startup.

    ``level``: sessions of one level are of one state of the code, and scatter by the machine alone.
    """

    created_utc: str
    level: int = 0
    ms: dict[str, float] = field(default_factory=dict)
    git_commit: str | None = None


@dataclass(frozen=True)
class BetweenDays:
    """What a comparison across days allows for. ``allowance``: a fraction, at the level of the decision.

    ``sessions``: kept; ``known``: whether the allowance is theirs, else it is assumed. ``blocks_only``: the change with
    the interval of the blocks alone, as if no day differed from another.
    """

    allowance: float
    sessions: int
    known: bool
    blocks_only: Estimate | None = None


@dataclass(frozen=True)
class Days:
    """The sessions kept of one arm, oldest first. ``centred``: the newest level's mean is what is compared with.

    Else one study is, which is itself one day's draw.
    """

    sessions: tuple[Session, ...] = ()
    centred: bool = False

    @property
    def level(self) -> tuple[Session, ...]:
        """The sessions of the newest level."""
        newest = max((one.level for one in self.sessions), default=0)
        return tuple(one for one in self.sessions if one.level == newest)

    @property
    def more_sessions(self) -> int:
        """Number of sessions to keep until :meth:`between` is known; 0 where it is."""
        return max(MIN_SESSIONS - 1 - (len(self.sessions) - len(self._levels())), 0)

    def centre(self, part: str) -> float | None:
        """Log of the newest level's milliseconds; None where one session alone is compared with."""
        logs = _logs(self.level, part)
        return fmean(logs) if self.centred and len(logs) >= MIN_SESSIONS else None

    def between(self, part: str, confidence: float) -> tuple[float, bool]:
        """Half the width of the interval of a new day's log against the centre, and whether it is known.

        A prediction interval: the new day is one draw, and the centre a mean of few. Levels share a machine, so their
        scatter is pooled; days in a row that are alike say less than as many others, and widen it.
        """
        groups = [_logs([one for one in self.sessions if one.level == level], part) for level in self._levels()]
        squares = sum((log - fmean(logs)) ** 2 for logs in groups for log in logs)
        freedom = sum(len(logs) - 1 for logs in groups if logs)
        centre = len(_logs(self.level, part)) if self.centre(part) is not None else 1  # days that it is a mean of
        drawn = math.sqrt(1 + 1 / centre)
        tail = 1 - (1 - confidence) / 2
        if freedom < MIN_SESSIONS - 1:
            return NormalDist().inv_cdf(tail) * DAY_DEVIATION * drawn, False
        widened = max(widening(np.array(logs)) for logs in groups if logs)
        return student_t(tail, freedom) * math.sqrt(squares / freedom) * drawn * widened, True

    def _levels(self) -> list[int]:
        return sorted({one.level for one in self.sessions})


def _logs(sessions: Iterable[Session], part: str) -> list[float]:
    return [math.log(one.ms[part]) for one in sessions if one.ms.get(part, 0.0) > 0]


def session_of(series: BlockSeries, level: int) -> Session:
    """``series`` as one session."""
    parts = {part: median(values) for part, values in series.part_ms.items() if values}
    startup = {STARTUP: median(series.startup_ms)} if series.startup_ms else {}
    commit = series.environment.get("git_commit")
    return Session(series.created_utc, level, parts | startup, commit if isinstance(commit, str) else None)


def apart(one: str, other: str) -> bool:
    """Whether two times (UTC, ISO 8601) are of two sessions; False where either is not known."""
    try:
        first, second = (datetime.fromisoformat(text).replace(tzinfo=None) for text in (one, other))
    except ValueError:
        return False
    return abs((second - first).total_seconds()) >= SESSION_APART_H * 3600
