"""Attributes the time of a step: to the critical path of a run, and by replay without a stage, phase, kernel or cause.

Critical path (:func:`critical_path_ms`): the chain of work without slack that leads to the end of the measured steps. A
replay takes maxima (a fetch ends when its batch was delivered or received, whichever is later); each moment remembers
which of the two it followed from, and walking back from the last one gives the chain. Its links sum to the steps' time:

    host:    |=fetch=|--forward--|..blocked...|--optimizer--|        forward is launched after the fetch,
    device:           |===forward===|==backward==|                   the host blocks until backward is done:
                                                                     fetch, forward (host), backward (kernel), optimizer

Savings (:func:`removals`): the replay without one part, compared with the unedited replay, both in the recorded order.
Savings overlap and need not add up: two causes may each bring about the same wait.

Exposed time (:func:`split`): v(S) is how much earlier a step ends in a replay without the set S of its stages (16 sets
of four). The share of a stage is its Shapley value: the saving that its removal adds, averaged over all orders of
removal. Shares sum to v(all stages):

    two workers, 98 ms a batch, 90 of them tokenize and 8 pack; the step computes 37 ms and lasts 49
    v(tokenize) = 12   v(pack) = 4   v(both) = 12     tokenize: (12 + 12 - 4) / 2 = 10     pack: (4 + 12 - 12) / 2 = 2

A delay belongs to the first step that keeps it, and costs nothing if a later step of the repetition makes up for it.
v(all stages) is the wait itself on a synchronous device; on an asynchronous one also the delay of later launches. Cores
that data work takes from the step (contention) are not included.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain import policy
from harness.explain.replay.costs import Costs, Stretch
from harness.explain.replay.pipeline import LAUNCHING, QUEUE_LIMIT, Pipeline, Program, build, in_order, together
from harness.explain.replay.recording import Recording, Resume
from harness.explain.replay.simulate import consistent, simulate, spread_offsets
from harness.explain.spans import BUILT, Int
from harness.explain.statistics import Estimate, from_block_values, from_blocks, holding
from harness.scenario.edits import Edits, StageEdit
from harness.study.contract import STAGES

Array = NDArray[np.float64]
LinkKind = Literal["stage", "phase", "kernel", "launch", "return"]


class PathLink(NamedTuple):
    """Link of the critical path: builder's stage, host phase, kernel, launch, or return of a blocking call."""

    kind: LinkKind
    name: str


class PathTime(NamedTuple):
    """Milliseconds of a link of the critical path in a step, and the range over what the recording leaves open."""

    likely_ms: float
    least_ms: float
    most_ms: float


class _Reached(NamedTuple):
    """A moment of the simulation, the link that led to it, and the moment before (None at the start)."""

    time: float
    link: PathLink
    before: _Reached | None


TRANSFER = PathLink("stage", "transfer")
READ = PathLink("stage", "read")
BUILDING = PathLink("stage", "between stages")
PAUSED = PathLink("phase", "other")
RETURN = PathLink("return", "blocking call")


def critical_path_ms(recording: Recording) -> dict[PathLink, float]:
    """Return the milliseconds per measured step by link of the critical path of one run. They sum to the step."""
    pipeline = build(recording, Edits(), exact=True, most_steps=policy.PREDICTED_STEPS_MAX, merged=False)
    total: dict[PathLink, float] = {}
    for began, end in _Walk(pipeline).windows():
        moment: _Reached | None = end
        while moment is not None and moment.time > began and moment.before is not None:
            spent = moment.time - max(began, moment.before.time)
            total[moment.link] = total.get(moment.link, 0.0) + spent
            moment = moment.before
    steps = int(np.count_nonzero(pipeline.measured))
    return {link: spent / steps / 1e6 for link, spent in total.items() if spent}


class _Cost(NamedTuple):
    """Costs of one batch in ns, in the order of ``costs.Costs``."""

    read: float
    tokenize: float
    pack: float
    work: float
    after: float
    wake: float
    handover: float
    receive: float
    unpack: float
    draw: float


assert _Cost._fields == Costs._fields


class _Batch(NamedTuple):
    number: int
    worker: int
    costs: _Cost
    built: _Reached

    @property
    def delivered(self) -> _Reached:
        return _after(self.built, self.costs.handover, TRANSFER)

    @property
    def arrived(self) -> _Reached:
        return _after(self.built, self.costs.handover - self.costs.receive, TRANSFER)


class _Walk:
    """Simulation of one run in the recorded order (see ``simulate``) that links each moment to its cause."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.p = pipeline
        self.taken = [0] * len(pipeline.programs)
        self.now = _Reached(0.0, PAUSED, None)
        self.device_free = self.now
        back = max((o.back for p in pipeline.programs for o in p.operations), default=0)
        self.completions: deque[_Reached] = deque(maxlen=max(1 + back, pipeline.queue_depth or 0))
        self.on_the_way: deque[_Batch] = deque()
        self.requested = 0
        self.worker_free = [self.now] * pipeline.workers
        self.one_pipe = pipeline.workers > 1 and bool(pipeline.costs[Costs._fields.index("unpack")].any())
        self.unpacked: set[int] = set()  # numbers of batches unpacked before their turn

    def windows(self) -> list[tuple[float, _Reached]]:
        """Return (start in ns, moment of the end) of each group of consecutive measured steps."""
        windows: list[tuple[float, _Reached]] = []
        follows = False
        p = self.p
        for number, measured, resume, drained in zip(p.step_program, p.measured, p.resumes, p.drained, strict=True):
            if resume is not None:
                self._resume(resume)
            began, before = self.now.time, self.device_free
            self._step(p.programs[number], int(number))
            if drained:
                self.now = _later(self.now, before)
            if measured:
                if follows and resume is None:
                    began, _ = windows.pop()
                windows.append((began, self.now))
            follows = bool(measured)
        return windows

    def _step(self, program: Program, number: int) -> None:
        members = program.durations.shape[2]
        durations = program.durations[:, 0, self.taken[number] % members].tolist()
        self.taken[number] += 1
        for kind, back, first, second, name in program.operations:
            if kind == "host":
                self.now = _after(self.now, durations[first], PathLink("phase", name))
            elif kind == "fetch":
                self._fetch()
            elif kind == "launch":
                self._launch(name, durations[first], durations[second])
            elif kind == "sync":
                if len(self.completions) > back:
                    self.now = _later(self.now, self.completions[-1 - back])
                self.now = _after(self.now, durations[first], RETURN)

    def _launch(self, name: str, duration: float, queueing: float) -> None:
        depth = self.p.queue_depth
        if depth is not None and len(self.completions) >= depth:
            self.now = _later(self.now, self.completions[-depth])
        done = _after(_later(self.now, self.device_free), duration, PathLink("kernel", name))
        self.device_free = _later(done, _after(self.now, queueing, PathLink("launch", name)))
        self.completions.append(self.device_free)

    def _fetch(self) -> None:
        if self.p.workers:
            batch = self.on_the_way.popleft()
            if self.one_pipe:
                self._unpack_up_to(batch)
                self.now = _after(self.now, batch.costs.receive - batch.costs.unpack, TRANSFER)
            else:
                self.now = _later(_after(self.now, batch.costs.receive, TRANSFER), batch.delivered)
            self.now = _after(self.now, batch.costs.draw, READ)
            self._request()
        else:
            costs = self._next_costs()
            self.now = _after(_after(_built(self.now, costs), costs.receive, TRANSFER), costs.draw, READ)

    def _unpack_up_to(self, batch: _Batch) -> None:
        """Unpack the messages that arrived up to that of ``batch``, see ``simulate``."""
        if batch.number in self.unpacked:
            self.unpacked.remove(batch.number)
            return
        arrival = batch.arrived
        earlier = [
            queued
            for queued in self.on_the_way
            if queued.number not in self.unpacked and queued.arrived.time < arrival.time
        ]
        for message in (*sorted(earlier, key=lambda queued: queued.arrived.time), batch):
            self.unpacked.add(message.number)
            self.now = _after(_later(self.now, message.arrived), message.costs.unpack, TRANSFER)
        self.unpacked.remove(batch.number)

    def _next_costs(self) -> _Cost:
        place = self.requested % self.p.costs.shape[2]
        self.requested += 1
        return _Cost(*self.p.costs[:, 0, place].tolist())

    def _request(self) -> None:
        number = self.requested
        worker = (
            number % self.p.workers
            if self.p.worker_of is None
            else int(self.p.worker_of[number % len(self.p.worker_of)])
        )
        costs = self._next_costs()
        built = _built(_later(self.worker_free[worker], _after(self.now, costs.wake, TRANSFER)), costs)
        self.worker_free[worker] = _after(built, costs.after, TRANSFER)
        self.on_the_way.append(_Batch(number, worker, costs, built))

    def _resume(self, resume: Resume) -> None:
        first = self.now.before is None
        while len(self.on_the_way) < self.p.in_flight:
            self._request()
        if first or resume.repetition:
            for place, batch in enumerate(self.on_the_way):
                built = _after(self.now, float(resume.ends_ns[place]), BUILDING)
                self.on_the_way[place] = batch._replace(built=built)
                self.worker_free[batch.worker] = _after(built, batch.costs.after, TRANSFER)
        else:
            self.now = _after(self.now, resume.worked_ns, PAUSED)
        self.device_free = self.now


def _built(begun: _Reached, costs: _Cost) -> _Reached:
    """Return the moment at which a batch is finished whose making starts at ``begun``."""
    moment = begun
    for name in ("read", "tokenize", "pack"):
        moment = _after(moment, getattr(costs, name), PathLink("stage", name))
    # Time between the stages is added at the end. The path has the same length.
    return _after(moment, costs.work - (costs.read + costs.tokenize + costs.pack), BUILDING)


def _after(moment: _Reached, duration: float, link: PathLink) -> _Reached:
    return moment if duration == 0 else _Reached(moment.time + duration, link, moment)


def _later(first: _Reached, second: _Reached) -> _Reached:
    """Return the later moment; the first if both are equal."""
    return second if second.time > first.time else first


PartKind = Literal["stage", "phase", "kernel", "cause"]
# Causes: data (all stages); launching (host time except logging and checkpoints, only beside an asynchronous device);
# sync (blocking on the gradient norm); queue limit (waiting for a place in the device's queue).
DATA, SYNC = "data", "sync"


@dataclass(frozen=True)
class Removal:
    """Saving if one part of the step were removed: ms per step, and step time / step time without it.

    Medians over blocks."""

    kind: PartKind
    name: str
    saved_ms: Estimate
    speedup: Estimate


class _Removed(NamedTuple):
    """Mean step times of one block in ms, with one part of the step and without it."""

    was_ms: float  # unedited replay
    now_ms: float  # replay without the part
    other_ms: float  # now_ms under the other reading of the device's work
    measured_ms: float


def _saving(pairs: Sequence[tuple[float, float]]) -> tuple[Estimate, Estimate]:
    """Return (ms saved, speedup) as medians over blocks. ``pairs``: step time (before, after) of each block, in ms."""
    saving = from_block_values([before - after for before, after in pairs])
    speedup = from_blocks([math.log(before / after) for before, after in pairs])
    assert saving is not None
    assert speedup is not None
    return saving, speedup


def removals(runs: Sequence[tuple[Recording, Stretch]]) -> tuple[Removal, ...]:
    """Return the saving by removal of each part of the steps, the largest first.

    ``runs``: recording and recorded contention of each run of an arm. A run of over PREDICTED_STEPS_MAX measured steps
    is replayed by a few drawn sequences of that length. Intervals include two more estimates: with the measured step
    time instead of the replayed one, and under the opposite assumptions of :func:`_otherwise_ms`.
    """
    times: dict[tuple[PartKind, str], list[_Removed]] = {}
    for recording, then in runs:
        edits = dict(_parts(recording))
        long = np.count_nonzero(recording.measured) > policy.PREDICTED_STEPS_MAX
        make: Callable[..., Pipeline] = build if long else in_order
        makes = [partial(make, recording, edit, then) for edit in (Edits(), *edits.values())]
        offsets = spread_offsets(recording.block, policy.REMOVAL_REPLICATES, 1) if long else np.zeros((1, 1))
        unedited, *without = consistent(makes, offsets, then, account=False)
        was_ms = float(unedited.step_ms.mean())
        measured = (
            recording.measured_ms if abs(was_ms / recording.measured_ms - 1) > policy.REMOVAL_ERROR_MAX else was_ms
        )
        for part, result in zip(edits, without, strict=True):
            if (now_ms := float(result.step_ms.mean())) > 0:
                other_ms = _otherwise_ms(recording, part, was_ms, now_ms)
                times.setdefault(part, []).append(_Removed(was_ms, now_ms, other_ms, measured))
    parts = []
    for part, blocks in times.items():
        saving, speedup = _saving([(block.was_ms, block.now_ms) for block in blocks])
        for pairs in (
            [(block.was_ms, block.other_ms) for block in blocks],
            [(block.measured_ms, block.now_ms) for block in blocks],
        ):
            other_saving, other_speedup = _saving(pairs)
            if other_saving != saving:
                saving, speedup = holding(saving, [other_saving]), holding(speedup, [other_speedup])
        parts.append(Removal(*part, saving, speedup))
    return tuple(sorted(parts, key=lambda removal: -removal.saved_ms.median))


def _otherwise_ms(recording: Recording, part: tuple[PartKind, str], was_ms: float, now_ms: float) -> float:
    """Return the step time in ms without ``part``, under the opposite assumption about what the recording leaves open.

    Several workers may wait for something that serves one at a time: a step then lasts at least as long as all their
    waits. A full queue may hold the host in a launch: removal of a kernel then saves all its time, removal of a phase
    nothing. ``was_ms``, ``now_ms``: replayed step time with and without ``part``; ``now_ms`` is returned if neither
    applies.
    """
    kind, name = part
    if recording.busy_workers > 1 and part != ("cause", DATA):
        waited_ms = sum(spent for stage, spent in recording.off_core_ms.items() if (kind, name) != ("stage", stage))
        if waited_ms > now_ms:
            return max(now_ms, min(waited_ms, was_ms))
    if kind == "kernel" and recording.behind_full_queue:
        return min(now_ms, max(was_ms - _lasting(recording, "launch")[name], policy.STEP_LEFT_MIN * was_ms))
    events = (event for step_class in recording.classes for event in step_class.events)
    launched = {event.name for event in events if event.kind == "launch" and event.phase == name}
    if kind == "phase" and recording.behind_full_queue & launched:
        return max(now_ms, was_ms)
    return now_ms


def widened_removals(likely: Sequence[Removal], others: Sequence[Sequence[Removal]]) -> tuple[Removal, ...]:
    """Return ``likely`` with intervals widened to include the medians and intervals of ``others``.

    ``others``: the same runs under the other :data:`READINGS` (assumptions about what a recording leaves open)."""
    result = []
    for removal in likely:
        matches = [
            part for removed in others for part in removed if (part.kind, part.name) == (removal.kind, removal.name)
        ]
        saved_ms = holding(removal.saved_ms, [part.saved_ms for part in matches])
        result.append(
            replace(removal, saved_ms=saved_ms, speedup=holding(removal.speedup, [part.speedup for part in matches]))
        )
    return tuple(result)


def present_stages(recording: Recording) -> list[str]:
    """Return the names of the stages that take any time in the recording, in the order of STAGES."""
    built = recording.batches
    times = {name: [built.stage[name]] for name in BUILT} | {"transfer": [built.receive, built.handover, built.after]}
    return [stage for stage in STAGES if any(bool((values > 0).any()) for values in times[stage])]


def without_stages(stages: Sequence[str]) -> Edits:
    """Return the edits that remove the named stages."""
    return Edits(stages={stage: StageEdit(0.0) for stage in stages})


def _parts(recording: Recording) -> Iterator[tuple[tuple[PartKind, str], Edits]]:
    """Yield (kind, name) of every part of the run's steps that can be removed, and the edits that remove it."""
    stages = present_stages(recording)
    for stage in stages:
        yield ("stage", stage), without_stages([stage])
    if stages:
        yield ("cause", DATA), without_stages(stages)
    worth_ms = policy.REMOVED_SHARE_MIN * recording.measured_ms
    for phase in (name for name, spent in _lasting(recording, "host").items() if spent >= worth_ms):
        if phase != "sync" or not recording.asynchronous:
            yield ("phase", phase), Edits(without=frozenset({("phase", phase)}))
    if not recording.asynchronous:
        return
    for kernel in (name for name, spent in _lasting(recording, "launch").items() if spent >= worth_ms):
        yield ("kernel", kernel), Edits(without=frozenset({("kernel", kernel)}))
    yield ("cause", LAUNCHING[1]), Edits(without=frozenset({LAUNCHING}))
    if any(
        event.kind == "sync" and event.phase == "sync"
        for step_class in recording.classes
        for event in step_class.events
    ):
        yield ("cause", SYNC), Edits(sync="off")
    if recording.queue_depth is not None:
        yield ("cause", QUEUE_LIMIT[1]), Edits(without=frozenset({QUEUE_LIMIT}))


def _lasting(recording: Recording, kind: Literal["host", "launch"]) -> dict[str, float]:
    """Return the mean time per measured step of each host phase or kernel, in milliseconds."""
    total: dict[str, float] = {}
    for step_class in recording.classes:
        counted = recording.measured[step_class.steps]
        for event in step_class.events:
            if event.kind == kind:
                name = event.phase if kind == "host" else event.name
                total[name] = total.get(name, 0.0) + float(event.duration[counted].sum())
    steps = int(np.count_nonzero(recording.measured))
    return {name: spent / steps / 1e6 for name, spent in total.items()}


Unsplit = Literal["not replayable", "replay is off", "above its work", "device not recorded"]
FITTING_ROUNDS = 50  # iterations that fit the shares of steps to their waits
_SEED_SHARE = 1e-3  # share of a step's wait that follows the whole repetition, so that a step without shares has some


@dataclass(frozen=True)
class Split:
    """Cost of each stage for each step in ns, (steps, stages); :func:`split` makes it."""

    exposed: Int
    otherwise: Array = field(default_factory=lambda: np.zeros((0, 0)))  # cost of all stages under the other READINGS


def split(recording: Recording, waits_ns: Int) -> Split | Unsplit:
    """Return each stage's cost by step, or why replay cannot show it.

    ``waits_ns``: wait for data by step. On a synchronous device, the costs of a step sum to it."""
    if recording.device_not_recorded:
        return "device not recorded"
    present = present_stages(recording)
    sets = [chosen for size in range(len(present) + 1) for chosen in combinations(range(len(present)), size)]
    replayed = _replayed(recording, [[present[place] for place in chosen] for chosen in sets])
    steps = replayed.shape[1]
    counted, wall_ns = recording.measured[:steps], recording.wall_ns[:steps]
    if abs(replayed[0, counted].sum() / wall_ns[counted].sum() - 1) > policy.REPLAY_ERROR_MAX:
        return "replay is off"
    saved = {chosen: replayed[0] - walls for chosen, walls in zip(sets, replayed, strict=True)}
    shares = np.zeros((steps, len(STAGES)))
    repetition = _repetitions(recording, steps)
    for place, stage in enumerate(present):
        shares[:, STAGES.index(stage)] = _kept(_shapley(saved, place, len(present)), repetition)
    if recording.asynchronous:
        by_reading = (_replayed(reading, [[], present]) for reading in recording.other_readings.values())
        otherwise = [_kept(with_all - without, repetition) for with_all, without in by_reading]
        return Split(np.rint(shares).astype(np.int64), np.array(otherwise).reshape(-1, steps))
    return Split(_summing_to(waits_ns[:steps], shares, repetition * 2 + counted))


def _replayed(recording: Recording, removed: list[list[str]]) -> Array:
    """Return the step times in ns of replays in the recorded order, (sets, steps), each without one set of stages."""
    pipelines = [
        build(recording, without_stages(stages), exact=True, most_steps=policy.REPLAYED_STEPS_MAX) for stages in removed
    ]
    count = len(pipelines)
    return simulate(together(pipelines), np.zeros((count, 1)), np.arange(count), account=False).step_ns


def _shapley(saved: dict[tuple[int, ...], Array], place: int, count: int) -> Array:
    """Return the Shapley value of stage ``place`` of ``count``, by step. ``saved``: by set of removed stages."""
    total: Array = np.zeros_like(saved[()])
    for chosen, before in saved.items():
        if place in chosen:
            continue
        weight = math.factorial(len(chosen)) * math.factorial(count - len(chosen) - 1) / math.factorial(count)
        total += weight * (saved[tuple(sorted((*chosen, place)))] - before)
    return total


def _repetitions(recording: Recording, steps: int) -> Int:
    """Return the number of the repetition of each of the first ``steps`` steps, from 0."""
    begins = np.zeros(steps, dtype=np.int64)
    begins[[step for step, resume in recording.resumes.items() if resume.repetition and 0 < step < steps]] = 1
    return np.cumsum(begins)


def _kept(delays: Array, repetition: Int) -> Array:
    """Return by step the part of ``delays`` (ns) that is not made up for by later steps of the same repetition."""
    kept = np.zeros_like(delays)
    for number in np.unique(repetition):
        members = repetition == number
        total = np.cumsum(delays[members])
        lasting = np.maximum(0.0, np.minimum.accumulate(total[::-1])[::-1])
        kept[members] = np.diff(lasting, prepend=0.0)
    return kept


def _summing_to(waits_ns: Int, shares: Array, group: Int) -> Int:
    """Return the wait of each step divided among stages in whole ns, (steps, stages).

    Over each group of steps, stages get time in proportion to ``shares``. ``group``: number of each step's group."""
    parts = np.zeros_like(shares)
    for number in np.unique(group):
        members = group == number
        waits, wanted = waits_ns[members].astype(np.float64), shares[members].sum(axis=0)
        if not waits.sum() or not wanted.sum():
            continue
        wanted *= waits.sum() / wanted.sum()
        fitted = shares[members] + _SEED_SHARE * np.outer(waits, wanted / wanted.sum())
        for _ in range(FITTING_ROUNDS):
            fitted = fitted * _ratio(wanted, fitted.sum(axis=0))
            fitted = fitted * _ratio(waits, fitted.sum(axis=1))[:, None]
        parts[members] = fitted
    rounded = np.floor(parts).astype(np.int64)
    rounded[:, STAGES.index("transfer")] += waits_ns - rounded.sum(axis=1)
    return rounded


def _ratio(wanted: Array, there: Array) -> Array:
    return np.divide(wanted, there, out=np.zeros_like(wanted), where=there > 0)
