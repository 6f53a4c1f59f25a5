"""Defines the answer of a replay: a prediction with its interval, its assumptions and its validation error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from harness.explain.policy import CROSSING_SHARE, REPLAY_ERROR_MAX
from harness.explain.replay.batches import RING
from harness.explain.replay.predict import Replays
from harness.explain.replay.recording import Recording
from harness.explain.statistics import Estimate, from_blocks, holding
from harness.scenario.edits import COUNTS, Edits, parse_edits
from harness.scenario.overrides import DOSES, Nested, flatten, lookup, lookup_number
from harness.study.contract import STAGES
from harness.study.records import RunRecord
from trainer.config_base import BEFORE
from trainer.errors import InputError
from trainer.json_types import JsonObject

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
    """Something a replay takes for granted. The figures are those of its kind; the others are 0."""

    kind: AssumptionKind
    cost_ms: float = 0.0  # of the two costs that were not observed: per batch
    tensors: int = 0  # "hand-over": of each batch
    tensor_ms: float = 0.0
    ring: bool = False  # by slots of shared memory
    asynchronous: bool = False  # "device speed": whether the recorded device was
    ranks: int = 0
    names: tuple[str, ...] = ()  # "busy not known": the device's work of which it is not known
    scaled: bool = False  # "busy not known": whether the edits make that work longer or shorter
    cores: float = 0  # "shared cores": shared by these threads and workers
    threads: int = 0
    workers: int = 0


def assumptions(recording: Recording, edits: Edits) -> Iterator[Assumption]:
    """Yield what the replay of ``recording`` under ``edits`` takes for granted."""
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
    """Error of the unedited replay, replayed / measured - 1, by block.

    ``errors``: in the order recorded. ``resampled``: from steps drawn as in this prediction.
    """

    errors: Mapping[int, float]
    resampled: Mapping[int, float]

    @property
    def median(self) -> float:
        """The median error of the replay in the order recorded, with its sign."""
        return float(np.median(list(self.errors.values())))

    @property
    def worst(self) -> float:
        """The error furthest from 0 of the replay in the order recorded, with its sign."""
        return max(self.errors.values(), key=abs)

    @property
    def resampled_median(self) -> float:
        """The median error of the resampled replay, with its sign."""
        return float(np.median(list(self.resampled.values())))

    @property
    def typical(self) -> float:
        """The typical error without its sign: in the order recorded or resampled, whichever is larger."""
        return max(float(np.median(np.abs(list(errors.values())))) for errors in (self.errors, self.resampled))

    @property
    def within_tolerance(self) -> bool:
        """True if that is small enough (:data:`REPLAY_ERROR_MAX`) to believe a prediction."""
        return self.typical <= REPLAY_ERROR_MAX


@dataclass(frozen=True)
class Prediction:
    """Step time of the edited run; milliseconds per step, ratios to what was measured.

    ``waits_ms``, ``starved_ms``: waits by stage and device idle time of the edited replay; ``was_``, ``unedited_``: of
    the unedited one. ``tokens_per_s`` counts the positions of all ranks.
    """

    edits: Edits
    step_ms: Estimate
    tokens_per_s: Estimate | None
    measured_ms: Estimate
    ratio: Estimate  # predicted step time / measured
    speedup: Estimate  # measured step time / predicted: how many times as fast
    interval_from: str  # blocks, or replicates where there are too few
    validation: ReplayValidation
    waits_ms: Mapping[str, float]
    was_waits_ms: Mapping[str, float]
    starved_ms: float | None
    unedited_starved_ms: float | None
    block_ms: Mapping[int, float]  # predicted step time by block
    unedited_ms: Mapping[int, float]  # the same of the unedited replay
    assumptions: tuple[Assumption, ...]
    emulated: bool

    @property
    def gain(self) -> Estimate:
        """Return what the edits alone change: unedited replay / edited replay.

        The interval is that of ``speedup``, which includes the error of the replay, and the median itself.
        """
        found = from_blocks([math.log(self.unedited_ms[block] / ms) for block, ms in self.block_ms.items()])
        assert found is not None
        low, high = self.speedup.ci_low, self.speedup.ci_high
        return replace(
            self.speedup,
            median=found.median,
            ci_low=None if low is None else min(low, found.median),
            ci_high=None if high is None else max(high, found.median),
        )

    def over_blocks(self, one: Estimate) -> Estimate:
        """``one`` of its figures without an interval that is from replicates: that knows nothing of luck."""
        return one if self.interval_from == "blocks" else replace(one, ci_low=None, ci_high=None)


def widened(likely: Prediction, others: Sequence[Prediction]) -> Prediction:
    """``likely`` with intervals that hold those of ``others``: the same runs by other readings of what is not known."""
    if not others:
        return likely
    tokens = [one.tokens_per_s for one in others]
    return replace(
        likely,
        step_ms=holding(likely.step_ms, [one.step_ms for one in others]),
        ratio=holding(likely.ratio, [one.ratio for one in others]),
        speedup=holding(likely.speedup, [one.speedup for one in others]),
        tokens_per_s=None
        if likely.tokens_per_s is None
        else holding(likely.tokens_per_s, [one for one in tokens if one is not None]),
    )


SWEPT = ("device", *COUNTS)
_HALVINGS = 6  # of the stretch in which the crossover lies


@dataclass(frozen=True)
class Crossing:
    """Where the cost of tokenization passes 1 % of the step, between two neighbours of the values given."""

    at: float  # the first value on the other side
    between: tuple[str, str]  # the neighbours, as given
    matters_below: bool  # whether tokenization matters at the lower one, and no longer at the higher one


@dataclass(frozen=True)
class Sweep:
    """Predictions at each of ``values``, in rising order."""

    key: str
    was: float  # the value recorded
    values: tuple[float, ...]
    texts: tuple[str, ...]  # the values as given
    recorded: tuple[Prediction, ...]
    without: tuple[Prediction, ...]  # tokenize=0
    crossings: tuple[Crossing, ...]

    @property
    def shares(self) -> tuple[float, ...]:
        """What part of the step tokenization costs, at each value."""
        return tuple(_share(full, free) for full, free in zip(self.recorded, self.without, strict=True))


def parse_sweep(text: str, edits: Edits) -> tuple[str, list[tuple[float, str]]]:
    """Key and values of ``device=1x,2x,4x`` in rising order; InputError (one line) for anything wrong."""
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or key not in SWEPT:
        raise InputError(f"--sweep {text}: expected KEY=VALUE,VALUE,... with one of the keys {', '.join(SWEPT)}")
    if any(one.partition("=")[0] == key for one in edits.texts):
        raise InputError(f"--sweep {text}: {key} is set by --set as well")
    texts = list(dict.fromkeys(value.strip() for value in values.split(",")))
    if len(texts) < 2:
        raise InputError(f"--sweep {text}: a sweep needs at least 2 different values, separated by commas")
    found = []
    for value in texts:
        try:
            one = parse_edits([f"{key}={value}"])
        except InputError as error:
            raise InputError(str(error).replace("--set", "--sweep", 1)) from error
        found.append((float(getattr(one, key)), value))
    return key, sorted(found)


def sweep(replays: Replays, edits: Edits, key: str, values: Sequence[tuple[float, str]]) -> Sweep:
    """Predict ``values`` of ``key`` (see :func:`parse_sweep`) on top of ``edits``, with and without tokenization."""

    def at(text: str) -> tuple[Prediction, Prediction]:
        full = edits.with_text(f"{key}={text}")
        return replays.predict(full), replays.predict(full.with_text("tokenize=0"))

    points = [at(text) for _, text in values]
    matters = [_share(*point) > CROSSING_SHARE for point in points]
    return Sweep(
        key,
        replays.recorded(key),
        tuple(value for value, _ in values),
        tuple(text for _, text in values),
        tuple(full for full, _ in points),
        tuple(free for _, free in points),
        tuple(
            _crossing(key, values[i], values[i + 1], matters[i], lambda text: _share(*at(text)) > CROSSING_SHARE)
            for i in range(len(values) - 1)
            if matters[i] != matters[i + 1]
        ),
    )


def _share(full: Prediction, free: Prediction) -> float:
    return 1 - free.step_ms.median / full.step_ms.median


def _crossing(
    key: str, low: tuple[float, str], high: tuple[float, str], before: bool, matters: Callable[[str], bool]
) -> Crossing:
    """Halve the stretch between two neighbours of which one ``matters``, with a replay each time."""
    left, right = low[0], high[0]
    for _ in range(_HALVINGS):
        middle = math.sqrt(left * right) if key == "device" else (left + right) // 2
        if middle in (left, right):
            break
        if matters(f"{middle:.6g}x" if key == "device" else f"{middle:.0f}") == before:
            left = middle
        else:
            right = middle
    return Crossing(right, (low[1], high[1]), before)


# Differ between blocks, or say how long to measure.
IGNORED = ("seed", "steps", "warmup_steps")
UNCHECKED: JsonObject = {"compute.check_finite": False}
EXTRA_WORK: Mapping[str, str] = {
    str(what): key for what, key in DOSES.items()
}  # by stage: the key that repeats its work


def validation_arms(records: Sequence[RunRecord], arm: str, edits: Edits) -> list[str]:
    """Names of other arms (controls included, A/A controls left out) that ran what ``arm`` would be under ``edits``."""
    own = next((record for record in records if record.arm == arm), None)
    if own is None or not edits:
        return []
    if _removes_data(edits):
        return list(dict.fromkeys(r.arm for r in records if r.control == "ideal-data" and r.of == arm))
    wanted = _edited(own.config, edits)
    found = [r.arm for r in records if r.arm != arm and r.control != "a-a" and _comparable(r.config) in wanted]
    return list(dict.fromkeys(found))


def _removes_data(edits: Edits) -> bool:
    removed = all(stage in edits.stages and edits.stages[stage].removes for stage in STAGES)
    return removed and all(text.partition("=")[0] in STAGES for text in edits.texts)


def _edited(config: JsonObject, edits: Edits) -> list[Nested]:
    """The configurations that are this one under ``edits``; none where its keys cannot express them."""
    flat = flatten(config)
    if edits.cores is not None:
        return []
    if edits.ranks is not None:
        flat |= {"launch.torchrun.nproc": edits.ranks, "launch.torchrun.nnodes": 1}
    for stage, change in edits.stages.items():
        times = change.factor
        if change.ms is not None or stage not in EXTRA_WORK or times < 1 or times != int(times):
            return []
        flat[EXTRA_WORK[stage]] = (1 + int(lookup_number(config, EXTRA_WORK[stage], 0))) * int(times) - 1
    if edits.device is not None:
        if not isinstance(lookup(config, "compute.device"), Mapping):
            return []
        flat["compute.device.speed"] = lookup_number(config, "compute.device.speed", 1.0) * edits.device
    for key, value in (("workers", edits.workers), ("prefetch", edits.prefetch), ("batch_size", edits.batch_size)):
        if value is not None:
            flat[f"data.{key}"] = value
    if edits.sync == "on":
        return [_comparable(flat)]
    if edits.sync == "late":
        return [_comparable({**flat, "compute.sync": "late"})]
    # Nothing is read within the step, or one step later.
    return [_comparable({**flat, **unread}) for unread in ({**UNCHECKED, **BEFORE}, {"compute.sync": "late"})]


def _comparable(config: JsonObject) -> Nested:
    flat = {**BEFORE, **{key: value for key, value in flatten(config).items() if key not in IGNORED}}
    if not flat.get("data.workers"):
        flat.pop("data.prefetch", None)  # no effect
    # One rank is one however it is started; of several only their number, and how they share the model, count.
    launch = {key: flat.pop(key) for key in list(flat) if key == "launch" or key.startswith("launch.")}
    each, nodes = (launch.get(f"launch.torchrun.{key}", 1) for key in ("nproc", "nnodes"))
    ranks = each * nodes if isinstance(each, int) and isinstance(nodes, int) else 1
    if ranks != 1:
        flat |= {"ranks": ranks, "parallel": launch.get("launch.parallel", "ddp")}
    return flat
