"""Estimates what the ranks of one program would gain together without data work.

Ranks that exchange something in each step take as long as one another; what differs is what they spend it on. A rank
waits for another one while its main thread has no core within its backward pass (DDP). The exchange itself takes all of
them as long, so the least such time of a step is no wait:

    wait of a rank    time off its core in backward passes - the least of all ranks in that step
    saved             least over ranks of: the rank's own fetch that is no longer there + its wait

The interval covers what the record leaves open: being ready without a core looks like waiting; off its core in another
phase a rank may wait for the others (FSDP) or for something of its own. A wait that keeps its core busy looks like
work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from harness.explain.policy import RANK_STEPS_UNLIKE
from harness.explain.spans import FETCH, NOT_MEASURED, column, spans_of
from harness.explain.statistics import Estimate, from_blocks, holding
from harness.study.run_data import RunData

Float = NDArray[np.float64]
BACKWARD = "backward"
_Edit = Callable[[Float], Float]  # of the ranks' fetches, (rank, step)


@dataclass(frozen=True)
class RankSteps:
    """The measured steps of one rank in one block, in nanoseconds; all (steps,), of several ranks (rank, step)."""

    step: Float  # numbers
    wall: Float
    fetch: Float
    off_core: Float  # within backward passes
    elsewhere: Float  # within phases that are neither these nor fetches
    ready: Float  # of each step on average over the block: it could run and had no core
    unseen: Float  # the same: it was blocked outside of all phases


@dataclass(frozen=True)
class GroupGain:
    """``slowest``: the rank that fetches longest. Speeds of a step: its time / that of the edited one."""

    slowest: str
    without_data: Estimate  # no rank has any
    slowest_alike: Estimate  # the slowest fetches no longer than the next


def rank_steps(run: RunData) -> RankSteps | None:
    """Return the steps of a rank of an attached CPU program; None of other runs, or if core times were not measured."""
    facts = run.record.facts
    if facts.attached is None or (facts.ranks or 1) < 2 or facts.asynchronous:
        return None
    table = run.step_columns(["step", "warmup", "start_ns", "wall_ns", "fetch_ns"])
    if table is None or not len(table) or not run.has_spans:
        return None
    wall, fetch = (np.nan_to_num(column(table, f"{name}_ns")) for name in ("wall", "fetch"))
    measured = np.flatnonzero(np.not_equal(column(table, "warmup"), 1) & (wall > 0))
    off_core = _off_core(run, column(table, "start_ns"))
    if off_core is None or not measured.size:
        return None
    in_backward, elsewhere = off_core
    ready, unseen = ((share or 0.0) * wall for share in (facts.waiting_share, facts.unseen_share))
    parts = (column(table, "step"), wall, fetch, in_backward, elsewhere, ready, unseen)
    return RankSteps(*(part[measured] for part in parts))


def _off_core(run: RunData, starts: Float) -> tuple[Float, Float] | None:
    """Return the time off a core by step, in backward passes and in other phases but fetches; None: not measured."""
    spans = spans_of(run)
    phases = spans.phases
    if not len(phases) or (phases.cpu_ns == NOT_MEASURED).any() or np.isnan(starts).any():
        return None
    order = np.lexsort((-phases.ends, phases.starts))  # of phases that begin together the outer one first
    phases = phases.where(order.astype(np.int64))
    before = np.concatenate([[phases.starts[0]], np.maximum.accumulate(phases.ends)[:-1]])
    outermost = phases.starts >= before  # what lies within another phase is a part of it
    off = phases.ends - phases.starts - phases.cpu_ns.astype(np.float64)
    step = np.searchsorted(starts, phases.starts, side="right") - 1
    inside = step >= 0

    def by_step(times: Float) -> Float:
        found: Float = np.maximum(np.bincount(step[inside], times[inside], minlength=len(starts)), 0.0)
        return found

    # A fetch is none of these, also where it lies within another phase: then that one is shorter by it.
    within = np.maximum.accumulate(np.where(outermost, np.arange(len(off)), 0))
    fetch = phases.names == spans.code(FETCH)
    counted = np.where(outermost & ~fetch, off, 0.0) - np.where(~outermost & fetch & ~fetch[within], off, 0.0)
    backward = (phases.names == spans.code(BACKWARD))[within]
    return by_step(np.where(backward, counted, 0.0)), by_step(np.where(backward, 0.0, counted))


def group_gain(steps: Mapping[str, Mapping[int, RankSteps]]) -> GroupGain | None:
    """``steps``: by arm and block. None where there is one rank, or they do not wait for one another in each step."""
    if len(steps) < 2:
        return None
    shared = sorted(set.intersection(*(set(one) for one in steps.values())))
    aligned = [block for number in shared if (block := _aligned([one[number] for one in steps.values()])) is not None]
    if not aligned:
        return None
    walls = np.array([block.wall.mean(axis=1) for block in aligned]).mean(axis=0)
    if walls.max() / walls.min() - 1 > RANK_STEPS_UNLIKE:
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

    return RankSteps(*(together(one.name) for one in fields(RankSteps)))


def _no_longer_than_the_next(fetch: Float, last: int) -> Float:
    found = fetch.copy()
    found[last] = np.minimum(fetch[last], np.delete(fetch, last, axis=0).max(axis=0))
    return found


def _speed(blocks: Sequence[RankSteps], edit: _Edit) -> Estimate:
    """How many times as fast with edited fetches."""
    readings: list[Estimate] = []
    for saved_ns in (_saved, _saved_at_least, _saved_at_most):
        logs = []
        for block in blocks:
            wall = float(block.wall.mean())
            left = max(wall - float(np.mean(saved_ns(block, block.fetch - edit(block.fetch)))), 0.01 * wall)
            logs.append(math.log(wall / left))
        found = from_blocks(logs)
        assert found is not None
        readings.append(found)
    return holding(readings[0], readings[1:])


def _saved(block: RankSteps, gone: Float) -> Float:
    """``gone``: what each rank no longer fetches."""
    saved: Float = (gone + block.off_core - block.off_core.min(axis=0)).min(axis=0)
    return saved


def _saved_at_least(block: RankSteps, gone: Float) -> Float:
    """Where being ready without a core is no wait for another rank; of that the block is known, not its steps."""
    waiting = np.maximum(block.off_core - block.ready, 0.0).mean(axis=1)
    saved = (gone.mean(axis=1) + waiting - waiting.min()).min()
    return np.array([min(float(saved), float(_saved(block, gone).mean()))])


def _saved_at_most(block: RankSteps, gone: Float) -> Float:
    """Where what was blocked unseen, or outside of backward passes, is a wait for another rank."""
    waits = block.off_core + block.elsewhere + block.unseen - block.off_core.min(axis=0)
    saved: Float = np.minimum((gone + waits).min(axis=0), gone.max(axis=0))
    return saved
