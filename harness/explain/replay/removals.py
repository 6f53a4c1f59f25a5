"""Predicts what a step would save without each stage, phase, kernel and cause, by replay with that part at no cost.

Each part is compared with the unedited replay of the same run, both in the order recorded: every step and batch has the
durations that it had, and the loader is where the replay itself has brought it, as it would have been without the part.
Steps drawn from a recording in another order last longer or shorter than those that were recorded; where the loop waits
in one replay and not in the other, that error does not cancel.

Savings overlap, and need not add up: two stages of one worker's batch may each save what the other saves too, and a
wait that one of two causes would have brought about alone is saved by neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from harness.explain.policy import (
    PREDICTED_STEPS_MAX,
    REMOVAL_ERROR_MAX,
    REMOVAL_REPLICATES,
    REMOVED_SHARE_MIN,
    STEP_LEFT_MIN,
)
from harness.explain.replay.batches import BUILT
from harness.explain.replay.consistent import consistent, spread_offsets
from harness.explain.replay.contention import Stretch
from harness.explain.replay.pipeline import LAUNCHING, QUEUE_LIMIT, Pipeline, build, in_order
from harness.explain.replay.recording import Recording
from harness.explain.statistics import Estimate, from_block_values, from_blocks, holding
from harness.scenario.edits import Edits, StageEdit
from harness.study.contract import STAGES

PartKind = Literal["stage", "phase", "kernel", "cause"]
# Causes: data (all stages), launching (host time but for logging and checkpoints, beside an asynchronous device), sync
# (blocking on the gradient norm), queue limit (waiting for a place in the device's queue).
DATA, SYNC = "data", "sync"


@dataclass(frozen=True)
class Removal:
    """What removing one part would save per step, and how many times as fast steps would be. Medians over blocks."""

    kind: PartKind
    name: str
    saved_ms: Estimate
    speedup: Estimate


def removals(runs: Sequence[tuple[Recording, Stretch]], replicates: int = REMOVAL_REPLICATES) -> tuple[Removal, ...]:
    """What each part of ``runs`` (of one arm, with the contention there was) costs, the largest saving first.

    Of a run with more than :data:`PREDICTED_STEPS_MAX` measured steps, ``replicates`` of that length are drawn.

    Where stages of several workers wait for something, the interval holds that it serves one of them at a time; where
    the queue of a real device may have been full, that launching was waiting for a place in it; where the unedited
    replay is off by more than :data:`REMOVAL_ERROR_MAX`, the saving against the step that was measured.
    """
    saved_ms: dict[tuple[PartKind, str], list[float]] = {}
    logs: dict[tuple[PartKind, str], list[float]] = {}
    other_ms: dict[tuple[PartKind, str], list[float]] = {}
    other_logs: dict[tuple[PartKind, str], list[float]] = {}
    measured_ms: dict[tuple[PartKind, str], list[float]] = {}
    measured_logs: dict[tuple[PartKind, str], list[float]] = {}
    for recording, then in runs:
        edits = dict(_parts(recording))
        long = np.count_nonzero(recording.measured) > PREDICTED_STEPS_MAX
        make: Callable[..., Pipeline] = build if long else in_order
        makes = [partial(make, recording, one, then) for one in (Edits(), *edits.values())]
        offsets = spread_offsets(recording.block, replicates, 1) if long else np.zeros((1, 1))
        unedited, *without = consistent(makes, offsets, then, account=False)
        was = float(unedited.step_ms.mean())
        measured = recording.measured_ms if abs(was / recording.measured_ms - 1) > REMOVAL_ERROR_MAX else was
        for part, result in zip(edits, without, strict=True):
            now = float(result.step_ms.mean())
            if now > 0:
                saved_ms.setdefault(part, []).append(was - now)
                logs.setdefault(part, []).append(math.log(was / now))
                otherwise = _otherwise_ms(recording, part, was, now)
                other_ms.setdefault(part, []).append(was - otherwise)
                other_logs.setdefault(part, []).append(math.log(was / otherwise))
                measured_ms.setdefault(part, []).append(measured - now)
                measured_logs.setdefault(part, []).append(math.log(measured / now))
    found = []
    for part, values in saved_ms.items():
        saving, speedup = from_block_values(values), from_blocks(logs[part])
        other, other_speedup = from_block_values(other_ms[part]), from_blocks(other_logs[part])
        assert saving is not None
        assert speedup is not None
        assert other is not None
        assert other_speedup is not None
        if other != saving:
            saving, speedup = holding(saving, [other]), holding(speedup, [other_speedup])
        if measured_ms[part] != values:
            saving = holding(saving, [from_block_values(measured_ms[part]) or saving])
            speedup = holding(speedup, [from_blocks(measured_logs[part]) or speedup])
        found.append(Removal(*part, saving, speedup))
    return tuple(sorted(found, key=lambda one: -one.saved_ms.median))


def _otherwise_ms(recording: Recording, part: tuple[PartKind, str], was_ms: float, now_ms: float) -> float:
    """How long a step lasts without ``part`` by what a recording does not tell: the other end of the interval.

    What the stages of several workers wait for may serve one at a time, where replay has them wait side by side: then a
    step lasts as long as the stages that are left wait; not longer than it did, as their waits hold those for one
    another. A full queue holds the host within a launch: then a step may be shorter by all that a kernel took, and by
    nothing without a phase that only waited.
    """
    kind, name = part
    if recording.busy_workers > 1 and part != ("cause", DATA):
        waited_ms = sum(spent for stage, spent in recording.off_core_ms.items() if (kind, name) != ("stage", stage))
        if waited_ms > now_ms:
            return max(now_ms, min(waited_ms, was_ms))
    if kind == "kernel" and recording.behind_full_queue:
        return min(now_ms, max(was_ms - _lasting(recording, "launch")[name], STEP_LEFT_MIN * was_ms))
    if kind == "phase" and recording.behind_full_queue & _launched_in(recording, name):
        return max(now_ms, was_ms)
    return now_ms


def _launched_in(recording: Recording, phase: str) -> set[str]:
    """Names of the work that a phase of the host launches."""
    events = (event for one in recording.classes for event in one.events)
    return {event.name for event in events if event.kind == "launch" and event.phase == phase}


def widened_removals(likely: Sequence[Removal], others: Sequence[Sequence[Removal]]) -> tuple[Removal, ...]:
    """``likely`` with intervals that hold those of ``others``: the same runs by other readings of what is not known."""
    found = []
    for one in likely:
        same = [other for removed in others for other in removed if (other.kind, other.name) == (one.kind, one.name)]
        saved_ms = holding(one.saved_ms, [other.saved_ms for other in same])
        found.append(replace(one, saved_ms=saved_ms, speedup=holding(one.speedup, [other.speedup for other in same])))
    return tuple(found)


def present_stages(recording: Recording) -> list[str]:
    """The stages that cost anything."""
    built = recording.batches
    known = {name: [built.stage[name]] for name in BUILT} | {"transfer": [built.receive, built.handover, built.after]}
    return [stage for stage in STAGES if any(bool((values > 0).any()) for values in known[stage])]


def without_stages(stages: Sequence[str]) -> Edits:
    """The edits that remove ``stages``."""
    return Edits(stages={stage: StageEdit(0.0) for stage in stages})


def _parts(recording: Recording) -> Iterator[tuple[tuple[PartKind, str], Edits]]:
    """Every part of the run's steps, and the edits that remove it."""
    stages = present_stages(recording)
    for stage in stages:
        yield ("stage", stage), without_stages([stage])
    if stages:
        yield ("cause", DATA), without_stages(stages)
    worth_ms = REMOVED_SHARE_MIN * recording.measured_ms
    for phase in (name for name, spent in _lasting(recording, "host").items() if spent >= worth_ms):
        if phase != "sync" or not recording.asynchronous:
            yield ("phase", phase), Edits(without=frozenset({("phase", phase)}))
    if not recording.asynchronous:
        return
    for kernel in (name for name, spent in _lasting(recording, "launch").items() if spent >= worth_ms):
        yield ("kernel", kernel), Edits(without=frozenset({("kernel", kernel)}))
    yield ("cause", LAUNCHING[1]), Edits(without=frozenset({LAUNCHING}))
    if any(event.kind == "sync" and event.phase == "sync" for one in recording.classes for event in one.events):
        yield ("cause", SYNC), Edits(sync="off")
    if recording.queue_depth is not None:
        yield ("cause", QUEUE_LIMIT[1]), Edits(without=frozenset({QUEUE_LIMIT}))


def _lasting(recording: Recording, kind: Literal["host", "launch"]) -> dict[str, float]:
    """Names of host phases, or of kernels, and how long they last in a mean measured step, in milliseconds."""
    total: dict[str, float] = {}
    for one in recording.classes:
        counted = recording.measured[one.steps]
        for event in one.events:
            if event.kind == kind:
                name = event.phase if kind == "host" else event.name
                total[name] = total.get(name, 0.0) + float(event.duration[counted].sum())
    steps = int(np.count_nonzero(recording.measured))
    return {name: spent / steps / 1e6 for name, spent in total.items()}
