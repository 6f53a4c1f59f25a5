"""Computes the ledger of an asynchronous device: per step its busy time, its idle time by cause, and the slack.

The record holds one bracket for the kernels of a phase. Where the device ends it as the host ends launching
(``launches``), it was waiting for launches within it: the phase is launch-bound, and how long the device worked there
is not known from the brackets.

    host:    |fetch: read|tokenize|pack|launch ...........|====== blocked: gradient norm ======|launch|fetch ...
    device:  ====optimizer====|         |h2d|=== forward ===|======= backward =======|norm|...|==optimizer==...
                              ^ idle    ^ by what the host did at that moment: the rest of tokenize, pack, launching

A device is idle (``starved`` in the tables) while it has nothing queued. On such a device a wait of the host costs
nothing by itself: what the step really waited for (exposed) is the idle time during the fetch. Everything is in integer
nanoseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain.exposure import BatchWaits, StageSpans, of_known_batches, per_row
from harness.explain.in_parts import in_parts
from harness.explain.intervals import Int, Pieces, Stretches, clip, difference, in_order, innermost, touches, union
from harness.explain.spans import FETCH, RunSpans
from harness.study.contract import CAUSES, STAGES

PYTHON = CAUSES.index("python")  # launching, and whatever has no other name
assert CAUSES[: len(STAGES)] == STAGES, "a stage's number is that of the cause of the same name"
# What a phase of the main thread means to a device that is idle; any other phase: python.
CAUSE_OF_PHASE = {"sync": "sync", "log": "log", "checkpoint": "checkpoint"}


class Activities(NamedTuple):
    """What the main thread did, without overlaps and in order; all (activities,)."""

    causes: Int  # index into CAUSES
    starts: Int
    ends: Int


class IdleTime(NamedTuple):
    """Every stretch in which the device did nothing within a step, cut where the cause changes; all (pieces,)."""

    rows: Int  # of the steps table
    stretches: Int  # which idle stretch a piece belongs to, from 0
    causes: Int
    starts: Int
    ends: Int


def activities(spans: RunSpans, waits: BatchWaits, stages: StageSpans, during: Stretches | None = None) -> Activities:
    """The main thread's time by cause; the innermost span counts, and a fetch is transfer where no stage ran.

    ``stages``: of the batches, without overlaps; of each only the part within its own wait counts. What does not touch
    ``during`` may be left out.
    """
    stages = of_known_batches(stages, waits)
    since = np.maximum(stages.starts, waits.starts[stages.batches])
    until = np.minimum(stages.ends, waits.ends[stages.batches])
    others = spans.phases.where(spans.phases.names != spans.code(FETCH))
    cause_of = np.array([CAUSES.index(CAUSE_OF_PHASE.get(name, "python")) for name in spans.names] or [PYTHON])
    blocked = np.full(len(spans.blocking), CAUSES.index("sync"))
    fetching = np.full(len(waits.starts), CAUSES.index("transfer"))
    causes = np.concatenate([cause_of[others.names], blocked, fetching, stages.stages])
    starts = np.concatenate([others.starts, spans.blocking.starts, waits.starts, since])
    ends = np.concatenate([others.ends, spans.blocking.ends, waits.ends, until])
    if during is not None:
        touching = np.flatnonzero(touches(starts, ends, during))
        causes, starts, ends = causes[touching], starts[touching], ends[touching]
    pieces = innermost(starts, ends)
    return Activities(causes[pieces.owner], pieces.starts, pieces.ends)


def idle_time(steps: Stretches, kernels: Stretches, known: Activities) -> IdleTime:
    """When the device was idle in each of ``steps`` (in order), by what the host did meanwhile.

    ``kernels``: when it worked, as stretches. ``steps`` may touch one another; none is empty.
    """
    gaps = clip(steps.starts, steps.ends, difference(_span_of(steps), kernels))
    edges = in_order(np.concatenate([gaps.starts, gaps.ends, known.starts, known.ends]))
    cut = clip(gaps.starts, gaps.ends, Stretches(edges[:-1], edges[1:]))
    place = np.searchsorted(known.starts, cut.starts, side="right") - 1
    inside = (place >= 0) & (cut.starts < known.ends[np.maximum(place, 0)] if len(known.ends) else False)
    causes = np.full(len(cut.starts), PYTHON)
    causes[inside] = known.causes[place[inside]]
    return IdleTime(gaps.owner[cut.owner], cut.owner, causes, cut.starts, cut.ends)


def _span_of(steps: Stretches) -> Stretches:
    return Stretches(steps.starts[:1], steps.ends[-1:])


def idle_per_step(steps: Stretches, spans: RunSpans, waits: BatchWaits, stages: StageSpans) -> Int:
    """Idle nanoseconds by step and cause, (steps, causes): the sums of :func:`idle_time`, some steps at a time.

    ``stages``: of the batches, without overlaps.
    """

    def idle_in(part: Stretches) -> Int:
        since, until = int(part.starts[0]), int(part.ends[-1])
        near = spans.between(since, until)
        idle = clip(part.starts, part.ends, difference(_span_of(part), busy(near)))
        during = Stretches(idle.starts, idle.ends)
        known = activities(near, *_batches_between(waits, stages, since, until), during)
        return _by_cause(idle, known, len(part.starts))

    found = np.zeros((len(steps.starts), len(CAUSES)), dtype=np.int64)
    done = 0
    for part in in_parts(steps, idle_in):
        found[done : done + len(part)] = part
        done += len(part)
    return found


def _batches_between(
    waits: BatchWaits, stages: StageSpans, since_ns: int, until_ns: int
) -> tuple[BatchWaits, StageSpans]:
    """The batches that were waited for in [since_ns, until_ns), and those with numbers in between; numbered anew."""
    chosen = np.flatnonzero((waits.ends > since_ns) & (waits.starts < until_ns))
    low, high = (int(chosen[0]), int(chosen[-1]) + 1) if len(chosen) else (0, 0)
    here = slice(*np.searchsorted(stages.batches, [low, high]).tolist())
    return (
        BatchWaits(waits.rows[low:high], waits.starts[low:high], waits.ends[low:high], waits.reported[low:high]),
        StageSpans(stages.batches[here] - low, stages.stages[here], stages.starts[here], stages.ends[here]),
    )


def _by_cause(idle: Pieces, known: Activities, rows: int) -> Int:
    """``idle`` pieces of steps summed by step and cause, (rows, causes): the sums of :func:`idle_time`."""
    named = clip(idle.starts, idle.ends, Stretches(known.starts, known.ends))
    causes = known.causes[np.searchsorted(known.starts, named.starts, side="right") - 1]
    cells = idle.owner[named.owner] * len(CAUSES) + causes
    found = per_row(cells, named.ends - named.starts, rows * len(CAUSES)).reshape(rows, len(CAUSES))
    found[:, PYTHON] += per_row(idle.owner, idle.ends - idle.starts, rows) - found.sum(axis=1)
    return found


def slack(waits: BatchWaits, kernel_ends: Int, launch_starts: Int, rows: int) -> tuple[Int, NDArray[np.bool_]]:
    """Work that lay queued when the host began the first fetch of each step: (nanoseconds, whether it fetched).

    ``kernel_ends`` and ``launch_starts``: of each piece of work, in the order of the queue.
    """
    found, fetched = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.bool_)
    inside = np.flatnonzero(waits.rows >= 0)
    first = inside[np.unique(waits.rows[inside], return_index=True)[1]]
    found[waits.rows[first]] = behind(waits.starts[first], kernel_ends, launch_starts)
    fetched[waits.rows[first]] = True
    return found, fetched


def behind(moments: Int, kernel_ends: Int, launch_starts: Int) -> Int:
    """How much of what was launched by each moment the device had still to do, in nanoseconds; see :func:`slack`."""
    free = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(kernel_ends) if len(kernel_ends) else kernel_ends)
    queued = np.searchsorted(np.maximum.accumulate(launch_starts), moments, side="right")
    left: Int = np.maximum(free[queued], moments) - moments
    return left


def busy(spans: RunSpans) -> Stretches:
    """When the device worked."""
    return union(spans.kernels.starts, spans.kernels.ends)
