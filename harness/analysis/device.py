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

from harness.analysis.exposure import BatchWaits, StageSpans, per_row
from harness.analysis.intervals import Int, Stretches, clip, difference, innermost, union
from harness.analysis.spans import FETCH, RunSpans
from harness.study.contract import CAUSES, STAGES

PYTHON = CAUSES.index("python")  # launching, and whatever has no other name
assert CAUSES[: len(STAGES)] == STAGES, "a stage's number is that of the cause of the same name"
# What a phase of the main thread means to a device that is idle; any other phase: python.
CAUSE_OF_PHASE = {"sync": "sync", "log": "log", "checkpoint": "checkpoint"}
STEPS_AT_ONCE = 100_000  # bounds the memory of one sweep


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


def activities(spans: RunSpans, waits: BatchWaits, stages: StageSpans) -> Activities:
    """The main thread's time by cause; the innermost span counts, and a fetch is transfer where no stage ran.

    ``stages``: of the batches, without overlaps; of each only the part within its own wait counts.
    """
    stages = StageSpans(*(column[stages.batches < len(waits.rows)] for column in stages))
    since = np.maximum(stages.starts, waits.starts[stages.batches])
    until = np.minimum(stages.ends, waits.ends[stages.batches])
    others = spans.phases.where(spans.phases.names != spans.code(FETCH))
    cause_of = np.array([CAUSES.index(CAUSE_OF_PHASE.get(name, "python")) for name in spans.names] or [PYTHON])
    blocked = np.full(len(spans.blocking), CAUSES.index("sync"))
    fetching = np.full(len(waits.starts), CAUSES.index("transfer"))
    causes = np.concatenate([cause_of[others.names], blocked, fetching, stages.stages])
    starts = np.concatenate([others.starts, spans.blocking.starts, waits.starts, since])
    ends = np.concatenate([others.ends, spans.blocking.ends, waits.ends, until])
    pieces = innermost(starts, ends)
    return Activities(causes[pieces.owner], pieces.starts, pieces.ends)


def idle_time(steps: Stretches, kernels: Stretches, known: Activities) -> IdleTime:
    """When the device was idle in each of ``steps`` (in order), by what the host did meanwhile.

    ``kernels``: when it worked, as stretches. ``steps`` may touch one another; none is empty.
    """
    gaps = clip(steps.starts, steps.ends, difference(_span_of(steps), kernels))
    edges = np.unique(np.concatenate([gaps.starts, gaps.ends, known.starts, known.ends]))
    cut = clip(gaps.starts, gaps.ends, Stretches(edges[:-1], edges[1:]))
    place = np.searchsorted(known.starts, cut.starts, side="right") - 1
    inside = (place >= 0) & (cut.starts < known.ends[np.maximum(place, 0)] if len(known.ends) else False)
    causes = np.full(len(cut.starts), PYTHON)
    causes[inside] = known.causes[place[inside]]
    return IdleTime(gaps.owner[cut.owner], cut.owner, causes, cut.starts, cut.ends)


def _span_of(steps: Stretches) -> Stretches:
    return Stretches(steps.starts[:1], steps.ends[-1:])


def idle_per_step(steps: Stretches, kernels: Stretches, known: Activities) -> Int:
    """Idle nanoseconds by step and cause, (steps, causes)."""
    count = len(steps.starts)
    found = np.zeros((count, len(CAUSES)), dtype=np.int64)
    for first in range(0, count, STEPS_AT_ONCE):
        part = Stretches(*(column[first : first + STEPS_AT_ONCE] for column in steps))
        idle = idle_time(part, _around(kernels, part), _known_around(known, part))
        flat = per_row(idle.rows * len(CAUSES) + idle.causes, idle.ends - idle.starts, len(part.starts) * len(CAUSES))
        found[first : first + STEPS_AT_ONCE] = flat.reshape(-1, len(CAUSES))
    return found


def _around(stretches: Stretches, steps: Stretches) -> Stretches:
    low = np.searchsorted(stretches.ends, steps.starts[0], side="right")
    high = np.searchsorted(stretches.starts, steps.ends[-1], side="left")
    return Stretches(stretches.starts[low:high], stretches.ends[low:high])


def _known_around(known: Activities, steps: Stretches) -> Activities:
    low = np.searchsorted(known.ends, steps.starts[0], side="right")
    high = np.searchsorted(known.starts, steps.ends[-1], side="left")
    return Activities(*(column[low:high] for column in known))


def slack(waits: BatchWaits, kernel_ends: Int, launch_starts: Int, rows: int) -> tuple[Int, NDArray[np.bool_]]:
    """Work that lay queued when the host began the first fetch of each step: (nanoseconds, whether it fetched).

    ``kernel_ends`` and ``launch_starts``: of each piece of work, in the order of the queue.
    """
    found, fetched = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.bool_)
    inside = np.flatnonzero(waits.rows >= 0)
    first = inside[np.unique(waits.rows[inside], return_index=True)[1]]
    free = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(kernel_ends) if len(kernel_ends) else kernel_ends)
    queued = np.searchsorted(np.maximum.accumulate(launch_starts), waits.starts[first], side="right")
    starts = waits.starts[first]
    found[waits.rows[first]] = np.maximum(free[queued], starts) - starts
    fetched[waits.rows[first]] = True
    return found, fetched


def busy(spans: RunSpans) -> Stretches:
    """When the device worked."""
    return union(spans.kernels.starts, spans.kernels.ends)
