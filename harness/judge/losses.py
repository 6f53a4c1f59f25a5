"""Compares what the arms of a comparison learned: a faster run that trains something else, or nothing, is no gain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from harness.explain.ledger import Blocks, RunLedger, at_common_steps
from harness.explain.policy import LOSS_STEPS
from harness.explain.statistics import Estimate, from_amounts, from_block_values
from harness.judge import policy
from harness.study.records import RunRecord


@dataclass(frozen=True)
class Losses:
    """The losses of a comparison's arms: means over the last steps that both trained, medians over blocks.

    Where the runs of no block can be compared, each has that of its own last measured steps.

    ``diverged``: arms with a loss that was NaN or infinite at any measured step, or that rose far above its start.
    ``differ``: by more than the A/A control differs and kernels round, and than their blocks scatter, or clearly.
    ``tokens_ratio``: trained tokens a step, candidate / baseline; where it is not 1 their losses at one step need not
    agree. ``some_blocks``: they are clearly apart in so many of so many blocks only, of which the losses then are; one
    alone may be chance, and they do not ``differ`` for it.
    """

    baseline: float | None = None
    candidate: float | None = None
    diverged: tuple[str, ...] = ()
    differ: bool = False
    tokens_ratio: float = 1.0
    some_blocks: tuple[int, int] | None = None

    @property
    def unlike(self) -> bool:
        """Whether the arms learned something else: their losses differ, by more than other tokens a step explain."""
        return self.differ and not (self.tokens_ratio != 1 and self._explained)

    @property
    def _explained(self) -> bool:
        """More tokens a step lower the loss at the same step; what has learned less from more learned otherwise."""
        if self.baseline is None or self.candidate is None:
            return True
        apart = self.candidate - self.baseline
        expected = apart * math.log(self.tokens_ratio) <= 0 if self.tokens_ratio > 0 else True
        most = explained_by(self.tokens_ratio) if expected else policy.OTHER_DOCUMENTS_WITHIN
        return abs(apart) <= most * min(abs(self.baseline), abs(self.candidate))


def explained_by(tokens_ratio: float) -> float:
    """How far apart, relatively, losses at the same step may be where a step has ``tokens_ratio`` times the tokens.

    Losses fall as a power of the tokens, with an exponent below :data:`LOSS_EXPONENT_MAX` (Kaplan et al. 2020;
    Hoffmann et al. 2022), so by no more than that times the logarithm of their ratio.
    """
    if tokens_ratio <= 0:
        return policy.LOSSES_EXPLAINED_MAX
    return min(
        policy.LOSSES_EXPLAINED_MAX, policy.LOSSES_WITHIN + policy.LOSS_EXPONENT_MAX * abs(math.log(tokens_ratio))
    )


def compare_losses(
    names: tuple[str, str],
    baseline: Blocks,
    candidate: Blocks,
    control: Blocks,
    *,
    tokens_ratio: float = 1.0,
) -> Losses:
    """``control``: the runs of the baseline's A/A control; empty without one. ``tokens_ratio``: see :class:`Losses`."""
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
    if _differ(pairs, baseline, control):
        return Losses(ours, theirs, diverged, differ=True, tokens_ratio=tokens_ratio)
    if tokens_ratio == 1 and (apart := _apart(pairs, baseline, control)):  # else they are of other documents
        ours, theirs = (median(side) for side in zip(*apart, strict=True))
        some = len(apart), len(pairs)
        return Losses(ours, theirs, diverged, len(apart) >= policy.BLOCKS_APART_MIN, tokens_ratio, some)
    return Losses(ours, theirs, diverged, tokens_ratio=tokens_ratio)


def repeated_data(baseline: Blocks, candidate: Blocks) -> tuple[float, float] | None:
    """Return the shares of repeated rows of both arms, among as many rows; None where they agree, or are not known.

    Only runs without a loss have them: of others the loss shows what they trained on.
    """
    sides = [[run.record.facts.repeated_rows or () for run in blocks.values()] for blocks in (baseline, candidate)]
    last = min((len(counts) for side in sides for counts in side), default=0) - 1
    if last < 0 or (rows := 2**last) < policy.ROWS_COMPARED_MIN:
        return None
    ours, theirs = (sum(counts[last] for counts in side) / (len(side) * rows) for side in sides)
    return (ours, theirs) if abs(ours - theirs) > policy.REPEATED_ROWS_WITHIN else None


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
    surely = not found.ci_low <= 0 <= found.ci_high or abs(found.median) > policy.LOSSES_CLEARLY_APART * size
    apart = [theirs - ours for ours, theirs in pairs]
    least = max(min(apart), -max(apart))  # by which all of them differ in one direction; negative where they do not
    if not surely and least <= policy.LOSSES_WITHIN * size:
        return False
    alike = _pairs(baseline, control)
    most = max((abs(theirs - ours) for ours, theirs in alike), default=0.0)
    if len(alike) >= len(apart) and least > max(most, policy.LOSSES_WITHIN * size):
        return True
    scatter = _difference(alike)
    reach = 0.0
    if scatter is not None and scatter.ci_low is not None and scatter.ci_high is not None:
        reach = max(abs(scatter.ci_low), abs(scatter.ci_high))
    return surely and abs(found.median) > max(reach, policy.LOSSES_WITHIN * size)


def _apart(pairs: Sequence[tuple[float, float]], baseline: Blocks, control: Blocks) -> list[tuple[float, float]]:
    """Those of ``pairs`` that are clearly apart, whatever the others say: far beyond the A/A ``control``, too."""
    far = [
        (ours, theirs)
        for ours, theirs in pairs
        if abs(theirs - ours) > policy.LOSSES_CLEARLY_APART * min(abs(ours), abs(theirs))
    ]
    alike = _pairs(baseline, control)
    if not far or not alike:  # without a control nothing shows how the same training scatters
        return []
    most = max(abs(theirs - ours) for ours, theirs in alike)
    return [(ours, theirs) for ours, theirs in far if abs(theirs - ours) > policy.LOSSES_BEYOND_CONTROL * most]


def _difference(pairs: Sequence[tuple[float, float]]) -> Estimate | None:
    return from_block_values([theirs - ours for ours, theirs in pairs], policy.LOSS_CONFIDENCE)


@dataclass(frozen=True)
class Learned:
    """One arm. None: not measured, or not reached.

    ``loss``: after its last step; None where a run diverged. ``steps``, ``tokens``: trained until its loss was
    ``target``, medians over all ``runs``: one that did not come there counts as later than any other, so there is a
    median where most came, and an interval where all did. ``trained_steps``: of its shortest run, warm-up steps too, as
    they train.
    """

    arm: str
    target: float
    loss: Estimate | None
    steps: Estimate | None
    tokens: float | None
    seconds: float | None  # those steps, at the arm's typical step
    reached: int
    runs: int
    trained_steps: int | None
    peak_memory_bytes: float | None  # the processes' resident memory, median over runs
    peak_device_bytes: float | None
    left: int = 0  # runs that reached it and whose last loss was above it again: by chance, or they diverged
    diverged: int = 0  # runs whose last losses are not finite
    failed: int = 0  # runs that did not finish: not among ``runs``


def learned(
    arm: str,
    target: float,
    runs: Mapping[int, RunLedger],
    records: Sequence[RunRecord],
    tokens_per_step: float | None,
    step_ms: float | None,
    failed: int = 0,
) -> Learned:
    """``runs``: its ledgers by block; ``records``: of the same runs; ``failed``: how many others did not finish."""
    curves = [one for run in runs.values() if len((one := run.losses.recorded())[0])]
    last = [float(losses[-LOSS_STEPS:].mean()) for _, losses in curves]
    first = [steps_to(target, steps, losses) for steps, losses in curves]
    diverged = sum(not math.isfinite(one) for one in last)
    steps = _steps(first)
    return Learned(
        arm=arm,
        target=target,
        loss=None if diverged else from_block_values(last),
        steps=steps,
        tokens=None if steps is None or tokens_per_step is None else steps.median * tokens_per_step,
        seconds=None if steps is None or step_ms is None else steps.median * step_ms / 1e3,
        reached=sum(one is not None for one in first),
        runs=len(curves),
        trained_steps=min((int(steps[-1]) + 1 for steps, _ in curves), default=None),
        peak_memory_bytes=_median([one.peak_memory_bytes for one in records]),
        peak_device_bytes=_median([one.peak_device_bytes for one in records]),
        left=sum(one is not None and not end <= target for one, end in zip(first, last, strict=True)),
        diverged=diverged,
        failed=failed,
    )


def _steps(first: Sequence[int | None]) -> Estimate | None:
    """The median over runs, None for one that did not come there: without an interval, and none below half of them."""
    if all(one is not None for one in first):
        return from_amounts([float(one) for one in first if one is not None])
    middle = median(math.inf if one is None else one for one in first)
    return Estimate(float(middle), None, None, len(first)) if math.isfinite(middle) else None


def steps_to(target: float, steps: NDArray[np.int64], losses: NDArray[np.float64]) -> int | None:
    """How many steps it took until the mean loss of the last :data:`LOSS_STEPS` was ``target`` or less; None: never.

    ``losses`` may be NaN: no mean with one of them is anything.
    """
    if len(losses) < LOSS_STEPS:
        return None
    means = np.lib.stride_tricks.sliding_window_view(losses, LOSS_STEPS).mean(axis=1)
    below = np.flatnonzero(means <= target)
    return int(steps[below[0] + LOSS_STEPS - 1]) + 1 if len(below) else None


def _median(values: Sequence[int | None]) -> float | None:
    known = [one for one in values if one]
    return float(median(known)) if known else None
