"""Convert the events of one attached process into the contract's tables, and add up what these do not show."""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from harness.attach.frames import AttachedProcess, Made, events
from harness.explain.causes import HOLDER, HOOKS, PASSES
from harness.explain.policy import HELD_LOOKS_SHARE, HELD_SHARE_MIN
from harness.launch.tables import RunTables
from harness.probes.ledger.recorders import StepRecorder
from harness.probes.ledger.rows import ENTER, EXIT, MAIN, PAUSE, RECEIVED, STEP
from trainer.telemetry import BatchTrace, Kernel, RawSpan

# Kinds of event that only the agent writes. The numbers match agent/boundaries.py and agent/device.py.
EVALUATION, TOKENIZED, WORK, INTERRUPTED, NOT_FINITE, BEGUN_ANEW, COUNTED = 6, 7, 9, 10, 13, 14, 15
SAMPLED, COLLECTED, OTHER_RAN, MEMORY, DEMAND = 16, 17, 19, 20, 21  # see agent/own_time.py
ITERATED = 22  # see agent/boundaries.py
EXACT, LATE, FORCED = range(3)  # method by which a look of the kind SAMPLED found its place
PADDED = 18  # see agent/padding.py
OWN_KINDS = {
    TOKENIZED,
    WORK,
    NOT_FINITE,
    BEGUN_ANEW,
    COUNTED,
    SAMPLED,
    COLLECTED,
    OTHER_RAN,
    MEMORY,
    DEMAND,
    PADDED,
    ITERATED,
}  # events that the ledger does not handle
MARKS = {EVALUATION, INTERRUPTED}  # events that exclude a step from measurement
ROW_STAGES = ("read", "pack")  # stages that take time for each row of a batch
SAMPLE, READ = "sample", "read"  # sampler's stage, in which it chooses items; it counts as reading
ENDED = -2  # replaces a batch's number: the wait ended with the data, without a batch
REPETITION_STEPS = 20  # steps per repetition
LEAST_STEPS, MOST_BLOCKS = 10, 10  # minimum steps of a block, maximum blocks of a run
PROFILED_PART = -1  # block number of the steps up to the end of a profiled window, or of a closing window

Event = tuple[Any, ...]
MadeBy = Mapping[int, Sequence[Made]]  # batches of each loader worker, by process id


class StepCount(NamedTuple):
    """Count of an event (such as a compilation) in measured steps, and the number and time of the steps with it."""

    times: int = 0
    steps: int = 0
    wall_ns: int = 0  # wall time of these steps


def _floats() -> array[float]:
    return array("f")


@dataclass
class StepLengths:
    """Durations in ms and work of one block's measured steps, in order: whole steps and phases."""

    wall: array[float] = field(default_factory=_floats)  # without waits for a core
    parts: dict[str, array[float]] = field(default_factory=dict)  # keyed by phase, without inner phases
    work: array[float] = field(default_factory=_floats)  # tokens, or samples if there are no tokens

    def add(self, wall_ns: int, body: Sequence[Event]) -> None:
        for name, ns in _own_ns(body).items():
            before = self.parts.setdefault(name, array("f", bytes(self.wall.itemsize * len(self.wall))))
            before.append(ns / 1e6)
        self.wall.append(wall_ns / 1e6)
        for part in self.parts.values():
            if len(part) < len(self.wall):
                part.append(0.0)
        self.work.append(sum(event[2] or event[4] for event in body if event[0] == RECEIVED))


@dataclass
class StepTotals:
    """Totals (ns) over one process's measured steps of one block; :func:`write_tables` makes them."""

    first_ns: int = 0  # start of the block's first step; 0: no step began
    last_ns: int = 0  # end of its last step
    first_fetch_ns: int = 0  # waits for batches in the program's first step, before the first forward or backward pass
    first_ahead: int = 0  # batches that arrived by then
    first_batches: int = 0  # batches of that step
    warming_up: int = 0  # profiled steps at the start of the block, not measured
    begun: int = 0  # steps, measured or not, except those that the previous block measures
    ended: int = 0  # steps of these that ended
    measured: int = 0
    first_measured: int = 0  # number of the first measured step in the program
    evaluating: int = 0  # steps excluded because an evaluation ran within them
    evaluating_ns: int = 0  # duration of these steps
    evaluated: Counter[bool] = field(default_factory=Counter)  # evaluation batches; True: the model made graphs
    interrupted: int = 0  # steps excluded because a signal handler of the program raised within a hook
    wall_ns: int = 0
    waiting_ns: int = 0  # the main thread was runnable but had no core
    running_ns: int = 0  # the main thread was on a core
    clocked_ns: int = 0  # duration of the steps for which both were read
    tokenizing_ns: int = 0  # tokenizers in the training loop, outside a fetch
    iterating_ns: int = 0  # DataLoaders that made an iterator, outside a fetch
    restarting_ns: int = 0  # waits in which an epoch ended, and waits for the first batch after a loader restart
    sampling_ns: int = 0  # time in a DataLoader's sampler, in the main thread
    rows: int = 0  # items in the batches that arrived
    making_cpu_ns: int = 0  # CPU time of reading and packing these items
    epoch_ends: int = 0  # DataLoader epochs that ended in measured steps; leaving an iterator early counts
    unseen_blocked_ns: int = 0  # the main thread was blocked outside all phases
    marked: list[int] = field(default_factory=list)  # numbers of the steps with one of MARKS
    last_unmeasured: bool = False
    counted: dict[str, StepCount] = field(default_factory=dict)  # keyed by name, see agent/causes.py
    # Garbage collections in the recorded thread and their nanoseconds, by the place of the longest one in a step
    collections: Counter[int] = field(default_factory=Counter)
    collecting_ns: Counter[int] = field(default_factory=Counter)
    # Nanoseconds by phase, number of the place, and EXACT, LATE or FORCED (agent/own_time.py)
    sampled_ns: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    evaluated_ns: Counter[int] = field(default_factory=Counter)  # keyed by number of the place, in evaluations
    others_ns: Counter[int] = field(default_factory=Counter)  # nanoseconds of other threads, by number of the place
    held_ns: Counter[int] = field(default_factory=Counter)  # nanoseconds of these with the interpreter lock
    held_shares: Mapping[int, float] = field(default_factory=dict)  # shares over the whole program, see _held_shares()
    # Nanoseconds for which other threads and child processes ran or waited for a core, and elapsed nanoseconds
    demand_ns: tuple[int, int] = (0, 0)
    # Step, bytes of the process, bytes of its children, free bytes
    memory: list[tuple[int, int, int, int]] = field(default_factory=list)
    looks: int = 0  # looks behind the sampled nanoseconds
    fetches: Counter[int] = field(default_factory=Counter)  # number of measured steps by their number of fetches
    lengths: StepLengths = field(default_factory=StepLengths)
    # Positions of the examined batches, padding positions, and positions in columns of padding only
    padding: tuple[int, int, int] = (0, 0, 0)

    @property
    def unseen_share(self) -> float:
        return self.unseen_blocked_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def waiting_share(self) -> float:
        return self.waiting_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def running_share(self) -> float | None:
        return round(min(self.running_ns / self.clocked_ns, 1.0), 4) if self.clocked_ns else None

    @property
    def tokenizing_share(self) -> float:
        return self.tokenizing_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def iterating_share(self) -> float:
        """Share of the time in which the loop's DataLoader made an iterator."""
        return self.iterating_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def restarting_share(self) -> float:
        return self.restarting_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def sampling_share(self) -> float:
        return self.sampling_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def evaluating_share(self) -> float:
        whole_ns = self.wall_ns + self.evaluating_ns
        return self.evaluating_ns / whole_ns if whole_ns else 0.0

    @property
    def fetches_per_step(self) -> int:
        return max(1, self.fetches.most_common(1)[0][0]) if self.fetches else 1


def plan_blocks(steps: int, warmup: int, loader_warmup: int) -> int:
    """Return the number of measured steps in a block, if MOST_BLOCKS blocks share ``steps`` steps without ``warmup``.

    At least LEAST_STEPS and twice ``loader_warmup``, the unmeasured steps at the start of each block.
    """
    return max(LEAST_STEPS, 2 * loader_warmup, -(-max(steps - warmup, 1) // MOST_BLOCKS))


def write_tables(
    one: AttachedProcess,
    made_by: MadeBy,
    folder_of: Callable[[int], Path],
    rank: int,
    *,
    alternating: bool = False,
    profiled: int = 0,
    closing: int | None = None,
) -> list[StepTotals]:
    """Write the tables of ``one`` block by block into ``folder_of(block)``, and return the totals of each block.

    Every step is measured in exactly one block, so that no rare slow step is lost; the last block includes a remainder.
    A block's warm-up are the previous block's last steps, during which its first batches were made. An error (a full
    disk) leaves no partial files.

    ``made_by``: batches of its loader workers. ``alternating``: with other programs by repetition; all is one block.
    ``profiled``: number of unmeasured first steps, up to the end of a profiled window: the block PROFILED_PART.
    ``closing``: first step of a window after the measured steps; the block PROFILED_PART then comes last.
    """
    with ExitStack() as unfinished:
        return _write_tables(
            one, made_by, folder_of, rank, unfinished, alternating=alternating, profiled=profiled, closing=closing
        )


def _write_tables(
    one: AttachedProcess,
    made_by: MadeBy,
    folder_of: Callable[[int], Path],
    rank: int,
    unfinished: ExitStack,
    *,
    alternating: bool,
    profiled: int,
    closing: int | None,
) -> list[StepTotals]:
    pid = one.process.pid
    warmup = one.loader_warmup if profiled else one.process.warmup
    steps = one.steps if closing is None else closing
    length = one.steps + 1 if alternating else plan_blocks(steps - profiled, warmup, one.loader_warmup)
    blocks: list[StepTotals] = []
    first = PROFILED_PART if profiled else 0
    tables: RunTables | None = None
    recorder = StepRecorder()
    works = _works(one)
    work = next(works, None)
    running: list[Kernel] = []  # kernels that may still run when the next step begins
    recent: deque[_StepSeen] = deque(maxlen=one.loader_warmup)
    for begun, body, ended, marks in _steps(one.path):
        totals = blocks[-1] if blocks else None
        if totals is not None and profiled and len(blocks) == 1:
            is_complete = totals.begun == profiled
        else:
            is_complete = totals is not None and totals.measured >= length
            is_complete = is_complete and _left(steps, blocks) >= length
        closes = begun[3] == closing
        if tables is None or is_complete or closes:
            if tables is not None:
                recorder.add([(PAUSE, begun[1], begun[2])])
                tables.write()
            recorder = StepRecorder()
            folder = folder_of(PROFILED_PART if closes else first + len(blocks))
            folder.mkdir(parents=True, exist_ok=True)
            tables = RunTables(recorder, folder, pid, one.process.tid, rank)
            unfinished.callback(tables.discard)
            totals = StepTotals(warming_up=0 if blocks else profiled)
            blocks.append(totals)
            for late in recent[0].running if recent else running:
                recorder.device(late)
            for step in recent:
                kind, now, reading, number, _, _ = step.begun
                _record(recorder, tables, step, (kind, now, reading, number, 0, True), made_by)
        assert totals is not None
        step = _StepSeen(begun, body, ended, tuple(running), [])
        while work is not None and (ended is None or work.launch_start_ns < ended[1]):
            step.works.append(work)
            work = next(works, None)
        _record(recorder, tables, step, _counted(step, marks, totals, alternating), made_by)
        running = [late for late in (*running, *step.works) if ended is not None and late.end_ns > ended[1]]
        recent.append(step)
        totals.first_ns = totals.first_ns or begun[1]
        if begun[3] == 0:
            passes = (place for place, event in enumerate(body) if event[0] == ENTER and event[1] in PASSES)
            ahead = body[: next(passes, None)]
            totals.first_fetch_ns = _own_ns(ahead).get("fetch", 0)
            totals.first_ahead, totals.first_batches = _arrived(ahead), _arrived(body)
        totals.last_ns = begun[1] if ended is None else ended[1]
        totals.ended += ended is not None and ended[1] > begun[1]  # else nothing closed it: it only waited for a batch
        if ended is not None and not totals.last_unmeasured:
            _add(totals, begun, body, ended)
            _add_rows(totals, body, made_by)
    if tables is not None:
        tables.write()
    for name in {name for totals in blocks for name in totals.counted}:
        for totals in blocks:
            totals.counted.setdefault(name, StepCount())
    held_shares = _held_shares(blocks)
    for totals in blocks:
        totals.held_shares = held_shares
    return blocks


def _held_shares(blocks: Sequence[StepTotals]) -> dict[int, float]:
    """Return by place the share (0 to 1) of their running time for which other threads held the interpreter lock.

    It is 0 for a thread that computes outside Python. Only :data:`HELD_LOOKS_SHARE` of the looks show a held lock.
    """
    shares = {}
    for place in dict.fromkeys(place for totals in blocks for place in totals.others_ns):
        ran_ns, held_ns = (sum(getattr(totals, name)[place] for totals in blocks) for name in ("others_ns", "held_ns"))
        share = held_ns / max(ran_ns, 1)
        shares[place] = min(1.0, share / HELD_LOOKS_SHARE) if share >= HELD_SHARE_MIN else 0.0
    return shares


class _StepSeen(NamedTuple):
    """One step of the program as read from its file: start event, events, and end event (None: it did not end)."""

    begun: Event
    body: Sequence[Event]
    ended: Event | None
    running: Sequence[Kernel]  # kernels that may have been running at its start
    works: list[Kernel]  # kernels launched in it


def _record(recorder: StepRecorder, tables: RunTables, step: _StepSeen, begun: Event, made_by: MadeBy) -> None:
    """Add ``step`` to recorder and tables of a block. ``begun``: start event with repetition, and measured or not."""
    recorder.add([begun])
    tables.collect()  # between steps: the next step's batches come after this
    recorder.add(list(_ledger_events(step.body, made_by)))
    if any(event[0] == NOT_FINITE for event in step.body):
        recorder.loss(begun[3], math.nan)
    for work in step.works:
        recorder.device(work)
    if step.ended is not None and step.ended[0] == PAUSE:
        recorder.add([step.ended])


def _works(one: AttachedProcess) -> Iterator[Kernel]:
    """Yield the process's device work as kernels, on the host's clock, in launch order; none if clocks are unknown."""
    clocks = one.noted("device_clock")
    if len(clocks) != 2 or one.noted("device_fault"):  # a part is missing, for example in a killed program
        return
    (host_ns, device_ns), (last_host_ns, last_device_ns) = clocks
    # The two clocks drift apart by tens of parts per million.
    scale = (last_host_ns - host_ns) / max(1, last_device_ns - device_ns)
    for portion in events(one.path):
        for event in portion:
            if event[0] == WORK:
                _, name, launch_start, launch_end, start, end = event
                host_times_ns = (host_ns + round((moment - device_ns) * scale) for moment in (start, end))
                yield Kernel(name, launch_start, launch_end, *host_times_ns)


def _left(steps: int, found: Sequence[StepTotals]) -> int:
    return steps - sum(totals.begun for totals in found)


def _steps(path: Path) -> Iterator[tuple[Event, list[Event], Event | None, list[Event]]]:
    """Yield each step as (start event, events until the next start, end event or None, events in MARKS)."""
    begun: Event | None = None
    for portion in events(path):
        last = portion.pop() if portion and portion[-1][0] in (STEP, PAUSE) else None
        body = [event for event in portion if event[0] not in MARKS]
        if begun is not None:
            yield begun, body, last, [event for event in portion if event[0] in MARKS]
        begun = last if last is not None and last[0] == STEP else None
    if begun is not None:
        yield begun, [], None, []


def _counted(step: _StepSeen, marks: Sequence[Event], totals: StepTotals, alternating: bool) -> Event:
    """Return a step's start event with repetition, and True if unmeasured (warm-up, ``marks``); count the step."""
    (kind, now, reading, number, repetition, warmup), ended = step.begun, step.ended
    warming_up = bool(warmup or totals.begun < totals.warming_up)
    evaluated = [event[1] for event in marks if event[0] == EVALUATION]
    totals.evaluated.update(evaluated)
    if not warming_up and evaluated:
        totals.evaluating += 1
        totals.evaluating_ns += 0 if ended is None else ended[1] - now
        for event in step.body:
            if event[0] == SAMPLED and event[1] not in ("backward", HOOKS, HOLDER, "optimizer"):
                totals.evaluated_ns[event[2]] += event[4]
    elif not warming_up and marks:
        totals.interrupted += 1
    unmeasured = warming_up or bool(marks)
    if marks:
        totals.marked.append(number)
    totals.begun += 1
    totals.last_unmeasured = unmeasured
    if not alternating:
        repetition = totals.measured // REPETITION_STEPS
    return kind, now, reading, number, repetition, unmeasured


def _add(totals: StepTotals, begun: Event, body: Sequence[Event], ended: Event) -> None:
    wall_ns = ended[1] - begun[1]
    totals.first_measured = totals.first_measured if totals.measured else begun[3]
    totals.measured += 1
    totals.wall_ns += wall_ns
    for _, name, times in [event for event in body if event[0] == COUNTED]:
        before = totals.counted.get(name, StepCount())
        totals.counted[name] = StepCount(before.times + times, before.steps + 1, before.wall_ns + wall_ns)
    for event in body:
        if event[0] == SAMPLED:
            _, phase, place, waited, ns, looks = event
            totals.sampled_ns[phase, place, waited] += ns
            totals.looks += looks
        elif event[0] == COLLECTED:
            _, times, ns, place = event
            totals.collections[place] += times
            totals.collecting_ns[place] += ns
        elif event[0] == OTHER_RAN:
            totals.others_ns[event[1]] += event[2]
            totals.held_ns[event[1]] += event[3]
        elif event[0] == DEMAND:
            totals.demand_ns = totals.demand_ns[0] + event[1], totals.demand_ns[1] + event[2]
        elif event[0] == MEMORY:
            totals.memory.append((begun[3], *event[1:]))
        elif event[0] == PADDED:
            positions, padded, columns = totals.padding
            totals.padding = positions + event[1], padded + event[2], columns + event[3]
    totals.tokenizing_ns += sum(event[1] for event in body if event[0] == TOKENIZED)
    totals.iterating_ns += sum(event[1] for event in body if event[0] == ITERATED)
    totals.restarting_ns += _restarting(body)
    totals.sampling_ns += sum(_sampling(event) for event in body if event[0] == RECEIVED)
    totals.epoch_ends += sum(event[0] == RECEIVED and _ended(event) for event in body)
    totals.epoch_ends += sum(event[0] == BEGUN_ANEW and event[1] for event in body)
    totals.fetches[_arrived(body)] += 1
    # Without readings: the machine has none, or the thread had ended.
    if not all(boundary[2] and boundary[2][0] for boundary in (begun, ended)):
        totals.lengths.add(wall_ns, body)
        return
    (cpu_then, waited_then), (cpu_now, waited_now) = (_schedstat(boundary[2][0]) for boundary in (begun, ended))
    in_phases_ns, in_phases_cpu_ns = _phases(body)
    waited_ns = waited_now - waited_then
    totals.waiting_ns += min(waited_ns, wall_ns)
    totals.running_ns += cpu_now - cpu_then
    totals.clocked_ns += wall_ns
    totals.lengths.add(wall_ns - min(waited_ns, wall_ns), body)
    off_core_ns = (wall_ns - in_phases_ns) - (cpu_now - cpu_then - in_phases_cpu_ns)  # outside the phases
    # A thread waits for a core in proportion to its CPU time. Whether the wait was within phases is not recorded.
    share = 1 - in_phases_cpu_ns / max(cpu_now - cpu_then, 1)
    waited_outside_ns = max(waited_ns - max(0, in_phases_ns - in_phases_cpu_ns), round(share * waited_ns))
    totals.unseen_blocked_ns += max(0, min(off_core_ns - waited_outside_ns, wall_ns - in_phases_ns))


def _add_rows(totals: StepTotals, body: Sequence[Event], made_by: MadeBy) -> None:
    """Add to ``totals`` the number of rows in the step's batches, and the CPU time of reading and packing them."""
    for _, (role, pid, _, number, pieces), _, items, _ in (
        event for event in body if event[0] == RECEIVED and event[1]
    ):
        made = made_by.get(pid, ())
        if role != MAIN:
            _, pieces, items = made[number] if 0 <= number < len(made) else (0, (), 0)
        if pieces and items:
            totals.rows += items
            totals.making_cpu_ns += sum(cpu_ns for name, _, _, cpu_ns in pieces if name in ROW_STAGES)


def _sampling(received: Event) -> int:
    trace = received[1]
    if trace is None:
        return 0
    return sum(end_ns - start_ns for name, start_ns, end_ns, _ in trace[4] if name == SAMPLE)


def _restarting(body: Sequence[Event]) -> int:
    """Return the ns of waits in which an epoch ended, plus those for the first batch after a loader restart."""
    total_ns = begun_ns = wait_ns = 0
    restarts = False  # True if the last wait ended an epoch, or a loader restarted
    for event in body:
        if event[0] == ENTER and event[1] == "fetch":
            begun_ns = event[2]
        elif event[0] == EXIT and event[1] == "fetch":
            wait_ns = event[2] - begun_ns
        elif event[0] == BEGUN_ANEW:
            restarts = True
        elif event[0] == RECEIVED:
            ended = _ended(event)
            total_ns += wait_ns if ended or restarts else 0
            restarts = ended
    return total_ns


def _schedstat(line: bytes) -> tuple[int, int]:
    """Return (ns on a core, ns runnable without) of a line of schedstat (Linux, sched-stats.rst)."""
    on_core, waited, *_ = line.split()
    return int(on_core), int(waited)


def _own_ns(body: Sequence[Event]) -> dict[str, int]:
    """Return the wall time in ns of each phase in a step, without the time of phases inside it."""
    phases_ns: dict[str, int] = {}
    around: list[list[int]] = []  # start of each open phase, and the time of its inner phases
    for event in body:
        if event[0] == ENTER:
            around.append([event[2], 0])
        elif event[0] == EXIT and around:
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
        if event[0] == ENTER:
            if depth == 0:
                since = event[2], event[3]
            depth += 1
        elif event[0] == EXIT and depth:
            depth -= 1
            if depth == 0:
                wall_ns += event[2] - since[0]
                cpu_ns += event[3] - since[1]
    return wall_ns, cpu_ns


def _ledger_events(body: Sequence[Event], made_by: MadeBy) -> Iterator[Event]:
    """Yield the ledger's events, batches with the stages of their making and counts without padding."""
    padded: Event | None = None  # padding of the next batch, if every batch is counted
    for event in body:
        if event[0] == PADDED:
            padded = event if event[4] else None
        elif event[0] == RECEIVED:
            yield _with_maker(event, made_by, padded)
            padded = None
        elif event[0] not in OWN_KINDS:
            yield event


def _with_maker(event: Event, made_by: MadeBy, padded: Event | None) -> Event:
    """Return the ledger's event of a batch: (kind, trace with stages, tokens, tokens without padding, samples).

    None: the batch does not show it; 0 tokens and samples: the data ended. ``padded``: None if padding was not counted.
    """
    kind, trace, tokens, _, samples = event
    if _ended(event):
        return kind, BatchTrace(trace[1], trace[2], MAIN, -1, _stages(trace[4])), 0, None, 0
    trained = tokens - padded[2] if padded is not None and padded[1] == tokens else None
    return kind, None if trace is None else _trace(trace, made_by), tokens or None, trained, samples or None


def _stages(pieces: Sequence[Any]) -> tuple[RawSpan, ...]:
    return tuple((READ if name == SAMPLE else name, *rest) for name, *rest in pieces)


def _arrived(body: Sequence[Event]) -> int:
    """Return the number of batches that arrived among the step's events."""
    return sum(event[0] == RECEIVED and not _ended(event) for event in body)


def _ended(received: Event) -> bool:
    trace = received[1]
    return trace is not None and trace[3] == ENDED


def _trace(trace: Sequence[Any], made_by: MadeBy) -> BatchTrace | None:
    role, pid, tid, number, pieces = trace
    if role == MAIN:
        return BatchTrace(pid, tid, MAIN, number, _stages(pieces))
    made = made_by.get(pid, ())
    if not 0 <= number < len(made):
        return None
    return BatchTrace(pid, tid, role, number, made[number].pieces, _stages(pieces))
