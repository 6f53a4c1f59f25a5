"""Finds waits for data that are not alike in all blocks, so that a mean over them is true of none.

Milliseconds of a stage are means over all blocks, ratios are medians over blocks: where some blocks wait for much and
the others do not (a disk that was slow for an hour), the one says 6 ms of each step and the other nothing.

Blocks are unlike where mean and median differ, or where they are of two kinds with nothing in between: of blocks of
which half wait, mean and median are the same, and no block is as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from harness.explain.ledger import RunLedger
from harness.judge.policy import UNEVEN_APART_MIN, UNEVEN_BLOCKS_MIN, UNEVEN_KIND_RATIO


@dataclass(frozen=True)
class UnevenWaits:
    """Blocks fall into two kinds; times are means per step, in milliseconds, over the blocks of a kind."""

    blocks: tuple[int, ...]  # that wait for more
    of: int
    waited_ms: float  # of these
    step_ms: float  # of these
    others_ms: float  # what the others wait
    waited_range_ms: tuple[float, float]  # the least and the most that one of these waits, of a step of ``step_ms``
    others_range_ms: tuple[float, float]  # of the others

    @property
    def half(self) -> bool:
        """Whether as many wait for more as do not: a median over blocks lies between both kinds."""
        return 2 * len(self.blocks) == self.of


@dataclass(frozen=True)
class UnevenSpeed:
    """A speed of either kind of blocks, medians: of those that wait for more, and of the others."""

    more: float
    others: float


def uneven_waits(runs: Sequence[RunLedger]) -> UnevenWaits | None:
    """None where all blocks wait for about the same share of a step, or it is not known of one of them."""
    if not runs or any(run.waited_ms is None for run in runs):
        return None
    typical_ms = median(run.mean_step_ms for run in runs)  # a block that one long step makes slow waits for no less
    known = [(run, (run.waited_ms or 0.0) / typical_ms) for run in runs]
    shares = [share for _, share in known]
    middle = (min(shares) + max(shares)) / 2
    more = [run for run, share in known if share > middle]
    others = [run for run, share in known if share <= middle]
    if abs(mean(shares) - median(shares)) <= UNEVEN_APART_MIN and not _two_kinds(shares, middle):
        return None
    waited_ms, others_ms = ([run.waited_ms or 0.0 for run in kind] for kind in (more, others))
    step_ms = mean(run.mean_step_ms for run in more)
    # A block that waits longest may be the one with the longest steps: its wait is a share of these.
    of_step_ms = [(run.waited_ms or 0.0) / run.mean_step_ms * step_ms for run in more]
    return UnevenWaits(
        blocks=tuple(run.record.block for run in more),
        of=len(known),
        waited_ms=mean(waited_ms),
        step_ms=step_ms,
        others_ms=mean(others_ms),
        waited_range_ms=(min(of_step_ms), max(of_step_ms)),
        others_range_ms=(min(others_ms), max(others_ms)),
    )


def _two_kinds(shares: Sequence[float], middle: float) -> bool:
    """Whether ``shares`` above and below ``middle`` are far apart, and those of one kind near one another."""
    low, high = [share for share in shares if share <= middle], [share for share in shares if share > middle]
    if not high or min(len(low), len(high)) < min(UNEVEN_BLOCKS_MIN, len(shares) // 2):
        return False
    gap = min(high) - max(low)
    close = max(max(kind) - min(kind) for kind in (low, high))
    return gap > UNEVEN_APART_MIN and gap > close and mean(low) < UNEVEN_KIND_RATIO * mean(high)


def uneven_speed(uneven: UnevenWaits | None, speeds: Mapping[int, float]) -> UnevenSpeed | None:
    """``speeds``: by block. None where blocks are alike, or one kind of them has no speed."""
    if uneven is None:
        return None
    more = [value for block, value in speeds.items() if block in uneven.blocks]
    others = [value for block, value in speeds.items() if block not in uneven.blocks]
    return UnevenSpeed(median(more), median(others)) if more and others else None
