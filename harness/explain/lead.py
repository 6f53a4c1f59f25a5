"""Works out how long batches had lain ready, and how much of that steps lived off: arithmetic on moments alone.

A batch's lead is how long it had lain ready when its fetch began; 0 where the loop waited for it. A worker makes a
batch in P, the loop takes one from each worker in C (a cycle: as many batches as workers). While C < P and there is
lead, no step waits, and the lead of each worker's next batch is P - C smaller than that of its last one:

    worker:  |--- batch b ---|--- batch b + W ---|            ready(b + W) = ready(b) + P + idle
    loop:                     |..lead..|b ...... |lead|b + W  taken(b + W) = taken(b) + C
                                                              lead(b + W)  = lead(b) + C - P - idle

So steps that use up lead are faster than they could go on being, by exactly what they use up. The same difference comes
about where the queue was full and workers stood idle, which could have made more: what they idled is taken off. Batches
are compared with those of the same worker, so that bursts of workers in phase make no difference.

A run asks while it warms up, so nothing heavy is imported here; ``lead_use`` reads the tables of a study.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain.makers import Makers, round_robin
from harness.explain.policy import LEAD_BATCHES_MIN, WORKER_HELD_SHARE

Array = NDArray[np.float64]


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


def leads_of(made: MadeBatches, workers: int, prefetch: int, makers: Makers | None = None) -> Leads:
    """Return the lead of each batch for workers with ``prefetch`` batches in flight. ``makers`` None: in turn."""
    lead = np.where(made.awaited, 0.0, np.maximum(0.0, made.taken - made.ready))
    count = len(lead)
    makers = makers or round_robin(count, workers)
    before, ahead = makers.before(), makers.in_flight(prefetch)
    later = np.flatnonzero(before >= 0)
    gap, asked = np.zeros(count), np.full(count, -np.inf)
    gap[later] = made.began[later] - made.ready[before[later]]
    asked[ahead:] = made.received[: max(0, count - ahead)]
    busy = np.zeros(count, dtype=np.bool_)
    busy[later] = asked[later] < made.ready[before[later]]
    known = busy & np.isfinite(gap)
    making = made.ready - made.began
    between = float(np.median(gap[known])) if known.any() else 0.0
    most = WORKER_HELD_SHARE * float(np.nanmedian(making)) if np.isfinite(making).any() else 0.0
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

    Of few workers, over the last :data:`LEAD_BATCHES_MIN` batches: one or two say little, as batches differ.
    ``stood``: batches that were being made while the run stood still; how much of one was made meanwhile is not known,
    nor then what its worker gained. Infinite where that is so of the whole cycle; 0 where the batches are fewer than
    two cycles, or too little is known of them.
    """
    if workers < 1 or len(leads.lead) < 2 * workers:
        return 0.0
    seen = min(max(workers, LEAD_BATCHES_MIN), len(leads.lead) - workers)
    lead, idle = leads.lead[-seen - workers :], leads.idle[-seen:]
    length = float((taken[-seen:] - taken[-seen - workers : -workers]).mean())
    if not np.isfinite(lead).all() or length <= 0:
        return 0.0
    known = np.ones(seen, dtype=np.bool_) if stood is None else ~stood[-seen:]
    if not known.any():
        return math.inf
    return max(0.0, float((lead[:-workers] - lead[workers:] - idle)[known].mean())) / length
