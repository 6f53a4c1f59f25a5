"""Compare losses: a faster run that trains something else is no gain. Also find when an arm reaches a target loss."""

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
    """Losses of two compared arms: means over the last steps that both trained, medians over blocks.

    If no block has comparable runs, each loss is that of the arm's own last measured steps.

    - ``diverged``: arms with a loss that was NaN or infinite at any measured step, or rose far above its start.
    - ``differ``: True if the losses differ by more than the A/A control, kernel rounding and scatter explain.
    - ``tokens_ratio``: trained tokens per step, candidate / baseline. If it is not 1, losses at one step may differ.
    - ``some_blocks``: (number of blocks that differ far beyond the A/A control, number of all blocks) if only some
    do. The losses are theirs. One such block may be chance, so ``differ`` is then False.
    """

    baseline: float | None = None
    candidate: float | None = None
    diverged: tuple[str, ...] = ()
    differ: bool = False
    tokens_ratio: float = 1.0
    some_blocks: tuple[int, int] | None = None

    @property
    def unlike(self) -> bool:
        """True if the losses differ by more than different numbers of tokens per step explain."""
        return self.differ and not (self.tokens_ratio != 1 and self._explained)

    @property
    def _explained(self) -> bool:
        """True if unequal numbers of tokens per step explain the difference of the losses, or if a loss is unknown. The
        arm with more tokens per step should have the lower loss: see :func:`explained_by`. If its loss is higher, the
        relative difference must be within :data:`OTHER_DOCUMENTS_WITHIN`."""
        if self.baseline is None or self.candidate is None:
            return True
        difference = self.candidate - self.baseline
        expected = difference * math.log(self.tokens_ratio) <= 0 if self.tokens_ratio > 0 else True
        explained = explained_by(self.tokens_ratio) if expected else policy.OTHER_DOCUMENTS_WITHIN
        return abs(difference) <= explained * min(abs(self.baseline), abs(self.candidate))


def explained_by(tokens_ratio: float) -> float:
    """Return the largest relative difference of losses at one step that unequal numbers of tokens per step explain.

    Losses fall as a power of the tokens, with an exponent below :data:`LOSS_EXPONENT_MAX` (Kaplan et al. 2020; Hoffmann
    et al. 2022): the limit grows with this exponent x the absolute logarithm of ``tokens_ratio`` (candidate /
    baseline).
    """
    if tokens_ratio <= 0:
        return policy.LOSSES_EXPLAINED_MAX
    return min(
        policy.LOSSES_EXPLAINED_MAX, policy.LOSSES_WITHIN + policy.LOSS_EXPONENT_MAX * abs(math.log(tokens_ratio))
    )


def compare_losses(
    names: tuple[str, str], baseline: Blocks, candidate: Blocks, control: Blocks, *, tokens_ratio: float = 1.0
) -> Losses:
    """Return both arms' losses, and if they diverged or differ. ``control``: the baseline's A/A runs, or empty."""
    diverged = tuple(
        name
        for name, runs in zip(names, (baseline, candidate), strict=True)
        if any(run.diverged for run in runs.values())
    )
    base_loss, candidate_loss = (loss_of(list(runs.values())) for runs in (baseline, candidate))
    if base_loss is None or candidate_loss is None:
        return Losses(base_loss, candidate_loss, diverged)
    pairs = _pairs(baseline, candidate)
    if pairs:
        base_loss, candidate_loss = (median(side) for side in zip(*pairs, strict=True))
    if _differ(pairs, baseline, control):
        return Losses(base_loss, candidate_loss, diverged, differ=True, tokens_ratio=tokens_ratio)
    if tokens_ratio == 1 and (clear_pairs := _apart(pairs, baseline, control)):  # Other ratios mean other documents.
        base_loss, candidate_loss = (median(side) for side in zip(*clear_pairs, strict=True))
        counts = len(clear_pairs), len(pairs)
        return Losses(
            base_loss, candidate_loss, diverged, len(clear_pairs) >= policy.BLOCKS_APART_MIN, tokens_ratio, counts
        )
    return Losses(base_loss, candidate_loss, diverged, tokens_ratio=tokens_ratio)


def repeated_data(baseline: Blocks, candidate: Blocks) -> tuple[float, float] | None:
    """Return (baseline, candidate): share of rows that were trained before, among the first rows of each run.

    The number of rows is the same for all runs. None if the shares agree or were not recorded."""
    sides = [[run.record.facts.repeated_rows or () for run in blocks.values()] for blocks in (baseline, candidate)]
    last = min((len(counts) for side in sides for counts in side), default=0) - 1
    if last < 0 or (rows := 2**last) < policy.ROWS_COMPARED_MIN:
        return None
    base_share, candidate_share = (sum(counts[last] for counts in side) / (len(side) * rows) for side in sides)
    return (base_share, candidate_share) if abs(base_share - candidate_share) > policy.REPEATED_ROWS_WITHIN else None


def loss_of(runs: Sequence[RunLedger]) -> float | None:
    """Return the median last loss of ``runs``; None if no loss was measured or a run diverged."""
    if any(run.loss is None and run.diverged for run in runs):
        return None
    losses = [run.loss for run in runs if run.loss is not None]
    return median(losses) if losses else None


def _pairs(baseline: Blocks, other: Blocks) -> list[tuple[float, float]]:
    """Return (baseline, other) for each common block: mean losses over the last steps that both runs trained.

    Only common steps count, because arms may have different numbers of warm-up steps."""
    pairs = (
        at_common_steps(baseline[block].losses, other[block].losses)
        for block in sorted(set(baseline) & set(other))
        if baseline[block].loss is not None and other[block].loss is not None
    )
    return [pair for pair in pairs if pair is not None]


def _differ(pairs: Sequence[tuple[float, float]], baseline: Blocks, control: Blocks) -> bool:
    """Return True if the losses in ``pairs`` differ by more than those of the baseline and its A/A ``control``.

    Either the median difference exceeds that of the control, and its interval excludes 0 or it is large. Or each pair
    differs by more than any block of the control, all in one direction.
    Chance of the latter with three blocks, the minimum: 1 of 80 (one of C(6, 3) = 20 orders, with equal signs in 1 of
    4).
    """
    difference = _difference(pairs)
    if difference is None or difference.ci_low is None or difference.ci_high is None:  # too few blocks
        return False
    size = median(abs(base) for base, _ in pairs)
    is_certain = (
        not difference.ci_low <= 0 <= difference.ci_high or abs(difference.median) > policy.LOSSES_CLEARLY_APART * size
    )
    gaps = [candidate - base for base, candidate in pairs]
    # smallest difference in the common direction; negative if the directions differ
    smallest = max(min(gaps), -max(gaps))
    if not is_certain and smallest <= policy.LOSSES_WITHIN * size:
        return False
    control_pairs = _pairs(baseline, control)
    control_gap = max((abs(repeated - base) for base, repeated in control_pairs), default=0.0)
    if len(control_pairs) >= len(gaps) and smallest > max(control_gap, policy.LOSSES_WITHIN * size):
        return True
    scatter = _difference(control_pairs)
    reach = 0.0
    if scatter is not None and scatter.ci_low is not None and scatter.ci_high is not None:
        reach = max(abs(scatter.ci_low), abs(scatter.ci_high))
    return is_certain and abs(difference.median) > max(reach, policy.LOSSES_WITHIN * size)


def _apart(pairs: Sequence[tuple[float, float]], baseline: Blocks, control: Blocks) -> list[tuple[float, float]]:
    """Return the ``pairs`` (baseline, candidate), one per block, whose losses clearly differ; each is judged by itself.

    The difference must exceed the share :data:`LOSSES_CLEARLY_APART`, and :data:`LOSSES_BEYOND_CONTROL` x the largest
    one between baseline and A/A ``control``. Empty without a control."""
    far = [
        (base, candidate)
        for base, candidate in pairs
        if abs(candidate - base) > policy.LOSSES_CLEARLY_APART * min(abs(base), abs(candidate))
    ]
    control_pairs = _pairs(baseline, control)
    if not far or not control_pairs:  # Without a control, the scatter of equal trainings is unknown.
        return []
    control_gap = max(abs(repeated - base) for base, repeated in control_pairs)
    return [
        (base, candidate)
        for base, candidate in far
        if abs(candidate - base) > policy.LOSSES_BEYOND_CONTROL * control_gap
    ]


def _difference(pairs: Sequence[tuple[float, float]]) -> Estimate | None:
    return from_block_values([candidate - base for base, candidate in pairs], policy.LOSS_CONFIDENCE)


@dataclass(frozen=True)
class Learned:
    """Training result of one arm. None: not measured, or target not reached. ``steps``, ``tokens``: trained until the
    loss reached ``target``, medians over ``runs``. A run that did not reach it counts as later than any other: a median
    exists if most reached it, an interval if all did."""

    arm: str
    target: float
    loss: Estimate | None  # after the last step; None if a run diverged
    steps: Estimate | None
    tokens: float | None
    seconds: float | None  # for ``steps``, at the arm's typical step time
    reached: int
    runs: int
    trained_steps: int | None  # steps of the shortest run, including warm-up steps
    peak_memory_bytes: float | None  # resident memory of the processes, median over runs
    peak_device_bytes: float | None
    left: int = 0  # runs that reached the target but ended above it, by chance or because they diverged
    diverged: int = 0  # runs whose last losses are not finite
    failed: int = 0  # runs that did not finish; not counted in ``runs``


def learned(
    arm: str,
    target: float,
    runs: Mapping[int, RunLedger],
    records: Sequence[RunRecord],
    tokens_per_step: float | None,
    step_ms: float | None,
    failed: int = 0,
) -> Learned:
    """Return when and how often an arm reached the ``target`` loss. ``failed``: number of runs not among ``runs``."""
    curves = [curve for run in runs.values() if len((curve := run.losses.recorded())[0])]
    last = [float(losses[-LOSS_STEPS:].mean()) for _, losses in curves]
    first = [steps_to(target, steps, losses) for steps, losses in curves]
    diverged = sum(not math.isfinite(loss) for loss in last)
    steps = _steps(first)
    return Learned(
        arm=arm,
        target=target,
        loss=None if diverged else from_block_values(last),
        steps=steps,
        tokens=None if steps is None or tokens_per_step is None else steps.median * tokens_per_step,
        seconds=None if steps is None or step_ms is None else steps.median * step_ms / 1e3,
        reached=sum(count is not None for count in first),
        runs=len(curves),
        trained_steps=min((int(steps[-1]) + 1 for steps, _ in curves), default=None),
        peak_memory_bytes=_median([record.peak_memory_bytes for record in records]),
        peak_device_bytes=_median([record.peak_device_bytes for record in records]),
        left=sum(count is not None and not end <= target for count, end in zip(first, last, strict=True)),
        diverged=diverged,
        failed=failed,
    )


def _steps(first: Sequence[int | None]) -> Estimate | None:
    """Return the median number of steps that runs took to the target loss. ``first``: of each run; None: not reached.

    None if half of the runs or more never reached it. The interval is given only if all runs did."""
    if all(count is not None for count in first):
        return from_amounts([float(count) for count in first if count is not None])
    middle = median(math.inf if count is None else count for count in first)
    return Estimate(float(middle), None, None, len(first)) if math.isfinite(middle) else None


def steps_to(target: float, steps: NDArray[np.int64], losses: NDArray[np.float64]) -> int | None:
    """Return the steps until a mean of :data:`LOSS_STEPS` losses (none NaN) reaches ``target``; None: never."""
    if len(losses) < LOSS_STEPS:
        return None
    means = np.lib.stride_tricks.sliding_window_view(losses, LOSS_STEPS).mean(axis=1)
    reached = np.flatnonzero(means <= target)
    return int(steps[reached[0] + LOSS_STEPS - 1]) + 1 if len(reached) else None


def _median(values: Sequence[int | None]) -> float | None:
    measured = [value for value in values if value]
    return float(median(measured)) if measured else None
