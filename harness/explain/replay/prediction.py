"""Defines the answer of a replay: a prediction with its interval, its assumptions and its validation error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from harness.explain.policy import REPLAY_ERROR_MAX
from harness.explain.replay.batches import RING
from harness.explain.replay.recording import Recording
from harness.explain.statistics import Estimate, from_blocks, holding
from harness.scenario.edits import Edits

AssumptionKind = Literal[
    "loader alone",
    "receive not observed",
    "hand-over not observed",
    "device not recorded",
    "busy not known",
    "hand-over",
    "stages inline",
    "prefetch without workers",
    "batch size",
    "device speed",
    "sync on a synchronous device",
    "deep queue",
    "ranks",
    "shared cores",
    "side by side",
]


@dataclass(frozen=True)
class Assumption:
    """Assumption that a prediction by replay depends on. Each kind sets its own figures; the others are 0."""

    kind: AssumptionKind
    cost_ms: float = 0.0  # "receive not observed", "hand-over not observed": per batch
    tensors: int = 0  # "hand-over": number per batch
    tensor_ms: float = 0.0
    ring: bool = False  # "hand-over": by slots of shared memory
    asynchronous: bool = False  # "device speed": the recorded device was asynchronous
    ranks: int = 0
    names: tuple[str, ...] = ()  # "busy not known": names of the device work with unknown time
    scaled: bool = False  # "busy not known": the edits scale that work
    cores: float = 0  # "shared cores": number that these threads and workers share
    threads: int = 0
    workers: int = 0


def assumptions(recording: Recording, edits: Edits) -> Iterator[Assumption]:
    """Yield the assumptions that a replay of ``recording`` under ``edits`` makes."""
    for cost in recording.batches.assumed:
        kind: AssumptionKind = "receive not observed" if cost.part == "receive" else "hand-over not observed"
        yield Assumption(kind, cost_ms=cost.ms)
    workers = recording.workers if edits.workers is None else edits.workers
    cores = edits.cores or recording.cores
    if recording.device_not_recorded:
        yield Assumption("device not recorded")
    if recording.busy_not_known:
        scaled = edits.device is not None or edits.batch_size not in (None, recording.batch_size)
        yield Assumption("busy not known", names=recording.busy_not_known, scaled=scaled)
    if workers and not recording.workers:
        yield Assumption(
            "hand-over",
            tensors=recording.tensors,
            tensor_ms=recording.transport.tensor_ms,
            ring=recording.transport == RING,
        )
    if recording.workers and not workers:
        yield Assumption("stages inline")
    if edits.prefetch is not None and not workers:
        yield Assumption("prefetch without workers")
    if edits.batch_size is not None and edits.batch_size != recording.batch_size:
        yield Assumption("batch size")
    if edits.device is not None:
        yield Assumption("device speed", asynchronous=recording.asynchronous)
    if edits.sync != "on" and not recording.asynchronous:
        yield Assumption("sync on a synchronous device")
    if edits.sync != "on" and recording.asynchronous and recording.queue_depth is None:
        yield Assumption("deep queue")
    if (edits.ranks or 1) > 1:
        yield Assumption("ranks", ranks=edits.ranks or 1)
    if (recording.threads + recording.workers > recording.cores) or (recording.threads + workers > cores):
        yield Assumption("shared cores", cores=cores, threads=recording.threads, workers=workers)


@dataclass(frozen=True)
class ReplayValidation:
    """Error of the unedited replay, replayed / measured step time - 1, by block."""

    errors: Mapping[int, float]  # in the recorded order
    resampled: Mapping[int, float]  # from steps drawn as in this prediction

    @property
    def median(self) -> float:
        """Median error of the replay in the recorded order, signed."""
        return float(np.median(list(self.errors.values())))

    @property
    def worst(self) -> float:
        """Error of the replay in the recorded order that is furthest from 0, signed."""
        return max(self.errors.values(), key=abs)

    @property
    def resampled_median(self) -> float:
        """Median over blocks of the error of the replay of drawn steps (``resampled``), signed."""
        return float(np.median(list(self.resampled.values())))

    @property
    def typical(self) -> float:
        """Larger of two medians over blocks of the absolute error: in the recorded order, and of drawn steps."""
        return max(float(np.median(np.abs(list(errors.values())))) for errors in (self.errors, self.resampled))

    @property
    def within_tolerance(self) -> bool:
        """True if the typical error is at most :data:`REPLAY_ERROR_MAX`, so that a prediction is reliable."""
        return self.typical <= REPLAY_ERROR_MAX


@dataclass(frozen=True)
class Prediction:
    """Predicted step time of an arm under edits, in ms; ratios are to the measured step time."""

    edits: Edits
    step_ms: Estimate
    tokens_per_s: Estimate | None  # positions of all ranks; None: not counted
    measured_ms: Estimate
    ratio: Estimate  # predicted step time / measured
    speedup: Estimate  # measured step time / predicted
    interval_from: str  # "blocks", or "replicates" with too few blocks
    validation: ReplayValidation
    waits_ms: Mapping[str, float]  # waits for data by stage, of the edited replay
    was_waits_ms: Mapping[str, float]  # the same of the unedited replay
    starved_ms: float | None  # device idle time of the edited replay
    unedited_starved_ms: float | None
    block_ms: Mapping[int, float]  # predicted step time by block
    unedited_ms: Mapping[int, float]  # step time of the unedited replay by block
    assumptions: tuple[Assumption, ...]
    emulated: bool

    @property
    def gain(self) -> Estimate:
        """Unedited / edited replayed step time: the speedup by the edits, without the error of the replay.

        Its interval is that of ``speedup`` (measured / predicted step time), extended to include this median."""
        change = from_blocks([math.log(self.unedited_ms[block] / ms) for block, ms in self.block_ms.items()])
        assert change is not None
        low, high = self.speedup.ci_low, self.speedup.ci_high
        return replace(
            self.speedup,
            median=change.median,
            ci_low=None if low is None else min(low, change.median),
            ci_high=None if high is None else max(high, change.median),
        )

    def over_blocks(self, one: Estimate) -> Estimate:
        """Return ``one``, without its interval if it is from replicates: these lack the scatter between blocks."""
        return one if self.interval_from == "blocks" else replace(one, ci_low=None, ci_high=None)


def widened(likely: Prediction, others: Sequence[Prediction]) -> Prediction:
    """Return ``likely`` with intervals widened to include the medians and intervals of ``others``.

    ``others``: the same runs under the other :data:`READINGS` (assumptions about what a recording leaves open)."""
    if not others:
        return likely
    tokens = [prediction.tokens_per_s for prediction in others]
    return replace(
        likely,
        step_ms=holding(likely.step_ms, [prediction.step_ms for prediction in others]),
        ratio=holding(likely.ratio, [prediction.ratio for prediction in others]),
        speedup=holding(likely.speedup, [prediction.speedup for prediction in others]),
        tokens_per_s=None
        if likely.tokens_per_s is None
        else holding(likely.tokens_per_s, [estimate for estimate in tokens if estimate is not None]),
    )
