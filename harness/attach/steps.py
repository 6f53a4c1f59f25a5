"""Write the contract's tables from the events of one attached process, block by block."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from harness.attach.agent import events as kinds
from harness.attach.frames import AttachedProcess, Segment, events
from harness.attach.totals import SAMPLE, Event, StepTotals, WorkerBatches, complete, data_ended
from harness.launch.tables import RunTables
from harness.probes.ledger.recorders import StepRecorder
from harness.probes.ledger.rows import MAIN
from trainer.telemetry import BatchTrace, Kernel, RawSpan

READ = "read"  # the stage as which the sampler's counts
LEAST_STEPS, MOST_BLOCKS = 10, 10  # minimum steps of a block, maximum blocks of a run
PROFILED_PART = -1  # block number of the steps up to the end of a profiled window, or of a closing window


class StepSeen(NamedTuple):
    """One step of a program: its STEP event, the events within it, and the event that ended it."""

    begun: Event
    body: Sequence[Event]  # without excluding events
    ended: Event | None  # start of the next step, or pause; None: it did not end
    excluding: Sequence[Event]  # events in EXCLUDING
    running: Sequence[Kernel] = ()  # kernels that may have been running at its start
    works: Sequence[Kernel] = ()  # kernels launched in it

    @property
    def number(self) -> int:
        return int(self.begun[3])

    @property
    def end_ns(self) -> float:
        return math.inf if self.ended is None else self.ended[1]


class BlockPlan(NamedTuple):
    """Division of a process's steps into blocks: steps in a profiling window, and if the rest is one block."""

    alternating: bool = False  # True if the program takes turns with others: all is one block
    profiled: int = 0  # unmeasured first steps, up to the end of a profiled window: the block PROFILED_PART
    closing: int | None = None  # first step of a window after the measured steps: the block PROFILED_PART, the last one


def plan_blocks(steps: int, warmup: int, loader_warmup: int) -> int:
    """Return the measured steps per block, for MOST_BLOCKS blocks; at least LEAST_STEPS and 2 x ``loader_warmup``."""
    return max(LEAST_STEPS, 2 * loader_warmup, -(-max(steps - warmup, 1) // MOST_BLOCKS))


def write_tables(
    process: AttachedProcess,
    made_by: WorkerBatches,
    folder_of: Callable[[int], Path],
    plan: BlockPlan = BlockPlan(),  # noqa: B008 - immutable
) -> list[StepTotals]:
    """Write the tables of ``process`` block by block into ``folder_of(block)``; return the totals of each.

    Every step after the warm-up is measured in one block. A block begins with the last steps before it, as warm-up: its
    first batches were made then. It also ends where files were deleted. An error leaves no partial tables.
    """
    with ExitStack() as unfinished:
        blocks = _Blocks(process, made_by, folder_of, plan, unfinished)
        for number, stretch in enumerate(blocks.stretches):
            blocks.begin_stretch(stretch)
            steps = steps_of(events(segment.path for segment in stretch))
            for step in _with_works(steps, _works(process, stretch)):
                if step.ended is not None or number == len(blocks.stretches) - 1:  # else it ended in a deleted segment
                    blocks.add(step)
        return blocks.finish()


class _Blocks:
    """Blocks of one process. Each has a recorder, whose tables are written when the next block begins."""

    def __init__(
        self,
        process: AttachedProcess,
        made_by: WorkerBatches,
        folder_of: Callable[[int], Path],
        plan: BlockPlan,
        unfinished: ExitStack,
    ) -> None:
        self._process, self._made_by, self._folder_of = process, made_by, folder_of
        self._plan, self._unfinished = plan, unfinished
        warmup = process.loader_warmup if plan.profiled else process.process.warmup
        least = process.loader_warmup + LEAST_STEPS
        *others, last = process.stretches
        others = [stretch for stretch in others if stretch[0].number == 0 or _steps_in(stretch) > least]
        self.stretches = [*others, last]
        steps = sum(map(_steps_in, self.stretches))
        if plan.closing is not None:
            steps -= process.steps - plan.closing
        self._length = plan_blocks(steps - plan.profiled, warmup, process.loader_warmup)
        self._left = 0  # steps of the stretch that are not added yet
        self._blocks: list[StepTotals] = []
        self._recorder = StepRecorder()
        self._tables: RunTables | None = None
        self._recent: deque[StepSeen] = deque(maxlen=process.loader_warmup)

    def begin_stretch(self, stretch: Sequence[Segment]) -> None:
        """End the open block, if any. ``stretch``: consecutive files whose steps come next, after deleted files."""
        self._left = _steps_in(stretch)
        if stretch is self.stretches[-1] and self._plan.closing is not None:
            self._left -= self._process.steps - self._plan.closing
        if self._tables is not None:
            self._end_block(self._recent[-1].ended)
            self._recent.clear()

    def add(self, step: StepSeen) -> None:
        """Add the program's next step, to a new block if the last one is complete."""
        closes = step.number == self._plan.closing
        if self._tables is None or closes or self._is_complete(self._blocks[-1]):
            self._begin_block(step, closes)
        self._left -= 1
        tables, totals = self._tables, self._blocks[-1]
        assert tables is not None
        begun = totals.begin(step.begun, step.body, step.ended, step.excluding, self._plan.alternating)
        self._record(tables, step, begun)
        self._recent.append(step)
        totals.first_ns = totals.first_ns or step.begun[1]
        if step.number == 0:
            totals.first.add(step.body)
        if step.ended is None:
            totals.last_ns = step.begun[1]
            return
        totals.last_ns = step.ended[1]
        totals.ended += step.ended[1] > step.begun[1]  # else nothing closed it: it only waited for a batch
        if not totals.last_unmeasured:
            totals.measure(step.begun, step.body, step.ended, self._made_by)

    def finish(self) -> list[StepTotals]:
        """Write the last block's tables (steps, spans), and return the totals of all blocks."""
        if self._tables is not None:
            self._tables.write()
        complete(self._blocks)
        return self._blocks

    def _is_complete(self, totals: StepTotals) -> bool:
        if self._plan.alternating:
            return False
        if self._plan.profiled and len(self._blocks) == 1:
            return totals.begun == self._plan.profiled
        return totals.measured >= self._length and self._left >= self._length

    def _end_block(self, end: Event | None) -> None:
        """Write the last block's tables. ``end``: event that ends its last step."""
        assert end is not None
        assert self._tables is not None
        self._recorder.add([(kinds.PAUSE, end[1], end[2])])
        self._tables.write()
        self._tables = None

    def _begin_block(self, step: StepSeen, closes: bool) -> None:
        """Write the last block's tables and begin a block. ``closes``: it is the closing profiling window."""
        follows_gap = not self._recent and (bool(self._blocks) or self.stretches[0][0].number > 0)
        if self._tables is not None:
            self._end_block(step.begun)
        first = PROFILED_PART if self._plan.profiled else 0
        folder = self._folder_of(PROFILED_PART if closes else first + len(self._blocks))
        folder.mkdir(parents=True, exist_ok=True)
        facts = self._process.process
        self._recorder = StepRecorder()
        self._tables = RunTables(self._recorder, folder, facts.pid, facts.tid, facts.rank or 0)
        self._unfinished.callback(self._tables.discard)
        unmeasured = self._process.loader_warmup if follows_gap else 0 if self._blocks else self._plan.profiled
        self._blocks.append(StepTotals(warming_up=unmeasured))
        for late in self._recent[0].running if self._recent else step.running:
            self._recorder.device(late)
        for earlier in self._recent:
            kind, now, reading, number, _, _ = earlier.begun
            self._record(self._tables, earlier, (kind, now, reading, number, 0, True))

    def _record(self, tables: RunTables, step: StepSeen, begun: Event) -> None:
        """Add ``step`` to the block's tables. ``begun``: STEP event; last items: repetition, True if not measured."""
        recorder = self._recorder
        recorder.add([begun])
        tables.collect()  # between steps: the next step's batches come after this
        recorder.add(list(_ledger_events(step.body, self._made_by)))
        if any(event[0] == kinds.NOT_FINITE for event in step.body):
            recorder.loss(begun[3], math.nan)
        for work in step.works:
            recorder.device(work)
        if step.ended is not None and step.ended[0] == kinds.PAUSE:
            recorder.add([step.ended])


def _steps_in(stretch: Sequence[Segment]) -> int:
    return sum(segment.steps for segment in stretch)


def steps_of(portions: Iterable[list[Event]], begun: Event | None = None) -> Iterator[StepSeen]:
    """Yield each step of ``portions`` (see :func:`events`). ``begun``: STEP event that is open before them."""
    for portion in portions:
        last = portion.pop() if portion and portion[-1][0] in (kinds.STEP, kinds.PAUSE) else None
        if begun is not None:
            body = [event for event in portion if event[0] not in kinds.EXCLUDING]
            yield StepSeen(begun, body, last, [event for event in portion if event[0] in kinds.EXCLUDING])
        begun = last if last is not None and last[0] == kinds.STEP else None
    if begun is not None:
        yield StepSeen(begun, [], None, [])


def _with_works(steps: Iterator[StepSeen], works: Iterator[Kernel]) -> Iterator[StepSeen]:
    """Yield ``steps``, each with the kernels launched in it, and those launched earlier that may run when it begins."""
    running: list[Kernel] = []
    work = next(works, None)
    for step in steps:
        launched = []
        while work is not None and work.launch_start_ns < step.end_ns:
            launched.append(work)
            work = next(works, None)
        yield step._replace(running=tuple(running), works=launched)
        running = [late for late in (*running, *launched) if late.end_ns > step.end_ns]


def _works(process: AttachedProcess, stretch: Sequence[Segment]) -> Iterator[Kernel]:
    """Yield the device work in ``stretch`` as kernels in launch order, on the host's clock; none if it is unknown."""
    clocks = process.noted("device_clock")
    if len(clocks) != 2 or process.noted("device_fault"):  # a part is missing, for example in a killed program
        return
    (host_ns, device_ns), (last_host_ns, last_device_ns) = clocks
    # The two clocks drift apart by tens of parts per million.
    scale = (last_host_ns - host_ns) / max(1, last_device_ns - device_ns)
    for portion in events(segment.path for segment in stretch):
        for event in portion:
            if event[0] == kinds.DEVICE_WORK:
                _, name, launch_start, launch_end, start, end = event
                host_times_ns = (host_ns + round((moment - device_ns) * scale) for moment in (start, end))
                yield Kernel(name, launch_start, launch_end, *host_times_ns)


def _ledger_events(body: Sequence[Event], made_by: WorkerBatches) -> Iterator[Event]:
    """Yield the ledger's events of a step. RECEIVED events get the worker's stages and the tokens without padding."""
    padded: Event | None = None  # padding of the next batch, if every batch is counted
    for event in body:
        if event[0] == kinds.PADDED:
            padded = event if event[4] else None
        elif event[0] == kinds.RECEIVED:
            yield _with_maker(event, made_by, padded)
            padded = None
        elif event[0] not in kinds.OWN:
            yield event


def _with_maker(event: Event, made_by: WorkerBatches, padded: Event | None) -> Event:
    """Return the ledger's event of a batch: (kind, trace with stages, tokens, tokens without padding, samples).

    An element is None if unknown; 0 at the end of an epoch. ``padded``: its PADDED event, if counted.
    """
    kind, trace, tokens, _, samples = event
    if data_ended(event):
        return kind, BatchTrace(trace[1], trace[2], MAIN, -1, _stages(trace[4])), 0, None, 0
    trained = tokens - padded[2] if padded is not None and padded[1] == tokens else None
    return kind, None if trace is None else _trace(trace, made_by), tokens or None, trained, samples or None


def _stages(pieces: Sequence[Any]) -> tuple[RawSpan, ...]:
    return tuple((READ if name == SAMPLE else name, *rest) for name, *rest in pieces)


def _trace(trace: Sequence[Any], made_by: WorkerBatches) -> BatchTrace | None:
    role, pid, tid, number, pieces = trace
    if role == MAIN:
        return BatchTrace(pid, tid, MAIN, number, _stages(pieces))
    made = made_by.get(pid, {}).get(number)
    return None if made is None else BatchTrace(pid, tid, role, number, made.pieces, _stages(pieces))
