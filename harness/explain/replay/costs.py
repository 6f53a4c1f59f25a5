"""Computes the cost of every batch under edits, and how much longer CPU work takes when cores are short.

Contention is a mean-field estimate. The main thread with its ``threads`` (1 beside an asynchronous device) needs cores
for a share m of the time, each of W loader workers for a share a, independently. n threads share C cores fairly: each
runs at min(1, C / n). Only CPU time stretches:

    stretch of the main thread  = E[max(1, (threads + k) / C)],               k ~ Binomial(W, a)
    stretch of a worker         = E[max(1, (threads x j + 1 + k) / C)],       j ~ Bernoulli(m), k ~ Binomial(W - 1, a)

A share is the stretched CPU time over the time of a step, so the estimate is a fixed point. Not modelled: cores that a
main thread leaves to the worker it waits for; barriers, caches, memory bandwidth, hardware threads, the GIL, other
processes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain.policy import RECEIVED_SHARE
from harness.explain.replay.recording import Recording
from harness.explain.spans import BUILT, Int
from harness.scenario.edits import UNCHANGED, Edits, StageEdit

Array = NDArray[np.float64]

STRETCH_ROUNDS = 100
STRETCH_CLOSE = 1e-6


@dataclass(frozen=True)
class Demand:
    """CPU time that a step needs in ns if every thread had a core of its own, and the cores that there are."""

    main_ns: float  # main thread; each of its helpers needs as much
    workers_ns: float  # all loader workers together
    threads: int
    workers: int
    cores: int

    @property
    def scarce(self) -> bool:
        """True if more threads than cores can be runnable at once."""
        return self.threads + self.workers > self.cores


@dataclass(frozen=True)
class Stretch:
    """Factors by which CPU work takes longer because cores are short, for the main thread and for a worker."""

    main: float = 1.0
    worker: float = 1.0


ALONE = Stretch()


def stretch(demand: Demand, step_ns: float) -> Stretch:
    """Return the factors by which CPU work takes longer in a step of ``step_ns`` ns; 1 with cores for all threads.

    The factors and the threads' shares of the cores depend on each other, so they are found by iteration."""
    current = Stretch()
    if not demand.scarce or step_ns <= 0:
        return current
    most = max(1, demand.workers)
    for _ in range(STRETCH_ROUNDS):
        main_share = min(1.0, demand.main_ns * current.main / step_ns)
        worker_share = min(1.0, demand.workers_ns * current.worker / step_ns / most)
        following = Stretch(
            _expected(demand.threads, demand.workers, worker_share, demand.cores),
            main_share * _expected(demand.threads + 1, demand.workers - 1, worker_share, demand.cores)
            + (1 - main_share) * _expected(1, demand.workers - 1, worker_share, demand.cores)
            if demand.workers
            else 1.0,
        )
        close = abs(following.main - current.main) + abs(following.worker - current.worker) < STRETCH_CLOSE
        current = following
        if close:
            break
    return current


def stretched(wall: Array, cpu: Array, stretch: tuple[float, float]) -> Array:
    """Return durations ``wall`` with the CPU part stretched by the second factor of ``stretch`` instead of the first.

    ``cpu``: CPU time without contention. ``wall`` includes this time, stretched by the first factor."""
    then, now = stretch
    return wall if then == now else wall + np.minimum(wall, cpu * then) * (now / then - 1)


def _expected(wanting: int, others: int, share: float, cores: int) -> float:
    """Return the mean slowdown on shared cores: E[max(1, (wanting + k) / cores)], k ~ Binomial(others, share).

    ``wanting``: threads that certainly want a core. ``others``: threads that want one for ``share`` (0 to 1) of the
    time."""
    others = max(0, others)
    return sum(
        math.comb(others, k) * share**k * (1 - share) ** (others - k) * max(1.0, (wanting + k) / cores)
        for k in range(others + 1)
    )


class Costs(NamedTuple):
    """Costs of every batch in ns, (batches,) each, in the order of the rows of :attr:`Pipeline.costs`."""

    read: Array
    tokenize: Array
    pack: Array
    work: Array  # time from the start of the first stage to the end of the last
    after: Array
    wake: Array
    handover: Array
    receive: Array
    unpack: Array  # part of receive
    draw: Array  # time of a sampler in the main thread, before the next request


def batch_costs(
    recording: Recording, edits: Edits, workers: int, scale: float, stretch: tuple[float, float], chosen: Int
) -> tuple[Costs, float]:
    """Return the costs of the ``chosen`` batches under ``edits``, and the mean CPU time (ns) to build one, unstretched.

    ``chosen``: numbers of recorded batches. ``workers``: number under the edits. ``scale``: edited / recorded batch
    size; stages of that many consecutive batches add up, and other costs are those of one batch. ``stretch``:
    contention factors of the workers: (in the recording, under the edits).
    """
    recorded = recording.batches
    stages, cpu_total = {}, np.zeros(len(chosen))
    for name in BUILT:
        change = edits.stages.get(name, UNCHANGED)
        wall, cpu = (_combined(values[chosen], scale) for values in (recorded.stage[name], recorded.cpu[name]))
        busy = np.divide(cpu, wall, out=np.ones_like(cpu), where=wall > 0)
        wall = change.apply(wall)
        cpu_total += busy * wall
        stages[name] = stretched(wall, busy * wall, stretch) if workers else wall
    read_edit = edits.stages.get("read", UNCHANGED)
    # A duration that is set for "read" includes the sampler's time.
    drawn = _combined(recorded.draw[chosen], scale) * (read_edit.factor if read_edit.ms is None else 0.0)
    between = _between(recording, workers)
    parts = {name: values[chosen] for name, values in between.items()}
    parts = _transferred(parts, edits.stages.get("transfer", UNCHANGED), inline=workers == 0)
    work = sum(stages.values(), parts.pop("inner"))
    return Costs(**stages, work=work, draw=drawn, **parts), float(cpu_total.mean())


def _combined(values: Array, scale: float) -> Array:
    """Return the costs of batches ``scale`` times as large. Batch i sums the recorded costs from position i x scale to
    (i + 1) x scale (parts of a batch count in proportion). After the last batch, it continues with the first."""
    if scale == 1:
        return values
    count = len(values)
    total = np.concatenate([[0.0], np.cumsum(values)])
    edges = np.arange(count + 1) * scale
    passes, position = np.divmod(edges, count)  # whole passes over all batches, and the position in the next pass
    upto: Array = passes * total[-1] + np.interp(position, np.arange(count + 1), total)
    return np.maximum(0.0, np.diff(upto))


def _between(recording: Recording, workers_now: int) -> dict[str, Array]:
    """Return by name the ns of each batch besides its stages, with ``workers_now`` workers (0: inline).

    These are the recorded costs. If the loader changes between inline and workers, they are derived or assumed."""
    recorded, workers_then = recording.batches, recording.workers
    nothing, after = np.zeros(len(recorded)), recording.transport.after_ms * 1e6
    if workers_now and workers_then:
        return {name: getattr(recorded, name) for name in ("inner", "after", "wake", "handover", "receive", "unpack")}
    if workers_now:  # a worker also does an inline loader's work outside of stages; the rest is assumed
        hand = recording.usual_handover_ms * 1e6
        between = {"after": after + recorded.receive, "handover": hand + recorded.receive}
        receive = nothing + RECEIVED_SHARE * hand
        return {"inner": nothing, **between, "wake": nothing, "receive": receive, "unpack": nothing}
    receive = np.maximum(0.0, recorded.after - after) if workers_then else recorded.receive
    between = {"inner": recorded.inner, "after": nothing, "wake": nothing, "handover": nothing}
    return {**between, "receive": receive, "unpack": nothing}


def _transferred(parts: dict[str, Array], change: StageEdit, *, inline: bool) -> dict[str, Array]:
    """Return the costs in ``parts`` under a change of the transfer stage, for the worker and for the main thread.

    ``inline``: True without workers: ``change`` then applies to ``receive``, else to ``handover``; other parts scale
    alike."""
    if change == UNCHANGED:
        return parts
    main = "receive" if inline else "handover"
    mean = float(parts[main].mean())
    factor = change.factor if change.ms is None else change.ms * 1e6 / mean if mean else 0.0
    changed = {name: parts[name] * factor for name in ("after", "handover", "receive", "unpack")}
    changed[main] = change.apply(parts[main])
    return {**parts, **changed}
