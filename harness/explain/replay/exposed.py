"""Splits the time that data work costs a run by stage: an additive split by cause, not by what ran meanwhile.

The run is replayed in the order recorded, once without each set S of its stages (16 sets of four). v(S) is how much
earlier a step then ends. The share of a stage is its Shapley value: how much removing it adds to what was removed
before, averaged over all orders of removal. Shares sum to v(all stages), and where one stage alone matters, it has all.

    two workers, 98 ms a batch, 90 of them tokenize and 8 pack; the step computes 37 ms and lasts 49
    v(tokenize) = 12   v(pack) = 4   v(both) = 12     tokenize: (12 + 12 - 4) / 2 = 10     pack: (4 + 12 - 12) / 2 = 2

A delay belongs to the step that first keeps it: what a later step of the repetition catches up cost nothing. On a
synchronous device v(all stages) is the wait itself, so the shares of a step sum to its wait. On an asynchronous one it
is what the data work costs, also where nobody waited for it: a fetch that delays later launches.

Cores that data work takes from the step are no part of this; they are contention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.explain.intervals import Int
from harness.explain.policy import REPLAY_ERROR_MAX, REPLAYED_STEPS_MAX
from harness.explain.replay.pipeline import build, together
from harness.explain.replay.recording import Recording
from harness.explain.replay.removals import present_stages, without_stages
from harness.explain.replay.simulate import simulate
from harness.study.contract import STAGES

Array = NDArray[np.float64]
Unsplit = Literal["not replayable", "replay is off", "above its work", "device not recorded"]
FITTING_ROUNDS = 50  # of fitting the shares of steps to their waits
_SEED_SHARE = 1e-3  # of a step's wait that follows the shares of the whole repetition: a step without any has these


@dataclass(frozen=True)
class Split:
    """What each stage cost each of the first steps of a run, in ns, (steps, stages).

    ``otherwise``: what all of them cost it by the other readings of the device's work (``harness.explain.launches``),
    in ns, (readings, steps); none where that is next to nothing.
    """

    exposed: Int
    otherwise: Array = field(default_factory=lambda: np.zeros((0, 0)))


def split(recording: Recording, waits_ns: Int) -> Split | Unsplit:
    """The split of a run with these waits by step; the reason where its replay says nothing about it."""
    if recording.device_not_recorded:
        return "device not recorded"
    present = present_stages(recording)
    sets = [chosen for size in range(len(present) + 1) for chosen in combinations(range(len(present)), size)]
    replayed = _replayed(recording, [[present[place] for place in chosen] for chosen in sets])
    steps = replayed.shape[1]
    counted, wall_ns = recording.measured[:steps], recording.wall_ns[:steps]
    if abs(replayed[0, counted].sum() / wall_ns[counted].sum() - 1) > REPLAY_ERROR_MAX:
        return "replay is off"
    saved = {chosen: replayed[0] - walls for chosen, walls in zip(sets, replayed, strict=True)}
    shares = np.zeros((steps, len(STAGES)))
    repetition = _repetitions(recording, steps)
    for place, stage in enumerate(present):
        shares[:, STAGES.index(stage)] = _kept(_shapley(saved, place, len(present)), repetition)
    if recording.asynchronous:
        whole = (_replayed(one, [[], present]) for one in recording.other_readings.values())
        otherwise = [_kept(with_all - without, repetition) for with_all, without in whole]
        return Split(np.rint(shares).astype(np.int64), np.array(otherwise).reshape(-1, steps))
    return Split(_summing_to(waits_ns[:steps], shares, repetition * 2 + counted))


def _replayed(recording: Recording, removed: list[list[str]]) -> Array:
    """Step times in the order recorded without each of these sets of stages, (sets, steps)."""
    pipelines = [
        build(recording, without_stages(stages), exact=True, most_steps=REPLAYED_STEPS_MAX) for stages in removed
    ]
    count = len(pipelines)
    return simulate(together(pipelines), np.zeros((count, 1)), np.arange(count), account=False).step_ns


def _shapley(saved: dict[tuple[int, ...], Array], place: int, count: int) -> Array:
    """The share of one of ``count`` stages in what removing all of them saves."""
    total: Array = np.zeros_like(saved[()])
    for chosen, before in saved.items():
        if place in chosen:
            continue
        weight = math.factorial(len(chosen)) * math.factorial(count - len(chosen) - 1) / math.factorial(count)
        total += weight * (saved[tuple(sorted((*chosen, place)))] - before)
    return total


def _repetitions(recording: Recording, steps: int) -> Int:
    """Which repetition each step belongs to, from 0."""
    begins = np.zeros(steps, dtype=np.int64)
    begins[[step for step, resume in recording.resumes.items() if resume.repetition and 0 < step < steps]] = 1
    return np.cumsum(begins)


def _kept(delays: Array, repetition: Int) -> Array:
    """The part of each step's delay that no later step of its repetition makes up for."""
    found = np.zeros_like(delays)
    for one in np.unique(repetition):
        own = repetition == one
        total = np.cumsum(delays[own])
        lasting = np.maximum(0.0, np.minimum.accumulate(total[::-1])[::-1])
        found[own] = np.diff(lasting, prepend=0.0)
    return found


def _summing_to(waits_ns: Int, shares: Array, group: Int) -> Int:
    """Whole numbers that sum to each step's wait and, over a group of steps, to the group's ``shares``.

    Both by proportional fitting: rows and columns are scaled in turn. What rounding leaves is transfer.
    """
    found = np.zeros_like(shares)
    for one in np.unique(group):
        own = group == one
        waits, wanted = waits_ns[own].astype(np.float64), shares[own].sum(axis=0)
        if not waits.sum() or not wanted.sum():
            continue
        wanted *= waits.sum() / wanted.sum()
        fitted = shares[own] + _SEED_SHARE * np.outer(waits, wanted / wanted.sum())
        for _ in range(FITTING_ROUNDS):
            fitted = fitted * _ratio(wanted, fitted.sum(axis=0))
            fitted = fitted * _ratio(waits, fitted.sum(axis=1))[:, None]
        found[own] = fitted
    whole = np.floor(found).astype(np.int64)
    whole[:, STAGES.index("transfer")] += waits_ns - whole.sum(axis=1)
    return whole


def _ratio(wanted: Array, there: Array) -> Array:
    return np.divide(wanted, there, out=np.zeros_like(wanted), where=there > 0)
