"""Compares what the arms of a comparison learned: a faster run that trains something else, or nothing, is no gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from harness.analysis.ledger import Blocks, RunLedger
from harness.analysis.statistics import Estimate, from_block_values
from harness.analysis.step_losses import at_common_steps

ALIKE = 0.01  # relative: losses that differ by less are called the same, as other kernels round otherwise
FAR = 0.5  # relative: no other number of tokens a step makes losses of the same training differ by more
SURE = 0.99  # of the interval of their difference: a comparison is not barred by one chance in twenty
# Relative: medians further apart are clearly different, however the blocks scatter. What trains badly scatters, and its
# few blocks then have an interval that holds anything.
CLEAR = 0.1


@dataclass(frozen=True)
class Losses:
    """The losses of a comparison's arms: means over the last steps that both trained, medians over blocks.

    Where the runs of no block can be compared, each has that of its own last measured steps.

    ``diverged``: arms with a loss that was NaN or infinite at any measured step, or that rose far above its start.
    ``differ``: by more than the A/A control differs and kernels round, and than their blocks scatter, or clearly.
    ``other_tokens``: each step of one trains on another number of tokens, so their losses at one step need not agree.
    """

    baseline: float | None = None
    candidate: float | None = None
    diverged: tuple[str, ...] = ()
    differ: bool = False
    other_tokens: bool = False
    explained: float = FAR  # relative difference that the other tokens may explain

    @property
    def unlike(self) -> bool:
        """Whether the arms learned something else: their losses differ, by more than other tokens a step explain."""
        return self.differ and not (self.other_tokens and self._near)

    @property
    def _near(self) -> bool:
        if self.baseline is None or self.candidate is None:
            return True
        return abs(self.candidate - self.baseline) <= self.explained * min(abs(self.baseline), abs(self.candidate))


def explained_by(tokens_ratio: float) -> float:
    """How far apart, relatively, losses at the same step may be where a step has ``tokens_ratio`` times the tokens.

    Losses fall as a power of the tokens with an exponent below 1 (Kaplan et al. 2020; Hoffmann et al. 2022), so by no
    more than the logarithm of their ratio.
    """
    return min(FAR, ALIKE + abs(math.log(tokens_ratio))) if tokens_ratio > 0 else FAR


def compare_losses(
    names: tuple[str, str],
    baseline: Blocks,
    candidate: Blocks,
    control: Blocks,
    *,
    other_tokens: bool = False,
    explained: float = FAR,
) -> Losses:
    """``control``: the runs of the baseline's A/A control; empty without one."""
    diverged = tuple(
        name
        for name, runs in zip(names, (baseline, candidate), strict=True)
        if any(run.diverged for run in runs.values())
    )
    ours, theirs = (loss_of(list(runs.values())) for runs in (baseline, candidate))
    if ours is None or theirs is None:
        return Losses(ours, theirs, diverged)
    pairs = _pairs(baseline, candidate)
    if pairs:
        ours, theirs = (median(side) for side in zip(*pairs, strict=True))
    return Losses(ours, theirs, diverged, _differ(pairs, baseline, control), other_tokens, explained)


def loss_of(runs: Sequence[RunLedger]) -> float | None:
    """The median loss of runs; None where none was measured, or any is not finite: the others do not speak for it."""
    if any(run.loss is None and run.diverged for run in runs):
        return None
    known = [run.loss for run in runs if run.loss is not None]
    return median(known) if known else None


def _pairs(baseline: Blocks, other: Blocks) -> list[tuple[float, float]]:
    """What two arms had learned by block, whose runs saw the same documents in the same order.

    Both at the same steps: a repetition's warm-up steps train too, and there are more of them with more workers.
    """
    found = (
        at_common_steps(baseline[block].losses, other[block].losses)
        for block in sorted(set(baseline) & set(other))
        if baseline[block].loss is not None and other[block].loss is not None
    )
    return [pair for pair in found if pair is not None]


def _differ(pairs: Sequence[tuple[float, float]], baseline: Blocks, control: Blocks) -> bool:
    """Whether ``pairs`` differ by more than the baseline and its A/A ``control``, whose losses are read only then.

    Their median does, surely; or each of them does, by more than any block of the control, and in the same direction.
    Equal arms do that in one of 80 comparisons of three blocks, the fewest: in one of C(6, 3) = 20 orders of six sizes,
    with equal signs in one of four.
    """
    found = _difference(pairs)
    if found is None or found.ci_low is None or found.ci_high is None:  # too few blocks
        return False
    size = median(abs(ours) for ours, _ in pairs)
    surely = not found.ci_low <= 0 <= found.ci_high or abs(found.median) > CLEAR * size
    apart = [theirs - ours for ours, theirs in pairs]
    least = max(min(apart), -max(apart))  # by which all of them differ in one direction; negative where they do not
    if not surely and least <= ALIKE * size:
        return False
    alike = _pairs(baseline, control)
    most = max((abs(theirs - ours) for ours, theirs in alike), default=0.0)
    if len(alike) >= len(apart) and least > max(most, ALIKE * size):
        return True
    scatter = _difference(alike)
    reach = 0.0
    if scatter is not None and scatter.ci_low is not None and scatter.ci_high is not None:
        reach = max(abs(scatter.ci_low), abs(scatter.ci_high))
    return surely and abs(found.median) > max(reach, ALIKE * size)


def _difference(pairs: Sequence[tuple[float, float]]) -> Estimate | None:
    return from_block_values([theirs - ours for ours, theirs in pairs], SURE)
