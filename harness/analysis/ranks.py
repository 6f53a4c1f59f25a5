"""What the ranks of one program would gain together without data work: each step waits for the last of them.

Of each step the longest of the ranks' fetches counts. Where ranks compute alike and are together when a fetch begins,
the step is shorter by all of it. Where one of them computes longer than the others, another may have time to fetch:
then it is shorter by what the last rank to come to its backward pass comes earlier. The first holds wherever in the
step they wait for one another, the second where that is in the backward pass alone (as DDP does). Both are worked out,
and the interval holds both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.ledger import column
from harness.analysis.statistics import Estimate, from_blocks, holding
from harness.study.run_data import RunData

Float = NDArray[np.float64]
_Edit = Callable[[Float], Float]  # of the ranks' fetches, (rank, step)
UNLIKE = 0.03  # of the step: ranks whose steps differ by more do not wait for one another in each


@dataclass(frozen=True)
class RankSteps:
    """The measured steps of one rank in one block, in nanoseconds. ``before``: outside of fetch and backward."""

    step: Float  # numbers
    wall: Float
    fetch: Float
    before: Float
    backward: Float


@dataclass(frozen=True)
class GroupGain:
    """``slowest``: the rank that waits longest for data. Speeds of a step: its time / that of the edited one."""

    slowest: str
    without_data: Estimate  # no rank has any
    slowest_alike: Estimate  # the slowest waits no longer than the next


def rank_steps(run: RunData) -> RankSteps | None:
    """The steps of a rank of an attached program; None of any other run, and where a device computes by itself."""
    facts = run.record.facts
    if facts.attached is None or (facts.ranks or 1) < 2 or facts.asynchronous:
        return None
    table = run.step_columns(["step", "warmup", "wall_ns", "fetch_ns", "backward_ns"])
    if table is None or not len(table):
        return None
    wall, fetch, backward = (np.nan_to_num(column(table, f"{name}_ns")) for name in ("wall", "fetch", "backward"))
    measured = np.flatnonzero(np.not_equal(column(table, "warmup"), 1) & (wall > 0))
    parts = (column(table, "step"), wall, fetch, wall - fetch - backward, backward)
    return RankSteps(*(part[measured] for part in parts)) if measured.size else None


def group_gain(steps: Mapping[str, Mapping[int, RankSteps]]) -> GroupGain | None:
    """``steps``: by arm and block. None where there is one rank, or they do not wait for one another in each step."""
    if len(steps) < 2:
        return None
    shared = sorted(set.intersection(*(set(one) for one in steps.values())))
    aligned = [block for number in shared if (block := _aligned([one[number] for one in steps.values()])) is not None]
    if not aligned:
        return None
    walls = np.array([block.wall.mean(axis=1) for block in aligned]).mean(axis=0)
    if walls.max() / walls.min() - 1 > UNLIKE:
        return None
    fetches = np.array([block.fetch.mean(axis=1) for block in aligned]).mean(axis=0)
    last = int(fetches.argmax())
    return GroupGain(
        slowest=list(steps)[last],
        without_data=_speed(aligned, lambda fetch: np.zeros_like(fetch)),
        slowest_alike=_speed(aligned, lambda fetch: _no_longer_than_the_next(fetch, last)),
    )


def _aligned(ranks: Sequence[RankSteps]) -> RankSteps | None:
    """The steps that all ranks measured, arrays of (rank, step); None where there are none."""
    common = ranks[0].step
    for one in ranks[1:]:
        common = np.intersect1d(common, one.step)
    if not common.size:
        return None
    places = [np.flatnonzero(np.isin(one.step, common)) for one in ranks]

    def together(name: str) -> Float:
        return np.stack([getattr(one, name)[place] for one, place in zip(ranks, places, strict=True)])

    return RankSteps(*(together(name) for name in ("step", "wall", "fetch", "before", "backward")))


def _no_longer_than_the_next(fetch: Float, last: int) -> Float:
    found = fetch.copy()
    found[last] = np.minimum(fetch[last], np.delete(fetch, last, axis=0).max(axis=0))
    return found


def _speed(blocks: Sequence[RankSteps], edit: _Edit) -> Estimate:
    """How many times as fast with edited fetches, by both readings."""
    readings: list[Estimate] = []
    for saved_ns in (_of_fetches, _of_arrivals):
        logs = []
        for block in blocks:
            wall = float(block.wall.mean())
            left = max(wall - float(np.mean(saved_ns(block, edit(block.fetch)))), 0.01 * wall)
            logs.append(math.log(wall / left))
        found = from_blocks(logs)
        assert found is not None
        readings.append(found)
    return holding(readings[0], readings[1:])


def _of_fetches(block: RankSteps, edited: Float) -> Float:
    saved: Float = block.fetch.max(axis=0) - edited.max(axis=0)
    return saved


def _of_arrivals(block: RankSteps, edited: Float) -> Float:
    saved: Float = (block.before + block.fetch).max(axis=0) - (block.before + edited).max(axis=0)
    return saved
