"""Finds steps that lived off batches which lay ready: how long each batch had, and how much of that was used up.

A batch's lead is how long it had lain ready when its fetch began; 0 where the loop waited for it. A worker makes a
batch in P, the loop takes one from each worker in C (a cycle: as many batches as workers). While C < P and there is
lead, no step waits, and the lead of each worker's next batch is P - C smaller than that of its last one:

    worker:  |--- batch b ---|--- batch b + W ---|            ready(b + W) = ready(b) + P + idle
    loop:                     |..lead..|b ...... |lead|b + W  taken(b + W) = taken(b) + C
                                                              lead(b + W)  = lead(b) + C - P - idle

So steps that use up lead are faster than they could go on being, by exactly what they use up. The same difference comes
about where the queue was full and workers stood idle, which could have made more: what they idled is taken off. Batches
are compared with those of the same worker, so that bursts of workers in phase make no difference.

An asynchronous device takes a batch when it begins to work on it: its host runs ahead of it at other moments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.exposure import BatchWaits
from harness.analysis.spans import RunSpans
from harness.analysis.statistics import CONFIDENCE, MIN_BLOCKS, student_t
from harness.analysis.step_columns import bounds, integers
from harness.study.contract import AWAITED

if TYPE_CHECKING:
    import pyarrow as pa

Array = NDArray[np.float64]
BUILT = ("read", "tokenize", "pack")
WORTH = 0.01  # of a step: what is used up faster is said, and may explain what a comparison measured
# Of the time of making a batch: a worker that had been asked for its next batch and began it so much later was held up
# (an epoch ended). Less is what a worker does between two batches.
HELD_UP = 0.1
LEAST_SEEN = 6  # batches, each compared with its worker's one before


class MadeBatches(NamedTuple):
    """When batches that follow one another were begun, ready and received; ns, all (batches,), NaN where not known.

    ``taken``: when the loop, or its device, turned to the batch. ``awaited``: it was not ready before its fetch began.
    """

    began: Array
    ready: Array
    received: Array
    taken: Array
    awaited: NDArray[np.bool_]


class Leads(NamedTuple):
    """Of batches that follow one another, ns, both (batches,): the lead, and how long its worker idled before it."""

    lead: Array
    idle: Array


class UsedLead(NamedTuple):
    """What the measured steps of one repetition used up, per worker, and how long they took; ns."""

    used_ns: float
    wall_ns: float


@dataclass(frozen=True)
class LeadUse:
    """By how much the measured steps of an arm were faster than they could go on being, as a share of a step.

    With the 95 % interval of a mean over ``n`` repetitions: each is suspended, and begins to use up lead, by itself.
    """

    share: float
    ci_low: float
    ci_high: float
    n: int

    @property
    def is_worth_saying(self) -> bool:
        """Whether the steps surely lived off lead, and by more than next to nothing."""
        return self.share > WORTH and self.ci_low > 0


def leads_of(made: MadeBatches, workers: int, prefetch: int) -> Leads:
    """The lead of each batch. A worker makes each ``workers``-th batch, and is asked for ``prefetch`` of them ahead."""
    lead = np.where(made.awaited, 0.0, np.maximum(0.0, made.taken - made.ready))
    count, ahead = len(lead), workers * prefetch
    gap, asked = np.zeros(count), np.full(count, -np.inf)
    gap[workers:] = made.began[workers:] - made.ready[: max(0, count - workers)]
    asked[ahead:] = made.received[: max(0, count - ahead)]
    busy = np.zeros(count, dtype=np.bool_)
    busy[workers:] = asked[workers:] < made.ready[: max(0, count - workers)]
    known = busy & np.isfinite(gap)
    making = made.ready - made.began
    between = float(np.median(gap[known])) if known.any() else 0.0
    most = HELD_UP * float(np.nanmedian(making)) if np.isfinite(making).any() else 0.0
    idle = np.maximum(0.0, gap - between)
    idle[busy & (idle <= most)] = 0.0
    return Leads(np.where(np.isnan(made.ready), np.nan, lead), idle)


def used_up_ns(leads: Leads, workers: int) -> float | None:
    """The time that steps over these batches were shorter by than making the batches took; negative: lead was gained.

    None of batches of which too little is known. The last cycle's own use is not seen: it is taken as that of the
    others, but for no more than is left.
    """
    lead, idle = leads
    if not 0 < workers < len(lead) or not np.isfinite(lead).all():
        return None
    fell = float((lead[:-workers] - lead[workers:]).mean())
    used = min(fell, max(0.0, fell - float(idle[workers:].mean())))
    seen = used * (len(lead) - workers) / workers
    return seen + min(used, float(lead[-workers:].mean()))


def falls_by(leads: Leads, taken: Array, workers: int, stood: NDArray[np.bool_] | None = None) -> float:
    """By which share of its time the last cycle of these batches was shorter than it could go on being.

    Of few workers, over the last :data:`LEAST_SEEN` batches: one or two say little, as batches differ.
    ``stood``: batches that were being made while the run stood still; how much of one was made meanwhile is not known,
    nor then what its worker gained. Infinite where that is so of the whole cycle; 0 where the batches are fewer than
    two cycles, or too little is known of them.
    """
    if workers < 1 or len(leads.lead) < 2 * workers:
        return 0.0
    seen = min(max(workers, LEAST_SEEN), len(leads.lead) - workers)
    lead, idle = leads.lead[-seen - workers :], leads.idle[-seen:]
    length = float((taken[-seen:] - taken[-seen - workers : -workers]).mean())
    if not np.isfinite(lead).all() or length <= 0:
        return 0.0
    known = np.ones(seen, dtype=np.bool_) if stood is None else ~stood[-seen:]
    if not known.any():
        return math.inf
    return max(0.0, float((lead[:-workers] - lead[workers:] - idle)[known].mean())) / length


def used_leads(
    steps: pa.Table, spans: RunSpans, waits: BatchWaits, workers: int, prefetch: int, *, asynchronous: bool
) -> dict[int, UsedLead]:
    """What each repetition of a run used up; of none where an asynchronous device left no record.

    A repetition in which the loop paused (an evaluation) counts up to there: its workers went on meanwhile.
    """
    if asynchronous and not len(spans.kernels):
        return {}
    leads = leads_of(_made(spans, waits, on_device=asynchronous), workers, prefetch)
    starts, ends = bounds(steps)
    measured = integers(steps, "warmup", null=1) == 0
    repetitions = integers(steps, "turn")
    found: dict[int, UsedLead] = {}
    rows = np.flatnonzero(measured)
    if not len(rows):
        return found
    # A stretch goes on while rows, repetition and time do.
    breaks = (np.diff(rows) > 1) | (np.diff(repetitions[rows]) != 0) | (starts[rows[1:]] > ends[rows[:-1]])
    by_row = np.argsort(waits.rows, kind="stable")
    rows_of = waits.rows[by_row]
    for stretch in np.split(rows, np.flatnonzero(breaks) + 1):
        repetition = int(repetitions[stretch[0]])
        if repetition in found:
            continue
        batches = by_row[np.searchsorted(rows_of, stretch[0]) : np.searchsorted(rows_of, stretch[-1], side="right")]
        used = used_up_ns(Leads(leads.lead[batches], leads.idle[batches]), workers)
        if used is not None:
            found[repetition] = UsedLead(used, float(ends[stretch[-1]] - starts[stretch[0]]))
    return found


def lead_use(runs: Iterable[Mapping[int, UsedLead]]) -> LeadUse | None:
    """Over all repetitions of an arm's runs; None where they are too few for an interval."""
    found = [one for run in runs for one in run.values()]
    if len(found) < MIN_BLOCKS:
        return None
    shares = np.array([one.used_ns for one in found]) / np.mean([one.wall_ns for one in found])
    mean = float(shares.mean())
    reach = student_t((1 + CONFIDENCE) / 2, len(found) - 1) * float(shares.std(ddof=1)) / math.sqrt(len(found))
    return LeadUse(mean, mean - reach, mean + reach, len(found))


def _made(spans: RunSpans, waits: BatchWaits, *, on_device: bool) -> MadeBatches:
    count = len(waits.rows)
    chosen = np.isin(spans.stages.names, [spans.code(name) for name in BUILT if name in spans.names])
    own = spans.stages.where(chosen & (spans.stages.batches >= 0) & (spans.stages.batches < count))
    began, ready = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(began, own.batches, own.starts)
    np.maximum.at(ready, own.batches, own.ends)
    unknown = np.isinf(ready)
    began[unknown], ready[unknown] = np.nan, np.nan
    taken, awaited = waits.starts.astype(np.float64), np.zeros(count, dtype=np.bool_)
    if on_device:
        taken = np.full(count, np.inf)
        kernels = spans.kernels.where((spans.kernels.batches >= 0) & (spans.kernels.batches < count))
        np.minimum.at(taken, kernels.batches, kernels.starts)
        unknown |= np.isinf(taken)
        ready[unknown] = np.nan
    else:
        found = spans.of(spans.unpackings, AWAITED)
        found = found.where((found.batches >= 0) & (found.batches < count))
        awaited[found.batches] = found.starts >= waits.starts[found.batches]
    return MadeBatches(began, ready, waits.ends.astype(np.float64), taken, awaited)
