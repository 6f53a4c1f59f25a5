"""Chooses which recorded steps and batches a replay repeats, and in what order: together, as they were.

A long batch may be slow to make and slow to train. So the step that trains a batch keeps it: replicates begin at
different places of one tape of steps, and the batches run along with it.

Batches go to workers in turn. Where every other one is slow, one of two workers makes all of those, and no depth of the
queue helps. So a tape holds whole rounds: steps that are left out, and the seam from its end to its beginning, do not
hand a worker's batches to another one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from harness.explain.intervals import Int
from harness.explain.policy import TAPE_KEPT_MIN, TAPE_ROUNDS_MIN
from harness.explain.replay.recording import Recording

# Multiples of how often batches are usually alike: every second, third, fourth or sixth. The longest one is the best.
USUAL_PERIODS = (12, 6, 4, 3, 2)


class Tape(NamedTuple):
    """``steps``: rows of the recording, (tape,). ``batches``: their numbers, (batches,).

    As many batches for each step; where not all steps fetch alike, those of measured steps (``aligned`` False).
    """

    steps: Int
    batches: Int
    aligned: bool


def tape_of(recording: Recording, workers: int, *, exact: bool) -> Tape:
    """The tape for a replay with so many ``workers``; ``exact``: everything, in the order recorded."""
    if exact:
        return Tape(np.arange(len(recording.step_class)), np.arange(len(recording.batches)), aligned=True)
    usable = recording.batches.usable
    fetches = np.array([sum(event.kind == "fetch" for event in one.events) for one in recording.classes])
    per_row = fetches[recording.step_class]
    measured = np.flatnonzero(recording.measured)
    count = int(per_row[measured[0]])
    if not count or (per_row[measured] != count).any() or per_row.sum() != len(usable):
        return Tape(measured, np.flatnonzero(usable), aligned=False)
    numbers = (np.cumsum(per_row) - per_row)[measured, None] + np.arange(count)
    whole = usable[numbers].all(axis=1)
    if not whole.any():
        return Tape(measured, np.flatnonzero(usable), aligned=False)
    chosen = _in_rounds(measured[whole], numbers[whole, 0] // count, recording.workers or 1, workers or 1, count)
    order = np.searchsorted(measured, chosen)
    return Tape(chosen, numbers[order].ravel(), aligned=True)


def _in_rounds(steps: Int, ordinals: Int, workers_then: int, workers_now: int, fetches: int) -> Int:
    """``steps`` in whole rounds of all workers; ``ordinals``: the place of each in the order of all steps.

    Steps that are left out are spread over the run: its last turn may be slower than all before it.
    """
    both = math.lcm(workers_then, workers_now)
    longer = [math.lcm(both, period) for period in USUAL_PERIODS]
    for period in dict.fromkeys((*longer, both, workers_then)):
        period_steps = period // math.gcd(period, fetches)
        by_place = [steps[(ordinals - ordinals[0]) % period_steps == place] for place in range(period_steps)]
        fewest = min(len(one) for one in by_place)
        least_steps = TAPE_KEPT_MIN * len(steps) if period > both else 0
        if fewest >= TAPE_ROUNDS_MIN and fewest * period_steps >= least_steps:
            return np.stack(
                [_spread(one, fewest, (place + 0.5) / period_steps) for place, one in enumerate(by_place)], axis=1
            ).ravel()
    return steps


def _spread(steps: Int, count: int, phase: float) -> Int:
    """Return ``count`` of ``steps``, evenly spread; ``phase`` (0 to 1) shifts which ones are left out."""
    return steps[((np.arange(count) + phase) * len(steps) / count).astype(np.int64)]
