"""Find the ends of training steps, and time the phases of the main thread: fetch, forward, backward, optimizer.

    end of a step       an update of the optimizer that appeared last among those that step about as often as the
    busiest (not within a backward pass); without an optimizer, the first pass after a backward pass: decided
                        after MOST_ACCUMULATED backward passes (gradient accumulation has fewer), or at the end
    begin of a step     the next fetch of training data; without a DataLoader a forward or backward pass
    evaluation data     opens no step; a source that appears later is for training if a backward pass follows its
    batches

Callers: ``loading.py`` (fetches), ``watching.py`` (forward passes), ``updates.py`` (backward passes, optimizers).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from threading import get_ident
from time import monotonic_ns, thread_time_ns
from typing import Any

import torch
from _harness_agent import device, forks, gate, guard, record, run_queue, stages, switches
from torch import Tensor, is_grad_enabled
from torch.compiler import is_compiling

ENTER, EXIT, STEP, PAUSE, RECEIVED = range(5)  # numbers of harness.probes.ledger.rows
EVALUATION = 6  # (kind, True if the model made graphs): an evaluation batch was fetched
TOKENIZED = 7  # (kind, nanoseconds): a tokenizer ran in the training loop, outside a fetch
PERHAPS = 12  # (kind, time, run-queue reading): wait for a batch of unknown use; not written
MAYBE = 8  # (kind, time, run-queue reading): start of a step if no optimizer ever appears; not written
NOT_FINITE = 13  # the loss of this step and of those before it is NaN or infinite
UNPACKED = 11  # number of harness.probes.ledger.rows
BEGUN_ANEW = 14  # (kind, early): first batch after its loader was restarted
ITERATED = 22  # (kind, nanoseconds): a DataLoader of training data made an iterator, outside a fetch
INTERRUPTED = 10  # A signal handler of the program raised within a hook: the step's phases are unknown.
MOST_DOUBTFUL = 64  # batches of unknown use, before they count as evaluation
# Short steps share a frame: within a step, writing a frame takes several times as long as in a tight loop. A SIGKILL
# loses the steps that are not yet written.
FRAME_EVENTS = 96  # minimum events in a frame; a frame ends with a step
FRAME_NS = 500_000_000  # nanoseconds of steps in a frame
LASTING = 3  # consecutive non-finite losses: fewer may come from a gradient scaler, which skips such steps
MOST_ACCUMULATED = 64  # backward passes without an optimizer step, before the program counts as having no optimizer
ENDED = -2  # replaces a batch's number when the data ended
NO_TRACE = ("unknown", 0, 0, -1, ())

Loader = tuple[int, int, bool]  # workers, batches in flight per worker, True if the workers outlive an epoch
Trace = tuple[str, int, int, int, Any]  # role, pid, thread, number of the batch (-1: unknown), pieces


@dataclass(slots=True)
class _State:
    """Step recording of this process; a forked child or an adopted thread starts with a new one."""

    events: list[tuple[Any, ...]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)  # phases of the main thread, innermost last
    last: str | None = None  # phase that ended last
    making: stages.Making | None = None  # batch in preparation by the main thread
    core: stages.CpuReading = field(default_factory=stages.CpuReading)  # CPU clock of the main thread, once known
    here: tuple[str, int, int, int] | None = None  # process and main thread, the start of a trace
    marks: bool = False  # True if kernel launches on a device are recorded
    optimizers: dict[int, int] = field(default_factory=dict)  # step counts by optimizer, in order of first step
    trained_on: set[int] = field(default_factory=set)  # sources whose batches were followed by a backward pass
    sources: set[int] = field(default_factory=set)  # other sources with batches since the last backward pass
    settled: set[int] = field(default_factory=set)  # see fetching()
    ended: set[int] = field(default_factory=set)  # sources whose last iterator ran out of data
    anew: bool = False  # True if the next batch is the first since its loader restarted
    early: bool = False  # True if the iterator before it was left before its end
    doubtful: int = 0  # batches that may be for training or for evaluation
    doubtful_loaders: list[Loader] = field(default_factory=list)  # loaders of the doubtful batches
    ran_without_gradients: bool = False  # True if the model did so since the last wait for a batch
    batches: int = 0  # batches that arrived, for training or not
    not_finite: int = 0  # consecutive non-finite losses
    loader_seen: bool = False  # True if a DataLoader serves this program: its fetches open the steps
    in_flight: int = 0  # maximum batches in flight over all loaders
    maker: Trace | None = None  # maker of the batch that arrives
    unpacked: tuple[int, int, bool] | None = None  # see arrivals
    closing: int | None = None  # the optimizer that closes steps
    only: int | None = None  # ``closing`` if there is no other optimizer
    closed: bool = True  # True before the first step, too
    written_ns: int = 0  # start of the step that ended the last frame
    closed_ns: int = 0
    marked: list[tuple[Any, ...]] | None = None  # batches that arrived within a fetch marked by the program
    enough: bool = False
    trained: bool = False  # True once a backward pass has begun
    adopted: bool = False  # True if the recorded thread replaced the main thread
    backward_since: bool = False
    updated_within: bool = False  # True if an optimizer stepped within a backward pass
    by_hand: bool = False  # True if the program marks the start of each step
    maybe: int = 0  # steps that began if there is no optimizer
    without_optimizer: bool = False
    steps: int = 0
    begun_ns: int = 0  # start of the last step
    due: int = 0  # first step for which ``on_some_steps`` run again
    unmeasured: int = 0  # number of unmeasured steps
    measured_from: int | None = 0  # step; None: a window of profiling comes first
    window_from: int | None = None  # step that starts a profiling window after the measured steps
    warming: bool = True  # True until the first measured step, outside turns
    noted: set[Any] = field(default_factory=set)
    most_steps: int | None = field(default_factory=lambda: record.number("steps"))
    warmup: int = field(default_factory=lambda: record.number("warmup") or 0)
    step_ends: str | None = field(default_factory=lambda: record.word("step_ends"))
    alternates: bool = field(default_factory=lambda: record.word("gate") is not None)
    controlled: bool = field(default_factory=lambda: record.word("control") is not None)


state = _State()
OTHER_THREAD = "other_thread"  # note: a second thread trains, and is not recorded
_adopting = threading.Lock()
# Identifier (threading.get_ident) of the thread whose steps are recorded: the main thread, or one taken by adopt().
recorded_thread = threading.main_thread().ident
on_step: list[Callable[[int], None]] = []  # called with the number of each step that begins
# Like ``on_step``, but called for the first EARLY steps and then ever more rarely (see RARER).
on_some_steps: list[Callable[[int], None]] = []
EARLY = 64  # steps
RARER = 1.5  # ratio of the step numbers of two calls
# Called at the end of a step that took LONG_NS or ends a frame; each returns events.
on_step_end: list[Callable[[], list[tuple[Any, ...]]]] = []
LONG_NS = 1_000_000  # The recorded causes do not occur in a shorter step: a compilation takes longer.
on_evaluation: list[Callable[[], None]] = []  # called before each evaluation batch
# Called with each new step's number once all requested steps are measured. Return True if the program may end there.
before_end: list[Callable[[int], bool]] = []


def forget() -> None:
    """Reset the step recording, the device recording and the turns: in a forked child, and before the next program."""
    global state, recorded_thread
    state, recorded_thread = _State(), threading.main_thread().ident
    device.forget()
    gate.forget()


def adopt() -> bool:
    """Record the calling thread, whose backward pass begins, if the recorded one has ended or never ran such a pass.

    Return True if it is recorded from now on. It starts a new file; the ended thread's records stay in the old one.
    """
    global state, recorded_thread
    if not _adopting.acquire(blocking=False):  # Another thread is being adopted.
        return False
    try:
        if state.trained or state.adopted:
            if any(thread.ident == recorded_thread for thread in threading.enumerate()):
                if OTHER_THREAD not in state.noted:
                    state.noted.add(OTHER_THREAD)
                    record.note(OTHER_THREAD, threading.current_thread().name)
                return False
            flush()
            record.begin_anew()
        switches.forget()
        run_queue.forget()
        record.training_thread = threading.get_native_id()
        state, recorded_thread = _State(adopted=True), get_ident()
        return True
    finally:
        _adopting.release()


def watched() -> bool:
    """True if this call has to be recorded: hooks are on, this is the recorded thread, and no compiler traces it."""
    return guard.on and get_ident() == recorded_thread and not is_compiling()


# ---- phases


def enter(name: str) -> None:
    recording = state
    if recording.marks:
        _mark()
    core = recording.core
    now = monotonic_ns()
    if now < core.near_ns and core.here[0] and core.count[0] == core.counted:
        cpu_ns = now + core.ahead_ns
    else:
        cpu_ns, now = _read_core()
    recording.events.append((ENTER, name, now, cpu_ns))
    recording.open.append(name)


def leave(name: str) -> None:
    recording = state
    open_ = recording.open
    if not open_ or open_[-1] != name:
        if name not in open_:
            return
        leave(open_[-1])  # close inner phases first
        leave(name)
        return
    core = recording.core
    now = monotonic_ns()
    if now < core.near_ns and core.here[0] and core.count[0] == core.counted:
        cpu_ns = now + core.ahead_ns
    else:
        cpu_ns, now = _read_core()
    if recording.marks:
        _mark()
        recording.last = name
    del open_[-1]
    recording.events.append((EXIT, name, now, cpu_ns))


def _read_core() -> tuple[int, int]:
    """Return (CPU time of the main thread, CLOCK_MONOTONIC), both in ns, by a system call."""
    now: tuple[int, int] = (state.making or making()).core.read()
    return now


def making() -> stages.Making:
    """Return the batch in preparation by this thread. For the recorded thread, also store it and its CPU clock."""
    current = stages.making()
    if get_ident() == recorded_thread:
        state.making, state.core = current, current.core
        if forks.known and (count := switches.count()) is not None:
            current.core.counts(count, switches.LASTS_NS, forks.here)
            run_queue.follow(current.core)
    return current


def here() -> tuple[str, int, int, int]:
    """Return and store (role "main", process id, thread id, -1), the start of main-thread batches' :data:`Trace`."""
    state.here = ("main", *stages.origin(), -1)
    return state.here


def interrupted() -> None:
    """End every open phase after a program's signal handler raised within a hook; the step is not measured."""
    stages.forget()
    state.marked = state.maker = state.making = None
    state.core = stages.CpuReading()
    if state.steps:
        cpu_ns, now = thread_time_ns(), monotonic_ns()
        while state.open:
            state.events.append((EXIT, state.open.pop(), now, cpu_ns))
        state.events.append((INTERRUPTED,))


def _mark() -> None:
    """Mark a phase boundary for the device recording, with the phase that launched work since the last one."""
    if not state.open:
        device.mark(device.BETWEEN.get(state.last or "", "other"))
    else:
        device.mark(None if state.open[-1] == "fetch" else state.open[-1])


def _trains_on(where: torch.device) -> None:
    """Record the device of a backward pass, and start the device recording at the first pass on a CUDA device."""
    state.trained = True
    if not device.state.noted:
        device.trains_on(where)
        state.marks = device.state.stream is not None


# ---- batches


def fetching(source: int, loader: bool = True) -> bool:
    """Handle the start of a wait for a batch, and open a step if the batch is certainly for training.

    Return False for an evaluation batch, else (also if unknown) True. ``source``: id of the dataset or function.
    ``loader``: False if a function serves the batch. A ``settled`` source skips all checks: it is trained on, an
    optimizer was seen, no batch was doubtful. Anything that makes this uncertain clears ``settled``.
    """
    recording = state
    if source in recording.settled and is_grad_enabled():
        if recording.closed and not recording.open:
            _open_step()
        return True
    recording.settled.clear()
    if state.ran_without_gradients:  # without a backward pass: earlier batches were not for training
        state.ran_without_gradients = False
        state.sources &= state.trained_on
        resolve(training=False)
    if not is_grad_enabled():
        _evaluates()
        return False
    if source not in state.trained_on:
        state.sources.add(source)  # a following backward pass makes it a training source
        if state.trained_on:
            if state.doubtful >= MOST_DOUBTFUL:
                resolve(training=False)
            state.events.append((PERHAPS, monotonic_ns(), run_queue.read()))
            state.doubtful += 1
            return True
    if state.doubtful:
        resolve(training=False)  # training continues with an earlier source
    state.loader_seen |= loader
    if state.optimizers and not state.sources and not state.by_hand:
        state.settled.add(source)
    begin_step()
    return True


def _evaluates(*, graphs: bool = False) -> None:
    state.events.append((EVALUATION, graphs))
    for action in on_evaluation:
        action()


def resolve(*, training: bool) -> None:
    """Settle all doubtful batches: their waits count (``training``), or are dropped as evaluation batches."""
    if not state.doubtful:
        return
    first = next(place for place, event in enumerate(state.events) if event[0] == PERHAPS)
    (_, asked_ns, reading), since = (
        state.events[first],
        [event for event in state.events[first:] if event[0] != PERHAPS],
    )
    del state.events[first:]
    batches, state.doubtful = state.doubtful, 0
    loaders, state.doubtful_loaders = state.doubtful_loaders, []
    if not training:
        runs = any(event[0] == ENTER and event[1] == "forward" for event in since)
        state.events += [event for event in since if not _of_fetch(event)]
        for _ in range(batches):
            _evaluates(graphs=runs and not state.ran_without_gradients)
        return
    if state.closed and not state.by_hand:
        _begin(asked_ns, reading)  # The step is already under way: it takes no turn and starts no hooks.
    state.events += since
    for loader in loaders:
        _note_loader(loader)


def _of_fetch(event: tuple[Any, ...]) -> bool:
    return event[0] in (RECEIVED, UNPACKED, BEGUN_ANEW) or (event[0] in (ENTER, EXIT) and event[1] == "fetch")


def tokenized(elapsed_ns: int) -> None:
    """Record ``elapsed_ns`` of a tokenizer call in the recorded thread, outside of phases and after the first step."""
    if state.steps and not state.open and watched():
        state.events.append((TOKENIZED, elapsed_ns))


def iterated(source: int, elapsed_ns: int) -> None:
    """Record the time in which a DataLoader made an iterator, and started its workers, to train on ``source`` again."""
    if state.steps and not state.open and source in state.trained_on and watched():
        state.events.append((ITERATED, elapsed_ns))


def evaluated() -> None:
    """Record a model run without gradients: earlier batches are for training only if a backward pass follows."""
    state.ran_without_gradients = True
    state.settled.clear()


def ran_out(source: int) -> None:
    """Record the end of dataset ``source`` (id): its batches without a backward pass since were for evaluation."""
    state.ended.add(source)
    if state.doubtful:
        state.sources.discard(source)
        resolve(training=False)


def begins_anew(source: int) -> bool:
    """Handle a new iterator of dataset ``source``, perhaps a restart. Return True if the previous one ran out."""
    recording = state
    ended = source in recording.ended
    if source in recording.trained_on:
        recording.anew, recording.early = True, not ended
    recording.ended.discard(source)
    return ended


def trains() -> None:
    """Handle the start of a backward pass: all batches fetched since the last one count as training batches."""
    if state.doubtful:
        resolve(training=True)
    state.ran_without_gradients = False
    if state.sources:
        state.trained_on |= state.sources
        state.sources.clear()


def backward_of(loss: Tensor) -> None:
    """Note an event from LASTING consecutive backward passes on with a ``loss`` (on the CPU) that is not finite."""
    recording, on_cpu = state, loss.is_cpu
    if not (recording.trained and on_cpu):
        _trains_on(loss.device)
    if not on_cpu or type(loss) is not Tensor or loss.numel() != 1:
        return
    if isfinite(loss.item()):
        recording.not_finite = 0
        return
    recording.not_finite += 1
    if recording.not_finite >= LASTING:
        recording.events.append((NOT_FINITE,))


def made_by(trace: Trace | None) -> None:
    """Store the maker of the batch that is about to arrive; None for a batch that is not recorded."""
    state.maker = trace
    if trace is None:
        state.unpacked = None


def received(trace: Trace | None, tokens: int, samples: int, loader: Loader, items: int = 0) -> None:
    """Record the arrival of a training batch. ``trace``: its maker. ``items``: collated by this process; 0: unknown."""
    recording = state
    if recording.doubtful:
        recording.doubtful_loaders.append(loader)
    elif loader not in recording.noted:
        _note_loader(loader)
    arrived = (RECEIVED, trace, tokens, items, samples)
    if recording.anew:
        recording.anew = False
        recording.events.append((BEGUN_ANEW, recording.early))
    unpacked, recording.unpacked = recording.unpacked, None
    if recording.marked is not None:  # a single wait, maybe for several batches
        recording.marked.append(arrived)
        return
    if unpacked is not None:
        recording.events.append((UNPACKED, *unpacked))
    recording.events.append(arrived)


def _note_loader(loader: Loader) -> None:
    if loader not in state.noted:
        state.noted.add(loader)
        state.in_flight = max(state.in_flight, loader[0] * loader[1])
        record.note("loader", loader)


# ---- steps


def begin_step() -> None:
    """Open the next step if no step and phase is open. Without an optimizer, a backward pass is assumed to end one."""
    if state.open or state.by_hand:
        return
    if not state.optimizers and state.backward_since:
        if not state.without_optimizer:
            _may_begin()
            return
        state.closed = True
    if state.closed:
        _open_step()


def step_by_hand() -> None:
    """End the open step and begin the next at a mark of the program. From now on only such marks begin steps."""
    state.by_hand = True
    state.settled.clear()
    state.closed_ns = monotonic_ns()
    _open_step()


def close_step() -> None:
    """Mark the current step as closed: the next fetch or pass opens a new step."""
    state.closed, state.closed_ns = True, monotonic_ns()


def later(number: int) -> int:
    """Return the step at which a function of ``on_some_steps`` runs again, after a call at step ``number``."""
    return max(int(number * RARER), number + 1)


def _open_step() -> None:
    """Begin the next step, perhaps after waiting for the turn; set ``state.enough`` once the turns have ended."""
    recording = state
    if (
        recording.most_steps is not None
        and recording.steps - recording.unmeasured >= recording.most_steps
        and not recording.by_hand
    ):
        recording.enough = all(may_end(recording.steps) for may_end in before_end)
    if recording.alternates and not gate.state.over:
        warmed_up = gate.state.warmup
        if not gate.before_step(recording.steps, _unmeasured(), _pause):
            recording.enough = True
            return
        if warmed_up and not gate.state.warmup:
            _drain()  # The host may run ahead: unfinished warm-up work would count in measured steps.
    _begin(monotonic_ns(), run_queue.read())
    recording = state  # a forked child has a new state now
    number = recording.steps - 1
    if number >= recording.due:
        recording.due = number + 1 if number < EARLY else later(number)
        for action in on_some_steps:
            action(number)
    for action in on_step:
        action(number)


def _unmeasured() -> int:
    """Return the number of first steps of a turn that warm the caches or use batches made before it."""
    return 1 + state.in_flight


def _pause() -> None:
    """Wait until the device is idle, then end the open step: its device work is part of the turn that ends."""
    _drain()
    if state.steps:
        flush((PAUSE, monotonic_ns(), run_queue.read()))


def _drain() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def enter_by_hand(name: str) -> None:
    """Begin the phase ``name`` that the program marks. The phase "fetch" opens a step, like a fetch of a DataLoader."""
    if name == "fetch" and not state.by_hand:
        fetching(0)
    enter(name)
    if name == "fetch":
        state.marked = []


def leave_by_hand(name: str) -> None:
    """End the phase ``name`` that the program marks; "fetch" records one batch, with its marked stages."""
    leave(name)
    if name == "fetch":
        within, state.marked = state.marked, None
        pieces = stages.take()
        if not within:
            received(("main", *stages.origin(), -1, pieces), 0, 0, (0, 1, False))
            return
        # Loaders within the fetch count as one wait. The last batch's maker stands for all.
        _, trace, _, items, _ = within[-1]
        if trace is not None and trace[0] == "main":
            trace = (*trace[:4], (*trace[4], *pieces))
        state.events.append(
            (RECEIVED, trace, sum(batch[2] for batch in within), items, sum(batch[4] for batch in within))
        )


def _begin(now: int, reading: tuple[bytes, ...]) -> None:
    recording = state
    recording.closed = recording.backward_since = False
    number = recording.steps
    recording.steps = number + 1
    warmup, repetition = False, 0
    if recording.warming or recording.alternates or recording.window_from is not None:
        warmup, repetition = _is_warmup(number), gate.state.repetition or 0
        recording.unmeasured += warmup
    if recording.doubtful:
        resolve(training=False)
    if recording.marks:
        recording.events += device.collect()
    # Writing resets this state in a child that was not forked by Python.
    ends_frame = len(recording.events) >= FRAME_EVENTS or now - recording.written_ns > FRAME_NS or not forks.here[0]
    if ends_frame or now - recording.begun_ns > LONG_NS:
        for action in on_step_end:
            recording.events += action()
    recording.events.append((STEP, now, reading, number, repetition, warmup))
    recording.begun_ns = now
    if ends_frame:
        recording.written_ns = now
        events, recording.events = recording.events, []
        record.write("events", events)


def _is_warmup(number: int) -> bool:
    """True if step ``number``, which begins now, is not measured: warm-up, profiling window, or start of a turn."""
    if state.window_from is not None:
        return True
    if state.alternates and not gate.state.over:
        return bool(gate.state.warmup)
    # True for the first steps of the program, and up to the end of a profiling window.
    state.warming = number < state.warmup or state.measured_from is None or number < state.measured_from
    return state.warming


def _may_begin() -> None:
    """Note a possible step start. After MOST_ACCUMULATED of them, decide that the program has no optimizer."""
    state.backward_since = False
    state.events.append((MAYBE, monotonic_ns(), run_queue.read()))
    state.maybe += 1
    if state.maybe >= MOST_ACCUMULATED:
        decide(optimizer=False)


def decide(*, optimizer: bool) -> None:
    """Settle the noted step starts: with an ``optimizer`` they are dropped, else each starts a step."""
    events, state.events, state.maybe = state.events, [], 0
    if optimizer:
        state.events = [event for event in events if event[0] != MAYBE]
        return
    state.without_optimizer = True
    for event in events:
        if event[0] == MAYBE:
            _begin(event[1], event[2])
        else:
            state.events.append(event)


def flush(pause: tuple[Any, ...] | None = None) -> None:
    """Write all events and end the last step at its last update. ``pause``: the event of a pause; None: the end."""
    begun, ends = pause, pause is None
    resolve(training=False)
    if begun is None:
        if state.maybe:
            decide(optimizer=False)
        if state.by_hand:
            begun = (PAUSE, monotonic_ns(), run_queue.read())
        elif state.steps and (state.closed or not state.optimizers):
            begun = (PAUSE, state.closed_ns, ())
    state.events += device.last() if ends else device.collect()
    events, state.events = state.events, []
    if begun is not None:  # events after the last update are in no step
        late = next((place for place, event in enumerate(events) if event[0] == ENTER and event[2] > begun[1]), None)
        if late is not None:
            events[late:] = [event for event in events[late:] if event[0] == device.WORK]
        events.append(begun)
    if events:
        record.write("events", events)


def write_whole_steps() -> None:
    """Write the events of ended steps, without waiting for the device. The open step is kept."""
    events = state.events
    end = next((number for number in range(len(events), 0, -1) if events[number - 1][0] == STEP), 0)
    if end:
        state.events = events[end:]
        record.write("events", events[:end])


def leave_if_enough() -> None:
    """Raise SystemExit(0) after the steps of ``--steps``: the agent's only change to the control flow."""
    if state.enough:
        state.enough = False
        record.note("ended", f"stopped after {state.steps - 1} steps (--steps)")
        raise SystemExit(0)
