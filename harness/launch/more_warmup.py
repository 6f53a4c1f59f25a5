"""Decides if a repetition needs extra warm-up steps: while a run uses prefetched batches, its steps are too short.

The fixed number of warm-up steps has three gaps:

- While a run is suspended, the disk, network or sleep that its workers wait for goes on, and a queue may have filled up
  during the start. A loop that is only a little faster than its workers does not use up this lead within the fixed
  number (``harness.explain.lead_use``).
- If launching is only a little faster than an asynchronous device, the host does not get as far ahead as it can: the
  device is held, and one more step is enough (``trainer.compute.host_lead``).
- If the host waits for the device only in some steps, the fixed number may not end at such a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.explain.lead_use import MadeBatches, falls_by, leads_of
from harness.probes.ledger.rows import BatchMoments, RecentBatches
from trainer.compute.base import Compute
from trainer.config import TrainerConfig

# Share by which a step may be too fast when measuring begins. Batches differ by more than that.
ENOUGH = 0.02
MOST_PERIOD = 20  # maximum steps between two waits of the host; a repetition covers whole periods up to this length
MAX_ADDED_STEPS = 60  # If the lead lasts longer, it is measured, and the report warns.


def most_extra_steps(config: TrainerConfig) -> int:
    """Return the maximum number of extra warm-up steps of a repetition: 0 on a CPU without prefetched batches, and with
    several ranks, one of which cannot decide for all.
    """
    return MAX_ADDED_STEPS if config.ranks == 1 and config.compute.device != "cpu" else most_waiting_steps(config)


def most_waiting_steps(config: TrainerConfig) -> int:
    """Return :func:`most_extra_steps` to use up prefetched batches, whatever the device."""
    return MAX_ADDED_STEPS if config.ranks == 1 and batches_may_last(config) else 0


def batches_may_last(config: TrainerConfig) -> bool:
    """True if workers prefetch more than one batch each, so that a fast loop has a stock of batches to use up."""
    return config.data.workers > 0 and config.data.prefetch > 1


def wait_period(config: TrainerConfig, *, asynchronous: bool) -> int:
    """Return the number of steps from one wait of the host for an idle device to the next: ``log_every`` if it waits
    only at log lines, up to MOST_PERIOD; else 1. Only whole periods contain exactly the device work of their steps.
    """
    reads_norm = config.compute.sync != "norm" or config.compute.check_finite
    return 1 if not asynchronous or reads_norm or config.log_every > MOST_PERIOD else config.log_every


def lead_lasts(config: TrainerConfig, *, asynchronous: bool) -> bool:
    """True if the host can get further ahead of its ``asynchronous`` device while steps are measured: it waits for it
    neither in each step nor at log lines.
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
    """Take warm-up steps, ``most`` at most, while the loop uses up prefetched batches or the host gets further ahead of
    its device. Return their number. A host that cannot get ahead takes one: it is slow just after a suspension.
    """
    watched = lead_lasts(config, asynchronous=compute.asynchronous)
    taken = 0
    while taken < most:
        if lives_off_batches():
            more = min(cycle_steps(config), most - taken)
        elif watched and not compute.is_lead_settled():
            compute.hold_device()
            more = 1
        elif not (taken or watched) and compute.asynchronous and not compute.emulated:
            # A resumed host is slow for one step. On an H200, its device was idle at the end of this step. At the end
            # of each later step, 7.6 of 78 ms of work were left.
            more = 1
        else:
            break
        take(more)
        taken += more
    return taken


def cycle_steps(config: TrainerConfig) -> int:
    """Return the number of steps in which each worker delivers a batch once; 1 without workers."""
    return max(1, math.ceil(config.data.workers / config.optimizer.accumulation))


def batches_needed(workers: int, prefetch: int) -> int:
    """Return how many of the last batches :func:`lives_off_lead` needs: two of each worker, and their requests."""
    return workers * (prefetch + 4)


def lives_off_lead(recent: RecentBatches, workers: int, prefetch: int) -> bool:
    """True if the loop lately took batches faster than workers can make them, by more than the share :data:`ENOUGH`."""
    batches = recent.batches
    if len(batches) < 2 * workers:
        return False
    columns = {name: _running(batches, name, recent.pauses) for name in ("began", "ready", "received", "taken")}
    made = MadeBatches(**columns, awaited=np.array([batch.awaited for batch in batches]))
    stood = np.array([_stood_in_making(batch, recent.pauses) for batch in batches])
    return falls_by(leads_of(made, workers, prefetch), made.taken, workers, stood) > ENOUGH


def load_decision() -> None:
    """Call :func:`lives_off_lead` with made-up batches: numpy's first call takes tens of ms, too long for a device."""
    made_up = [BatchMoments(number, number + 1, number + 2, number + 2, False) for number in range(8)]
    lives_off_lead(RecentBatches(made_up, [(0, 1)]), 1, 2)


def _stood_in_making(batch: BatchMoments, pauses: Sequence[tuple[int, int]]) -> bool:
    if batch.began is None or batch.ready is None:
        return False
    return any(batch.began < until and batch.ready > since for since, until in pauses)


def _running(batches: Sequence[BatchMoments], name: str, pauses: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
    """Return the field ``name`` of each batch in ns, on a clock that stops during ``pauses``; NaN where it is None."""
    moments = np.array([math.nan if (moment := getattr(batch, name)) is None else moment for batch in batches])
    stood = sum((np.clip(moments - since, 0, until - since) for since, until in pauses), np.zeros(len(moments)))
    return moments - stood
