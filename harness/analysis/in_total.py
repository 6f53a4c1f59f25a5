"""Weighs the long steps that a median over blocks passes over: what all time together says of a comparison.

One step in two hundred that writes a checkpoint falls into few of the blocks; or into the steps that begin a turn,
which no other figure holds. The median over blocks then is that of blocks without one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from harness.analysis.long_steps import LongSteps, long_steps

if TYPE_CHECKING:
    from harness.analysis.ledger import Blocks, RunLedger

NOTEWORTHY = 0.01  # a ratio that long steps move by less is not worth a word
SEVERAL = 2  # blocks: a long step in one of them may be an accident of the machine


@dataclass(frozen=True)
class InTotal:
    """``ratio``: how many times as fast the candidate is in all time together, by what the comparison measures.

    ``long``: the long steps of ``arm``, which set that apart from the median over blocks; in ``blocks`` of ``of``
    blocks. ``left_out``: so many of them begin a turn, and no other figure holds them.
    """

    ratio: float
    arm: Literal["baseline", "candidate"]
    long: LongSteps
    left_out: int
    blocks: int
    of: int

    @property
    def regular(self) -> bool:
        """Whether the long steps are no accident of one block."""
        return self.blocks >= SEVERAL


def in_total(baseline: Blocks, candidate: Blocks, steps: float, measured: float) -> InTotal | None:
    """What all time of the shared blocks says; None where long steps do not set it apart.

    ``steps``, ``measured``: medians over blocks of how many times as fast the steps are, and what is measured.
    """
    shared = sorted(set(baseline) & set(candidate))
    base, other = ([blocks[block] for block in shared] for blocks in (baseline, candidate))
    found = _mean_ms(base) / _mean_ms(other)
    usual = _mean_ms(base, usual=True) / _mean_ms(other, usual=True)
    apart, by_long = math.log(found / steps), math.log(found / usual)
    # Else it is not the long steps: blocks differ, or each of them has as many.
    if abs(apart) <= math.log1p(NOTEWORTHY) or by_long / apart < 0.5:
        return None
    runs = other if apart < 0 else base
    steps_of = sum(len(run.step_ms) + run.left_out.steps for run in runs)
    long = long_steps([run.long_steps for run in runs] + [run.left_out.long for run in runs], steps_of)
    if long is None:
        return None
    return InTotal(
        measured * found / steps,
        "candidate" if apart < 0 else "baseline",
        long,
        sum(run.left_out.long.steps for run in runs),
        sum(run.long_steps.steps + run.left_out.long.steps > 0 for run in runs),
        len(runs),
    )


def _mean_ms(runs: Sequence[RunLedger], *, usual: bool = False) -> float:
    """Milliseconds a step, those that begin a turn among them; ``usual``: each long step as a typical one."""
    total_ms, steps = 0.0, 0
    for run in runs:
        left, typical_ms = run.left_out, float(np.median(run.step_ms))
        measured_ms = float(run.step_ms.sum())
        total_ms += measured_ms + left.long.sum_ms + typical_ms * (left.steps - left.long.steps)
        steps += len(run.step_ms) + left.steps
        if usual:
            long = run.long_steps.steps + left.long.steps
            total_ms += typical_ms * long - run.long_steps.sum_ms - left.long.sum_ms
    return total_ms / steps
