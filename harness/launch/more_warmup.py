"""Decides if a repetition takes more warm-up steps: while a run consumes prefetched batches, it is too fast.

A suspended run's workers use no core, but what they wait for (a disk, a network, a sleep) goes on. So each may have a
batch at once when the run is resumed; and a run whose queue filled up while it started has as many as the queue holds.
Where the loop takes batches little faster than workers make them, the fixed number of warm-up steps does not use that
up (``harness.explain.lead_use``). Nor does it take the host of an asynchronous device as far ahead as it gets, where
launching is little faster than the device: there the device is held, and one step more is enough
(``trainer.compute.host_lead``). Nor does it end at a step in which the host waits, if it waits in few steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.explain.lead_use import MadeBatches, falls_by, leads_of
from harness.probes.ledger.recent import BatchMoments, RecentBatches
from trainer.compute.base import Compute
from trainer.config import TrainerConfig

# Share by which a step may be too fast when measuring begins: less is within the differences of batches.
ENOUGH = 0.02
MOST_PERIOD = 20  # steps between two waits of the host for the device that a repetition is made whole for
MAX_ADDED_STEPS = 60  # a run whose lead lasts longer is measured with the rest of it, and the report warns


def most_extra_steps(config: TrainerConfig) -> int:
    """Return how many warm-up steps a repetition of such a run may take beyond the fixed number.

    0 on a CPU without prefetched batches. 0 for several ranks: all of them take the same steps, and each observes its
    own batches and device only.
    """
    return MAX_ADDED_STEPS if config.ranks == 1 and config.compute.device != "cpu" else most_waiting_steps(config)


def most_waiting_steps(config: TrainerConfig) -> int:
    """Return how many extra warm-up steps a run that waits for its data may take; a host takes a few itself."""
    return MAX_ADDED_STEPS if config.ranks == 1 and batches_may_last(config) else 0


def batches_may_last(config: TrainerConfig) -> bool:
    """True if a worker may have more than one batch ready; inline none does."""
    return config.data.workers > 0 and config.data.prefetch > 1


def wait_period(config: TrainerConfig, *, asynchronous: bool) -> int:
    """Every so many steps the host waits until the device has done all; 1: about as long in each, or too many to take.

    A host that waits at log lines alone leaves nothing on the device there, and runs ahead elsewhere. Steps that begin
    behind a log line and end elsewhere would count a step less of the device's work than there were, and those that
    begin elsewhere and end there one more. Whole periods count as many.
    """
    reads_norm = config.compute.sync != "norm" or config.compute.check_finite
    return 1 if not asynchronous or reads_norm or config.log_every > MOST_PERIOD else config.log_every


def lead_lasts(config: TrainerConfig, *, asynchronous: bool) -> bool:
    """True if measured steps may begin with another lead of the host over its device than they end with.

    A host that waits until the device has done all in each step has none; one that does so at log lines has none there.
    """
    reads_each_step = config.compute.sync == "every-step" or (
        config.compute.sync == "norm" and config.compute.check_finite
    )
    return asynchronous and not reads_each_step and wait_period(config, asynchronous=True) == 1


def take_more(
    take: Callable[[int], None],
    most: int,
    compute: Compute,
    config: TrainerConfig,
    lives_off_batches: Callable[[], bool],
) -> int:
    """Have ``take`` take up to ``most`` warm-up steps until a repetition is warm; return how many it took."""
    watched = lead_lasts(config, asynchronous=compute.asynchronous)
    taken = 0
    while taken < most:
        if lives_off_batches():
            more = min(cycle_steps(config), most - taken)
        elif watched and not compute.is_lead_settled():
            compute.hold_device()
            more = 1
        elif not (taken or watched) and compute.asynchronous and not compute.emulated:
            # A host that was suspended is slow for a step: on an H200 its device had nothing left to do at the end of
            # that one, and 7.6 of 78 ms at the end of each later one.
            more = 1
        else:
            break
        take(more)
        taken += more
    return taken


def cycle_steps(config: TrainerConfig) -> int:
    """Steps in which each worker's turn comes; 1 without workers."""
    return max(1, math.ceil(config.data.workers / config.optimizer.accumulation))


def batches_needed(workers: int, prefetch: int) -> int:
    """Number of last batches that :func:`lives_off_lead` reads: two cycles, and those whose steps requested them.

    The typical time between two batches of a worker is known from more of them.
    """
    return workers * (prefetch + 4)


def lives_off_lead(recent: RecentBatches, workers: int, prefetch: int) -> bool:
    """True if the last cycle used up lead by more than :data:`ENOUGH` of its time, or if that is not known yet."""
    batches = recent.batches
    if len(batches) < 2 * workers:
        return False
    columns = {name: _running(batches, name, recent.pauses) for name in ("began", "ready", "received", "taken")}
    made = MadeBatches(**columns, awaited=np.array([batch.awaited for batch in batches]))
    stood = np.array([_stood_in_making(batch, recent.pauses) for batch in batches])
    return falls_by(leads_of(made, workers, prefetch), made.taken, workers, stood) > ENOUGH


def load_decision() -> None:
    """Have numpy load what :func:`lives_off_lead` calls, which takes tens of milliseconds the first time.

    Between warm-up and measured steps a device would work off meanwhile what its host had queued.
    """
    made_up = [BatchMoments(number, number + 1, number + 2, number + 2, False) for number in range(8)]
    lives_off_lead(RecentBatches(made_up, [(0, 1)]), 1, 2)


def _stood_in_making(batch: BatchMoments, pauses: Sequence[tuple[int, int]]) -> bool:
    if batch.began is None or batch.ready is None:
        return False
    return any(batch.began < until and batch.ready > since for since, until in pauses)


def _running(batches: Sequence[BatchMoments], name: str, pauses: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
    """Moments on a clock that stops while the run is suspended, NaN if unknown."""
    moments = np.array([math.nan if (moment := getattr(batch, name)) is None else moment for batch in batches])
    stood = sum((np.clip(moments - since, 0, until - since) for since, until in pauses), np.zeros(len(moments)))
    return moments - stood
