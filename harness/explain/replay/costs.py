"""Computes the cost of every batch, for its builder and its receiver, under edits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain.intervals import Int
from harness.explain.policy import RECEIVED_SHARE
from harness.explain.replay.batches import BUILT
from harness.explain.replay.contention import stretched
from harness.explain.replay.recording import Recording
from harness.scenario.edits import UNCHANGED, Edits, StageEdit

Array = NDArray[np.float64]


class Costs(NamedTuple):
    """Of every batch, in ns, each (batches,): rows of one matrix, so that one lookup finds them all."""

    read: Array
    tokenize: Array
    pack: Array
    work: Array  # from the first stage's start to the last one's end
    after: Array
    wake: Array
    handover: Array
    receive: Array
    unpack: Array  # part of receive
    draw: Array  # a sampler chooses items in the main thread, before the next request


def batch_costs(
    recording: Recording, edits: Edits, workers: int, scale: float, stretch: tuple[float, float], chosen: Int
) -> tuple[Costs, float]:
    """The costs of the ``chosen`` batches under ``edits``, and the mean CPU time that building one takes, unstretched.

    A batch that is ``scale`` times as large combines that many consecutive recorded batches: their stages add up, and
    the costs that do not depend on its size (wake, hand-over, receive) stay. Edits of stages apply after that.
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
    read = edits.stages.get("read", UNCHANGED)
    # A duration that is set for reading is all of it.
    drawn = _combined(recorded.draw[chosen], scale) * (read.factor if read.ms is None else 0.0)
    between = _between(recording, workers)
    parts = {name: values[chosen] for name, values in between.items()}
    parts = _transferred(parts, edits.stages.get("transfer", UNCHANGED), inline=workers == 0)
    work = sum(stages.values(), parts.pop("inner"))
    return Costs(**stages, work=work, draw=drawn, **parts), float(cpu_total.mean())


def _combined(values: Array, scale: float) -> Array:
    """Batch i of the new ones covers [i x scale, (i + 1) x scale) of the recorded ones, which repeat without end."""
    if scale == 1:
        return values
    count = len(values)
    total = np.concatenate([[0.0], np.cumsum(values)])
    edges = np.arange(count + 1) * scale
    whole, rest = np.divmod(edges, count)  # whole passes over all batches, and how far into the next
    upto: Array = whole * total[-1] + np.interp(rest, np.arange(count + 1), total)
    return np.maximum(0.0, np.diff(upto))


def _between(recording: Recording, workers_now: int) -> dict[str, Array]:
    """Return the costs of a batch besides its stages, for the number of workers under the edits."""
    recorded, workers_then = recording.batches, recording.workers
    nothing, after = np.zeros(len(recorded)), recording.transport.after_ms * 1e6
    if workers_now and workers_then:
        return {name: getattr(recorded, name) for name in ("inner", "after", "wake", "handover", "receive", "unpack")}
    if workers_now:  # what an inline loader does outside of its stages, a worker does too; the rest is not recorded
        hand = recording.usual_handover_ms * 1e6
        between = {"after": after + recorded.receive, "handover": hand + recorded.receive}
        receive = nothing + RECEIVED_SHARE * hand
        return {"inner": nothing, **between, "wake": nothing, "receive": receive, "unpack": nothing}
    receive = np.maximum(0.0, recorded.after - after) if workers_then else recorded.receive
    between = {"inner": recorded.inner, "after": nothing, "wake": nothing, "handover": nothing}
    return {**between, "receive": receive, "unpack": nothing}


def _transferred(parts: dict[str, Array], change: StageEdit, *, inline: bool) -> dict[str, Array]:
    """``parts`` under a change of the transfer stage: the hand-over with what it costs both its sides."""
    if change == UNCHANGED:
        return parts
    main = "receive" if inline else "handover"
    mean = float(parts[main].mean())
    factor = change.factor if change.ms is None else change.ms * 1e6 / mean if mean else 0.0
    changed = {name: parts[name] * factor for name in ("after", "handover", "receive", "unpack")}
    changed[main] = change.apply(parts[main])
    return {**parts, **changed}
