"""Find the ends of training steps, and cut the events of the recorded thread into steps and frames.

    end of a step       an update of the optimizer that appeared last among those that step about as often as the
    busiest (not within a backward pass); without an optimizer, the first pass after a backward pass: decided
                        after MOST_ACCUMULATED backward passes (gradient accumulation has fewer), or at the end
    begin of a step     the next fetch of training data; without a DataLoader a forward or backward pass
    evaluation data     opens no step; a source that appears later is for training if a backward pass follows its
    batches

Callers: ``loading.py`` (fetches), ``watching.py`` (forward passes), ``updates.py`` (backward passes, optimizers).
``README.md`` has the states of a step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from threading import get_ident
from time import monotonic_ns
from typing import Any

import torch
from _harness_agent import batches, device, forks, gate, phases, record, run_queue, stages, switches
from _harness_agent import events as kinds
from torch import Tensor, is_grad_enabled

# Short steps share a frame: within a step, writing a frame takes several times as long as in a tight loop. A SIGKILL
# loses the steps that are not yet written.
FRAME_EVENTS = 96  # minimum events in a frame; a frame ends with a step
FRAME_NS = 500_000_000  # nanoseconds of steps in a frame
LASTING = 3  # consecutive non-finite losses: fewer may come from a gradient scaler, which skips such steps
MOST_ACCUMULATED = 64  # backward passes without an optimizer step, before the program counts as having no optimizer


@dataclass(slots=True)
class _Steps:
    """Steps of the recorded thread: number and times of begun steps, and conditions for the next one to begin."""

    begun: int = 0  # steps that began
    closed: bool = True  # True before the first step, too
    closed_ns: int = 0
    begun_ns: int = 0  # start of the last step
    written_ns: int = 0  # start of the step that ended the last frame
    due: int = 0  # first step for which ``on_some_steps`` run again
    by_hand: bool = False  # True if the program marks the start of each step
    enough: bool = False  # True once all requested steps are measured: the next hook ends the program
    trained: bool = False  # True once a backward pass has begun
    backward_since: bool = False  # True if a backward pass ended since the last step or possible step began
    possible: int = 0  # steps that began if there is no optimizer
    without_optimizer: bool = False  # True once the program counts as having no optimizer
    not_finite: int = 0  # consecutive non-finite losses
    adopted: bool = False  # True if the recorded thread replaced the main thread
    other_noted: bool = False  # True if another thread that trains was noted


@dataclass(slots=True)
class _Optimizers:
    """Optimizers that made updates, and the one whose update closes a step, by id. See updates.py."""

    updates: dict[int, int] = field(default_factory=dict)  # number of updates, in order of the first one
    closer: int | None = None  # optimizer whose update closed the last step
    single: int | None = None  # ``closer`` if there is no other optimizer
    within_backward: bool = False  # True if an optimizer stepped within the open backward pass
    step_ends: str | None = field(default_factory=lambda: record.word("step_ends"))


@dataclass(slots=True)
class _Measuring:
    """Settings of the launcher that decide which steps are measured, and where profiling windows begin and end."""

    unmeasured: int = 0  # steps that began and are not measured
    warming: bool = True  # True until the first measured step, outside turns
    measured_from: int | None = 0  # step; None: a window of profiling comes first
    window_from: int | None = None  # step that starts a profiling window after the measured steps
    most_steps: int | None = field(default_factory=lambda: record.number("steps"))
    warmup: int = field(default_factory=lambda: record.number("warmup") or 0)
    alternates: bool = field(default_factory=lambda: record.word("gate") is not None)
    controlled: bool = field(default_factory=lambda: record.word("control") is not None)


steps, optimizers, measuring = _Steps(), _Optimizers(), _Measuring()
OTHER_THREAD = "other_thread"  # note: a second thread trains, and is not recorded
_adopting = threading.Lock()
on_step: list[Callable[[int], None]] = []  # called with the number of each step that begins
# Like ``on_step``, but called for the first EARLY steps and then ever more rarely (see RARER).
on_some_steps: list[Callable[[int], None]] = []
EARLY = 64  # steps
RARER = 1.5  # ratio of the step numbers of two calls
# Called at the end of a step that took LONG_NS or ends a frame; each returns events.
on_step_end: list[Callable[[], list[tuple[Any, ...]]]] = []
LONG_NS = 1_000_000  # The recorded causes do not occur in a shorter step: a compilation takes longer.
# Called with each new step's number once all requested steps are measured. Return True if the program may end there.
before_end: list[Callable[[int], bool]] = []


def forget() -> None:
    _forget_steps()
    device.forget()
    gate.forget()


def _forget_steps(adopted_thread: int | None = None) -> None:
    global steps, optimizers, measuring
    steps, optimizers, measuring = _Steps(adopted=adopted_thread is not None), _Optimizers(), _Measuring()
    batches.forget()
    phases.forget(adopted_thread)


def adopt() -> bool:
    """Record the calling thread from now on, if the recorded one has ended or never trained; return True if so."""
    if not _adopting.acquire(blocking=False):  # Another thread is being adopted.
        return False
    try:
        if steps.trained or steps.adopted:
            if any(thread.ident == phases.recorded_thread for thread in threading.enumerate()):
                if not steps.other_noted:
                    steps.other_noted = True
                    record.note(OTHER_THREAD, threading.current_thread().name)
                return False
            flush()
            record.begin_anew()
        switches.forget()
        run_queue.forget()
        record.training_thread = threading.get_native_id()
        _forget_steps(get_ident())
        return True
    finally:
        _adopting.release()


def interrupted() -> None:
    """End every open phase after a program's signal handler raised within a hook; the step is not measured."""
    batches.interrupted()
    phases.interrupted(in_step=steps.begun > 0)


def fetching(source: int, loader: bool = True) -> bool:
    """Handle a wait for a batch of ``source`` (id of dataset or function); open a step if it is certainly for training.

    Return False for an evaluation batch. ``loader``: False if a function serves it. ``settled`` ones skip all checks.
    """
    known = batches.state
    if source in known.settled and is_grad_enabled():
        if steps.closed and not phases.state.open:
            _open_step()
        return True
    known.settled.clear()
    if known.ran_without_gradients:  # without a backward pass: earlier batches were not for training
        known.ran_without_gradients = False
        known.sources &= known.trained_on
        batches.drop_unknown()
    if not is_grad_enabled():
        batches.evaluates()
        return False
    if source not in known.trained_on:
        known.sources.add(source)  # a following backward pass makes it a training source
        if known.trained_on:
            batches.use_is_unknown()
            return True
    if known.unknown:
        batches.drop_unknown()  # training continues with an earlier source
    known.loader_seen |= loader
    if optimizers.updates and not known.sources and not steps.by_hand:
        known.settled.add(source)
    begin_step()
    return True


def trains() -> None:
    """Handle the start of a backward pass: all batches fetched since the last one count as training batches."""
    known = batches.state
    if known.unknown:
        _, (_, asked_ns, reading), since, loaders = batches.take_unknown()
        if steps.closed and not steps.by_hand:
            _begin(asked_ns, reading)  # The step is already under way: it takes no turn and starts no hooks.
        phases.state.events += since
        for loader in loaders:
            batches.note_loader(loader)
    known.ran_without_gradients = False
    if known.sources:
        known.trained_on |= known.sources
        known.sources.clear()


def backward_of(loss: Tensor) -> None:
    """Append NOT_FINITE at the LASTING-th NaN or infinite ``loss`` in a row; checked are single numbers on the CPU."""
    recording, on_cpu = steps, loss.is_cpu
    if not (recording.trained and on_cpu):
        recording.trained = True
        phases.trains_on(loss.device)
    if not on_cpu or type(loss) is not Tensor or loss.numel() != 1:
        return
    if isfinite(loss.item()):
        recording.not_finite = 0
        return
    recording.not_finite += 1
    if recording.not_finite >= LASTING:
        phases.state.events.append((kinds.NOT_FINITE,))


def tokenized(elapsed_ns: int) -> None:
    """Record ``elapsed_ns`` of a tokenizer call in the recorded thread; ignored before step 0 and within a phase."""
    if steps.begun and not phases.state.open and phases.watched():
        phases.state.events.append((kinds.TOKENIZED, elapsed_ns))


def iterated(source: int, elapsed_ns: int) -> None:
    """Record ``elapsed_ns`` of making an iterator over dataset ``source`` (id), if trained on and outside phases."""
    if steps.begun and not phases.state.open and source in batches.state.trained_on and phases.watched():
        phases.state.events.append((kinds.ITERATED, elapsed_ns))


def begin_step() -> None:
    """Open the next step if none is open; until an optimizer is seen, only note it as possible."""
    if phases.state.open or steps.by_hand:
        return
    if not optimizers.updates and steps.backward_since:
        if not steps.without_optimizer:
            _may_begin()
            return
        steps.closed = True
    if steps.closed:
        _open_step()


def step_by_hand() -> None:
    """End the open step and begin the next at a mark of the program. From now on only such marks begin steps."""
    steps.by_hand = True
    batches.state.settled.clear()
    steps.closed_ns = monotonic_ns()
    _open_step()


def close_step() -> None:
    """Mark the current step as closed: the next fetch or pass opens a new step."""
    steps.closed, steps.closed_ns = True, monotonic_ns()


def later(number: int) -> int:
    """Return the step after ``number`` at which functions of ``on_some_steps`` run next: about RARER x ``number``."""
    return max(int(number * RARER), number + 1)


def _open_step() -> None:
    """Begin the next step, once it is this program's turn. Set ``steps.enough`` if all requested ones are measured."""
    recording, plan = steps, measuring
    if plan.most_steps is not None and recording.begun - plan.unmeasured >= plan.most_steps and not recording.by_hand:
        recording.enough = all(may_end(recording.begun) for may_end in before_end)
    if plan.alternates and not gate.state.over:
        warmed_up = gate.state.warmup
        if not gate.before_step(recording.begun, _unmeasured(), _pause):
            recording.enough = True
            return
        if warmed_up and not gate.state.warmup:
            _drain()  # The host may run ahead: unfinished warm-up work would count in measured steps.
    _begin(monotonic_ns(), run_queue.read())
    recording = steps  # a forked child has new ones now
    number = recording.begun - 1
    if number >= recording.due:
        recording.due = number + 1 if number < EARLY else later(number)
        for action in on_some_steps:
            action(number)
    for action in on_step:
        action(number)


def _unmeasured() -> int:
    """Return how many steps at a turn's start are not measured: one (cold caches), and one per batch made earlier."""
    return 1 + int(batches.state.in_flight)


def _pause() -> None:
    """Wait until the device is idle, then end the open step: its device work is part of the turn that ends."""
    _drain()
    if steps.begun:
        flush((kinds.PAUSE, monotonic_ns(), run_queue.read()))


def _drain() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def enter_by_hand(name: str) -> None:
    """Begin the phase ``name`` that the program marks. The phase "fetch" opens a step, like a fetch of a DataLoader."""
    if name == "fetch" and not steps.by_hand:
        fetching(0)
    phases.enter(name)
    if name == "fetch":
        batches.state.in_marked_fetch = []


def leave_by_hand(name: str) -> None:
    """End the phase ``name`` that the program marked; the end of "fetch" is also the arrival of one batch."""
    phases.leave(name)
    if name == "fetch":
        within, batches.state.in_marked_fetch = batches.state.in_marked_fetch, None
        pieces = stages.take()
        if not within:
            batches.received(("main", *stages.origin(), kinds.UNKNOWN_NUMBER, pieces), 0, 0, (0, 1, False))
            return
        # Loaders within the fetch count as one wait. The last batch's maker stands for all.
        _, trace, _, items, _ = within[-1]
        if trace is not None and trace[0] == "main":
            trace = (*trace[:4], (*trace[4], *pieces))
        phases.state.events.append(
            (kinds.RECEIVED, trace, sum(batch[2] for batch in within), items, sum(batch[4] for batch in within))
        )


def _begin(now: int, reading: tuple[bytes, ...]) -> None:
    recording, plan, own = steps, measuring, phases.state
    recording.closed = recording.backward_since = False
    number = recording.begun
    recording.begun = number + 1
    warmup, repetition = False, 0
    if plan.warming or plan.alternates or plan.window_from is not None:
        warmup, repetition = _is_warmup(number), gate.state.repetition or 0
        plan.unmeasured += warmup
    if batches.state.unknown:
        batches.drop_unknown()
    if own.on_device:
        own.events += device.collect()
    # Writing resets this state in a child that was not forked by Python.
    ends_frame = len(own.events) >= FRAME_EVENTS or now - recording.written_ns > FRAME_NS or not forks.here[0]
    if ends_frame or now - recording.begun_ns > LONG_NS:
        for action in on_step_end:
            own.events += action()
    own.events.append((kinds.STEP, now, reading, number, repetition, warmup))
    recording.begun_ns = now
    if ends_frame:
        recording.written_ns = now
        events, own.events = own.events, []
        record.write(kinds.EVENTS, events)


def _is_warmup(number: int) -> bool:
    """True if step ``number``, which begins now, is not measured: warm-up, profiling window, or start of a turn."""
    if measuring.window_from is not None:
        return True
    if measuring.alternates and not gate.state.over:
        return bool(gate.state.warmup)
    # True for the first steps of the program, and up to the end of a profiling window.
    first = measuring.measured_from
    measuring.warming = number < measuring.warmup or first is None or number < first
    return measuring.warming


def _may_begin() -> None:
    """Note a possible step start. After MOST_ACCUMULATED of them, decide that the program has no optimizer."""
    steps.backward_since = False
    phases.state.events.append((kinds.POSSIBLE_STEP, monotonic_ns(), run_queue.read()))
    steps.possible += 1
    if steps.possible >= MOST_ACCUMULATED:
        decide(optimizer=False)


def decide(*, optimizer: bool) -> None:
    """Settle the noted step starts: with an ``optimizer`` they are dropped, else each starts a step."""
    events, phases.state.events, steps.possible = phases.state.events, [], 0
    if optimizer:
        phases.state.events = [event for event in events if event[0] != kinds.POSSIBLE_STEP]
        return
    steps.without_optimizer = True
    for event in events:
        if event[0] == kinds.POSSIBLE_STEP:
            _begin(event[1], event[2])
        else:
            phases.state.events.append(event)


def flush(pause: tuple[Any, ...] | None = None) -> None:
    """Write all events. ``pause``: PAUSE event that ends the open step; None at the end: the last update does."""
    begun, ends = pause, pause is None
    batches.drop_unknown()
    if begun is None:
        if steps.possible:
            decide(optimizer=False)
        if steps.by_hand:
            begun = (kinds.PAUSE, monotonic_ns(), run_queue.read())
        elif steps.begun and (steps.closed or not optimizers.updates):
            begun = (kinds.PAUSE, steps.closed_ns, ())
    phases.state.events += device.last() if ends else device.collect()
    events, phases.state.events = phases.state.events, []
    if begun is not None:  # events after the last update are in no step
        late = next(
            (place for place, event in enumerate(events) if event[0] == kinds.ENTER and event[2] > begun[1]), None
        )
        if late is not None:
            events[late:] = [event for event in events[late:] if event[0] == kinds.DEVICE_WORK]
        events.append(begun)
    if events:
        record.write(kinds.EVENTS, events)


def write_whole_steps() -> None:
    """Write the events of ended steps, without waiting for the device. The open step is kept."""
    events = phases.state.events
    end = next((number for number in range(len(events), 0, -1) if events[number - 1][0] == kinds.STEP), 0)
    if end:
        phases.state.events = events[end:]
        record.write(kinds.EVENTS, events[:end])


def leave_if_enough() -> None:
    """End the program (SystemExit 0) once all steps that ``--steps`` or the launcher requested are measured."""
    if steps.enough:
        steps.enough = False
        record.note("ended", f"stopped after {steps.begun - 1} steps (--steps)")
        raise SystemExit(0)
