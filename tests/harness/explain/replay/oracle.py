"""Another simulation of loop, loader and device, written with simpy: processes that wait for events, no recursion.

It shares no code with the replay under test, and fills the contract's tables as the probes would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import simpy

from harness.study.contract import PHASES, SPAN_COLUMNS, STEP_COLUMNS, arrow_schema
from harness.study.records import RunFacts, RunRecord
from harness.study.run_data import RunData

MS = 1_000_000
START_NS = 10**12
STAGES = ("read", "tokenize", "pack")
DEVICE_SITE = "trainer/compute.py:140: item"
BOUNDARY_SITE = "launch/child.py:461: device one step behind"


@dataclass(frozen=True)
class Truth:
    """A pipeline, all times in milliseconds. ``spread``: how much longer or shorter documents are than their mean."""

    read: float = 0.5
    tokenize: float = 4.0
    pack: float = 0.3
    spread: float = 0.4
    pattern: tuple[float, ...] = ()  # factors of the costs of one batch after another, over and over
    dynamic: bool = False  # a step takes as much longer or shorter as its batch's documents are
    workers: int = 1
    prefetch: int = 2
    # Workers whose dataset gives them no items. Each leaves the requests after its first one unanswered.
    idle: int = 0
    handover: float = 0.9
    receive: float = 0.3
    # Part of receive. Where set, all workers send through one pipe. What comes is unpacked in that order, also before
    # its turn, and when is recorded; else a batch is received in its turn, and only the wait for it is recorded.
    unpack: float | None = None
    after: float = 0.1
    wake: float = 0.1
    remainder: float = 0.1  # inline: what no stage covers
    asynchronous: bool = True
    host: dict[str, float] = field(
        default_factory=lambda: {
            "h2d": 0.1,
            "forward": 1.0,
            "backward": 1.0,
            "optimizer": 0.5,
            "sync": 0.05,
            "log": 0.2,
        }
    )
    device: dict[str, float] = field(
        default_factory=lambda: {"h2d": 0.2, "forward": 4.0, "backward": 8.0, "norm": 0.5, "optimizer": 3.0}
    )
    jitter: float = 0.05  # of host and device durations
    gap: float = 0.02  # host time before each phase
    latency: float = 0.03  # of a sync, beyond the end of what it waits for
    speed: float = 1.0
    sync: bool = True
    late: bool = False  # once a step is launched the host waits for the norm of the one before
    accumulation: int = 1
    ranks: int = 1
    log_every: int = 5
    batch_size: int = 2
    per_batch: int = 2  # documents that the costs above are for
    warmup: int = 6
    steps: int = 60
    repetitions: int = 1
    lead: float = 30.0  # that the workers have before the loop begins
    seed: int = 0
    pass_every: int = 0  # steps between two passes over held-out data, which are in no step; 0: none
    pass_ms: float = 0.0
    pass_within: bool = False  # such a pass lies within the step before it, which then does not count
    locked: str = ""  # a stage that waits for something that serves one worker at a time, and computes nothing

    def having(self, **changes: Any) -> Truth:
        return replace(self, **changes)


class _Rank:
    """One rank: its rows, and its processes."""

    def __init__(self, truth: Truth, env: simpy.Environment, number: int, barrier: Callable[[], simpy.Event]) -> None:
        self.t, self.env, self.number, self.barrier = truth, env, number, barrier
        total = (len(self.plan()) + 4) * truth.accumulation + 2 * truth.workers * truth.prefetch
        draw = np.random.default_rng([truth.seed, number])
        self.documents = np.exp(draw.normal(0, truth.spread, total * truth.batch_size) - truth.spread**2 / 2)
        if truth.pattern:
            self.documents *= np.resize(np.repeat(truth.pattern, truth.batch_size), len(self.documents))
        self.other = np.random.default_rng([truth.seed, number, 1])
        self.spans: list[tuple[str, str, int, float, float]] = []
        self.steps: list[tuple[int, bool, float, float]] = []
        self.received = 0
        self.inbox = [simpy.Store(env) for _ in range(truth.workers)]
        self.delivered: dict[int, simpy.Event] = {}
        self.pipe = simpy.Store(env)
        self.unpacked: set[int] = set()
        self.queue = simpy.Store(env)
        self.lock = simpy.Resource(env)
        self.last_done: simpy.Event | None = None
        self.norm_done: simpy.Event | None = None
        for worker in range(truth.workers):
            env.process(self.work(worker))
        self.in_flight = truth.workers * truth.prefetch - truth.idle * (truth.prefetch - 1)
        for batch in range(self.in_flight):
            self.ask(batch, 0.0)
        env.process(self.compute())
        self.finished = env.process(self.loop())

    def cost(self, batch: int, stage: str) -> float:
        size = self.t.batch_size
        return getattr(self.t, stage) * self.documents[batch * size : (batch + 1) * size].sum() / self.t.per_batch

    def varied(self, cost: float) -> float:
        if self.t.dynamic:
            batch, size = max(0, self.received - 1), self.t.batch_size
            cost *= float(self.documents[batch * size : (batch + 1) * size].mean())
        return cost * self.other.uniform(1 - self.t.jitter, 1 + self.t.jitter)

    def build(self, batch: int, role: str) -> Iterator[simpy.Event]:
        for stage in STAGES:
            began = self.env.now
            if stage == self.t.locked:
                with self.lock.request() as turn:
                    yield turn
                    yield self.env.timeout(self.cost(batch, stage))
            else:
                yield self.env.timeout(self.cost(batch, stage))
            self.spans.append((role, stage, batch, began, self.env.now))

    def ask(self, batch: int, wake: float) -> None:
        self.delivered[batch] = self.env.event()

        def travel() -> Iterator[simpy.Event]:
            yield self.env.timeout(wake)
            yield self.inbox[batch % (self.t.workers - self.t.idle)].put(batch)

        self.env.process(travel())

    def work(self, worker: int) -> Iterator[simpy.Event]:
        def hand_over(batch: int) -> Iterator[simpy.Event]:
            if self.t.unpack is None:
                yield self.env.timeout(self.t.handover)
                self.delivered[batch].succeed()
            else:
                yield self.env.timeout(self.t.handover - self.t.receive)
                yield self.pipe.put(batch)

        while True:
            batch = yield self.inbox[worker].get()
            yield from self.build(batch, f"loader-{worker}")
            self.env.process(hand_over(batch))
            yield self.env.timeout(self.t.after)

    def compute(self) -> Iterator[simpy.Event]:
        while True:
            name, duration, launched, done = yield self.queue.get()
            began = self.env.now
            yield self.env.timeout(duration)
            if name == "reduce":
                yield self.barrier()
            else:
                self.spans.append(("launch", name, self.received - 1, launched, launched))
                self.spans.append(("device", name, self.received - 1, began, self.env.now))
            done.succeed()

    def launch(self, name: str, duration: float) -> None:
        self.last_done = self.env.event()
        self.queue.put((name, duration, self.env.now, self.last_done))

    def drain(self) -> Iterator[simpy.Event]:
        yield from self.wait_for(self.last_done)

    def wait_for(self, done: simpy.Event | None, site: str = DEVICE_SITE) -> Iterator[simpy.Event]:
        began = self.env.now
        if done is not None and not done.processed:
            yield done
        yield self.env.timeout(self.t.latency)
        self.spans.append(("sync", site, self.received - 1, began, self.env.now))

    def fetch(self) -> Iterator[simpy.Event]:
        yield self.env.timeout(self.t.gap)
        began, batch = self.env.now, self.received
        if self.t.workers:
            if self.t.unpack is None:
                yield self.env.timeout(self.t.receive) & self.delivered[batch]
            else:
                yield from self.unpack_up_to(batch)
                yield self.env.timeout(self.t.receive - self.t.unpack)
            self.ask(batch + self.in_flight, self.t.wake)
        else:
            yield from self.build(batch, "main")
            yield self.env.timeout(self.t.remainder)
        self.spans.append(("main", "fetch", batch, began, self.env.now))
        self.received += 1

    def unpack_up_to(self, batch: int) -> Iterator[simpy.Event]:
        while batch not in self.unpacked:
            name = "ready" if self.pipe.items else "awaited"
            came = yield self.pipe.get()
            arrived = self.env.now
            yield self.env.timeout(self.t.unpack)
            self.unpacked.add(came)
            self.spans.append(("receive", name, came, arrived, self.env.now))

    def phase(self, name: str, kernel: str | None = None, sync: bool = False) -> Iterator[simpy.Event]:
        yield self.env.timeout(self.t.gap)
        began = self.env.now
        duration, grows = self.varied(self.t.host[name]), name in ("forward", "backward")
        scale = self.t.batch_size / self.t.per_batch
        if not self.t.asynchronous and name in ("forward", "backward", "optimizer"):
            duration *= (scale if grows else 1) / self.t.speed
        yield self.env.timeout(duration / 2)
        if kernel is not None and self.t.asynchronous:
            busy = self.varied(self.t.device[kernel]) * (scale if grows or kernel == "h2d" else 1) / self.t.speed
            self.launch(kernel, busy)
        yield self.env.timeout(duration / 2)
        if sync and self.t.asynchronous:
            yield from self.drain()
        self.spans.append(("main", name, self.received - 1, began, self.env.now))

    def loop(self) -> Iterator[simpy.Event]:
        yield self.env.timeout(self.t.lead)
        kinds = self.plan()
        for step, warmup in enumerate(kinds):
            began, before, norm_before = self.env.now, self.last_done, self.norm_done
            for micro in range(self.t.accumulation):
                yield from self.fetch()
                yield from self.phase("h2d", "h2d")
                yield from self.phase("forward", "forward")
                yield from self.phase("backward", "backward")
                if self.t.ranks > 1 and micro + 1 == self.t.accumulation:
                    if self.t.asynchronous:
                        self.launch("reduce", 0.0)
                    else:
                        yield self.barrier()
            yield from self.phase("optimizer", "norm")
            self.norm_done = self.last_done
            if self.t.sync:
                yield from self.phase("sync", sync=True)
            yield from self.phase("optimizer", "optimizer")
            if self.t.late:
                yield from self.wait_for(norm_before)
            if (step + 1) % self.t.log_every == 0:
                yield from self.phase("log", sync=True)
            stands_still = step + 1 in (len(kinds), *self.pauses())
            if self.t.asynchronous and (stands_still or warmup != kinds[step + 1]):
                yield from self.wait_for(before, BOUNDARY_SITE)  # here measured steps begin and end
            passes = bool(self.t.pass_every) and (step + 1) % self.t.pass_every == 0
            if passes and self.t.pass_within:
                yield self.env.timeout(self.t.pass_ms)
            self.steps.append((step, warmup or (passes and self.t.pass_within), began, self.env.now))
            if self.t.asynchronous and stands_still:
                yield from self.drain()
            if passes and not self.t.pass_within:
                yield from self.drain()
                yield self.env.timeout(self.t.pass_ms)

    def whole(self, steps: int) -> int:
        """``steps``, rounded up where the host waits only where it logs: it is measured from log to log (child.py)."""
        waits_in_logs = self.t.asynchronous and not self.t.sync and not self.t.late and self.t.log_every <= self.t.steps
        period = self.t.log_every if waits_in_logs else 1
        return -(-steps // period) * period

    def plan(self) -> list[bool]:
        """Of every step whether it is warmup: those at the start, and at the start of each repetition."""
        settle = self.whole(self.t.workers * self.t.prefetch + 1)
        steps = self.whole(self.t.steps // self.t.repetitions)
        return [True] * self.whole(self.t.warmup) + ([True] * settle + [False] * steps) * self.t.repetitions

    def pauses(self) -> list[int]:
        """Steps before which the run is stopped where it stands: the first of each repetition."""
        warmup = self.whole(self.t.warmup)
        repetition = (len(self.plan()) - warmup) // self.t.repetitions
        return [warmup + repetition * k for k in range(self.t.repetitions)]


def run(truth: Truth, *, arm: str = "a", block: int = 0, **facts: Any) -> RunData:
    """Run ``truth``; the tables of its first rank."""
    env = simpy.Environment()
    arrived: list[simpy.Event] = []

    def barrier() -> simpy.Event:
        """An event that happens when every rank has come here."""
        mine = env.event()
        arrived.append(mine)
        if len(arrived) == truth.ranks:
            for event in arrived:
                event.succeed()
            arrived.clear()
        return mine

    ranks = [_Rank(truth, env, number, barrier) for number in range(truth.ranks)]
    env.run(until=simpy.AllOf(env, [rank.finished for rank in ranks]))
    first = ranks[0]
    stops = [first.steps[k][2] for k in first.pauses()]
    workers, prefetch, size = truth.workers, truth.prefetch, truth.batch_size
    record = RunRecord(
        arm=arm,
        block=block,
        status="done",
        config={"data": {"workers": workers, "prefetch": prefetch, "batch_size": size}, "optimizer": {}, "seed": block},
        facts=replace(RunFacts(asynchronous=truth.asynchronous, threads=1, workers=workers, cores=64), **facts),
    )
    return RunData(record, _steps(first, stops), _spans(first, stops), None)


def step_ms(run_data: RunData) -> float:
    """Mean time of the measured steps, from the table."""
    assert run_data.steps is not None
    table = run_data.steps.to_pydict()
    return float(np.mean([w for w, warmup in zip(table["wall_ns"], table["warmup"], strict=True) if not warmup])) / MS


def _clock(stops: list[float], milliseconds: Sequence[float], *, ends: bool = False) -> list[int]:
    """Milliseconds of the simulation as CLOCK_MONOTONIC, standing still for 700 ms at each of ``stops``.
    A time at a stop begins after it; one of ``ends`` ends before it."""
    moments = np.array(milliseconds, dtype=np.float64)
    stood = np.searchsorted(np.array(stops), moments, side="left" if ends else "right")
    found: list[int] = (START_NS + np.rint((moments + 700 * stood) * MS).astype(np.int64)).tolist()
    return found


def _steps(rank: _Rank, stops: list[float]) -> pa.Table:
    rows: dict[str, list[Any]] = {name: [] for name, _ in STEP_COLUMNS}
    starts = _clock(stops, [began for _, _, began, _ in rank.steps])
    stopped = _clock(stops, [ended for _, _, _, ended in rank.steps], ends=True)
    for (step, warmup, began, _), start, end in zip(rank.steps, starts, stopped, strict=True):
        values: dict[str, Any] = dict.fromkeys(rows)
        values |= {f"{phase}_ns": 0 for phase in PHASES}
        values |= {"step": step, "turn": sum(began >= stop for stop in stops), "warmup": warmup, "start_ns": start}
        values |= {"wall_ns": end - start}
        values |= {"tokens": 64 * rank.t.batch_size * rank.t.accumulation, "trained_tokens": 60, "samples": 1}
        for name, value in values.items():
            rows[name].append(value)
    return pa.table(rows, schema=arrow_schema(STEP_COLUMNS))


def _spans(rank: _Rank, stops: list[float]) -> pa.Table:
    of_batches = ("loader", "receive")
    kept = [span for span in rank.spans if not (span[0].startswith(of_batches) and span[2] >= rank.received)]
    roles, names, batches, began, ended = (list(column) for column in zip(*kept, strict=True))
    starts = _clock(stops, began)
    ends = np.maximum(starts, _clock(stops, ended, ends=True)).tolist()
    cpu = [
        round((end - start) * MS * (name != rank.t.locked)) if role.startswith("loader") or role == "main" else None
        for role, name, start, end in zip(roles, names, began, ended, strict=True)
    ]
    ids, ranks = [1] * len(kept), [0] * len(kept)
    columns = (ids, ids, roles, ranks, names, batches, starts, ends, cpu)
    rows = dict(zip((name for name, _ in SPAN_COLUMNS), columns, strict=True))
    return pa.table(rows, schema=arrow_schema(SPAN_COLUMNS))
