"""Finds where a training step ends, and times its phases on the main thread: fetch, forward, backward, optimizer.

A step is closed by an optimizer: of those that step about as often as the busiest, the one that appeared last. Updates
within a backward pass collapse into it. The first fetch after that opens the next step, where its batches are trained
on: an evaluation opens none. What batches of a source are for that comes up later (an evaluation, or the dataset of
the next epoch) is decided afterwards: a backward pass trains on them. A program without a DataLoader opens its steps
with a forward or backward pass. Where no optimizer is ever seen, the first of these after a backward pass opens a
step; that is known after so many passes that nobody accumulates gradients over more, or when the program ends. Who
calls this: ``loading.py`` for fetches, ``watching.py`` for forward passes, ``updates.py`` for backward passes and
optimizers.
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
EVALUATION = 6  # (kind, the model made graphs): a batch was fetched that is not trained on
TOKENIZED = 7  # (kind, nanoseconds): a tokenizer ran in the training loop itself, in no fetch
PERHAPS = 12  # (kind, time, run-queue reading): a batch is asked for that may be of training or not; not written
MAYBE = 8  # (kind, time, run-queue reading): a step begins here if no optimizer is ever seen; not written
NOT_FINITE = 13  # the loss of this step is NaN or infinite, as those before it were
UNPACKED = 11  # number of harness.probes.ledger.rows
BEGUN_ANEW = 14  # (kind, early): the batch that arrives is its loader's first since it began anew
INTERRUPTED = 10  # a signal handler of the program raised while a hook ran: what the step did is not known
MOST_DOUBTFUL = 64  # batches that may be of training, until they are taken to be none
# Short steps share a frame: within a step, after the program's own work, writing one takes several times as long as in
# a loop. A SIGKILL loses the steps that are not written.
FRAME_EVENTS = 96  # events of a frame, which ends with a step
FRAME_NS = 500_000_000  # of steps in a frame
LASTING = 3  # losses in a row that are not finite: fewer may be of a scaler, which skips such a step
MOST_ACCUMULATED = 64  # backward passes without an optimizer's step, until there is taken to be none
ENDED = -2  # replaces a batch's number: the wait ended with the data
NO_TRACE = ("unknown", 0, 0, -1, ())

Loader = tuple[int, int, bool]  # workers, batches in flight for each, whether the workers outlive an epoch
Trace = tuple[str, int, int, int, Any]  # role, pid, thread, which of its batches (-1: not known), pieces


@dataclass(slots=True)
class _State:
    """State of this process, with the settings that each step reads. A forked child begins with a new one."""

    events: list[tuple[Any, ...]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)  # phases of the main thread, innermost last
    last: str | None = None  # phase that ended
    making: stages.Making | None = None  # the main thread's batch
    core: stages.CpuReading = field(default_factory=stages.CpuReading)  # the main thread's, once it is known
    here: tuple[str, int, int, int] | None = None  # process and main thread, the beginning of a trace
    marks: bool = False  # True if launches on a device are recorded
    optimizers: dict[int, int] = field(default_factory=dict)  # steps by optimizer, in the order of their first
    trained_on: set[int] = field(default_factory=set)  # sources of batches after which a backward pass came
    sources: set[int] = field(default_factory=set)  # others, whose batches came since a backward pass
    settled: set[int] = field(default_factory=set)  # see fetching()
    ended: set[int] = field(default_factory=set)  # sources whose last iterator ended with the data
    anew: bool = False  # the batch that arrives is the first since its loader began anew
    early: bool = False  # the iterator before it was left before its end
    doubtful: int = 0  # batches that may be of training or of an evaluation
    doubtful_loaders: list[Loader] = field(default_factory=list)  # whose they are
    ran_without_gradients: bool = False  # the model, since a batch was asked for
    batches: int = 0  # that arrived, training or not
    not_finite: int = 0  # losses in a row
    loader_seen: bool = False  # a DataLoader serves this program: its fetches open the steps
    in_flight: int = 0  # batches at most, of the loader with most
    maker: Trace | None = None  # maker of the batch that arrives
    unpacked: tuple[int, int, bool] | None = None  # see arrivals
    closing: int | None = None  # the optimizer that closes steps
    only: int | None = None  # ``closing`` if there is no other optimizer
    closed: bool = True  # nothing has begun yet
    written_ns: int = 0  # beginning of the step that ended the last frame
    closed_ns: int = 0
    marked: list[tuple[Any, ...]] | None = None  # batches that arrived within the fetch that the program marks
    enough: bool = False
    trained: bool = False  # a backward pass has begun
    adopted: bool = False  # The recorded thread was adopted: it is not the first one.
    backward_since: bool = False
    updated_within: bool = False  # a backward pass
    by_hand: bool = False  # the program says itself where a step begins
    maybe: int = 0  # steps that began if there is no optimizer
    without_optimizer: bool = False
    steps: int = 0
    begun_ns: int = 0  # start of the last step
    due: int = 0  # first step for which ``on_some_steps`` are called again
    unmeasured: int = 0  # number of steps that are not measured
    measured_from: int | None = 0  # step; None: a window of profiling comes first
    window_from: int | None = None  # step that begins a window of profiling after the measured ones
    warming: bool = True  # no step has been measured, of those that take no turns
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
# Called like ``on_step``, for each of the first EARLY steps, and from then on more and more rarely: see RARER.
on_some_steps: list[Callable[[int], None]] = []
EARLY = 64  # steps
RARER = 1.5  # step of a call / step of the call before
# Called as a step ends that took LONG_NS, or that is the last one of a frame; return events.
on_step_end: list[Callable[[], list[tuple[Any, ...]]]] = []
LONG_NS = 1_000_000  # Nothing that these look for happens in a shorter step: a compilation takes longer.
on_evaluation: list[Callable[[], None]] = []  # called before each batch that is not trained on
# Called with the number of each step that begins when all are measured: True if the program may end there.
before_end: list[Callable[[int], bool]] = []


def forget() -> None:
    """Begin anew in a forked child."""
    global state, recorded_thread
    state, recorded_thread = _State(), threading.main_thread().ident
    device.forget()
    gate.forget()


def adopt() -> bool:
    """Record this thread from now on, if the recorded one has not trained or has ended; True if it is recorded now.

    Called where a backward pass begins in another thread than the recorded one. What the ended thread recorded stays in
    its file, and this thread begins a file of its own.
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
    """Return True if this call counts: it is in the recorded thread, and no compiler traces it."""
    return guard.on and get_ident() == recorded_thread and not is_compiling()


# ---- phases


def enter(name: str) -> None:
    this = state
    if this.marks:
        _mark()
    core = this.core
    now = monotonic_ns()
    if now < core.near_ns and core.here[0] and core.count[0] == core.counted:
        cpu_ns = now + core.ahead_ns
    else:
        cpu_ns, now = _read_core()
    this.events.append((ENTER, name, now, cpu_ns))
    this.open.append(name)


def leave(name: str) -> None:
    this = state
    open_ = this.open
    if not open_ or open_[-1] != name:
        if name not in open_:
            return
        leave(open_[-1])  # inner phases end with it
        leave(name)
        return
    core = this.core
    now = monotonic_ns()
    if now < core.near_ns and core.here[0] and core.count[0] == core.counted:
        cpu_ns = now + core.ahead_ns
    else:
        cpu_ns, now = _read_core()
    if this.marks:
        _mark()
        this.last = name
    del open_[-1]
    this.events.append((EXIT, name, now, cpu_ns))


def _read_core() -> tuple[int, int]:
    """The main thread's CPU time, and the clock then."""
    now: tuple[int, int] = (state.making or making()).core.read()
    return now


def making() -> stages.Making:
    """Return what this thread makes. For the recorded thread, keep it."""
    found = stages.making()
    if get_ident() == recorded_thread:
        state.making, state.core = found, found.core
        if forks.known and (count := switches.count()) is not None:
            found.core.counts(count, switches.LASTS_NS, forks.here)
            run_queue.follow(found.core)
    return found


def here() -> tuple[str, int, int, int]:
    """Return the beginning of the trace of a batch that the main thread of this process makes."""
    state.here = ("main", *stages.origin(), -1)
    return state.here


def interrupted() -> None:
    """A signal handler of the program raised within a hook: every phase ends here, and the step is not measured.

    What that hook had still to write down is lost.
    """
    stages.forget()
    state.marked = state.maker = state.making = None
    state.core = stages.CpuReading()
    if state.steps:
        cpu_ns, now = thread_time_ns(), monotonic_ns()
        while state.open:
            state.events.append((EXIT, state.open.pop(), now, cpu_ns))
        state.events.append((INTERRUPTED,))


def _mark() -> None:
    """Tell the recording of a device what the host launched since the last boundary of phases."""
    if not state.open:
        device.mark(device.BETWEEN.get(state.last or "", "other"))
    else:
        device.mark(None if state.open[-1] == "fetch" else state.open[-1])


def _trains_on(where: torch.device) -> None:
    """A backward pass is about to run on this device; the program's first, or not on a CPU."""
    state.trained = True
    if not device.state.noted:
        device.trains_on(where)
        state.marks = device.state.stream is not None


# ---- batches


def fetching(source: int, loader: bool = True) -> bool:
    """A wait for a batch of ``source`` begins; whether it is one of training, or may be. It may open a step.

    ``loader``: it is a DataLoader that serves it, not a function.

    Of a source that is ``settled`` nothing of what follows here has to be asked again: it is trained on, by an
    optimizer that was seen, and so was every batch until now. Whatever makes that doubtful settles all anew.
    """
    this = state
    if source in this.settled and is_grad_enabled():
        if this.closed and not this.open:
            _open_step()
        return True
    this.settled.clear()
    if state.ran_without_gradients:  # without a backward pass: earlier batches are not trained on
        state.ran_without_gradients = False
        state.sources &= state.trained_on
        resolve(training=False)
    if not is_grad_enabled():
        _evaluates()
        return False
    if source not in state.trained_on:
        state.sources.add(source)  # if a backward pass follows, it was one of training
        if state.trained_on:
            if state.doubtful >= MOST_DOUBTFUL:
                resolve(training=False)
            state.events.append((PERHAPS, monotonic_ns(), run_queue.read()))
            state.doubtful += 1
            return True
    if state.doubtful:
        resolve(training=False)  # training goes on with its earlier source
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
    """Decide what the batches were for that may have been of training: that is so where a backward pass comes."""
    if not state.doubtful:
        return
    at = next(place for place, event in enumerate(state.events) if event[0] == PERHAPS)
    (_, asked_ns, reading), since = state.events[at], [event for event in state.events[at:] if event[0] != PERHAPS]
    del state.events[at:]
    batches, state.doubtful = state.doubtful, 0
    loaders, state.doubtful_loaders = state.doubtful_loaders, []
    if not training:
        runs = any(event[0] == ENTER and event[1] == "forward" for event in since)
        state.events += [event for event in since if not _of_fetch(event)]
        for _ in range(batches):
            _evaluates(graphs=runs and not state.ran_without_gradients)
        return
    if state.closed and not state.by_hand:
        _begin(asked_ns, reading)  # no turn begins here, nor what else a step begins with: it is under way
    state.events += since
    for loader in loaders:
        _note_loader(loader)


def _of_fetch(event: tuple[Any, ...]) -> bool:
    return event[0] in (RECEIVED, UNPACKED, BEGUN_ANEW) or (event[0] in (ENTER, EXIT) and event[1] == "fetch")


def tokenized(elapsed_ns: int) -> None:
    """A tokenizer ran where no batch is being made; only the main thread's calls count."""
    if state.steps and not state.open and watched():
        state.events.append((TOKENIZED, elapsed_ns))


def evaluated() -> None:
    """The model ran without gradients: what was fetched for that is not trained on, but where a backward pass comes.

    (A teacher runs so, on the batch that its student is trained on.)
    """
    state.ran_without_gradients = True
    state.settled.clear()


def ran_out(source: int) -> None:
    """Data of ``source`` ended. If no backward pass came after any batch of it, it is an evaluation's."""
    state.ended.add(source)
    if state.doubtful:
        state.sources.discard(source)
        resolve(training=False)


def begins_anew(source: int) -> bool:
    """A new iterator begins to serve ``source``; its loader begins anew if a backward pass came after another one.

    Return True if that one had no batches left.
    """
    this = state
    ended = source in this.ended
    if source in this.trained_on:
        this.anew, this.early = True, not ended
    this.ended.discard(source)
    return ended


def trains() -> None:
    """A backward pass begins: what was fetched is trained on."""
    if state.doubtful:
        resolve(training=True)
    state.ran_without_gradients = False
    if state.sources:
        state.trained_on |= state.sources
        state.sources.clear()


def backward_of(loss: Tensor) -> None:
    """Look at the loss that a backward pass begins with; not on a device, which the program would have to wait for."""
    this, on_cpu = state, loss.is_cpu
    if not (this.trained and on_cpu):
        _trains_on(loss.device)
    if not on_cpu or type(loss) is not Tensor or loss.numel() != 1:
        return
    if isfinite(loss.item()):
        this.not_finite = 0
        return
    this.not_finite += 1
    if this.not_finite >= LASTING:
        this.events.append((NOT_FINITE,))


def made_by(trace: Trace | None) -> None:
    """Say who made the batch that is about to arrive."""
    state.maker = trace
    if trace is None:
        state.unpacked = None


def received(trace: Trace | None, tokens: int, samples: int, loader: Loader, items: int = 0) -> None:
    """A batch of training arrived. ``loader``: what serves it. ``items``: what this process made it of; 0: unknown."""
    this = state
    if this.doubtful:
        this.doubtful_loaders.append(loader)
    elif loader not in this.noted:
        _note_loader(loader)
    arrived = (RECEIVED, trace, tokens, items, samples)
    if this.anew:
        this.anew = False
        this.events.append((BEGUN_ANEW, this.early))
    unpacked, this.unpacked = this.unpacked, None
    if this.marked is not None:  # one wait, maybe for several batches
        this.marked.append(arrived)
        return
    if unpacked is not None:
        this.events.append((UNPACKED, *unpacked))
    this.events.append(arrived)


def _note_loader(loader: Loader) -> None:
    if loader not in state.noted:
        state.noted.add(loader)
        state.in_flight = max(state.in_flight, loader[0] * loader[1])
        record.note("loader", loader)


# ---- steps


def begin_step() -> None:
    """Open the next step, if the last one is closed and no phase of it is open.

    Without an optimizer, each backward pass is taken to end a step.
    """
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
    """The program says that a step begins; it also ends the one before."""
    state.by_hand = True
    state.settled.clear()
    state.closed_ns = monotonic_ns()
    _open_step()


def close_step() -> None:
    """The step is over, whatever it did."""
    state.closed, state.closed_ns = True, monotonic_ns()


def later(number: int) -> int:
    """Return the step of the next call after one at step ``number``."""
    return max(int(number * RARER), number + 1)


def _open_step() -> None:
    """Begin a step, after others had their turn where this program takes turns."""
    this = state
    if this.most_steps is not None and this.steps - this.unmeasured >= this.most_steps and not this.by_hand:
        this.enough = all(may_end(this.steps) for may_end in before_end)
    if this.alternates and not gate.state.over:
        warmed_up = gate.state.warmup
        if not gate.before_step(this.steps, _unmeasured(), _pause):
            this.enough = True
            return
        if warmed_up and not gate.state.warmup:
            _drain()  # a host that runs ahead has launched warm-up steps that are not done: they are no part of others
    _begin(monotonic_ns(), run_queue.read())
    this = state  # a forked child has another one now
    number = this.steps - 1
    if number >= this.due:
        this.due = number + 1 if number < EARLY else later(number)
        for action in on_some_steps:
            action(number)
    for action in on_step:
        action(number)


def _unmeasured() -> int:
    """Steps at the beginning of a turn that live on batches made before it; one more warms the caches."""
    return 1 + state.in_flight


def _pause() -> None:
    """End the last step, where one is open, once the device has nothing left to do: its work is part of the turn."""
    _drain()
    if state.steps:
        flush((PAUSE, monotonic_ns(), run_queue.read()))


def _drain() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def enter_by_hand(name: str) -> None:
    """The beginning of a phase that the program marks; a fetch opens a step, as one of a DataLoader does."""
    if name == "fetch" and not state.by_hand:
        fetching(0)
    enter(name)
    if name == "fetch":
        state.marked = []


def leave_by_hand(name: str) -> None:
    """The end of a phase that the program marks; a fetch brings a batch, with the stages marked within."""
    leave(name)
    if name == "fetch":
        within, state.marked = state.marked, None
        pieces = stages.take()
        if not within:
            received(("main", *stages.origin(), -1, pieces), 0, 0, (0, 1, False))
            return
        # Loaders within count as one wait. The maker of the last batch stands for all.
        _, trace, _, items, _ = within[-1]
        if trace is not None and trace[0] == "main":
            trace = (*trace[:4], (*trace[4], *pieces))
        state.events.append((RECEIVED, trace, sum(one[2] for one in within), items, sum(one[4] for one in within)))


def _begin(now: int, reading: tuple[bytes, ...]) -> None:
    this = state
    this.closed = this.backward_since = False
    number = this.steps
    this.steps = number + 1
    warmup, repetition = False, 0
    if this.warming or this.alternates or this.window_from is not None:
        warmup, repetition = _is_warmup(number), gate.state.repetition or 0
        this.unmeasured += warmup
    if this.doubtful:
        resolve(training=False)
    if this.marks:
        this.events += device.collect()
    # In a child that Python did not fork, writing has this state begin anew.
    whole = len(this.events) >= FRAME_EVENTS or now - this.written_ns > FRAME_NS or not forks.here[0]
    if whole or now - this.begun_ns > LONG_NS:
        for action in on_step_end:
            this.events += action()
    this.events.append((STEP, now, reading, number, repetition, warmup))
    this.begun_ns = now
    if whole:
        this.written_ns = now
        events, this.events = this.events, []
        record.write("events", events)


def _is_warmup(number: int) -> bool:
    """Return True if the step that begins is not measured."""
    if state.window_from is not None:
        return True
    if state.alternates and not gate.state.over:
        return bool(gate.state.warmup)
    # One of the program's first, or of those up to the end of a profiled window.
    state.warming = number < state.warmup or state.measured_from is None or number < state.measured_from
    return state.warming


def _may_begin() -> None:
    """Note where a step begins if there is no optimizer; decide once that is likely."""
    state.backward_since = False
    state.events.append((MAYBE, monotonic_ns(), run_queue.read()))
    state.maybe += 1
    if state.maybe >= MOST_ACCUMULATED:
        decide(optimizer=False)


def decide(*, optimizer: bool) -> None:
    """Decide if the steps that may have begun did."""
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
    """Write all events, with the step that ends; the program goes on after ``pause``, and without one it ends.

    What follows the last update (saving, say) is no part of a step.
    """
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
    """Write the steps that have ended and share a frame with those that are open. Nothing is waited for."""
    events = state.events
    end = next((number for number in range(len(events), 0, -1) if events[number - 1][0] == STEP), 0)
    if end:
        state.events = events[end:]
        record.write("events", events[:end])


def leave_if_enough() -> None:
    """End the program where it has run the steps that ``--steps`` asks for: the one thing that changes its way."""
    if state.enough:
        state.enough = False
        record.note("ended", f"after {state.steps - 1} steps, as asked")
        raise SystemExit(0)
