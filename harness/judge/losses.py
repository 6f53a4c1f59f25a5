"""Compare what two arms learned: a faster run that trains something else, or nothing, is no gain."""

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
    - ``differ``: True if the losses differ clearly, or by more than the A/A control, kernel rounding and block scatter.
    - ``tokens_ratio``: trained tokens per step, candidate / baseline. If it is not 1, losses at one step may differ.
    - ``some_blocks``: (blocks that are clearly apart, all blocks). The losses are then those of these blocks. One such
      block may be chance, so it does not set ``differ``.
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
        """True if the ratio of tokens explains the difference, because more tokens per step lower the loss at one step.

        If the arm with more tokens has the higher loss, only :data:`OTHER_DOCUMENTS_WITHIN` is explained.
        """
        if self.baseline is None or self.candidate is None:
            return True
        apart = self.candidate - self.baseline
        expected = apart * math.log(self.tokens_ratio) <= 0 if self.tokens_ratio > 0 else True
        most = explained_by(self.tokens_ratio) if expected else policy.OTHER_DOCUMENTS_WITHIN
        return abs(apart) <= most * min(abs(self.baseline), abs(self.candidate))


def explained_by(tokens_ratio: float) -> float:
    """Return the largest relative loss difference at the same step that ``tokens_ratio`` explains.

    Losses fall as a power of the tokens, with an exponent below :data:`LOSS_EXPONENT_MAX` (Kaplan et al. 2020; Hoffmann
    et al. 2022). So they differ by at most this exponent times the logarithm of the ratio.
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
    """Compare losses. ``control``: the baseline's A/A control, or empty. ``tokens_ratio``: see :class:`Losses`."""
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
    if tokens_ratio == 1 and (apart := _apart(pairs, baseline, control)):  # Other ratios mean other documents.
        ours, theirs = (median(side) for side in zip(*apart, strict=True))
        some = len(apart), len(pairs)
        return Losses(ours, theirs, diverged, len(apart) >= policy.BLOCKS_APART_MIN, tokens_ratio, some)
    return Losses(ours, theirs, diverged, tokens_ratio=tokens_ratio)


def repeated_data(baseline: Blocks, candidate: Blocks) -> tuple[float, float] | None:
    """Return both arms' shares of repeated rows among equally many rows; None if they agree or are unknown.

    Only runs without a loss record them: in other runs the loss shows what they trained on.
    """
    sides = [[run.record.facts.repeated_rows or () for run in blocks.values()] for blocks in (baseline, candidate)]
    last = min((len(counts) for side in sides for counts in side), default=0) - 1
    if last < 0 or (rows := 2**last) < policy.ROWS_COMPARED_MIN:
        return None
    ours, theirs = (sum(counts[last] for counts in side) / (len(side) * rows) for side in sides)
    return (ours, theirs) if abs(ours - theirs) > policy.REPEATED_ROWS_WITHIN else None


def loss_of(runs: Sequence[RunLedger]) -> float | None:
    """Return the median loss of ``runs``; None if no loss was measured or any loss is not finite."""
    if any(run.loss is None and run.diverged for run in runs):
        return None
    known = [run.loss for run in runs if run.loss is not None]
    return median(known) if known else None


def _pairs(baseline: Blocks, other: Blocks) -> list[tuple[float, float]]:
    """Return (baseline, other) losses by block, for runs that saw the same documents in the same order.

    Both are at the same steps: warm-up steps train too, and arms with more workers have more of them.
    """
    found = (
        at_common_steps(baseline[block].losses, other[block].losses)
        for block in sorted(set(baseline) & set(other))
        if baseline[block].loss is not None and other[block].loss is not None
    )
    return [pair for pair in found if pair is not None]


def _differ(pairs: Sequence[tuple[float, float]], baseline: Blocks, control: Blocks) -> bool:
    """Return True if ``pairs`` differ by more than the baseline and its A/A ``control`` do.

    Either their median certainly does, or every pair does by more than any block of the control, in one direction. By
    chance, equal arms do the latter in 1 of 80 comparisons of three blocks, the minimum. One of C(6, 3) = 20 orders of
    six sizes has this pattern, with equal signs in one of four cases. The control is read only if needed.
    """
    found = _difference(pairs)
    if found is None or found.ci_low is None or found.ci_high is None:  # too few blocks
        return False
    size = median(abs(ours) for ours, _ in pairs)
    surely = not found.ci_low <= 0 <= found.ci_high or abs(found.median) > policy.LOSSES_CLEARLY_APART * size
    apart = [theirs - ours for ours, theirs in pairs]
    # smallest difference in the common direction; negative if the directions differ
    least = max(min(apart), -max(apart))
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
    """Return the ``pairs`` that are clearly apart, each judged alone, and far beyond the A/A ``control``."""
    far = [
        (ours, theirs)
        for ours, theirs in pairs
        if abs(theirs - ours) > policy.LOSSES_CLEARLY_APART * min(abs(ours), abs(theirs))
    ]
    alike = _pairs(baseline, control)
    if not far or not alike:  # Without a control, the scatter of equal trainings is unknown.
        return []
    most = max(abs(theirs - ours) for ours, theirs in alike)
    return [(ours, theirs) for ours, theirs in far if abs(theirs - ours) > policy.LOSSES_BEYOND_CONTROL * most]


def _difference(pairs: Sequence[tuple[float, float]]) -> Estimate | None:
    return from_block_values([theirs - ours for ours, theirs in pairs], policy.LOSS_CONFIDENCE)


@dataclass(frozen=True)
class Learned:
    """Training result of one arm. None: not measured, or target not reached.

    ``loss``: after the last step; None if a run diverged. ``steps``, ``tokens``: trained until the loss reached
    ``target``, medians over all ``runs``. A run that did not reach it counts as later than any other. So a median
    exists if most runs reached the target, and an interval if all did. ``trained_steps``: of the shortest run,
    including warm-up steps because they train too.
    """

    arm: str
    target: float
    loss: Estimate | None
    steps: Estimate | None
    tokens: float | None
    seconds: float | None  # for ``steps``, at the arm's typical step time
    reached: int
    runs: int
    trained_steps: int | None
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
    """Return one arm's result. ``runs``: by block. ``records``: of these runs. ``failed``: number of other runs."""
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
    """Return the median over runs; None if at least half are None. Without any None, it has an interval."""
    if all(one is not None for one in first):
        return from_amounts([float(one) for one in first if one is not None])
    middle = median(math.inf if one is None else one for one in first)
    return Estimate(float(middle), None, None, len(first)) if math.isfinite(middle) else None


def steps_to(target: float, steps: NDArray[np.int64], losses: NDArray[np.float64]) -> int | None:
    """Return the number of steps until a mean of :data:`LOSS_STEPS` losses reaches ``target``; None if never.

    A mean that includes NaN does not reach it.
    """
    if len(losses) < LOSS_STEPS:
        return None
    means = np.lib.stride_tricks.sliding_window_view(losses, LOSS_STEPS).mean(axis=1)
    below = np.flatnonzero(means <= target)
    return int(steps[below[0] + LOSS_STEPS - 1]) + 1 if len(below) else None


def _median(values: Sequence[int | None]) -> float | None:
    known = [one for one in values if one]
    return float(median(known)) if known else None
