"""Add up what the contract's tables do not show: totals over the measured steps of one block of an attached process."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.attach.agent import events as kinds
from harness.attach.frames import Made
from harness.explain.causes import PASSES
from harness.explain.policy import HELD_LOOKS_SHARE, HELD_SHARE_MIN
from harness.probes.ledger.rows import MAIN

ROW_STAGES = ("read", "pack")  # stages that take time for each row of a batch
SAMPLE = "sample"  # the sampler's stage, in which it chooses items
REPETITION_STEPS = 20  # steps per repetition

Event = tuple[Any, ...]  # see agent/events.py
WorkerBatches = Mapping[int, Mapping[int, Made]]  # batches of each loader worker by number, by process id


class StepCount(NamedTuple):
    """Occurrences of an event (such as a compilation) in measured steps, and number and duration of these steps."""

    times: int = 0
    steps: int = 0
    wall_ns: int = 0  # wall time of these steps


def _floats() -> array[float]:
    return array("f")


@dataclass
class StepLengths:
    """Durations (ms) of a block's measured steps and of their phases, and tokens of each step, in order."""

    wall: array[float] = field(default_factory=_floats)  # without waits for a core
    parts: dict[str, array[float]] = field(default_factory=dict)  # keyed by phase, without inner phases
    work: array[float] = field(default_factory=_floats)  # tokens, or samples if there are no tokens

    def add(self, wall_ns: int, body: Sequence[Event]) -> None:
        for name, ns in own_ns(body).items():
            before = self.parts.setdefault(name, array("f", bytes(self.wall.itemsize * len(self.wall))))
            before.append(ns / 1e6)
        self.wall.append(wall_ns / 1e6)
        for part in self.parts.values():
            if len(part) < len(self.wall):
                part.append(0.0)
        self.work.append(sum(event[2] or event[4] for event in body if event[0] == kinds.RECEIVED))


@dataclass
class FirstStep:
    """Waits and batches of the program's first step; 0 if that step is in another block."""

    fetch_ns: int = 0  # waits for batches, before the first forward or backward pass
    ahead: int = 0  # batches that arrived by then
    batches: int = 0  # batches of the step

    def add(self, body: Sequence[Event]) -> None:
        passes = (place for place, event in enumerate(body) if event[0] == kinds.ENTER and event[1] in PASSES)
        ahead = body[: next(passes, None)]
        self.fetch_ns = own_ns(ahead).get("fetch", 0)
        self.ahead, self.batches = _arrived(ahead), _arrived(body)


@dataclass
class ExcludedSteps:
    """Steps that are not measured because of an event in ``agent.events.EXCLUDING``."""

    numbers: list[int] = field(default_factory=list)
    evaluating: int = 0  # steps after the warm-up within which an evaluation ran
    evaluating_ns: int = 0  # duration of these steps
    evaluated: Counter[bool] = field(default_factory=Counter)  # evaluation batches; True: the model made graphs
    place_ns: Counter[int] = field(default_factory=Counter)  # sampled ns of these steps by number of the place
    interrupted: int = 0  # steps after the warm-up in which a signal handler of the program raised within a hook

    def add(
        self, begun: Event, body: Sequence[Event], ended: Event | None, events: Sequence[Event], warmup: bool
    ) -> None:
        """Add a step with excluding ``events``."""
        self.numbers.append(begun[3])
        evaluated = [event[1] for event in events if event[0] == kinds.EVALUATION]
        self.evaluated.update(evaluated)
        if warmup:
            return
        if not evaluated:
            self.interrupted += 1
            return
        self.evaluating += 1
        self.evaluating_ns += 0 if ended is None else ended[1] - begun[1]
        for event in body:
            if event[0] == kinds.SAMPLED and event[1] not in ("backward", kinds.HOOKS, kinds.HOLDER, "optimizer"):
                self.place_ns[event[2]] += event[4]


@dataclass
class ThreadTime:
    """Time (ns) that the recorded thread ran, waited for a core, and was blocked, in measured steps."""

    clocked_ns: int = 0  # duration of the steps in which the kernel's times were read: the base of the next two
    running_ns: int = 0  # on a core
    waiting_ns: int = 0  # runnable without a core
    unseen_blocked_ns: int = 0  # blocked outside all phases

    @property
    def running_share(self) -> float | None:
        return round(min(self.running_ns / self.clocked_ns, 1.0), 4) if self.clocked_ns else None

    def add(self, begun: Event, body: Sequence[Event], ended: Event) -> int:
        """Add a step; return the ns for which its thread waited for a core, 0 if not recorded."""
        # Without readings: the machine has none, or the thread had ended.
        if not all(boundary[2] and boundary[2][0] for boundary in (begun, ended)):
            return 0
        wall_ns = ended[1] - begun[1]
        (cpu_then, waited_then), (cpu_now, waited_now) = (_schedstat(boundary[2][0]) for boundary in (begun, ended))
        in_phases_ns, in_phases_cpu_ns = _phases(body)
        waited_ns = waited_now - waited_then
        in_step_ns: int = min(waited_ns, wall_ns)
        self.waiting_ns += in_step_ns
        self.running_ns += cpu_now - cpu_then
        self.clocked_ns += wall_ns
        off_core_ns = (wall_ns - in_phases_ns) - (cpu_now - cpu_then - in_phases_cpu_ns)  # outside the phases
        # A thread waits for a core in proportion to its CPU time. Whether the wait was within phases is not recorded.
        share = 1 - in_phases_cpu_ns / max(cpu_now - cpu_then, 1)
        waited_outside_ns = max(waited_ns - max(0, in_phases_ns - in_phases_cpu_ns), round(share * waited_ns))
        self.unseen_blocked_ns += max(0, min(off_core_ns - waited_outside_ns, wall_ns - in_phases_ns))
        return in_step_ns


@dataclass
class DataWork:
    """Batches in measured steps, and ns of data work by the recorded thread, such as tokenizing in the loop."""

    fetches: Counter[int] = field(default_factory=Counter)  # number of steps by their number of batches
    epoch_ends: int = 0  # DataLoader epochs that ended; leaving an iterator early counts
    tokenizing_ns: int = 0  # tokenizers in the training loop, outside a fetch
    iterating_ns: int = 0  # DataLoaders that made an iterator, outside a fetch
    restarting_ns: int = 0  # waits in which an epoch ended, and waits for the first batch after a loader restart
    choosing_ns: int = 0  # a DataLoader's sampler, in the recorded thread
    rows: int = 0  # items in the batches that arrived
    making_cpu_ns: int = 0  # CPU time of reading and packing these items
    # Positions of the examined batches, padding positions, and positions in columns of padding only
    padding: tuple[int, int, int] = (0, 0, 0)

    @property
    def fetches_per_step(self) -> int:
        return max(1, self.fetches.most_common(1)[0][0]) if self.fetches else 1

    def add(self, body: Sequence[Event], made_by: WorkerBatches) -> None:
        self.tokenizing_ns += sum(event[1] for event in body if event[0] == kinds.TOKENIZED)
        self.iterating_ns += sum(event[1] for event in body if event[0] == kinds.ITERATED)
        self.restarting_ns += _restarting(body)
        self.choosing_ns += sum(_choosing(event) for event in body if event[0] == kinds.RECEIVED)
        self.epoch_ends += sum(event[0] == kinds.RECEIVED and data_ended(event) for event in body)
        self.epoch_ends += sum(event[0] == kinds.BEGUN_ANEW and event[1] for event in body)
        self.fetches[_arrived(body)] += 1
        for event in body:
            if event[0] == kinds.PADDED:
                positions, padded, columns = self.padding
                self.padding = positions + event[1], padded + event[2], columns + event[3]
            elif event[0] == kinds.RECEIVED and event[1]:
                self._add_rows(event, made_by)

    def _add_rows(self, received: Event, made_by: WorkerBatches) -> None:
        _, (role, pid, _, number, pieces), _, items, _ = received
        if role != MAIN:
            _, pieces, items = made_by.get(pid, {}).get(number, (0, (), 0))
        if pieces and items:
            self.rows += items
            self.making_cpu_ns += sum(cpu_ns for name, _, _, cpu_ns in pieces if name in ROW_STAGES)


@dataclass
class Looks:
    """Sums over sampled stacks (looks) and garbage collections in measured steps, by number of the place in code."""

    looks: int = 0  # looks behind the sampled nanoseconds
    sampled_ns: Counter[tuple[str, int, int]] = field(default_factory=Counter)  # by phase, place, EXACT, LATE, FORCED
    # Garbage collections in the recorded thread and their nanoseconds, by the place of the longest one in a step
    collections: Counter[int] = field(default_factory=Counter)
    collecting_ns: Counter[int] = field(default_factory=Counter)
    others_ns: Counter[int] = field(default_factory=Counter)  # running time of other threads
    held_ns: Counter[int] = field(default_factory=Counter)  # nanoseconds of these with the interpreter lock
    held_shares: Mapping[int, float] = field(default_factory=dict)  # over the whole program, see held_shares()

    def add(self, event: Event) -> None:
        if event[0] == kinds.SAMPLED:
            _, phase, place, found, ns, looks = event
            self.sampled_ns[phase, place, found] += ns
            self.looks += looks
        elif event[0] == kinds.COLLECTED:
            _, times, ns, place = event
            self.collections[place] += times
            self.collecting_ns[place] += ns
        elif event[0] == kinds.OTHER_RAN:
            self.others_ns[event[1]] += event[2]
            self.held_ns[event[1]] += event[3]


@dataclass
class StepTotals:
    """Sums and counts over one process's steps in one block: times, causes, data work, memory."""

    first_ns: int = 0  # start of the block's first step; 0: no step began
    last_ns: int = 0  # end of its last step
    warming_up: int = 0  # profiled steps at the start of the block, not measured
    begun: int = 0  # steps, measured or not, except those that the previous block measures
    ended: int = 0  # steps of these that ended
    measured: int = 0
    first_measured: int = 0  # number of the first measured step in the program
    last_unmeasured: bool = False  # True if the last step is not measured
    wall_ns: int = 0  # duration of the measured steps
    lengths: StepLengths = field(default_factory=StepLengths)
    counted: dict[str, StepCount] = field(default_factory=dict)  # keyed by name, see agent/causes.py
    # Nanoseconds for which other threads and child processes ran or waited for a core, and elapsed nanoseconds
    demand_ns: tuple[int, int] = (0, 0)
    # Step, bytes of the process, bytes of its children, free bytes
    memory: list[tuple[int, int, int, int]] = field(default_factory=list)
    first: FirstStep = field(default_factory=FirstStep)
    excluded: ExcludedSteps = field(default_factory=ExcludedSteps)
    thread: ThreadTime = field(default_factory=ThreadTime)
    data: DataWork = field(default_factory=DataWork)
    looks: Looks = field(default_factory=Looks)

    def share(self, ns: int) -> float:
        """Return ``ns`` as a share of the measured time; 0.0 if no step was measured."""
        return ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def evaluating_share(self) -> float:
        whole_ns = self.wall_ns + self.excluded.evaluating_ns
        return self.excluded.evaluating_ns / whole_ns if whole_ns else 0.0

    def begin(
        self, begun: Event, body: Sequence[Event], ended: Event | None, excluding: Sequence[Event], alternating: bool
    ) -> Event:
        """Count a step; return its STEP event with the final (repetition, True if not measured) as last items.

        ``alternating``: True keeps the event's repetition; else REPETITION_STEPS measured steps are one.
        """
        kind, now, reading, number, repetition, warmup = begun
        warming_up = bool(warmup or self.begun < self.warming_up)
        if excluding:
            self.excluded.add(begun, body, ended, excluding, warming_up)
        self.begun += 1
        self.last_unmeasured = warming_up or bool(excluding)
        if not alternating:
            repetition = self.measured // REPETITION_STEPS
        return kind, now, reading, number, repetition, self.last_unmeasured

    def measure(self, begun: Event, body: Sequence[Event], ended: Event, made_by: WorkerBatches) -> None:
        """Add a measured step. ``made_by``: batches of the loader workers."""
        wall_ns = ended[1] - begun[1]
        self.first_measured = self.first_measured if self.measured else begun[3]
        self.measured += 1
        self.wall_ns += wall_ns
        for event in body:
            self.looks.add(event)
            if event[0] == kinds.COUNTED:
                _, name, times = event
                before = self.counted.get(name, StepCount())
                self.counted[name] = StepCount(before.times + times, before.steps + 1, before.wall_ns + wall_ns)
            elif event[0] == kinds.DEMAND:
                self.demand_ns = self.demand_ns[0] + event[1], self.demand_ns[1] + event[2]
            elif event[0] == kinds.MEMORY_READ:
                self.memory.append((begun[3], *event[1:]))
        self.data.add(body, made_by)
        self.lengths.add(wall_ns - self.thread.add(begun, body, ended), body)


def complete(blocks: Sequence[StepTotals]) -> None:
    """Set on all blocks of a process what needs the whole of it: held-lock shares, 0 for events of other blocks."""
    for name in {name for totals in blocks for name in totals.counted}:
        for totals in blocks:
            totals.counted.setdefault(name, StepCount())
    shares = held_shares([totals.looks for totals in blocks])
    for totals in blocks:
        totals.looks.held_shares = shares


def held_shares(blocks: Sequence[Looks]) -> dict[int, float]:
    """Return, by place, the share of other threads' time with the interpreter lock held; 0 below HELD_SHARE_MIN.

    Only HELD_LOOKS_SHARE of the looks at a held lock notice it.
    """
    shares = {}
    for place in dict.fromkeys(place for looks in blocks for place in looks.others_ns):
        ran_ns, held_ns = (sum(getattr(looks, name)[place] for looks in blocks) for name in ("others_ns", "held_ns"))
        share = held_ns / max(ran_ns, 1)
        shares[place] = min(1.0, share / HELD_LOOKS_SHARE) if share >= HELD_SHARE_MIN else 0.0
    return shares


def _choosing(received: Event) -> int:
    trace = received[1]
    if trace is None:
        return 0
    return sum(end_ns - start_ns for name, start_ns, end_ns, _ in trace[4] if name == SAMPLE)


def _restarting(body: Sequence[Event]) -> int:
    """Return the ns of waits that ended with an epoch's end, and of waits for the first batch after a restart."""
    total_ns = begun_ns = wait_ns = 0
    restarts = False  # True if the last wait ended an epoch, or a loader restarted
    for event in body:
        if event[0] == kinds.ENTER and event[1] == "fetch":
            begun_ns = event[2]
        elif event[0] == kinds.EXIT and event[1] == "fetch":
            wait_ns = event[2] - begun_ns
        elif event[0] == kinds.BEGUN_ANEW:
            restarts = True
        elif event[0] == kinds.RECEIVED:
            ended = data_ended(event)
            total_ns += wait_ns if ended or restarts else 0
            restarts = ended
    return total_ns


def waited_ns(begun: Event, ended: Event) -> int:
    """Return the ns of a step for which the main thread was runnable but had no core; 0 if it was not recorded."""
    if not all(boundary[2] and boundary[2][0] for boundary in (begun, ended)):
        return 0
    return _schedstat(ended[2][0])[1] - _schedstat(begun[2][0])[1]


def _schedstat(line: bytes) -> tuple[int, int]:
    """Return (ns on a core, ns runnable without) of a line of schedstat (Linux, sched-stats.rst)."""
    on_core, waited, *_ = line.split()
    return int(on_core), int(waited)


def own_ns(body: Sequence[Event]) -> dict[str, int]:
    """Return the wall time in ns of each phase in a step, without the time of phases inside it."""
    phases_ns: dict[str, int] = {}
    around: list[list[int]] = []  # start of each open phase, and the time of its inner phases
    for event in body:
        if event[0] == kinds.ENTER:
            around.append([event[2], 0])
        elif event[0] == kinds.EXIT and around:
            begun_ns, inside_ns = around.pop()
            lasted_ns = event[2] - begun_ns
            phases_ns[event[1]] = phases_ns.get(event[1], 0) + lasted_ns - inside_ns
            if around:
                around[-1][1] += lasted_ns
    return phases_ns


def _phases(body: Sequence[Event]) -> tuple[int, int]:
    """Return (wall time, CPU time) in ns within all phases of a step. Phases inside another phase count once."""
    wall_ns = cpu_ns = depth = 0
    since = (0, 0)
    for event in body:
        if event[0] == kinds.ENTER:
            if depth == 0:
                since = event[2], event[3]
            depth += 1
        elif event[0] == kinds.EXIT and depth:
            depth -= 1
            if depth == 0:
                wall_ns += event[2] - since[0]
                cpu_ns += event[3] - since[1]
    return wall_ns, cpu_ns


def _arrived(body: Sequence[Event]) -> int:
    """Return the number of batches that arrived among the step's events."""
    return sum(event[0] == kinds.RECEIVED and not data_ended(event) for event in body)


def data_ended(received: Event) -> bool:
    """Return True if the event ``received`` stands for the end of an epoch: the wait brought no batch."""
    trace = received[1]
    return trace is not None and trace[3] == kinds.ENDED
