"""Converts the tables of one run to the input of a replay: durations of batches and programs of steps."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from harness.explain import policy
from harness.explain.bounds import DeviceWork, Reading, device_work, kernel_times_of
from harness.explain.lead_use import makers_of
from harness.explain.replay.batches import (
    DATALOADER,
    RING,
    FetchWait,
    RecordedBatches,
    StageRow,
    Transport,
    Unpacking,
    batches,
)
from harness.explain.replay.programs import Event, Launch, Phase, StepClass, Sync, classes
from harness.explain.spans import (
    FETCH,
    NOT_MEASURED,
    RunSpans,
    Spans,
    Stretches,
    bounds,
    held_up,
    loader_workers,
    spans_of,
)
from harness.scenario.overrides import lookup, lookup_number
from harness.study.contract import AWAITED, PHASES
from harness.study.run_data import Result, RunData
from trainer.errors import InputError
from trainer.json_types import JsonObject

if TYPE_CHECKING:
    import pyarrow as pa

ReplayGap = Literal[
    "no run",
    "no tables",
    "ranks",
    "no times",
    "no measured step",
    "damaged spans",
    "no fetch",
    "too far ahead",
    "no shared block",
]


class ReplayError(InputError):
    """Raised for a run that cannot be replayed. ``gap``: what its record lacks, or which limit an edit exceeds."""

    def __init__(self, gap: ReplayGap, line: str) -> None:
        super().__init__(line)
        self.gap = gap


Array = NDArray[np.float64]
# Assumptions about what a recording does not show: the device's work (``bounds``), and costs. AT_ONCE and LONGEST are
# the least and the most that handing a batch over may take. Receiving a ready batch costs the main thread nothing, or
# the whole hand-over. If no batch was ready to show it, replay assigns most of the hand-over to the main thread
# (``batches``). A hand-over that was never waited for takes nothing beyond receiving, or HANDOVER_TIMES_MAX times the
# assumed cost, within the recorded order.
AT_ONCE, LONGEST = "handed over at once", "handed over slowly"
READINGS: tuple[str, ...] = (*get_args(Reading), AT_ONCE, LONGEST)
ONE_STEP_BEHIND = "device one step behind"  # call site in the harness, where measured steps begin or end
STEP_BEFORE = "values of the step before"  # call site in the trainer that reads values late (compute.sync: late)
FULL_QUEUE = "full queue"  # call site in the emulated device that waits for a place in the queue


class Resume(NamedTuple):
    """State of the loader when the loop resumed after a pause. The device was idle by then."""

    repetition: bool  # True: a repetition begins. False: the loop only paused for a moment
    worked_ns: float  # progress of each builder during the pause, ns
    ends_ns: Array  # (batches in flight,) recorded build time of the next batches, relative to the step's start


@dataclass(frozen=True)
class Recording:
    """One run, ready to be replayed, by :func:`record`. Arrays over steps are (steps,), in execution order; in ns."""

    name: str  # arm and block, for messages
    block: int
    batches: RecordedBatches
    classes: tuple[StepClass, ...]  # steps with the same sequence of events
    step_class: NDArray[np.int64]  # (steps,) index into classes
    measured: NDArray[np.bool_]  # (steps,) True if not a warm-up step
    resumes: Mapping[int, Resume]  # by each step after a pause of the loop, and the first step
    # By each step after a step with other work than training: extra host time of that earlier step over usual steps.
    # That step's own durations include the time. A program with durations of other steps lacks it.
    held_up_ns: Mapping[int, float]
    held_up: bool  # any step had other work than training
    wall_ns: Array
    workers: int
    prefetch: int
    batch_size: int
    threads: int  # threads that compute on the host side by side; 1 on an asynchronous device
    cores: int
    asynchronous: bool  # the device is asynchronous and its work was recorded
    # Classes of the steps under each other reading of the device's work. Empty if they hardly differ.
    other_classes: Mapping[Reading, tuple[tuple[StepClass, ...], NDArray[np.int64]]]
    busy_not_known: tuple[str, ...]  # names of work whose device time is unknown
    behind_full_queue: frozenset[str]  # names of work that may have waited in a queue that reports nothing
    device_not_recorded: bool  # the device is asynchronous but its work was not recorded
    emulated: bool
    queue_depth: int | None  # pieces of work that fit into the device's queue; None: unknown, assumed unlimited
    tensors: int  # tensors per batch, which determine the cost of a hand-over between processes
    transport: Transport  # hand-over between processes, also for workers that edits add
    tokens: float | None  # token positions per measured step
    _results: dict[object, object] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # cache of :meth:`once`

    def once(self, key: object, work: Callable[[], Result]) -> Result:
        """Return the result of ``work``, computed once and cached under ``key``, as every edit of a replay needs it."""
        if key not in self._results:
            self._results[key] = work()
        return cast("Result", self._results[key])

    @property
    def busy_workers(self) -> int:
        """Number of loader workers that made batches; 0: inline."""
        return self.batches.makers.busy

    @property
    def measured_ms(self) -> float:
        """Mean time of a measured step in milliseconds."""
        return float(self.wall_ns[self.measured].mean()) / 1e6

    @cached_property
    def measured_events(self) -> tuple[tuple[tuple[Event, ...], int], ...]:
        """Events of each class in its measured steps (all its steps if none is measured), and their number of steps."""
        events = []
        for step_class in self.classes:
            chosen = self.measured[step_class.steps]
            members = np.flatnonzero(chosen) if chosen.any() else np.arange(len(step_class.steps))
            events.append((tuple(event.of_members(members) for event in step_class.events), len(members)))
        return tuple(events)

    @cached_property
    def other_readings(self) -> Mapping[Reading, Recording]:
        """Recording under every :data:`Reading` except "likely", which is this recording itself."""
        return {
            name: replace(self, classes=step_classes, step_class=of_steps, other_classes={})
            for name, (step_classes, of_steps) in self.other_classes.items()
        }

    @cached_property
    def all_readings(self) -> Mapping[str, Recording]:
        """Recording under each of :data:`READINGS` but "likely": assumptions about times that are not recorded. They
        concern the device's work, and the least and the most that handing a batch over may cost. Readings that would
        hardly differ are left out."""
        readings: dict[str, Recording] = dict(self.other_readings.items())
        unseen = {cost.part for cost in self.batches.assumed if cost.ms > 0}
        if unseen:
            made = self.batches
            least_receive = most_receive = made.receive
            least = most = made.handover
            if "hand-over" in unseen:
                most = np.maximum(
                    made.handover, np.minimum(made.handover * policy.HANDOVER_TIMES_MAX, made.most_handover)
                )
            if "receive" in unseen:
                least_receive = np.zeros(len(made))
                most_receive = np.maximum(made.receive, np.minimum(made.receive / policy.RECEIVED_SHARE, most))
            if "hand-over" in unseen:
                least = np.minimum(made.handover, least_receive)
            slowest = replace(made, receive=most_receive, handover=most)
            quickest = replace(made, receive=least_receive, handover=least)
            readings[AT_ONCE] = replace(self, batches=quickest, other_classes={})
            readings[LONGEST] = replace(self, batches=slowest, other_classes={})
        return readings

    @cached_property
    def fills_its_queue(self) -> bool:
        """True if workers made batches while the loop did other work than training, such as an evaluation.

        That work was in a step, or in a pause of over SUSPENDED_NS_MIN."""
        paused_ns = (resume.worked_ns for step, resume in self.resumes.items() if step and not resume.repetition)
        return self.workers > 0 and (self.held_up or any(paused > policy.SUSPENDED_NS_MIN for paused in paused_ns))

    @property
    def usual_handover_ms(self) -> float:
        """Assumed cost in ms of handing a batch over if no worker was recorded."""
        return self.tensors * self.transport.tensor_ms

    @property
    def tokens_per_batch(self) -> float | None:
        fetches = self.batches_per_step
        return None if self.tokens is None or not fetches else self.tokens / fetches

    @property
    def batches_per_step(self) -> int:
        return Counter(e.kind for e in self.classes[int(self.step_class[-1])].events)["fetch"]

    @property
    def off_core_ms(self) -> Mapping[str, float]:
        """Milliseconds per step that each stage spent off a core, by stage; 0 where CPU time was not recorded."""
        made = self.batches
        return {
            name: float((made.stage[name] - made.cpu[name])[made.usable].mean()) / 1e6 * self.batches_per_step
            for name in made.stage
        }


def record(run: RunData) -> Recording:
    """Return the input of a replay of ``run``, computed once, of at most its first REPLAYED_STEPS_MAX measured steps.

    Raises ReplayError if the run cannot be replayed."""
    result = run.once("recording", lambda: _record(run))
    if isinstance(result, ReplayError):
        raise result
    return result


def _record(run: RunData) -> Recording | ReplayError:
    try:
        return _recorded(run, run.step_columns(["start_ns", "wall_ns", "warmup", "tokens", "samples"]))
    except ReplayError as error:
        return error


def _recorded(run: RunData, table: pa.Table | None) -> Recording:
    name = f"{run.record.arm}, block {run.record.block}"
    if run.record.status != "done" or table is None or not len(table) or not run.has_spans:
        raise ReplayError("no tables", f"{name}: no finished run with tables to replay")
    if (run.record.facts.ranks or 1) > 1 and run.record.facts.attached is None:
        raise ReplayError("ranks", f"{name}: its ranks wait for one another, but replay models one rank")
    if table.column("start_ns").null_count or table.column("wall_ns").null_count:
        raise ReplayError("no times", f"{name}: its steps have no times to replay")
    starts, ends = bounds(table)
    measured = table.column("warmup").fill_null(False).to_numpy() == 0
    measured &= ends > starts
    if not measured.any():
        raise ReplayError("no measured step", f"{name}: no measured step to replay")
    until_ns = int(np.iinfo(np.int64).max)
    if np.count_nonzero(measured) > policy.REPLAYED_STEPS_MAX:
        shown = slice(int(np.flatnonzero(measured)[policy.REPLAYED_STEPS_MAX - 1]) + 1)
        starts, ends, measured = starts[shown], ends[shown], measured[shown]
        until_ns = int(ends[-1])
    phases, work, syncs, stages = _rows(run, until_ns)
    launches = _launches(spans_of(run).names, work, "likely")
    if any(row.end_ns < row.start_ns for rows in (phases, launches, syncs) for row in rows):
        raise ReplayError("damaged spans", f"{name}: a span ends before it starts: its spans table is damaged")
    fetches = [phase for phase in phases if phase.name == "fetch"]
    if not fetches:
        raise ReplayError("no fetch", f"{name}: cannot be replayed: no fetch span was recorded")

    config, facts = run.record.config, run.record.facts
    workers = loader_workers(run)
    prefetch = int(lookup_number(config, "data.prefetch", 2))
    paused = np.flatnonzero(starts[1:] > ends[:-1]) + 1  # indices of steps that began after a pause of the loop
    suspended = ~measured & (starts - np.append(starts[:1], ends[:-1]) > policy.SUSPENDED_NS_MIN)
    step_of = np.searchsorted(starts, [fetch.start_ns for fetch in fetches], side="right") - 1
    inside = (step_of >= 0) & (np.array([fetch.start_ns for fetch in fetches]) < ends[np.maximum(step_of, 0)])
    packed = str(lookup(config, "data.path", "")).endswith(("-stream", "-mmap"))
    tensors = 2 if packed else 3  # ids, labels, attention mask
    transport = RING if lookup(config, "data.transport", "") == "ring" else DATALOADER
    built = batches(
        [
            FetchWait(fetch.start_ns, fetch.end_ns, bool(is_inside and measured[step]))
            for fetch, step, is_inside in zip(fetches, step_of, inside, strict=True)
        ],
        stages,
        [(int(ends[k - 1]), int(starts[k])) for k in paused if suspended[k]],
        makers_of(spans_of(run).makers, len(fetches), workers),
        prefetch,
        tensors,
        lookup_number(config, "data.inject.transfer_ms", 0.0),
        _unpackings(spans_of(run)),
        transport,
        _drawn_ns(spans_of(run), len(fetches)),
    )
    steps = list(zip(starts.tolist(), ends.tolist(), strict=True))
    with_other_work = held_up(Stretches(starts, ends), measured)
    step_classes, step_class = classes(steps, phases, launches, syncs)
    other_classes = {
        reading: classes(steps, phases, _launches(spans_of(run).names, work, reading), syncs)
        for reading in _other_readings(
            work, int((ends - starts).sum()), sum(fetch.end_ns - fetch.start_ns for fetch in fetches)
        )
    }
    asynchronous = bool(launches)
    import pyarrow as pa

    tokens = table.column("tokens").slice(0, len(measured)).filter(pa.array(measured))
    return Recording(
        name=name,
        block=run.record.block,
        batches=built,
        classes=step_classes,
        step_class=step_class,
        measured=measured,
        resumes=_resumes(paused.tolist(), suspended, starts, ends, fetches, built, built.makers.in_flight(prefetch)),
        held_up_ns=_held_up_ns(step_classes, measured, with_other_work),
        held_up=bool(with_other_work.any()),
        wall_ns=(ends - starts).astype(np.float64),
        workers=workers,
        prefetch=prefetch,
        batch_size=int(lookup_number(config, "data.batch_size", _samples_a_batch(table, measured, step_of[inside]))),
        threads=1 if asynchronous else facts.threads or 1,
        cores=facts.cores or int(lookup_number(run.record.environment, "cores", 0)) or 1_000_000,
        asynchronous=asynchronous,
        other_classes=other_classes,
        busy_not_known=_busy_not_known(spans_of(run).names, work) if other_classes else (),
        behind_full_queue=_behind_full_queue(spans_of(run).names, work)
        if _queue_depth(config) is None
        else frozenset(),
        device_not_recorded=bool(facts.asynchronous) and not asynchronous,
        emulated=bool(facts.emulated),
        queue_depth=_queue_depth(config),
        tensors=tensors,
        transport=transport,
        tokens=None if tokens.null_count else float(np.mean(tokens.to_numpy())),
    )


def _rows(run: RunData, until_ns: int) -> tuple[list[Phase], DeviceWork, list[Sync], dict[int, list[StageRow]]]:
    """Return phases, device work and blocking calls begun before ``until_ns``, and their batches' stages by number."""
    spans = spans_of(run)
    phases = [Phase(*row) for row in _sorted(spans, spans.phases, until_ns) if row[0] in PHASES]
    begun = np.flatnonzero(spans.launches.starts < until_ns)
    early_pieces = slice(int(begun[-1]) + 1 if len(begun) else 0)
    work = device_work(
        replace(spans, kernels=spans.kernels.where(early_pieces), launches=spans.launches.where(early_pieces)),
        run.record.facts.attached is not None,
        kernel_times_of(run),
    )
    syncs = [
        Sync(start, end, site.endswith(FULL_QUEUE), site.endswith(STEP_BEFORE), site.endswith(ONE_STEP_BEHIND))
        for site, start, end, _ in _sorted(spans, spans.blocking, until_ns)
        if end > start  # a call without duration is only known to block
    ]
    fetched = spans.of(spans.phases, FETCH)
    last_batch = int(fetched.batches[fetched.starts < until_ns].max(initial=-1))
    stage_spans = spans.stages.where((spans.stages.batches >= 0) & (spans.stages.batches <= last_batch))
    stages: dict[int, list[StageRow]] = {}
    for batch, row in zip(stage_spans.batches.tolist(), _plain(spans, stage_spans), strict=True):
        stages.setdefault(batch, []).append(StageRow(*row))
    return phases, work, syncs, stages


def _samples_a_batch(table: pa.Table, measured: NDArray[np.bool_], step_of: NDArray[np.int64]) -> int:
    """Return the samples per batch in measured steps: the rounded mean, at least 1; 1 if unknown.

    ``table``: the steps. ``step_of``: row of the step of each fetch."""
    import pyarrow as pa
    import pyarrow.compute as pc

    samples = table.column("samples").slice(0, len(measured)).filter(pa.array(measured))
    batches = int(measured[step_of].sum())
    return max(1, round((pc.sum(samples).as_py() or 0) / batches)) if batches and not samples.null_count else 1


def _unpackings(spans: RunSpans) -> dict[int, Unpacking]:
    """Return the recorded arrival and unpacking of batches, by batch number."""
    unpackings = spans.unpackings
    awaited = unpackings.names == spans.code(AWAITED)
    rows = zip(unpackings.starts.tolist(), unpackings.ends.tolist(), awaited.tolist(), strict=True)
    return dict(zip(unpackings.batches.tolist(), (Unpacking(*row) for row in rows), strict=True))


def _drawn_ns(spans: RunSpans, count: int) -> Array:
    """Return the ns within each batch's fetch in which a sampler chose items in the main thread, (count,)."""
    draws = spans.draws.where((spans.draws.batches >= 0) & (spans.draws.batches < count))
    return np.bincount(draws.batches, weights=draws.ends - draws.starts, minlength=count).astype(np.float64)


def _launches(names: Sequence[str], work: DeviceWork, reading: Reading) -> list[Launch]:
    """Return the pieces of device ``work`` in order of launch, as ``reading`` assumes.

    A piece during whose launching the host only waited becomes two: until the launching ended, and the rest."""
    from_ns, blocked = work.worked_from(reading), work.blocked(reading)
    done_ns = np.where(blocked, np.clip(work.launch_ends, from_ns, work.ends), work.ends)
    columns = (work.launch_starts, work.launch_ends, done_ns - from_ns, done_ns, work.waited(reading), blocked)
    rows = zip(work.names.tolist(), *(column.tolist() for column in columns), work.ends.tolist(), strict=True)
    launches = []
    for code, *row, ended_ns in rows:
        first = Launch(names[code], *row)
        launches.append(first)
        if first.blocked:
            at_ns = first.start_ns
            launches.append(Launch(first.name, at_ns, at_ns, ended_ns - first.done_ns, ended_ns))
    return sorted(launches, key=lambda launch: launch.start_ns)


def _other_readings(work: DeviceWork, wall_ns: int, fetch_ns: int) -> list[Reading]:
    """Return each :data:`Reading` that differs from "likely" in over OPEN_DEVICE_SHARE of the time outside of fetches.

    ``wall_ns``, ``fetch_ns``: total time of the steps, and of their fetches."""
    least_ns = policy.OPEN_DEVICE_SHARE * max(0, wall_ns - fetch_ns)
    candidates: tuple[Reading, ...] = ("waiting", "working", "blocking")
    if not work.may_block.any():
        candidates = candidates[:2]  # without blocking pieces, "blocking" equals "working"
    return [reading for reading in candidates if work.differs_ns(reading) > least_ns]


def _busy_not_known(names: Sequence[str], work: DeviceWork) -> tuple[str, ...]:
    """Return the names of work without a profile that the device often began before its launches had ended."""
    pieces = np.bincount(work.names)
    still = np.bincount(work.names, weights=work.still_launching & ~work.profiled)
    return tuple(
        names[code]
        for code in dict.fromkeys(work.names.tolist())
        if still[code] > policy.SELDOM_WORK_SHARE * pieces[code]
    )


def _behind_full_queue(names: Sequence[str], work: DeviceWork) -> frozenset[str]:
    """Return the names of device work that was often launched onto a queue that may have been full."""
    pieces, behind = np.bincount(work.names), np.bincount(work.names, weights=work.behind_full_queue)
    return frozenset(names[code] for code in np.flatnonzero(behind > policy.SELDOM_WORK_SHARE * pieces).tolist())


def _sorted(spans: RunSpans, some: Spans, until_ns: int) -> list[tuple[str, int, int, int | None]]:
    early = some.where(some.starts < until_ns)
    return _plain(spans, early.where(np.argsort(early.starts, kind="stable")))


def _plain(spans: RunSpans, some: Spans) -> list[tuple[str, int, int, int | None]]:
    """Return (name, start ns, end ns, CPU ns or None if not measured) of each span in ``some``.

    ``spans``: has the names."""
    columns = (some.names.tolist(), some.starts.tolist(), some.ends.tolist(), some.cpu_ns.tolist())
    return [
        (spans.names[code], start, end, None if cpu_ns == NOT_MEASURED else round(cpu_ns))
        for code, start, end, cpu_ns in zip(*columns, strict=True)
    ]


def _resumes(
    paused: Sequence[int],
    suspended: NDArray[np.bool_],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    fetches: Sequence[Phase],
    built: RecordedBatches,
    ahead: int,
) -> dict[int, Resume]:
    """Return the loader's state at the first step and at every step that began after a pause of the loop, by step.

    ``paused``: these steps. ``suspended``: True if the run was suspended before the step. ``ahead``: batches in
    flight."""
    known_ns = [worked for worked in built.worked_ns if worked is not None]
    typical = float(np.mean(known_ns)) if known_ns else 0.0
    stops = iter(built.worked_ns)
    resumes: dict[int, Resume] = {}
    for step in (0, *paused):
        following = bisect_left(fetches, starts[step], key=lambda fetch: fetch.start_ns)
        built_at = np.full(ahead, -np.inf)
        built_ns = built.ends_ns[following : following + ahead] - starts[step]
        built_at[: len(built_ns)] = np.where(np.isnan(built_ns), -np.inf, built_ns)
        stood = float(starts[step] - ends[step - 1]) if step else 0.0
        if step == 0:
            worked = max(0.0, starts[0] - built.began_ns) if ahead else 0.0
        elif not suspended[step]:
            worked = stood
        else:
            worked = next(stops) or typical
        resumes[step] = Resume(bool(suspended[step]), worked, built_at)
    return resumes


def _held_up_ns(classes: Sequence[StepClass], measured: NDArray[np.bool_], held: NDArray[np.bool_]) -> dict[int, float]:
    """Return the extra host time (ns) of steps with other work than training, by the number of the step after each.

    Extra: beyond the mean of measured steps of the class. Left out unless over HELD_WORK_SHARE of that mean. ``held``:
    True for steps with other work."""
    extra_ns: dict[int, float] = {}
    for step_class in classes:
        counted, late = measured[step_class.steps], held[step_class.steps]
        if not counted.any() or not late.any():
            continue
        host_ns = sum(
            (event.duration for event in step_class.events if event.kind == "host"), np.zeros(len(step_class.steps))
        )
        usual_ns = float(host_ns[counted].mean())
        for step, longer_ns in zip(step_class.steps[late].tolist(), (host_ns[late] - usual_ns).tolist(), strict=True):
            if longer_ns > policy.HELD_WORK_SHARE * usual_ns:
                extra_ns[step + 1] = longer_ns
    return extra_ns


def _queue_depth(config: JsonObject) -> int | None:
    """Return the queue depth that an emulated device declares; None for a real driver, which does not report one."""
    depth = lookup(config, "compute.device.queue_depth")
    return int(depth) if isinstance(depth, int | float) else None
