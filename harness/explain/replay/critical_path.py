"""Finds the critical path of a run: the one chain of work, from the end of its measured steps back, that had no slack.

The exact replay of a run is a recursion of maxima: a fetch ends when its batch was delivered or received, whichever is
later. Here each moment remembers which of the two it followed from. Walking back from the last one gives the chain:

    host:    |=fetch=|--forward--|..blocked...|--optimizer--|        forward is launched after the fetch,
    device:           |===forward===|==backward==|                   the host blocks until backward is done:
                                                                     fetch, forward (host), backward (kernel), optimizer

A link's time is what it contributed to the step. It is not what its removal would save (``removals``). The links sum to
the time of the steps exactly.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain.policy import PREDICTED_STEPS_MAX
from harness.explain.replay.costs import Costs
from harness.explain.replay.pipeline import Pipeline, Program, build
from harness.explain.replay.recording import Recording, Resume
from harness.scenario.edits import Edits

Array = NDArray[np.float64]
LinkKind = Literal["stage", "phase", "kernel", "launch", "return"]


class PathLink(NamedTuple):
    """A piece of the path: stage of a builder, phase of the host, kernel, launch, or return of a blocking call."""

    kind: LinkKind
    name: str


class PathTime(NamedTuple):
    """What a link contributes to a step, in ms; where events leave open when the device worked, from least to most."""

    likely_ms: float
    least_ms: float
    most_ms: float


class _Reached(NamedTuple):
    """A moment, what led to it, and the moment before that; the difference of both is how long that took."""

    time: float
    link: PathLink
    before: _Reached | None


TRANSFER = PathLink("stage", "transfer")
READ = PathLink("stage", "read")
BUILDING = PathLink("stage", "between stages")
PAUSED = PathLink("phase", "other")
RETURN = PathLink("return", "blocking call")


def critical_path_ms(recording: Recording) -> dict[PathLink, float]:
    """Milliseconds per measured step by link."""
    pipeline = build(recording, Edits(), exact=True, most_steps=PREDICTED_STEPS_MAX, merged=False)
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
    """Of one batch, in ns; the rows of ``costs.Costs``."""

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
    """The simulation of one run (see ``simulate``), with every moment linked to the one that it followed from."""

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
        self.unpacked: set[int] = set()  # batches before their turn, by number

    def windows(self) -> list[tuple[float, _Reached]]:
        """When each stretch of measured steps that follow one another began, and the moment of its end."""
        found: list[tuple[float, _Reached]] = []
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
                    began, _ = found.pop()
                found.append((began, self.now))
            follows = bool(measured)
        return found

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
        """See ``simulate``."""
        if batch.number in self.unpacked:
            self.unpacked.remove(batch.number)
            return
        own = batch.arrived
        others = [one for one in self.on_the_way if one.number not in self.unpacked and one.arrived.time < own.time]
        for one in (*sorted(others, key=lambda one: one.arrived.time), batch):
            self.unpacked.add(one.number)
            self.now = _after(_later(self.now, one.arrived), one.costs.unpack, TRANSFER)
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
    """The moment at which a batch begun then is built."""
    moment = begun
    for name in ("read", "tokenize", "pack"):
        moment = _after(moment, getattr(costs, name), PathLink("stage", name))
    # What lies between the stages comes last here; the path has the same length.
    return _after(moment, costs.work - (costs.read + costs.tokenize + costs.pack), BUILDING)


def _after(moment: _Reached, duration: float, link: PathLink) -> _Reached:
    return moment if duration == 0 else _Reached(moment.time + duration, link, moment)


def _later(first: _Reached, second: _Reached) -> _Reached:
    """The later of both; of two at the same time the first."""
    return second if second.time > first.time else first
