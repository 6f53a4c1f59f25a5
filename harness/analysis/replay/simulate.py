"""Simulates the loop, the loader's workers and the device: a max-plus recursion over steps, many replicates at once.

Every quantity is an array (replicates, ranks). The replicates start at different places of the recorded sequence
(``tape``) and wrap around, and so does each rank of a replicate (a moving block: neighbouring records stay neighbours).
A pipeline may hold several variants of its durations; each replicate runs one of them.

    fetch    ends at max(now + receive, when the batch was built + hand-over), and asks its worker for another batch.
             Batches that came through the pipe before that one are unpacked first, and cost their own fetch less
    worker   begins at max(free, request + wake); is free again ``after`` the last stage
    launch   completion = max(now, completion before) + duration, and not before it was queued
    sync     now = max(now, completion) + latency
    reduce   every rank completes with the slowest one (all-reduce at the end of backward; its own time is left out)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.replay.costs import Costs
from harness.analysis.replay.pipeline import Pipeline, Program
from harness.analysis.replay.recording import Resume
from harness.study.contract import STAGES

Array = NDArray[np.float64]
READ, TOKENIZE, PACK, WORK, AFTER, WAKE, HANDOVER, RECEIVE, UNPACK = range(len(Costs._fields))


@dataclass(frozen=True)
class Simulated:
    """Means over the measured steps, each (replicates,), in ms; and every step's time in ns, (replicates, steps).

    ``waits``: by stage, the time that the step waited for it: of the host, or on an asynchronous device the time that
    the device was idle while the host waited. ``idle`` besides counts what the host did otherwise (None where the
    device is synchronous).
    """

    step_ms: Array
    waits: dict[str, Array]
    idle: Array | None
    step_ns: Array


def simulate(
    pipeline: Pipeline, offsets: Array, variants: NDArray[np.int64] | None = None, *, account: bool = True
) -> Simulated:
    """Run ``pipeline`` once per replicate. ``offsets`` (replicates, ranks) in [0, 1): where each starts.

    ``variants`` (replicates,): which of the pipeline's variants each runs; the first one by default. Without
    ``account`` waits and idle time are not added up (0), which saves half of the time.
    """
    return _Loop(pipeline, offsets, variants, account=account).run()


class _Built:
    """A batch on its way; (replicates, ranks) each.

    ``costs``, when its last stage ended (``end``), when its fetch ends at the earliest (``delivered``), when its
    message arrives (``arrived``), and whether the main thread has unpacked that (``unpacked``; None: nowhere yet).
    """

    __slots__ = ("arrived", "costs", "delivered", "end", "unpacked")

    def __init__(self, costs: Array, end: Array) -> None:
        self.costs = costs
        self.unpacked: NDArray[np.bool_] | None = None
        self.built(end)

    def built(self, end: Array) -> None:
        self.end, self.delivered = end, end + self.costs[HANDOVER]
        self.arrived = self.delivered - self.costs[RECEIVE]


class _Loop:
    def __init__(
        self, pipeline: Pipeline, offsets: Array, variants: NDArray[np.int64] | None, *, account: bool
    ) -> None:
        self.p = pipeline
        self.shape = offsets.shape
        self.variant = np.zeros((len(offsets), 1), dtype=np.int64) if variants is None else variants[:, None]
        self.account = account
        self.first_step = pipeline.starts[np.floor(offsets * len(pipeline.starts)).astype(np.int64)]
        self.first_batch = np.floor(offsets * pipeline.costs.shape[2]).astype(np.int64)
        if pipeline.batches_per_step is not None:
            self.first_batch = self.first_step * pipeline.batches_per_step
        self.taken = 0  # steps so far
        self.now = np.zeros(self.shape)
        self.device_free = np.zeros(self.shape)
        back = max((o.back for p in pipeline.programs for o in p.operations), default=0)
        self.completions: deque[Array] = deque(maxlen=max(1 + back, pipeline.queue_depth or 0))
        self.on_the_way: deque[_Built] = deque()
        self.requested = 0
        self.worker_free = [np.zeros(self.shape)] * pipeline.workers
        self.one_pipe = pipeline.workers > 1 and bool(pipeline.costs[UNPACK].any())
        self.in_pipe: list[deque[_Built]] = [deque() for _ in range(pipeline.workers)]  # not unpacked by all replicates
        self.waits = np.zeros((len(STAGES), *self.shape))
        self.idle = np.zeros(self.shape)
        self.counts = False

    def run(self) -> Simulated:
        """All steps, one after the other."""
        walls: list[Array] = []
        p = self.p
        steps_of = zip(p.step_program, p.measured, p.resumes, p.drained, strict=True)
        for number, measured, resume, drained in steps_of:
            if resume is not None:
                self._resume(resume, first=not walls)
            self.counts = bool(measured) and self.account
            began, before = self.now, self.device_free
            self._step(p.programs[number], self._members(int(number)))
            if drained:
                self.now = np.maximum(self.now, before)
            passed = self.now - began
            walls.append(passed[:, 0] if self.shape[1] == 1 else passed.mean(axis=1))
        step_ns = np.stack(walls, axis=1)
        steps = int(p.measured.sum())
        waits = self.waits.mean(axis=2) / steps / 1e6
        return Simulated(
            step_ms=step_ns[:, p.measured].mean(axis=1) / 1e6,
            waits=dict(zip(STAGES, waits, strict=True)),
            idle=self.idle.mean(axis=1) / steps / 1e6 if p.asynchronous else None,
            step_ns=step_ns,
        )

    def _members(self, number: int) -> NDArray[np.int64]:
        """Which recorded step of its class lends its durations to this one: the next one on the tape."""
        places = self.p.programs[number].places
        members: NDArray[np.int64] = np.searchsorted(places, (self.first_step + self.taken) % self.p.tape_steps)
        self.taken += 1
        return members % len(places)

    def _step(self, program: Program, members: NDArray[np.int64]) -> None:
        durations = program.durations[:, self.variant, members]
        for kind, back, first, second, _ in program.operations:
            if kind == "host":
                self.now = self.now + durations[first]
            elif kind == "fetch":
                self._fetch()
            elif kind == "launch":
                self._launch(durations[first], durations[second])
            elif kind == "sync":
                if len(self.completions) > back:
                    self.now = np.maximum(self.now, self.completions[-1 - back])
                self.now = self.now + durations[first]
            elif self.shape[1] > 1:
                self._reduce()

    def _launch(self, duration: Array, queueing: Array) -> None:
        depth = self.p.queue_depth
        if depth is not None and len(self.completions) >= depth:
            self.now = np.maximum(self.now, self.completions[-depth])
        if self.counts:
            self.idle += np.maximum(0.0, self.now - self.device_free)
        self.device_free = np.maximum(np.maximum(self.now, self.device_free) + duration, self.now + queueing)
        self.completions.append(self.device_free)

    def _reduce(self) -> None:
        if self.p.asynchronous:
            slowest = np.broadcast_to(self.device_free.max(axis=1, keepdims=True), self.shape)
            self.device_free = slowest
            self.completions[-1] = slowest
        else:
            self.now = np.broadcast_to(self.now.max(axis=1, keepdims=True), self.shape)

    def _fetch(self) -> None:
        start = self.now
        if self.p.workers:
            batch = self.on_the_way.popleft()
            if self.one_pipe:
                self._unpack_up_to(batch)
                self.now = self.now + (batch.costs[RECEIVE] - batch.costs[UNPACK])
            else:
                self.now = np.maximum(start + batch.costs[RECEIVE], batch.delivered)
            self._request()
        else:
            costs = self._next_costs()
            batch = _Built(costs, start + costs[WORK])
            self.now = batch.end + costs[RECEIVE]
        if self.counts:
            self._account(start, batch)

    def _unpack_up_to(self, batch: _Built) -> None:
        """Unpack the messages in the pipe up to that of ``batch``, in the order in which they arrive."""
        wanted = None if batch.unpacked is None else ~batch.unpacked
        found, costs = [batch.arrived], [batch.costs[UNPACK]]
        for messages in self.in_pipe:
            while messages and messages[0].unpacked is not None and messages[0].unpacked.all():
                messages.popleft()
            for message in messages:
                if message is batch:
                    break
                before = message.arrived < batch.arrived
                if message.unpacked is None and not before.any():
                    break  # nor is any later one of that worker
                if wanted is not None:
                    before &= wanted
                if message.unpacked is not None:
                    before &= ~message.unpacked
                if before.any():
                    message.unpacked = before if message.unpacked is None else message.unpacked | before
                    found.append(np.where(before, message.arrived, -np.inf))
                    costs.append(np.where(before, message.costs[UNPACK], 0.0))
        now = self.now
        if len(found) == 1:
            now = np.maximum(now, batch.arrived) + batch.costs[UNPACK]
        else:
            arrivals, spent = np.stack(found), np.stack(costs)
            order = np.argsort(arrivals, axis=0, kind="stable")
            ordered = (np.take_along_axis(one, order, 0) for one in (arrivals, spent))
            for moment, cost in zip(*ordered, strict=True):
                now = np.maximum(now, moment) + cost
        self.now = now if wanted is None else np.where(wanted, now, self.now)
        batch.unpacked = np.ones(self.shape, dtype=np.bool_)

    def _account(self, start: Array, batch: _Built) -> None:
        """Split the wait by the stages of the very batch; beside a device, only what left it idle counts."""
        if self.p.asynchronous:
            start = np.minimum(np.maximum(start, self.device_free), self.now)
        edge, left = np.maximum(np.minimum(batch.end, self.now), start), batch.end
        other = self.now - edge
        for place, row in ((2, PACK), (1, TOKENIZE), (0, READ)):
            left = left - batch.costs[row]
            before = np.maximum(np.minimum(left, self.now), start)
            self.waits[place] += edge - before
            edge = before
        self.waits[3] += other + (edge - start)

    def _next_costs(self) -> Array:
        """Of the next batch of the recorded sequence: (costs, replicates, ranks)."""
        place = (self.first_batch + self.requested) % self.p.costs.shape[2]
        self.requested += 1
        costs: Array = self.p.costs[:, self.variant, place]
        return costs

    def _request(self) -> None:
        worker = self.requested % self.p.workers
        costs = self._next_costs()
        end = np.maximum(self.worker_free[worker], self.now + costs[WAKE]) + costs[WORK]
        self.worker_free[worker] = end + costs[AFTER]
        built = _Built(costs, end)
        self.on_the_way.append(built)
        if self.one_pipe:
            self.in_pipe[worker].append(built)

    def _resume(self, resume: Resume, *, first: bool) -> None:
        """The loop goes on after standing still: the device is done, the loader has got as far as ``resume`` says.

        An exact replay begins, and resumes after having been suspended, with the batches on their way as recorded.
        Time that the loop spent elsewhere for a moment (shorter pauses) passes for the loader as well.
        """
        while len(self.on_the_way) < self.p.workers * self.p.prefetch:
            self._request()
        if self.p.exact and (first or resume.repetition):
            for place, batch in enumerate(self.on_the_way):
                batch.built(self.now + resume.ends_ns[place])
            self._free_workers()
        else:
            self.now = self.now + resume.worked_ns
        self.device_free = self.now

    def _free_workers(self) -> None:
        """Each worker is free once it has built the last of its batches that are on their way."""
        for place, batch in enumerate(self.on_the_way):
            worker = (self.requested - len(self.on_the_way) + place) % self.p.workers
            self.worker_free[worker] = batch.end + batch.costs[AFTER]
