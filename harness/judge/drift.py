"""Compares the first measured steps of a comparison's runs with their last: what drifts has no one speed.

Of a run with one repetition these are both halves of it.
"""

from __future__ import annotations

import math

from harness.explain.ledger import Blocks, RunLedger
from harness.explain.long_steps import without_long
from harness.explain.statistics import Estimate, from_blocks
from harness.judge.policy import DRIFT_MIN, DRIFT_STEPS_MIN
from harness.judge.verdicts import confidence_of_each


def drift(base: Blocks, other: Blocks, noise_floor: float | None, comparisons: int = 1) -> Estimate | None:
    """Times as long as in the first repetition the candidate's steps last in the last one, next to the baseline's.

    What slows both alike cancels, and a rare long step (a checkpoint, say) counts as a typical one: which repetitions
    hold one is no drift. None where the interval, that holds for all ``comparisons`` together, holds 1; or the
    median is within the noise floor or :data:`DRIFT_MIN`; or there are too few blocks or repetitions.
    """
    logs = [
        candidates - baselines
        for block in sorted(set(base) & set(other))
        if (candidates := _log_change(other[block], base[block])) is not None
        and (baselines := _log_change(base[block], other[block])) is not None
    ]
    found = from_blocks(logs, confidence_of_each(comparisons))
    if found is None or found.ci_low is None or found.ci_high is None or found.ci_low <= 1 <= found.ci_high:
        return None
    return found if abs(found.median - 1) > max(DRIFT_MIN, noise_floor or 0.0) else None


def _log_change(run: RunLedger, other: RunLedger) -> float | None:
    """Of the step time, from the first repetition that both have to the last; from half to half where there is one."""
    shared = sorted(set(run.repetitions) & set(other.repetitions))
    if not shared or (len(shared) < 2 and min(len(run.step_ms), len(other.step_ms)) < DRIFT_STEPS_MIN):
        return None
    if len(shared) < 2:
        steps_ms = without_long(run.step_ms)
        half = len(steps_ms) // 2
        return math.log(float(steps_ms[-half:].mean())) - math.log(float(steps_ms[:half].mean()))
    first, last = (run.repetitions[number] for number in (shared[0], shared[-1]))
    return math.log(last.usual_ns / last.steps) - math.log(first.usual_ns / first.steps)
