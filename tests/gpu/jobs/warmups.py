"""Says how the warm-up of a study's turns ended: ``warm_up(study)``, for any job that ran one.

A turn begins on an idle device. Its warm-up is good where it is short, and where the measured steps after it are no
faster than those that follow. Two numbers show the latter. ``too_fast`` is exact, but of the host's lead and of batches
that lay ready alone: how much of both the measured steps used up (``harness.explain.lead_use``). ``first_over_last``
compares step times, so it shows everything that changes within a turn, the card's clock included.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass

from harness.explain.lead_use import lead_use
from harness.explain.ledger import measure
from harness.launch.block import plan_repetitions
from harness.study.contract import PROFILED
from harness.study.run_data import RunData
from harness.study.store import StudyFolder
from tests.gpu.lease.place import Place
from trainer.config import recorded_config

MOST_EXTRA = 10  # extra steps, in 95 % of turns
MOST_TOO_FAST = 0.01  # of a step, on average


@dataclass(frozen=True)
class WarmUp:
    """The turns of one arm, over all blocks."""

    arm: str
    extra: tuple[int, ...]
    """Warm-up steps beyond those planned, by turn."""
    first_over_last: float
    """Mean of the first third of a turn's measured steps over that of its last third."""
    too_fast: float | None
    """Share of a step by which the measured steps were faster than later steps; None where unknown."""
    low: float | None = None
    high: float | None = None


def warm_up(study: StudyFolder) -> list[WarmUp]:
    """Return the warm-up of each arm that ran on an asynchronous device, by arm."""
    runs: dict[str, list[RunData]] = defaultdict(list)
    for run in study.runs():
        if run.record.status == "done" and run.record.facts.asynchronous and run.record.control != PROFILED:
            runs[run.record.arm].append(run)
    return [_warm_up(arm, found) for arm, found in runs.items() if any(_turns(run) for run in found)]


def record(place: Place, found: list[WarmUp]) -> None:
    """Add the figures of ``found`` to a job's result, beside what issue 41 asks."""
    for one in found:
        few = sum(steps <= MOST_EXTRA for steps in one.extra) / len(one.extra)
        asked = f"at most {MOST_EXTRA} in 95 % of turns"
        place.add(f"{one.arm}: extra warm-up steps, most", max(one.extra), "steps", asked=asked, holds=few >= 0.95)
        place.add(f"{one.arm}: first measured steps over last ones", round(one.first_over_last, 4))
        fast, low, high = (
            None if share is None else round(100 * share, 2) for share in (one.too_fast, one.low, one.high)
        )
        place.add(
            f"{one.arm}: faster than the steady state by",
            fast,
            "% of a step",
            low=low,
            high=high,
            asked=f"at most {MOST_TOO_FAST:.0%}",
            holds=None if one.too_fast is None else one.too_fast <= MOST_TOO_FAST,
        )


def _warm_up(arm: str, runs: list[RunData]) -> WarmUp:
    extra: list[int] = []
    first, last = 0.0, 0.0
    for run in runs:
        for taken, wall_ns in _turns(run):
            extra.append(taken)
            third = max(1, len(wall_ns) // 3)
            first += statistics.fmean(wall_ns[:third])
            last += statistics.fmean(wall_ns[-third:])
    ledgers = [ledger for run in runs if (ledger := measure(run)) is not None]
    used = lead_use([ledger.used_leads for ledger in ledgers])
    share = (None, None, None) if used is None else (used.share, used.ci_low, used.ci_high)
    return WarmUp(arm, tuple(extra), first / last, *share)


def _turns(run: RunData) -> list[tuple[int, list[int]]]:
    """Extra warm-up steps and the measured steps' wall times of each turn."""
    config = recorded_config(run.record.config)
    planned = plan_repetitions(config, run.record.interleave, slice_steps=1).warmup
    columns = run.step_columns(("turn", "warmup", "wall_ns"))
    steps = [] if columns is None else columns.to_pylist()
    found = []
    for turn in sorted({step["turn"] for step in steps}):
        own = [step for step in steps if step["turn"] == turn]
        wall_ns = [step["wall_ns"] for step in own if not step["warmup"]]
        fixed = planned + (config.warmup_steps if turn == 0 else 0)
        if wall_ns:
            found.append((len(own) - len(wall_ns) - fixed, wall_ns))
    return found
