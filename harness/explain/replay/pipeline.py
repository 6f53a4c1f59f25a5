"""Applies edits to a recording and builds the input of the simulation: durations, and operations per step class.

The tape is the order in which recorded steps and batches repeat. A long batch may be slow to make and slow to train,
so a batch stays with the step that trains it. Batches go to workers in turn, so a tape has whole rounds of all
workers: if every other batch is slow, one of two workers makes all of these.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain.lead_use import round_robin
from harness.explain.policy import AHEAD_STEPS, PREDICTED_STEPS_MAX, TAPE_KEPT_MIN, TAPE_ROUNDS_MIN
from harness.explain.replay.costs import ALONE, Demand, Stretch, batch_costs, stretched
from harness.explain.replay.programs import BOUNDARY, Event
from harness.explain.replay.recording import Recording, Resume
from harness.explain.spans import Int
from harness.scenario.edits import Edits

# Common periods of similar batches: every second, third, fourth or sixth. The longest period that fits is the best.
USUAL_PERIODS = (12, 6, 4, 3, 2)


class Tape(NamedTuple):
    """Order in which recorded steps (rows) and batches (numbers) repeat in a replay."""

    steps: Int
    batches: Int
    aligned: bool  # each step has as many batches, so both advance together


def tape_of(recording: Recording, workers: int, *, exact: bool) -> Tape:
    """Return the order of steps and batches in a replay: with ``exact`` all, as recorded. Else measured steps only, and
    usable batches (received in a measured step, builder not suspended), in whole rounds of all workers. ``workers``:
    number under the edits."""
    if exact:
        return Tape(np.arange(len(recording.step_class)), np.arange(len(recording.batches)), aligned=True)
    usable = recording.batches.usable
    fetches = np.array([sum(event.kind == "fetch" for event in step_class.events) for step_class in recording.classes])
    per_row = fetches[recording.step_class]
    measured = np.flatnonzero(recording.measured)
    count = int(per_row[measured[0]])
    if not count or (per_row[measured] != count).any() or per_row.sum() != len(usable):
        return Tape(measured, np.flatnonzero(usable), aligned=False)
    numbers = (np.cumsum(per_row) - per_row)[measured, None] + np.arange(count)
    complete = usable[numbers].all(axis=1)
    if not complete.any():
        return Tape(measured, np.flatnonzero(usable), aligned=False)
    chosen = _in_rounds(measured[complete], numbers[complete, 0] // count, recording.workers or 1, workers or 1, count)
    order = np.searchsorted(measured, chosen)
    return Tape(chosen, numbers[order].ravel(), aligned=True)


def _in_rounds(steps: Int, ordinals: Int, workers_then: int, workers_now: int, fetches: int) -> Int:
    """Return those of ``steps`` whose batches form whole rounds (a batch of each worker), spread evenly over the run.

    All ``steps`` if there are fewer than TAPE_ROUNDS_MIN rounds. ``ordinals``: positions of ``steps`` in the whole run.
    ``workers_then``, ``workers_now``: number of workers as recorded, and edited. ``fetches``: batches per step."""
    cycle = math.lcm(workers_then, workers_now)
    longer = [math.lcm(cycle, period) for period in USUAL_PERIODS]
    for period in dict.fromkeys((*longer, cycle, workers_then)):
        period_steps = period // math.gcd(period, fetches)
        by_place = [steps[(ordinals - ordinals[0]) % period_steps == place] for place in range(period_steps)]
        fewest = min(len(rows) for rows in by_place)
        least_steps = TAPE_KEPT_MIN * len(steps) if period > cycle else 0
        if fewest >= TAPE_ROUNDS_MIN and fewest * period_steps >= least_steps:
            # The kept steps are spread evenly. Each position leaves out different steps.
            phases = (np.arange(period_steps) + 0.5) / period_steps
            chosen = [
                rows[((np.arange(fewest) + phase) * len(rows) / fewest).astype(np.int64)]
                for rows, phase in zip(by_place, phases, strict=True)
            ]
            return np.stack(chosen, axis=1).ravel()
    return steps


Array = NDArray[np.float64]
PER_SAMPLE = frozenset({"h2d", "forward", "backward"})  # grow with the batch, unlike gradient norm and optimizer
COMPUTED = frozenset({"forward", "backward", "optimizer"})  # host phases that are device time on a synchronous device
WHOLE_PHASES = frozenset({"log", "checkpoint"})  # removing such a phase also removes its blocking calls
# Parts of a step that :attr:`Edits.without` can remove, in addition to host phases and kernels.
LAUNCHING, QUEUE_LIMIT = ("cause", "launching"), ("cause", "queue limit")


class Operation(NamedTuple):
    """One operation of a program. ``first`` and ``second``: indices of rows of :attr:`Program.durations` (ns).

    * host: ``first`` is the host time.
    * fetch: takes the next batch, without durations.
    * launch: ``first`` is the device time, ``second`` the time to queue it.
    * sync: ``first`` is the host time after the awaited device work ends.
    * reduce: barrier of all ranks, without durations.
    """

    kind: Literal["host", "fetch", "launch", "sync", "reduce"]
    back: int  # sync: number of last pieces in the queue that it does not wait for
    first: int  # row of the class's matrix
    second: int
    name: str = ""  # phase of the host, or kernel


class Program(NamedTuple):
    """Operations and durations of one class of steps (those with the same sequence of events)."""

    operations: tuple[Operation, ...]
    durations: Array  # ns, (rows, variants, members of the class)
    places: NDArray[np.int64]  # position of each member on the :class:`Tape`


@dataclass(frozen=True)
class Pipeline:
    """Input of ``simulate``, made by :func:`build`. Only durations differ by variant (see :func:`together`)."""

    costs: Array  # (len(Costs._fields), variants, batches)
    tape_steps: int  # number of steps on the :class:`Tape`
    starts: NDArray[np.int64]  # possible start positions on the tape, where most steps meet one of their class
    batches_per_step: int | None  # None: batches do not advance with the tape's steps
    programs: tuple[Program, ...]
    step_program: NDArray[np.int64]  # (steps,)
    measured: NDArray[np.bool_]
    resumes: tuple[Resume | None, ...]  # (steps,) set if the loop paused before the step
    exact: bool  # the loader takes its recorded state at each of these pauses
    drained: NDArray[np.bool_]  # (steps,) the step also waits for device work queued before it began
    workers: int
    worker_of: NDArray[np.int64] | None  # (batches,) worker that makes each batch; None: in turn
    in_flight: int
    ranks: int
    queue_depth: int | None
    asynchronous: bool
    demand: Demand


def build(
    recording: Recording,
    edits: Edits,
    then: Stretch = ALONE,
    now: Stretch = ALONE,
    *,
    exact: bool = False,
    grown: float = 1.0,
    most_steps: int = PREDICTED_STEPS_MAX,
    merged: bool = True,
) -> Pipeline:
    """Return the pipeline of ``recording`` under ``edits``.

    ``then``, ``now``: contention factors as recorded, and those to apply instead.
    ``exact``: True for all steps and batches as recorded; else measured steps and usable batches, repeated as needed.
    ``grown``: size of the loader's batches / size of the batches that the recorded steps trained.
    ``most_steps``: maximum number of measured steps; of a longer run only its beginning.
    ``merged``: True to make consecutive host phases one operation.
    """
    workers = recording.workers if edits.workers is None else edits.workers
    prefetch = recording.prefetch if edits.prefetch is None else edits.prefetch
    scale = 1.0 if edits.batch_size is None else edits.batch_size / recording.batch_size
    tape = recording.once(("tape", workers, exact), lambda: tape_of(recording, workers, exact=exact))
    costs, cpu_ns = _costs(recording, edits, workers, scale, (then.worker, now.worker), tape, exact=exact)
    host = (then.main, now.main)
    built = _programs(recording, edits, workers, scale * grown, host, tape, exact=exact, merged=merged)
    programs = tuple(program for program, _ in built)
    main_ns = np.array([cpu for _, cpu in built])[recording.step_class][recording.measured].mean()
    fetches = np.array([sum(o.kind == "fetch" for o in program.operations) for program in programs])
    per_step = float(fetches[recording.step_class][recording.measured].mean())
    makers = recording.batches.makers if workers == recording.workers else round_robin(0, workers)
    in_flight = makers.in_flight(prefetch)
    gets_ahead = recording.asynchronous and edits.sync != "on"
    unmeasured = max(in_flight + 1 if in_flight else 0, AHEAD_STEPS if gets_ahead else 0)
    order, measured, resumes = recording.once(
        ("steps", unmeasured, most_steps, exact, gets_ahead),
        lambda: _steps(recording, unmeasured, most_steps, exact=exact, every_pause=gets_ahead),
    )

    def starts() -> NDArray[np.int64]:
        if exact:
            return np.zeros(1, dtype=np.int64)
        if (edits.ranks or 1) > 1:  # all positions: with few start positions, ranks would be in lockstep
            return np.arange(len(tape.steps))
        key = ("starts", workers, unmeasured, gets_ahead, most_steps)
        return recording.once(key, lambda: _starts(order, recording.step_class[tape.steps]))

    return Pipeline(
        costs=costs,
        tape_steps=len(tape.steps),
        starts=starts(),
        batches_per_step=len(tape.batches) // len(tape.steps) if tape.aligned and scale == 1 else None,
        programs=programs,
        step_program=order,
        measured=measured,
        resumes=resumes,
        exact=exact,
        drained=_drained(recording, edits, measured, resumes),
        workers=workers,
        worker_of=None if makers.is_round_robin else makers.worker[tape.batches],
        in_flight=in_flight,
        ranks=edits.ranks or 1,
        queue_depth=None if QUEUE_LIMIT in edits.without else recording.queue_depth,
        asynchronous=recording.asynchronous,
        demand=Demand(
            float(main_ns),
            cpu_ns * per_step if workers else 0.0,
            recording.threads,
            makers.busy,
            edits.cores or recording.cores,
        ),
    )


def _costs(
    recording: Recording,
    edits: Edits,
    workers: int,
    scale: float,
    stretch: tuple[float, float],
    tape: Tape,
    *,
    exact: bool,
) -> tuple[Array, float]:
    """Return :attr:`Pipeline.costs` and the mean CPU time (ns) to build a batch; cached if all is as recorded.

    Results of other edits are not cached, because they would fill the memory."""

    def make() -> tuple[Array, float]:
        costs, cpu_ns = batch_costs(recording, edits, workers, scale, stretch, tape.batches)
        return np.stack(costs)[:, None, :], cpu_ns

    as_recorded = workers == recording.workers and scale == 1 and stretch[0] == stretch[1] and not edits.stages
    return recording.once(("costs", exact), make) if as_recorded else make()


def _programs(
    recording: Recording,
    edits: Edits,
    workers: int,
    scale: float,
    stretch: tuple[float, float],
    tape: Tape,
    *,
    exact: bool,
    merged: bool,
) -> list[tuple[Program, float]]:
    """Return the program of each class of steps, as :func:`_program` does; cached if all is as recorded."""

    def make() -> list[tuple[Program, float]]:
        numbers = range(len(recording.classes))
        return [
            _program(recording, number, edits, scale, stretch, tape, exact=exact, merged=merged) for number in numbers
        ]

    as_recorded = workers == recording.workers and scale == 1 and stretch[0] == stretch[1]
    unedited = merged and edits.device is None and edits.sync == "on" and not edits.without
    return recording.once(("programs", exact), make) if as_recorded and unedited else make()


def in_order(recording: Recording, edits: Edits, then: Stretch = ALONE, now: Stretch = ALONE) -> Pipeline:
    """Return the pipeline in the recorded order. After a pause, the loader continues from its simulated state. With
    :func:`build` and ``exact``, it continues from its recorded state. ``then``, ``now``: contention factors as
    recorded, and those to apply instead."""
    return replace(build(recording, edits, then, now, exact=True), exact=False)


def _steps(
    recording: Recording, unmeasured: int, most: int, *, exact: bool, every_pause: bool
) -> tuple[NDArray[np.int64], NDArray[np.bool_], tuple[Resume | None, ...]]:
    """Return the steps in order: number of each one's program, True if it counts, and the pause before it (or None).

    Unless ``exact``, a repetition begins with at least ``unmeasured`` steps that do not count: more than the batches in
    flight, and enough for the host to get ahead of its device. Copies of measured steps replace missing ones. Other
    work than training within a step becomes a pause after it. ``most``: maximum of steps that count.
    ``every_pause``: True if an uncounted step after any pause begins a repetition, too.
    """
    counting = np.flatnonzero(recording.measured)
    order: list[int] = []
    measured: list[bool] = []
    resumes: list[Resume | None] = []
    last = int(counting[:most][-1])
    for step, number in enumerate(recording.step_class[: last + 1]):
        resume = recording.resumes.get(step)
        if not exact and (held_ns := recording.held_up_ns.get(step)) and (resume is None or not resume.repetition):
            resume = Resume(False, held_ns + (0.0 if resume is None else resume.worked_ns), np.zeros(0))
        resumes.append(resume)
        starts = resume is not None and (resume.repetition or (every_pause and not recording.measured[step]))
        if starts and unmeasured and not exact:
            following = counting[counting >= step]
            added = np.resize(following, max(0, unmeasured - int(following[0] - step)))
            order += recording.step_class[added].tolist()
            measured += [False] * len(added)
            resumes += [None] * len(added)
        order.append(int(number))
        measured.append(bool(recording.measured[step]))
    return np.array(order), np.array(measured), tuple(resumes)


def _starts(order: NDArray[np.int64], classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the start positions on the tape at which the largest number of steps meet a recorded step of their class.

    ``order``: class of each replayed step. ``classes``: class of each step on the tape."""
    alike = np.zeros(len(classes), dtype=np.int64)
    for step, number in enumerate(order):
        alike += np.roll(classes, -step) == number
    return np.flatnonzero(alike == alike.max())


def _drained(
    recording: Recording, edits: Edits, measured: NDArray[np.bool_], resumes: tuple[Resume | None, ...]
) -> NDArray[np.bool_]:
    """Return True for each step at whose end the host must wait for the device, because no blocking call makes it wait.

    These are the steps before a pause, and where measured steps begin or end. False for all if ``edits`` keep the
    blocking calls of phase sync, or none was recorded."""
    events = [event for step_class in recording.classes for event in step_class.events]
    if edits.sync == "on" or not any(event.kind == "sync" and event.phase == "sync" for event in events):
        return np.zeros(len(measured), dtype=np.bool_)
    stops = np.array([resume is not None for resume in resumes[1:]] + [True])
    ends: NDArray[np.bool_] = stops | (measured != np.append(measured[1:], False))
    return ends


def _program(
    recording: Recording,
    number: int,
    edits: Edits,
    scale: float,
    stretch: tuple[float, float],
    tape: Tape,
    *,
    exact: bool,
    merged: bool,
) -> tuple[Program, float]:
    """Return the program of class ``number`` under ``edits``, and the main thread's mean CPU time (ns) per step of it.

    ``scale``: edited / recorded batch size. ``stretch``: contention factors of the main thread: (in the recording,
    now)."""
    step_class = recording.classes[number]
    every, members = (step_class.events, len(step_class.steps)) if exact else recording.measured_events[number]
    events = [event for event in every if not _goes(event, edits)]
    computing = "launch" if recording.asynchronous else "host"
    passes = [i for i, event in enumerate(events) if (event.name, event.kind) == ("backward", computing)]
    last_backward = max(passes, default=-1)
    operations: list[Operation] = []
    rows: list[Array] = []
    cpu_ns = 0.0
    for index, event in enumerate(events):
        if event.kind == "fetch":
            operations.append(Operation("fetch", 0, 0, 0))
        elif event.kind == "host":
            duration, cpu = _host_time(event, edits, scale, recording.asynchronous)
            cpu_ns += event.mean_cpu if cpu is event.cpu else float(cpu.mean())
            duration = stretched(duration, cpu, stretch)
            if merged and operations and operations[-1].kind == "host":
                rows[-1] = rows[-1] + duration
            else:
                operations.append(Operation("host", 0, len(rows), 0, event.phase))
                rows.append(duration)
        else:
            factor = _device_factor(event, edits, scale) if event.kind == "launch" else 1.0
            at_once = LAUNCHING in edits.without or ("phase", event.phase) in edits.without
            operations.append(Operation(event.kind, event.back, len(rows), len(rows) + 1, event.name))
            rows += [event.duration * factor, event.queueing * (0.0 if at_once else 1.0)]
        if index == last_backward:
            operations.append(Operation("reduce", 0, 0, 0))
    if edits.sync == "late":
        _wait_for_the_step_before(every, operations, rows)
    durations = np.stack(rows) if rows else np.zeros((0, members))
    lending, places = _on_tape(recording, number, tape, members)
    return Program(tuple(operations), durations[:, None, lending], places), cpu_ns


def _wait_for_the_step_before(events: Sequence[Event], operations: list[Operation], rows: list[Array]) -> None:
    """Add the wait of the setting ``compute.sync: late``: after its launches, a step waits for the step before.

    It waits until the device has computed the gradient norm of that step."""
    blocking = [i for i, event in enumerate(events) if event.kind == "sync" and event.phase == "sync"]
    launches = [i for i, operation in enumerate(operations) if operation.kind == "launch"]
    if not blocking or not launches:
        return
    # Number of launches after the gradient norm in each step, and thus in the previous one.
    behind = sum(event.kind == "launch" and event.phase != "sync" for event in events[blocking[0] :])
    operations.insert(
        launches[-1] + 1, Operation("sync", len(launches) + behind, len(rows), len(rows) + 1, events[blocking[0]].name)
    )
    rows += [events[blocking[0]].duration, events[blocking[0]].queueing]


def _on_tape(
    recording: Recording, number: int, tape: Tape, members: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the members of class ``number`` that are on the tape, and their positions on it.

    If none is on the tape: all members, at evenly spaced positions. ``members``: number of members."""
    rows = recording.classes[number].steps
    if members != len(rows):
        rows = rows[recording.measured[rows]]
    place_of = np.full(len(recording.step_class), -1)
    place_of[tape.steps] = np.arange(len(tape.steps))
    places = place_of[rows]
    on_tape = np.flatnonzero(places >= 0)
    if not len(on_tape):
        return np.arange(members), np.arange(members) * len(tape.steps) // members
    order = on_tape[np.argsort(places[on_tape])]
    return order, places[order]


def _goes(event: Event, edits: Edits) -> bool:
    """Return True if ``edits`` remove the event itself from its step, and not only its duration."""
    if event.phase in ("sync", BOUNDARY) and edits.sync != "on":  # _drained() replaces boundary waits
        return True
    return event.kind == "sync" and event.phase in WHOLE_PHASES and ("phase", event.phase) in edits.without


def _device_factor(event: Event, edits: Edits, scale: float) -> float:
    if ("kernel", event.name) in edits.without:
        return 0.0
    return (scale if event.name in PER_SAMPLE else 1.0) / (edits.device or 1.0)


def _host_time(event: Event, edits: Edits, scale: float, asynchronous: bool) -> tuple[Array, Array]:
    """Return wall and CPU time (ns) of a host event under ``edits``. ``scale``: edited / recorded batch size.

    Forward, backward and optimizer of a synchronous device are device time, and change with its speed."""
    factor = 1.0
    if ("phase", event.phase) in edits.without or (LAUNCHING in edits.without and event.phase not in WHOLE_PHASES):
        return event.duration * 0.0, event.cpu * 0.0
    if not asynchronous and event.phase in COMPUTED:
        factor = (scale if event.phase in PER_SAMPLE else 1.0) / (edits.device or 1.0)
    return (event.duration, event.cpu) if factor == 1 else (event.duration * factor, event.cpu * factor)


def tokens_per_step(recording: Recording, edits: Edits) -> float | None:
    """Return the tokens (padding included) per step of all ranks together under ``edits``; None if not counted."""
    if recording.tokens is None:
        return None
    scale = 1.0 if edits.batch_size is None else edits.batch_size / recording.batch_size
    return recording.tokens * scale * (edits.ranks or 1)


def together(pipelines: Sequence[Pipeline]) -> Pipeline:
    """Return one pipeline with each of ``pipelines``, all of one :func:`shape_of`, as a variant, for one simulation."""
    first = pipelines[0]
    programs = []
    for variants in zip(*(pipeline.programs for pipeline in pipelines), strict=True):
        durations = [program.durations for program in variants]
        alike = all(values is durations[0] or np.array_equal(durations[0], values) for values in durations[1:])
        rows, _, members = durations[0].shape
        joined = (
            np.broadcast_to(durations[0], (rows, len(variants), members))
            if alike
            else np.concatenate(durations, axis=1)
        )
        programs.append(Program(variants[0].operations, joined, variants[0].places))
    return replace(
        first, costs=np.concatenate([pipeline.costs for pipeline in pipelines], axis=1), programs=tuple(programs)
    )


def shape_of(pipeline: Pipeline) -> Hashable:
    """Return all of a pipeline but its durations: equal ones can be combined by :func:`together`."""
    return (
        tuple(program.operations for program in pipeline.programs),
        pipeline.step_program.tobytes(),
        pipeline.drained.tobytes(),
        None if pipeline.worker_of is None else pipeline.worker_of.tobytes(),
        (pipeline.workers, pipeline.in_flight, pipeline.ranks, pipeline.queue_depth, pipeline.exact),
    )
