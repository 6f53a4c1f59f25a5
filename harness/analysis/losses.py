"""Compares what the arms of a comparison learned: a faster run that trains something else, or nothing, is no gain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from harness.analysis.ledger import RunLedger
from harness.analysis.statistics import from_block_values

ALIKE = 0.01  # relative: losses that differ by less are called the same, as other kernels round otherwise
FAR = 0.5  # relative: no other number of tokens a step makes losses of the same training differ by more
SURE = 0.99  # of the interval of their difference: a comparison is not barred by one chance in twenty

Blocks = Mapping[int, RunLedger]


@dataclass(frozen=True)
class Losses:
    """The losses of a comparison's arms: means over the last measured steps, medians over blocks.

    ``diverged``: arms with a loss that was NaN or infinite at any measured step, or that rose far above its start.
    ``differ``: by more than their blocks scatter, the A/A control differs and kernels round.
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
    return Losses(ours, theirs, diverged, _differ(baseline, candidate, control), other_tokens, explained)


def loss_of(runs: Sequence[RunLedger]) -> float | None:
    """The median loss of runs; None where none was measured, or any is not finite: the others do not speak for it."""
    if any(run.loss is None and run.diverged for run in runs):
        return None
    known = [run.loss for run in runs if run.loss is not None]
    return median(known) if known else None


def _differ(baseline: Blocks, candidate: Blocks, control: Blocks) -> bool:
    """Paired by block, whose runs saw the same documents in the same order."""
    found = from_block_values(_differences(baseline, candidate), SURE)
    if found is None or found.ci_low is None or found.ci_high is None or found.ci_low <= 0 <= found.ci_high:
        return False
    unchanged = from_block_values(_differences(baseline, control), SURE)
    reach = 0.0
    if unchanged is not None and unchanged.ci_low is not None and unchanged.ci_high is not None:
        reach = max(abs(unchanged.ci_low), abs(unchanged.ci_high))
    size = median(abs(run.loss) for run in baseline.values() if run.loss is not None)
    return abs(found.median) > max(reach, ALIKE * size)


def _differences(baseline: Blocks, other: Blocks) -> list[float]:
    pairs = ((baseline[block].loss, other[block].loss) for block in sorted(set(baseline) & set(other)))
    return [theirs - ours for ours, theirs in pairs if ours is not None and theirs is not None]
