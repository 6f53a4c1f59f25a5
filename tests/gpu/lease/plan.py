"""Chooses jobs: those without a result for this card, in order of value, as many as fit into the time."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.lease.sheet import DONE, Result
from tests.gpu.lease.table import Job


@dataclass(frozen=True)
class Card:
    """The device of the lease."""

    name: str
    memory_gib: float

    @property
    def folder(self) -> str:
        """Name of its folder of results: ``h200`` for "NVIDIA H200"."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower().removeprefix("nvidia ")).strip("-")


@dataclass(frozen=True)
class Choice:
    """What becomes of one job."""

    job: Job
    before: Result | None
    """The result that is there already."""
    start_s: int | None
    """Expected start, in seconds from now; None if it does not run."""
    reason: str
    """Why it runs, or why not."""


def plan(
    jobs: Sequence[Job],
    results: Path,
    card: Card | None,
    seconds: float,
    *,
    only: Collection[str] = (),
) -> list[Choice]:
    """Return a choice for every job, in order. ``card``: None if there is none (then memory is not checked).

    ``results``: folder with one folder for each card, of one folder for each job. ``only``: these jobs alone, also if
    they have a result.
    """
    used, choices = 0, []
    for job in jobs:
        before = Result.read(results / card.folder / job.name) if card else newest(results, job.name)
        reason = refusal(job, before, card, seconds - used, only)
        choices.append(Choice(job, before, None if reason else used, reason or _why(before)))
        if not reason:
            used += job.seconds
    return choices


def refusal(job: Job, before: Result | None, card: Card | None, left_s: float, only: Collection[str] = ()) -> str:
    """Return why the job does not run now; empty if it does."""
    if only and job.name not in only:
        return "not asked for"
    if not only and before is not None and before.status == DONE:
        return f"measured at {before.commit[:9]}"
    if card is not None and job.memory_gib > card.memory_gib:
        return f"needs {job.memory_gib} GiB; the card has {card.memory_gib:.0f}"
    if job.seconds > left_s:
        return f"needs {job.seconds} s; {max(0.0, left_s):.0f} are left"
    return ""


def newest(results: Path, name: str) -> Result | None:
    """Return the job's last complete result of any card, else its last one."""
    found = [result for path in results.glob(f"*/{name}") if (result := Result.read(path)) and not result.emulated]
    return max(found, key=lambda one: (one.status == DONE, one.date), default=None)


def _why(before: Result | None) -> str:
    if before is None:
        return "not measured yet"
    return f"measured at {before.commit[:9]}" if before.status == DONE else f"{before.status} at {before.commit[:9]}"
