"""What a declared pipeline must do, simulated with simpy from its declaration alone: no code and no measurement shared
with the ledger or the replay, but for what handing over a batch and waking up cost on this machine (machine.py).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations

import simpy

from tests.campaigns.known_truth.pipelines import Pipeline

STAGES = ("read", "tokenize", "pack")
Segment = tuple[str, float, float]  # what, from, to, in milliseconds


@dataclass(frozen=True)
class Machine:
    """What the machine adds to any declaration, in milliseconds (measured: see machine.py)."""

    handover: float = 0.9  # from the end of a batch's last stage to its reception by a host that waits for it
    receive: float = 0.3  # reception of a batch that lies ready
    request: float = 0.3  # from the reception of a batch until an idle worker begins the one asked for then
    turnaround: float = 0.2  # of a worker, from the end of one batch to the beginning of the next that is asked for
    python: float = 0.02  # the loop itself, per phase
    wake: float = 0.05  # beyond the end of what a blocking call waits for


@dataclass(frozen=True)
class Expected:
    """Means per step in milliseconds."""

    step: float
    starved: dict[str, float]  # by cause
    exposed: dict[str, float]  # by stage: Shapley shares of what a step would save without data work
    hidden: dict[str, float]  # by stage: ran while the step did not wait, and cost it nothing


@dataclass
class _World:
    pipeline: Pipeline
    machine: Machine
    seed: int
    warmup: int
    host: list[Segment] = field(default_factory=list)
    device: list[Segment] = field(default_factory=list)
    stages: dict[int, list[Segment]] = field(default_factory=dict)
    fetches: list[tuple[int, float, float]] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    free: float = 0.0

    def __post_init__(self) -> None:
        self.env = simpy.Environment()
        # The declared jitter is drawn from declared seeds (trainer/inject.py, trainer/data/dataset.py,
        # trainer/emulated.py): the same draws here, so that no luck of the draw stands between truth and run.
        self.of_worker = [
            {name: random.Random(f"{self.seed * 1_000_003 + k} {name}") for name in (*STAGES, "transfer")}
            for k in range(max(1, self.pipeline.workers))
        ]
        self.of_device = random.Random(self.seed)
        self.inbox = [simpy.Store(self.env) for _ in range(self.pipeline.workers)]
        self.delivered: dict[int, simpy.Event] = {}

    def run(self, steps: int) -> None:
        workers, prefetch = self.pipeline.workers, self.pipeline.prefetch
        for worker in range(workers):
            self.env.process(self.work(worker))
        for batch in range(workers * prefetch):
            self.ask(batch)
        self.env.run(self.env.process(self.loop(steps)))

    def build(self, batch: int) -> Iterator[simpy.Event]:
        drawn = self.of_worker[batch % len(self.of_worker)]
        for stage in STAGES:
            began = self.env.now
            yield self.env.timeout(_jittered(getattr(self.pipeline, stage), self.pipeline.jitter, drawn[stage]))
            self.stages.setdefault(batch, []).append((stage, began, self.env.now))
        yield self.env.timeout(_jittered(self.pipeline.transfer, self.pipeline.jitter, drawn["transfer"]))

    def ask(self, batch: int) -> None:
        self.delivered[batch] = self.env.event()

        def travel() -> Iterator[simpy.Event]:
            yield self.env.timeout(max(0.0, self.machine.request))  # what a busy machine shows may be less than nothing
            yield self.inbox[batch % self.pipeline.workers].put(batch)

        self.env.process(travel())

    def work(self, worker: int) -> Iterator[simpy.Event]:
        def hand_over(batch: int) -> Iterator[simpy.Event]:
            yield self.env.timeout(self.machine.handover)
            self.delivered[batch].succeed()

        while True:
            batch = yield self.inbox[worker].get()
            yield from self.build(batch)
            self.env.process(hand_over(batch))
            yield self.env.timeout(self.machine.turnaround)

    def spend(self, phase: str) -> Iterator[simpy.Event]:
        yield self.env.timeout(self.pipeline.host.get(phase, 0.0) + self.machine.python)

    def launch(self, kernel: str) -> None:
        cost_ms = self.pipeline.kernels.get(kernel, 0.0)
        cost = _jittered(cost_ms, self.pipeline.device_jitter, self.of_device) / self.pipeline.speed
        began = max(self.env.now, self.free)
        self.free = began + cost
        self.device.append((kernel, began, self.free))

    def drain(self) -> Iterator[simpy.Event]:
        began = self.env.now
        yield self.env.timeout(max(0.0, self.free - began) + (self.machine.wake if self.free > began else 0.0))
        self.host.append(("sync", began, self.env.now))

    def drain_to_one_step(self, before: float) -> Iterator[simpy.Event]:
        """Until the device is one step behind: where the host never waits, it would run ahead for ever."""
        began = self.env.now
        yield self.env.timeout(max(0.0, before - began))
        self.host.append(("sync", began, self.env.now))

    def loop(self, steps: int) -> Iterator[simpy.Event]:
        """A run as the harness drives it: some warmup steps from a cold start, the device is done, some steps
        settle, then it counts, from a device that is one step behind to one that is."""
        pipeline, before = self.pipeline, 0.0
        for step in range(steps):
            if step == pipeline.warmup_steps:
                yield from self.drain()
            if step == self.warmup:
                yield from self.drain_to_one_step(before)
            self.starts.append(self.env.now)
            before = self.free
            yield from self.spend("other")
            began = self.env.now
            if pipeline.workers:
                yield self.env.timeout(self.machine.receive) & self.delivered[step]
                self.ask(step + pipeline.workers * pipeline.prefetch)
            else:
                yield from self.build(step)
            self.fetches.append((step, began, self.env.now))
            self.launch("h2d")
            for phase in ("forward", "backward"):
                yield from self.spend(phase)
                self.launch(phase)
            self.launch("norm")
            if pipeline.check_finite:
                yield from self.spend("sync")
                yield from self.drain()
            yield from self.spend("optimizer")
            self.launch("optimizer")
            if (step + 1) % pipeline.log_every == 0:
                yield from self.drain()
        yield from self.drain_to_one_step(before)
        self.starts.append(self.env.now)


def _jittered(cost: float, jitter: float, drawn: random.Random) -> float:
    return cost * drawn.uniform(1 - jitter, 1 + jitter) if cost and jitter else cost


def expected(pipeline: Pipeline, machine: Machine, steps: int, repeats: int) -> Expected:
    """Means over ``repeats`` blocks of one repetition of ``steps`` steps, after as many warm-up steps as a run has."""
    warmup = pipeline.warmup_steps + pipeline.workers * pipeline.prefetch + 1
    runs = [_once(pipeline, machine, seed, warmup, steps) for seed in range(repeats)]

    def mean(tables: list[dict[str, float]]) -> dict[str, float]:
        names = dict.fromkeys(name for table in tables for name in table)
        return {name: sum(table.get(name, 0.0) for table in tables) / len(tables) for name in names}

    exposed = mean([_exposed(pipeline, machine, seed, warmup, steps) for seed in range(repeats)])
    work, outside = mean([run.work for run in runs]), mean([run.outside for run in runs])
    return Expected(
        step=sum(run.step for run in runs) / len(runs),
        starved=mean([run.starved for run in runs]),
        exposed=exposed,
        hidden={stage: max(0.0, min(outside[stage], work[stage] - exposed[stage])) for stage in STAGES},
    )


@dataclass(frozen=True)
class _Run:
    """One run; means per step in milliseconds."""

    step: float
    starved: dict[str, float]
    work: dict[str, float]
    outside: dict[str, float]  # of the waits in which the device was idle


def _exposed(pipeline: Pipeline, machine: Machine, seed: int, warmup: int, steps: int) -> dict[str, float]:
    """Each stage removed from every set of the others: the weighted mean of what that saves."""
    parts = (*STAGES, "transfer")
    lasts = {}
    for size in range(len(parts) + 1):
        for chosen in combinations(parts, size):
            fewer, on = replace(pipeline, **dict.fromkeys(chosen, 0.0)), machine
            if "transfer" in chosen:
                on = replace(machine, handover=0.0, receive=0.0, turnaround=0.0)
            lasts[frozenset(chosen)] = _once(fewer, on, seed, warmup, steps).step
    count = len(parts)
    return {
        part: sum(
            (lasts[chosen] - lasts[chosen | {part}])
            * math.factorial(len(chosen)) * math.factorial(count - len(chosen) - 1) / math.factorial(count)
            for chosen in lasts
            if part not in chosen
        )
        for part in parts
    }  # fmt: skip


def _once(pipeline: Pipeline, machine: Machine, seed: int, warmup: int, steps: int) -> _Run:
    world = _World(pipeline, machine, seed, warmup)
    world.run(warmup + steps)
    since, until = world.starts[warmup], world.starts[-1]
    starved: dict[str, float] = {}
    host = list(world.host)
    for batch, a, b in world.fetches:
        clock = a
        for stage, start, end in world.stages[batch]:
            start, end = max(start, clock), min(end, b)
            if end > start:
                host += [("transfer", clock, start), (stage, start, end)]
                clock = end
        host.append(("transfer", clock, b))
    for a, b in _idle(world.device, since, until):
        shares = [(what, max(0.0, min(b, end) - max(a, start))) for what, start, end in host if start < b and end > a]
        for what, shared in [*shares, ("python", (b - a) - sum(shared for _, shared in shares))]:
            starved[what] = starved.get(what, 0.0) + shared / steps
    work, outside = {}, {}
    waits = [
        (max(a, start), min(b, end)) for a, b in _idle(world.device, 0.0, until) for _, start, end in world.fetches
    ]
    waits = [(a, b) for a, b in waits if b > a]
    for stage in STAGES:
        spans = [
            (start, end)
            for batch, a, _ in world.fetches
            if since <= a < until
            for name, start, end in world.stages[batch]
            if name == stage
        ]
        work[stage] = sum(end - start for start, end in spans) / steps
        waited = sum(max(0.0, min(b, end) - max(a, start)) for start, end in spans for a, b in waits)
        outside[stage] = work[stage] - waited / steps
    return _Run((until - since) / steps, starved, work, outside)


def _idle(device: list[Segment], since: float, until: float) -> Iterator[tuple[float, float]]:
    clock = since
    for _, start, end in device:
        if start > clock:
            yield clock, min(start, until)
        clock = max(clock, end)
        if clock >= until:
            return
    if clock < until:
        yield clock, until
