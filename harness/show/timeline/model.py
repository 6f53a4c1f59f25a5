"""Models a timeline independently of file formats: processes, threads, slices, counters and arrows.

All times are nanoseconds of CLOCK_MONOTONIC. Two rules of Perfetto's importer shape this file:

- It drops slices of a thread that overlap without nesting, so ``nested`` clips them.
- It binds an arrow to the slice of its thread that started last, even if that slice has ended. So ``Resolved.place``
  looks for a moment at which the right slice is the last.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict

from harness.explain.probes.samples import process_roles
from harness.judge.controls import is_probe_control
from harness.judge.cost import BUDGET_SCHEMA, COST, PredictedCost
from harness.judge.probes.results import ProfiledRun
from harness.study.contract import PROFILED
from harness.study.records import StudyRecord, read_record
from harness.study.run_data import History, ProbesRecord, RunData, read_history
from harness.study.store import StudyFolder
from trainer.errors import InputError, visible
from trainer.json_types import JsonObject

if TYPE_CHECKING:
    import pyarrow as pa

Edge = Literal["start", "end"]


class Slice(NamedTuple):
    """One activity on one thread; times are of CLOCK_MONOTONIC."""

    name: str
    start_ns: int
    end_ns: int
    category: str  # groups slices in Perfetto
    args: JsonObject | None = None
    key: Hashable = None  # identifies the slice for arrows; unique within the trace


@dataclass
class Thread:
    """One row of slices in the viewer: a thread, a stream of a device, or what a probe recorded of either."""

    name: str
    slices: list[Slice] = field(default_factory=list)


@dataclass
class Counter:
    """A quantity over time. Each of its ``points`` (t_ns, value) holds until the next one."""

    name: str
    unit: str
    points: list[tuple[int, float]] = field(default_factory=list)


@dataclass
class Process:
    """Rows that the viewer shows together, in the order of ``threads``. It may also stand for a device or a machine."""

    name: str
    threads: list[Thread] = field(default_factory=list)
    counters: list[Counter] = field(default_factory=list)

    def thread(self, name: str) -> Thread:
        """Return the thread named ``name``. The first call creates it."""
        for thread in self.threads:
            if thread.name == name:
                return thread
        self.threads.append(Thread(name))
        return self.threads[-1]


class Arrow(NamedTuple):
    """Arrow from the sender to the start of the receiver, which must not start earlier: Perfetto would reverse it."""

    name: str
    sender: Hashable  # key of a slice, as ``receiver``
    receiver: Hashable
    edge: Edge  # start or end of the sender


@dataclass(frozen=True)
class ShownRun:
    """Metadata of one run on the timeline: its arm, block and process id, and which of its steps are shown."""

    arm: str
    block: int
    pid: int
    steps: int
    first_step: int | None
    realtime_minus_monotonic_ns: int
    clock_error_ns: Mapping[str, int]  # nanoseconds, by probe with its own clock


@dataclass(frozen=True)
class TimelineFacts:
    """Metadata of a timeline, which both file formats store."""

    scenario: str = ""
    clock: str = ""  # in words
    runs: tuple[ShownRun, ...] = ()
    cut: tuple[str, ...] = ()  # omissions, a sentence each


@dataclass
class Trace:
    """A whole timeline before ids are assigned. :func:`resolve` makes the form that is written."""

    processes: list[Process] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    facts: TimelineFacts = field(default_factory=TimelineFacts)


class Nested(NamedTuple):
    """A slice as it is shown, and the start (ns) of the first slice inside it; None without one."""

    slice: Slice
    first_child_ns: int | None


class CounterPoint(NamedTuple):
    """One end of an arrow (not a point of a :class:`Counter`): a moment (ns) on a thread."""

    pid: int
    tid: int
    t_ns: int


class Bound(NamedTuple):
    """An arrow with the moments of its two ends, made by :func:`resolve`."""

    arrow: Arrow
    sender: CounterPoint
    receiver: CounterPoint


@dataclass(frozen=True)
class TimelineRow:
    """A thread with the ids and the slices that are written. Slices are nested and sorted, outer before inner."""

    pid: int
    tid: int
    name: str
    slices: list[Nested]


@dataclass(frozen=True)
class Resolved:
    """A timeline ready to be written: ids are assigned, and Perfetto refuses nothing in it."""

    base_ns: int  # the earliest moment: time 0 of the file
    processes: list[tuple[int, Process]]
    rows: list[TimelineRow]
    arrows: list[Bound]
    facts: TimelineFacts

    @property
    def events(self) -> int:
        """Number of events that the timeline has in Chrome's format."""
        slices = sum(len(row.slices) for row in self.rows)
        points = sum(len(counter.points) for _, process in self.processes for counter in process.counters)
        return slices + points + 2 * (len(self.arrows) + len(self.processes) + len(self.rows))


def resolve(trace: Trace) -> Resolved:
    """Assign ids in order, nest the slices, and place the ends of arrows; arrows without both ends are omitted."""
    number = 1
    processes, rows, places = [], [], {}
    starts = [point[0] for process in trace.processes for counter in process.counters for point in counter.points[:1]]
    for process in trace.processes:
        pid = number
        counters = [
            replace(counter, name=visible(counter.name), unit=visible(counter.unit)) for counter in process.counters
        ]
        processes.append((pid, replace(process, name=visible(process.name), counters=counters)))
        for thread in process.threads:
            row = TimelineRow(pid, number, visible(thread.name), nested(map(_shown, thread.slices)))
            rows.append(row)
            starts += [row.slices[0].slice.start_ns] if row.slices else []
            places.update({shown.slice.key: (row, shown) for shown in row.slices if shown.slice.key is not None})
            number += 1
        number = max(number, pid + 1)
    arrows = []
    for arrow in trace.arrows:
        if arrow.sender not in places or arrow.receiver not in places:
            continue
        sender, receiver = _place(*places[arrow.sender], arrow.edge), _place(*places[arrow.receiver], "start")
        if sender is not None and receiver is not None and sender.t_ns <= receiver.t_ns:
            arrows.append(Bound(arrow, sender, receiver))
    return Resolved(min(starts, default=0), processes, rows, arrows, trace.facts)


def _shown(one: Slice) -> Slice:
    """Return the slice with unprintable characters of its names made visible: a profile may contain any text."""
    args = one.args
    if args is not None and not all(not isinstance(value, str) or value.isprintable() for value in args.values()):
        args = {key: visible(value) if isinstance(value, str) else value for key, value in args.items()}
        one = one._replace(args=args)
    if one.name.isprintable() and one.category.isprintable():
        return one
    return one._replace(name=visible(one.name), category=visible(one.category))


def _place(row: TimelineRow, one: Nested, edge: Edge) -> CounterPoint | None:
    """Return where an arrow binds to the slice ``one`` (the last that started); None if an inner one starts with it."""
    since, until = one.slice.start_ns, one.slice.end_ns
    if one.first_child_ns is None:
        return CounterPoint(row.pid, row.tid, since if edge == "start" else until - 1)  # the end itself is outside
    return CounterPoint(row.pid, row.tid, since) if one.first_child_ns > since else None


def nested(slices: Iterable[Slice]) -> list[Nested]:
    """Sort the slices of one thread and cut each at the end of the slice around it. Empty slices are omitted."""
    result: list[Slice] = []
    first_child: list[int | None] = []
    enclosing: list[int] = []
    for item in sorted(slices, key=lambda entry: (entry.start_ns, -entry.end_ns)):
        while enclosing and result[enclosing[-1]].end_ns <= item.start_ns:
            enclosing.pop()
        end = min(item.end_ns, result[enclosing[-1]].end_ns) if enclosing else item.end_ns
        if end <= item.start_ns:
            continue
        if enclosing and first_child[enclosing[-1]] is None:
            first_child[enclosing[-1]] = item.start_ns
        enclosing.append(len(result))
        result.append(item if end == item.end_ns else item._replace(end_ns=end))
        first_child.append(None)
    return [Nested(*pair) for pair in zip(result, first_child, strict=True)]


class ShownStep(TypedDict):
    """One row of the steps table, with the columns that the timeline reads."""

    step: int
    turn: int
    warmup: bool
    start_ns: int
    wall_ns: int
    tokens: int | None
    trained_tokens: int | None
    samples: int | None
    loss: float | None


class ShownSpan(TypedDict):
    """One row of the spans table, with the columns that the timeline reads."""

    tid: int
    role: str
    name: str
    batch: int | None
    start_ns: int
    end_ns: int


Range = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """Steps of a run that the timeline shows."""

    run: RunData
    sources: Sources
    steps: list[ShownStep]
    ranges: list[Range]  # their times: sorted, disjoint [since, until) in ns of CLOCK_MONOTONIC
    spans: list[ShownSpan]  # spans that overlap the ranges, and workers' spans of the batches received in them

    @property
    def name(self) -> str:
        return self.run.record.arm

    @property
    def extent(self) -> Range:
        """Start of the first and end of the last of ``ranges`` (ns). Counters are shown between the ranges, too."""
        return self.ranges[0][0], self.ranges[-1][1]

    @property
    def main_threads(self) -> dict[str, int]:
        """{role: thread id in the operating system} of the main thread of each process of the run."""
        return {row["role"]: row["tid"] for row in reversed(self.spans)}


def choose(study: StudyRecord, runs: Iterable[RunData]) -> list[RunData]:
    """Return for each arm its first finished run that has steps, and its profiled run, in the order of the arms."""
    order = {arm.name: index for index, arm in enumerate(study.arms)}
    chosen: dict[tuple[str, bool], RunData] = {}
    for run in sorted(runs, key=lambda run: run.record.block):
        record = run.record
        profiled = record.control == PROFILED
        if record.status == "done" and (profiled or not record.control) and run.step_count:
            chosen.setdefault(((record.of or record.arm) if profiled else record.arm, profiled), run)
    return [chosen[key] for key in sorted(chosen, key=lambda key: (order.get(key[0], len(order)), *key))]


def last_steps(run: RunData, sources: Sources, count: int | None) -> Window:
    """Return the last ``count`` steps of the run's last repetition; None: all steps of the run.

    A profiled run gives the last ``count`` steps of each profiler window. If the profiler ran after the measured steps,
    the last measured ones are shown too. Repetitions of interleaved runs are seconds apart, so only one is shown.
    """
    if count is not None and sources.probes.torch_profiler is None and sources.probes.py_spy is None:
        table = _last_repetition(run)
        table = table.slice(max(0, len(table) - count))
    else:
        all_steps = run.steps
        assert all_steps is not None
        table = all_steps
    rows: list[ShownStep] = table.to_pylist()
    parts = _parts(rows, sources.probes) if count is not None else []
    if parts and run.record.control != PROFILED:
        measured = [row for row in rows if not row["warmup"]]
        parts = [_repetition(measured), *parts] if measured else parts
    pieces = [part[-count:] for part in parts or [_repetition(rows)]] if count is not None else [rows]
    steps = {row["start_ns"]: row for part in pieces for row in part}
    ranges = merged((part[0]["start_ns"], _end(part[-1])) for part in pieces if part)
    return Window(run, sources, [steps[start] for start in sorted(steps)], ranges, _spans(run, ranges))


def _repetition(rows: Sequence[ShownStep]) -> list[ShownStep]:
    return [row for row in rows if row["turn"] == rows[-1]["turn"]]


def _last_repetition(run: RunData) -> pa.Table:
    import pyarrow.compute as pc

    repetitions = run.step_columns(["turn"])
    assert repetitions is not None
    last = repetitions["turn"][len(repetitions) - 1]
    steps = run.steps_where(pc.field("turn") == last) if last.is_valid else run.steps
    assert steps is not None
    return steps


def _parts(rows: Sequence[ShownStep], probes: ProbesRecord) -> list[list[ShownStep]]:
    """Return the steps in each window of torch.profiler, then of py-spy. Windows without a step are omitted."""
    windows = [] if probes.torch_profiler is None else [(entry[0], entry[1]) for entry in probes.torch_profiler.windows]
    windows += [] if probes.py_spy is None else [probes.py_spy.window]
    # The step before a window ends a little after the window's beginning. A step belongs where most of it lies.
    parts = [[row for row in rows if since <= (row["start_ns"] + _end(row)) // 2 < until] for since, until in windows]
    return [part for part in parts if part]


def _end(row: ShownStep) -> int:
    return int(row["start_ns"] + row["wall_ns"])


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return the union of ``ranges`` as sorted, disjoint ranges."""
    result: list[Range] = []
    for since, until in sorted(ranges):
        if result and since <= result[-1][1]:
            result[-1] = (result[-1][0], max(until, result[-1][1]))
        else:
            result.append((since, until))
    return result


def _spans(run: RunData, ranges: Sequence[Range]) -> list[ShownSpan]:
    """Return the spans in ``ranges`` (ns), and workers' spans of the batches fetched there; none without a role."""
    if not run.has_spans or not ranges:
        return []
    import pyarrow.compute as pc

    in_range = pc.scalar(False)
    for since, until in ranges:
        in_range = in_range | ((pc.field("end_ns") > since) & (pc.field("start_ns") < until))
    fetches = run.spans_where(in_range & (pc.field("role") == "main") & (pc.field("name") == "fetch"))
    assert fetches is not None, "there are spans"
    received = [batch for batch in fetches["batch"].to_pylist() if batch is not None and batch >= 0]
    if received:
        batch, worker = pc.field("batch"), pc.starts_with(pc.field("role"), "loader-")
        in_range = in_range | (worker & (batch >= min(received)) & (batch <= max(received)) & batch.isin(received))
    shown = run.spans_where(in_range & pc.field("role").is_valid())
    assert shown is not None, "there are spans"
    rows: list[ShownSpan] = shown.to_pylist()
    return rows


STACKS = "stacks.trace.json.gz"
FILE = "file"  # column: the profile that a row comes from


@dataclass(frozen=True)
class Sources:
    """Data that the probes recorded in a run; a table is None if its probe did not run."""

    operators: pa.Table | None = None  # harness.study.traces.kineto: one table, or several with a column FILE
    stacks: pa.Table | None = None  # harness.study.traces.py_spy
    probes: ProbesRecord = field(default_factory=ProbesRecord)
    problems: Sequence[str] = ()  # a line for each file that could not be read
    profiles: Sequence[pa.Table] = ()  # the parts of ``operators``; each counts its ids from the start


NO_SOURCES = Sources()


def read_sources(run: RunData) -> Sources:
    """Read profiles and stack samples of a run; a file that cannot be read becomes a line of ``problems``."""
    if run.folder is None:
        return NO_SOURCES
    import pyarrow as pa

    from harness.study.traces.py_spy import read_stacks

    facts = run.probes.py_spy
    tables, problems = run.profiles()
    stacks = None
    if facts is not None and (run.folder / STACKS).exists():
        try:
            stacks = read_stacks(run.folder / STACKS, facts, roles(run))
        except InputError as error:
            problems.append(str(error))
    numbered = [table.append_column(FILE, pa.array([i] * len(table), pa.int64())) for i, table in enumerate(tables)]
    return Sources(pa.concat_tables(numbered) if numbered else None, stacks, run.probes, tuple(problems), tables)


def roles(run: RunData) -> dict[int, str]:
    """Return {process id: role} (main, loader-K) of the run's processes."""
    return process_roles(run.span_batches(["pid", "role"]))


@dataclass(frozen=True)
class RecordedFiles:
    """Profiles, stacks and costs of a study."""

    profiled: Sequence[ProfiledRun] = ()
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)  # each profiled arm's files, relative to report
    sources: Mapping[tuple[str, int], Sources] = field(default_factory=dict)  # for the timeline, by arm and block
    problems: Sequence[str] = ()  # files that could not be read, a line each
    cost: PredictedCost | None = None  # prediction and expense, if there was a budget
    history: History | None = None  # of a long program


NO_FILES = RecordedFiles()


def read_recorded(study: StudyFolder, runs: Sequence[RunData]) -> RecordedFiles:
    """Read the profiles and stacks of ``runs``, and the study's cost.json; an unreadable file becomes a problem."""
    profiled: list[ProfiledRun] = []
    names: dict[str, Sequence[str]] = {}
    by_run: dict[tuple[str, int], Sources] = {}
    problems: list[str] = []
    for run in runs:
        closing = run.probes.torch_profiler is not None  # after the measured steps of this run
        if run.folder is None or not (closing or is_probe_control(run.record.control)):
            continue
        sources = read_sources(run)
        profiler = run.probes.torch_profiler
        windows = () if profiler is None else profiler.windows
        if sources.operators is None and sources.stacks is None and not sources.problems and not windows:
            continue
        profiled.append(ProfiledRun(run, sources.profiles, sources.stacks))
        by_run[run.record.arm, run.record.block] = sources
        names[profiled[-1].arm] = [str(path.relative_to(study.path)) for path in sorted(run.folder.iterdir())]
        problems.extend(sources.problems)
    cost = None
    try:
        cost = read_record(study.path / COST, PredictedCost, BUDGET_SCHEMA)
    except InputError as error:
        problems.append(str(error))
    history = None
    try:
        history = read_history(study.path)
    except InputError as error:
        problems.append(str(error))
    return RecordedFiles(profiled, names, by_run, problems, cost, history)
