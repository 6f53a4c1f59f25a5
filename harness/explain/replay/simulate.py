"""Simulates the loop, the loader's workers and the device: a max-plus recursion over steps, many replicates at once.

Every quantity is an array (replicates, ranks). Each rank of a replicate starts at its own position of the recorded
sequence (its tape) and wraps around: a moving block, in which neighbours stay neighbours.

    fetch    ends at max(now + receive, when the batch was built + hand-over) + draw, and requests another batch.
             Batches that came through the pipe before that one are unpacked first, which shortens their own fetch
    worker   begins at max(free, request + wake); is free again ``after`` the last stage
    launch   completion = max(now, completion before) + duration, and not before it was queued
    sync     now = max(now, completion) + latency
    reduce   every rank completes with the slowest one (all-reduce at the end of backward; its own time is left out)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain.replay.costs import Costs, Stretch, stretch
from harness.explain.replay.pipeline import Pipeline, Program, shape_of, together
from harness.explain.replay.recording import Resume
from harness.study.contract import STAGES

Array = NDArray[np.float64]
# An operation of numpy on the few replicates of a step costs more than its arithmetic. Work that does not depend on
# earlier steps is done for this many steps at once.
STEPS_PER_SWEEP = 256
READ, TOKENIZE, PACK, WORK, AFTER, WAKE, HANDOVER, RECEIVE, UNPACK, DRAW = range(len(Costs._fields))


@dataclass(frozen=True)
class Simulated:
    """Result of a simulation, (replicates,): step time, waits and idle time in ms per measured step."""

    step_ms: Array
    waits: dict[str, Array]  # of the host for data by stage; only device idle time, if asynchronous
    idle: Array | None  # all idle time of an asynchronous device, else None
    step_ns: Array  # (replicates, steps)


def simulate(
    pipeline: Pipeline, offsets: Array, variants: NDArray[np.int64] | None = None, *, account: bool = True
) -> Simulated:
    """Run ``pipeline`` once per replicate and return the results. ``offsets`` (replicates, ranks): start positions on
    the tape, from 0 to below 1. ``variants``: number of the pipeline's variant for each replicate; None: the first.
    ``account``: False leaves waits and idle time at 0, which saves half the time."""
    return _Loop(pipeline, offsets, variants, account=account).run()


# Index of a worker in arrays of (workers, replicates, ranks): one number for all, or one for each replicate and rank.
Worker = int | tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


class _Built:
    """A batch in flight in all replicates and ranks: costs and ``end`` of its last stage (ns).

    ``unpacked``: True where an earlier fetch unpacked it; None: nowhere."""

    __slots__ = ("_arrived", "costs", "end", "unpacked", "worker")

    def __init__(self, costs: Array, end: Array, worker: Worker = 0) -> None:
        self.costs = costs
        self.worker = worker
        self.unpacked: NDArray[np.bool_] | None = None
        self.built(end)

    def built(self, end: Array) -> None:
        self.end = end
        self._arrived: Array | None = None

    @property
    def delivered(self) -> Array:
        moment: Array = self.end + self.costs[HANDOVER]
        return moment

    @property
    def arrived(self) -> Array:
        """Arrival of its message in the main thread, cached: each fetch reads it for all batches in the pipe."""
        if self._arrived is None:
            self._arrived = self.delivered - self.costs[RECEIVE]
        return self._arrived


class _Fetched(NamedTuple):
    """A fetch whose wait is not yet split by stage."""

    start: Array
    now: Array
    device_free: Array  # when the device was free
    end: Array  # end of the batch's last stage
    costs: Array


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
        self.now = np.zeros(self.shape)
        self.device_free = np.zeros(self.shape)
        back = max((o.back for p in pipeline.programs for o in p.operations), default=0)
        self.completions: deque[Array] = deque(maxlen=max(1 + back, pipeline.queue_depth or 0))
        self.on_the_way: deque[_Built] = deque()
        self.requested = 0
        self.coming: Array = np.empty((0, 0, 0, 0))  # costs of the batches from ``coming_from`` on
        self.coming_from = 0
        self.worker_free = np.zeros((pipeline.workers, *self.shape))
        self.places: list[NDArray[np.int64]] = list(np.indices(self.shape))  # indices of (replicates, ranks)
        self.one_pipe = pipeline.workers > 1 and bool(pipeline.costs[UNPACK].any())
        self.draws = bool(pipeline.costs[DRAW].any())
        # Messages that some replicate has not unpacked. Each worker has its own queue if workers make batches in turn.
        self.in_pipe: list[deque[_Built]] = [
            deque() for _ in range(pipeline.workers if pipeline.worker_of is None else 1)
        ]
        self.waits = np.zeros((len(STAGES), *self.shape))
        self.idle = np.zeros(self.shape)
        self.counts = False
        self.fetched: list[_Fetched] = []  # fetches not added up yet
        self.queued: list[tuple[Array, Array]] = []  # (time of queueing, time when the device was free)

    def run(self) -> Simulated:
        """Run all steps in order and return the results."""
        walls: list[Array] = []
        p = self.p
        # Without blocking calls, a step lasts until the device has done it. In a step that logs, the host has waited
        # for the device; in other steps the host is ahead.
        by_device = bool(p.drained.any())
        steps_of = zip(p.step_program, p.measured, p.resumes, p.drained, strict=True)
        for place, (number, measured, resume, drained) in enumerate(steps_of):
            if place % STEPS_PER_SWEEP == 0:
                self._add_up()
                durations = self._durations(slice(place, place + STEPS_PER_SWEEP))
            if resume is not None:
                self._resume(resume, first=not walls)
            self.counts = bool(measured) and self.account
            before = self.device_free
            began = before if by_device else self.now
            self._step(p.programs[number], next(durations[int(number)]))
            if drained:
                self.now = np.maximum(self.now, before)
            passed = (self.device_free if by_device else self.now) - began
            walls.append(passed[:, 0] if self.shape[1] == 1 else passed.mean(axis=1))
        self._add_up()
        step_ns = np.stack(walls, axis=1)
        steps = int(p.measured.sum())
        waits = self.waits.mean(axis=2) / steps / 1e6
        return Simulated(
            step_ms=step_ns[:, p.measured].mean(axis=1) / 1e6,
            waits=dict(zip(STAGES, waits, strict=True)),
            idle=self.idle.mean(axis=1) / steps / 1e6 if p.asynchronous else None,
            step_ns=step_ns,
        )

    def _durations(self, steps: slice) -> dict[int, Iterator[Array]]:
        """Return {program: iterator over the durations of each of its steps} for ``steps``.

        A step takes the durations of its own position on the tape, or of the next position with a step of its class."""
        durations = {}
        numbers = self.p.step_program[steps]
        for number in np.unique(numbers).tolist():
            program = self.p.programs[number]
            positions = steps.start + np.flatnonzero(numbers == number)
            wanted = (self.first_step + positions[:, None, None]) % self.p.tape_steps
            members = np.searchsorted(program.places, wanted) % len(program.places)
            durations[number] = iter(program.durations[:, self.variant, members].swapaxes(0, 1))
        return durations

    def _step(self, program: Program, durations: Array) -> None:
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
            self.queued.append((self.now, self.device_free))
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
            if self.draws:
                self.now = self.now + batch.costs[DRAW]
            self._request()
        else:
            costs = self._next_costs()
            batch = _Built(costs, start + costs[WORK])
            self.now = batch.end + costs[RECEIVE]
            if self.draws:
                self.now = self.now + costs[DRAW]
        if self.counts:
            self.fetched.append(_Fetched(start, self.now, self.device_free, batch.end, batch.costs))

    def _unpack_up_to(self, batch: _Built) -> None:
        """Unpack the messages that arrived up to that of ``batch``, in the order of arrival."""
        wanted = None if batch.unpacked is None else ~batch.unpacked
        arrived, costs = [batch.arrived], [batch.costs[UNPACK]]
        own_pipes = self.p.worker_of is None
        for messages in self.in_pipe:
            while messages and messages[0].unpacked is not None and messages[0].unpacked.all():
                messages.popleft()
            for message in messages:
                if message is batch and own_pipes:
                    break
                before = message.arrived < batch.arrived
                if not before.any() and message.unpacked is None:
                    if own_pipes:
                        break  # Later messages of this worker arrive even later.
                    continue
                if wanted is not None:
                    before &= wanted
                if message.unpacked is not None:
                    before &= ~message.unpacked
                if before.any():
                    message.unpacked = before if message.unpacked is None else message.unpacked | before
                    arrived.append(np.where(before, message.arrived, -np.inf))
                    costs.append(np.where(before, message.costs[UNPACK], 0.0))
        now = self.now
        if len(arrived) == 1:
            now = np.maximum(now, batch.arrived) + batch.costs[UNPACK]
        else:
            arrivals, spent = np.stack(arrived), np.stack(costs)
            order = np.argsort(arrivals, axis=0, kind="stable")
            ordered = (np.take_along_axis(values, order, 0) for values in (arrivals, spent))
            for moment, cost in zip(*ordered, strict=True):
                now = np.maximum(now, moment) + cost
        self.now = now if wanted is None else np.where(wanted, now, self.now)
        batch.unpacked = np.ones(self.shape, dtype=np.bool_)

    def _add_up(self) -> None:
        """Add up the waits for data and the device idle time of the steps since the last call."""
        if self.queued:
            now, device_free = map(np.array, zip(*self.queued, strict=True))
            self.idle += np.maximum(0.0, now - device_free).sum(axis=0)
            self.queued.clear()
        if self.fetched:
            self._account(_Fetched(*map(np.array, zip(*self.fetched, strict=True))))
            self.fetched.clear()

    def _account(self, all_of: _Fetched) -> None:
        """Add the fetches' waits to ``waits``, split by the stage that the awaited batch was in.

        Only the part in which the device was idle counts, if the device is asynchronous."""
        start, now, device_free, end, costs = all_of
        if self.p.asynchronous:
            start = np.minimum(np.maximum(start, device_free), now)
        edge, stage_start = np.maximum(np.minimum(end, now), start), end
        transfer = now - edge
        drawn = np.minimum(costs[:, DRAW], transfer)
        self.waits[0] += drawn.sum(axis=0)
        transfer = transfer - drawn
        for place, row in ((2, PACK), (1, TOKENIZE), (0, READ)):
            stage_start = stage_start - costs[:, row]
            before = np.maximum(np.minimum(stage_start, now), start)
            self.waits[place] += (edge - before).sum(axis=0)
            edge = before
        self.waits[3] += (transfer + (edge - start)).sum(axis=0)

    def _next_costs(self) -> Array:
        """Return the costs of the next batch of the recorded sequence, (costs, replicates, ranks)."""
        place = self.requested - self.coming_from
        if place >= len(self.coming):
            self.coming_from, place = self.requested, 0
            batches = self.requested + np.arange(STEPS_PER_SWEEP)[:, None, None]
            wanted = (self.first_batch + batches) % self.p.costs.shape[2]
            self.coming = self.p.costs[:, self.variant, wanted].swapaxes(0, 1)
        self.requested += 1
        costs: Array = self.coming[place]
        return costs

    def _request(self) -> None:
        worker = self._worker()
        costs = self._next_costs()
        end = np.maximum(self.worker_free[worker], self.now + costs[WAKE]) + costs[WORK]
        self.worker_free[worker] = end + costs[AFTER]
        built = _Built(costs, end, worker)
        self.on_the_way.append(built)
        if self.one_pipe:
            self.in_pipe[worker if isinstance(worker, int) else 0].append(built)

    def _worker(self) -> Worker:
        """Return the worker that makes the next batch, as an index into arrays of workers."""
        worker_of = self.p.worker_of
        if worker_of is None:
            return self.requested % self.p.workers
        replicates, ranks = self.places
        return worker_of[(self.first_batch + self.requested) % len(worker_of)], replicates, ranks

    def _resume(self, resume: Resume, *, first: bool) -> None:
        """Resume after a pause: the device is done, and the loader has got as far as ``resume`` records. ``first``:
        True before the first step. There, and where a repetition begins, an exact replay gives the batches in flight
        their recorded ends. At all other pauses, simulated time advances by the recorded progress of the workers."""
        while len(self.on_the_way) < self.p.in_flight:
            self._request()
        if self.p.exact and (first or resume.repetition):
            for place, batch in enumerate(self.on_the_way):
                batch.built(self.now + resume.ends_ns[place])
            self._free_workers()
        else:
            self.now = self.now + resume.worked_ns
        self.device_free = self.now

    def _free_workers(self) -> None:
        """Set the time at which each worker becomes free: end of its last batch in flight, plus its ``after`` cost."""
        for batch in self.on_the_way:
            self.worker_free[batch.worker] = batch.end + batch.costs[AFTER]


Make = Callable[[Stretch], Pipeline]
OFFSETS_SEED = 20240229
CONTENTION_REPLAYS = 12  # replays until step time and contention agree
CONTENTION_CLOSE = 0.005


def spread_offsets(block: int, replicates: int, ranks: int) -> Array:
    """Return (replicates, ranks) start positions in [0, 1), evenly spread, then shuffled. ``block``: seed."""
    generator = np.random.default_rng([OFFSETS_SEED, block])
    cells = (np.arange(replicates) + generator.random((ranks, replicates))) / replicates
    return generator.permuted(cells, axis=1).T


def consistent(makes: Sequence[Make], offsets: Array, then: Stretch, *, account: bool = True) -> list[Simulated]:
    """Return a simulation for each of ``makes``, repeated until its contention factors agree with its step time.

    ``then``: factors of the first simulation. ``account``: as in :func:`simulate`."""
    stretches = [then] * len(makes)
    results: list[Simulated | None] = [None] * len(makes)
    pending = list(range(len(makes)))
    for _ in range(CONTENTION_REPLAYS):
        pipelines = [makes[number](stretches[number]) for number in pending]
        unstable = []
        for number, pipeline, result in zip(
            pending, pipelines, simulate_all(pipelines, offsets, account=account), strict=True
        ):
            results[number], now = result, stretches[number]
            following = stretch(pipeline.demand, float(result.step_ms.mean()) * 1e6)
            if max(abs(following.main / now.main - 1), abs(following.worker / now.worker - 1)) >= CONTENTION_CLOSE:
                stretches[number] = Stretch((now.main + following.main) / 2, (now.worker + following.worker) / 2)
                unstable.append(number)
        pending = unstable
        if not pending:
            break
    return [result for result in results if result is not None]


def simulate_all(pipelines: Sequence[Pipeline], offsets: Array, *, account: bool = True) -> list[Simulated]:
    """Return one result for each of ``pipelines``, in order; those of the same shape share one simulation."""
    by_shape: dict[object, list[int]] = {}
    for number, pipeline in enumerate(pipelines):
        by_shape.setdefault(shape_of(pipeline), []).append(number)
    by_number: dict[int, Simulated] = {}
    for numbers in by_shape.values():
        joined = together([pipelines[number] for number in numbers]) if len(numbers) > 1 else pipelines[numbers[0]]
        variants = np.repeat(np.arange(len(numbers)), len(offsets))
        results = simulate(joined, np.tile(offsets, (len(numbers), 1)), variants, account=account)
        by_number |= dict(zip(numbers, _split(results, len(offsets)), strict=True))
    return [by_number[number] for number in range(len(pipelines))]


def _split(results: Simulated, replicates: int) -> list[Simulated]:
    """Return the results of each variant, in order. ``replicates``: number of rows of one variant in ``results``."""
    count = len(results.step_ms) // replicates
    parts = [slice(first * replicates, (first + 1) * replicates) for first in range(count)]
    return [
        Simulated(
            step_ms=results.step_ms[part],
            waits={stage: waits[part] for stage, waits in results.waits.items()},
            idle=None if results.idle is None else results.idle[part],
            step_ns=results.step_ns[part],
        )
        for part in parts
    ]
