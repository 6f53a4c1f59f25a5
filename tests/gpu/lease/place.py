"""Says where a job runs and where it writes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.lease.sheet import Figure, Sheet

CUDA, EMULATED = "cuda", "emulated"


@dataclass(frozen=True)
class Place:
    """What a job gets. It writes what is to be kept into ``out`` (small: it is committed), all else into ``work``."""

    device: str
    """``cuda``, or ``emulated``: the same code at its least size on a machine without a card; no target is judged."""
    out: Path
    work: Path
    until: float
    """``time.monotonic()`` at which the process is killed."""
    sheet: Sheet

    @property
    def emulated(self) -> bool:
        return self.device == EMULATED

    @property
    def left_s(self) -> float:
        """Seconds until the process is killed."""
        return self.until - time.monotonic()

    def leave_out(self) -> None:
        """Say that the job's own time limit left something out: it counts as cut, and runs again in a later lease."""
        self.sheet.is_whole = False

    def add(
        self,
        name: str,
        seen: float | str | None,
        unit: str = "",
        *,
        low: float | None = None,
        high: float | None = None,
        asked: str = "",
        holds: bool | None = None,
    ) -> None:
        """Record one figure. ``holds`` is dropped on an emulated device, which cannot meet a card's target."""
        self.sheet.add(Figure(name, seen, unit, low, high, asked, None if self.emulated else holds))
