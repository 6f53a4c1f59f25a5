"""Finds waits for data that are not alike in all blocks, so that a mean over them is true of none.

Milliseconds of a stage are means over all blocks, ratios are medians over blocks: where some blocks wait for much and
the others do not (a disk that was slow for an hour), the one says 6 ms of each step and the other nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from harness.analysis.ledger import RunLedger

APART = 0.02  # of the step: mean and median of the blocks differ by more, so that neither stands for the other


@dataclass(frozen=True)
class UnevenWaits:
    """Blocks fall into two kinds; times are means per step, in milliseconds."""

    blocks: int  # that wait for more
    of: int
    waited_ms: float  # of these
    step_ms: float  # of these
    others_ms: float  # what the others wait


def uneven_waits(runs: Sequence[RunLedger]) -> UnevenWaits | None:
    """None where all blocks wait for about the same share of a step, or it is not known of one of them."""
    known = [(run, run.waited_ms / run.mean_step_ms) for run in runs if run.waited_ms is not None]
    if len(known) < len(runs) or not known:
        return None
    shares = [share for _, share in known]
    if abs(mean(shares) - median(shares)) <= APART:
        return None
    middle = (min(shares) + max(shares)) / 2
    more = [run for run, share in known if share > middle]
    others = [run for run, share in known if share <= middle]
    return UnevenWaits(
        blocks=len(more),
        of=len(known),
        waited_ms=mean(run.waited_ms or 0.0 for run in more),
        step_ms=mean(run.mean_step_ms for run in more),
        others_ms=mean(run.waited_ms or 0.0 for run in others),
    )
