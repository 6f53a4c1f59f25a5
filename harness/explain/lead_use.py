"""Finds steps that lived off what was done ahead of them, in the tables of a study: by repetition, and by arm.

That is batches which lay ready, or a host that got further ahead of its device: it takes no longer than launching does,
which it cannot go on doing. An asynchronous device takes a batch when it begins to work on it: its host runs ahead of
it at other moments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain.exposure import BatchWaits
from harness.explain.lead import Leads, MadeBatches, leads_of, used_up_ns
from harness.explain.makers import makers_of
from harness.explain.policy import LEAD_SHARE_MIN, MIN_BLOCKS
from harness.explain.replay.batches import BUILT
from harness.explain.spans import RunSpans
from harness.explain.statistics import reach_of_mean
from harness.explain.step_columns import bounds, integers
from harness.study.contract import AWAITED

if TYPE_CHECKING:
    import pyarrow as pa


class UsedLead(NamedTuple):
    """What the measured steps of one repetition used up of ready batches, per worker, and how long they took; ns.

    ``ahead_ns``: by how much further the host was ahead of its device at their end; negative: less far.
    """

    used_ns: float
    wall_ns: float
    ahead_ns: float = 0.0


@dataclass(frozen=True)
class LeadUse:
    """By how much the measured steps of an arm were faster than they could go on being, as a share of a step.

    With the 95 % interval of a mean over ``n`` repetitions: each is suspended, and begins to use up lead, by itself.
    ``by_host``: mostly as the host got further ahead of its device; else as batches that lay ready were used up.
    """

    share: float
    ci_low: float
    ci_high: float
    n: int
    by_host: bool = False

    @property
    def is_worth_saying(self) -> bool:
        """Whether the steps surely lived off lead, and by more than next to nothing."""
        return self.share > LEAD_SHARE_MIN and self.ci_low > 0


def used_leads(
    steps: pa.Table, spans: RunSpans, waits: BatchWaits, workers: int, prefetch: int, *, asynchronous: bool
) -> dict[int, UsedLead]:
    """What each repetition of a run used up; of none where an asynchronous device left no record.

    ``workers``: 0 where batches are made inline, of which none lies ready. A repetition in which the loop paused (an
    evaluation) counts up to there: its workers went on meanwhile.
    """
    if asynchronous and not len(spans.kernels):
        return {}
    makers = makers_of(spans.makers, len(waits.rows), workers)
    leads = leads_of(_made(spans, waits, on_device=asynchronous), workers, prefetch, makers) if workers else None
    starts, ends = bounds(steps)
    at_start, at_end = (_ahead_ns(spans, moments) for moments in (starts, ends))
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
        first, last = stretch[0], stretch[-1]
        batches = by_row[np.searchsorted(rows_of, first) : np.searchsorted(rows_of, last, side="right")]
        used = 0.0 if leads is None else used_up_ns(Leads(leads.lead[batches], leads.idle[batches]), makers.busy)
        if used is not None:
            found[repetition] = UsedLead(used, float(ends[last] - starts[first]), float(at_end[last] - at_start[first]))
    return found


def lead_use(runs: Iterable[Mapping[int, UsedLead]]) -> LeadUse | None:
    """Over all repetitions of an arm's runs; None where they are too few for an interval."""
    found = [one for run in runs for one in run.values()]
    if len(found) < MIN_BLOCKS:
        return None
    wall_ns = np.mean([one.wall_ns for one in found])
    ahead = np.array([one.ahead_ns for one in found]) / wall_ns
    shares = np.array([one.used_ns for one in found]) / wall_ns + ahead
    mean, reach = float(shares.mean()), reach_of_mean(shares.tolist())
    return LeadUse(mean, mean - reach, mean + reach, len(found), bool(ahead.mean() > mean / 2))


def _ahead_ns(spans: RunSpans, moments: NDArray[np.int64]) -> NDArray[np.float64]:
    """How long the device still had to work at each of ``moments`` on what was queued by then; both (moments,).

    A device does its work in the order queued; one that the host does not run ahead of has none.
    """
    done = np.concatenate([[-np.inf], np.maximum.accumulate(spans.kernels.ends.astype(np.float64))])
    # A launch whose work was never recorded (the run was cut short) is not known to be ahead of anything.
    queued = np.minimum(np.searchsorted(spans.launches.starts, moments, side="left"), len(spans.kernels.ends))
    ahead: NDArray[np.float64] = np.maximum(0.0, done[queued] - moments)
    return ahead


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
