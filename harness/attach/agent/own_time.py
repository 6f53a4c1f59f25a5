"""Sample where the recorded thread is, and time its garbage collections: time that no phase of a step shows.

A second thread looks at the recorded thread's stack. A look stands for the time since the previous look. A call that
holds the interpreter lock (such as a garbage collection) delays the look, which then finds that call. Python code holds
the lock until it calls something that releases it, for 5 ms at most:

- ``LATE``: the look waited for less. It found the releasing call, but the time was spent in Python code before it.
- ``FORCED``: the look waited for longer, and found the Python code itself.

If another phase began meanwhile, the place is unknown, and the look counts for the phase in which it was due. Program
code that runs as a hook of a backward pass, in the recorded or autograd's threads, has the phase ``HOOKS``.

Each look also reads how long the other Python threads ran: it waited for the lock, and not for a core, while they ran
Python (outside of torch's calls). The switch interval is ``INTERVAL_S`` only while no other Python thread runs, because
it would change how long competing threads wait. Looks become rarer with time (:data:`INTERVALS`). The thread only
appends to a list, which the recorded thread empties at the end of a step.

Dangers of a second thread:

- Before Python 3.12, a garbage collection within ``sys._current_frames()`` can block the program for ever (CPython
  issue 106883). A look is skipped if a collection may be due.
- A library in C may fork while the thread waits for the lock. A child that then runs Python without
  ``PyOS_AfterFork_Child()`` hangs.

Where commands take turns nothing is sampled: a look would find where the program was stopped.
"""

from __future__ import annotations

import _thread
import gc
import linecache
import os
import re
import sys
import threading
from opcode import opmap
from random import Random
from threading import get_ident, get_native_id
from time import clock_gettime_ns, monotonic_ns, sleep, thread_time_ns
from types import CodeType, FrameType
from typing import Any

from _harness_agent import boundaries, guard, memory, phases, record, run_queue, watching
from _harness_agent import events as kinds

# Modules of torch whose calls within a backward pass are work of the model, and not of a hook.
MODEL_MODULES = (
    "torch.autograd.function", "torch.utils.checkpoint", "torch.nn.modules", "torch.optim", "torch.distributed",
)  # fmt: skip
PROMPT_NS = 300_000  # nanoseconds: a look with a shorter delay did not wait for the lock
INTERVAL_S = 1e-4  # seconds for sys.setswitchinterval(): short pieces of Python are found, too
ROUNDING_S = 2e-6  # seconds: a program that restores an interval sets one that is a microsecond shorter
ALONE_LOOKS = 5  # looks without another Python thread before the interval is shortened
PLACE = "place"  # note: (number, "train.py:31", function, line of code, library function called there)
FIRST = watching.FIRST + watching.STEPS  # sys.setprofile slows the steps before
INTERVALS = ((250, 0.02), (1000, 0.1), (sys.maxsize, 0.5))  # (last look, mean seconds between two)
SPARE_OBJECTS = 64  # objects that a look may allocate: a dictionary, and a frame per thread
MAX_LOOK_NS = 2_000_000_000  # a longer pause comes from the machine
STOP_S = 1.0  # seconds to wait for the end of the thread
MAX_FRAMES = 200  # frames of a stack that are examined
MAX_PLACES = 256
HELD_NS = 2_500_000  # a look that waited longer found Python code that held the lock, as for FORCED
LEAST_PLACED_NS = 1_000_000  # shorter collections are not placed
MAX_CODE = 60  # characters of a line of code
OTHER_SHARE_MIN = 0.05  # share of the time between two looks: a thread that ran for less hardly holds the lock
MAX_THREADS = 16  # maximum number of other threads that are read
THREAD_CLOCK = 0b110  # low bits of a kernel clock number: CPU time of a thread
_THREADS: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]  # by get_ident()
_FOREIGN = threading._DummyThread  # a thread that Python did not start, once its name was asked for
_ENGINE = "_engine_run_backward"  # function of torch, and of the agent's wrapper, that runs a backward pass
MEMORY_S, MEMORY_SHARE = 0.1, 0.02  # minimum seconds between two memory readings, and as a share of the elapsed time
MEMORY_COST = 0.01  # maximum share of the time that readings take

# Program code, line, library code called there, and the module of that code. Without library code: name of the call.
Where = tuple[CodeType, int, CodeType | None, str]
LOADER_NEXT = "torch.utils.data.dataloader._BaseDataLoaderIter.__next__"  # wrapped by the agent
# Instruction of a statement "with" that enters an object. If it lasts without a frame of Python code, it takes a lock.
# Since Python 3.14, the instruction is a call, and ENTERS_NEXT comes just before it.
ENTERS, ENTERS_NEXT = opmap.get("BEFORE_WITH"), opmap.get("LOAD_SPECIAL")
THREAD_LOCK = "threading.Lock"
# These modules wait for another thread or process. Must match harness/explain/causes.py.
WAITING_MODULES = {"queue", "multiprocessing", "concurrent", "threading", "asyncio", "select", "selectors"}


class _Sampler:
    """Sampling thread of a process, from step FIRST on, and its unwritten results; none where commands take turns."""

    def __init__(self) -> None:
        self.looks: list[tuple[str, Where | None, int, int]] = []  # phase, place, delay, nanoseconds
        self.places: dict[tuple[CodeType, int, CodeType | str], int] = {}
        self.ended = _thread.allocate_lock()  # released when the sampling ends
        self.ended.acquire()
        self.left = _thread.allocate_lock()  # held while the thread runs
        self.thread = 0  # kernel's thread id
        self.counted = 0  # looks
        # Place of another thread, nanoseconds that it ran, nanoseconds of these with the lock.
        self.others: list[tuple[Where, int, int]] = []
        self.holders: list[tuple[Where, int]] = []  # place, nanoseconds; see HOLDER
        self.demand: list[tuple[int, int]] = []  # see DEMAND
        self.asked: tuple[int, dict[int, int]] | None = None  # time of the last reading, and its values
        self.ran_ns: dict[int, int] = {}  # CPU time of other threads at the last look, by kernel thread id
        self.others_known = False  # True after the first look at other threads
        self.alone = True  # True until another thread ran in a look
        self.usual_s = self.short_s = 0.0  # seconds: the program's switch interval, and the one set here
        self.fault: Exception | None = None  # error that ended the sampling
        self.memory: list[tuple[int, int, int]] = []  # see MEMORY_READ
        self.begun_ns = self.memory_due_ns = 0
        self.collected_ns = 0  # nanoseconds of all garbage collections that ended before the last look

    def run(self) -> None:
        """Look at the recorded thread until :attr:`ended` is released: the sampling thread's function."""
        process, self.thread = os.getpid(), get_native_id()
        run_queue.own.add(self.thread)
        last_ns = self.begun_ns = monotonic_ns()  # time of the last look
        uniform = Random(0).random  # separate generator: the program's random state does not change
        try:
            for most, seconds in INTERVALS:
                while self.counted < most:
                    wait_s = seconds * (0.5 + uniform())  # random, so that looks do not fall into step with the program
                    _, without_core_ns = run_queue.times_ns(process, self.thread)
                    due_ns = monotonic_ns() + int(wait_s * 1e9)
                    if self.ended.acquire(timeout=wait_s):
                        return
                    self.counted += 1
                    others, before = self.others, len(self.others)
                    last_ns = self._look(last_ns, due_ns)
                    # The last call of a look, as it releases the lock.
                    _, until_now_ns = run_queue.times_ns(process, self.thread)
                    if last_ns - due_ns - (until_now_ns - without_core_ns) > HELD_NS:
                        others[before:] = [(place, ns, ns) for place, ns, _ in others[before:]]
                    self._read_memory()
        except Exception as error:  # The interpreter shuts down, or the agent has an error: only the sampling ends.
            guard.let_through(error)
            self.fault = error
        finally:
            self._wait_shortly(False)
            run_queue.own.discard(self.thread)
            self.left.release()

    def start(self) -> None:
        """Start the sampling thread, unless it runs; no threading.Thread, which the program would see."""
        if self.left.acquire(blocking=False):
            _thread.start_new_thread(self.run, ())

    def stop(self) -> None:
        """End the sampling thread: wait STOP_S seconds at most for its Python code, then for the kernel's thread."""
        if self.ended.locked():
            self.ended.release()
        if self.left.acquire(timeout=STOP_S):
            self.left.release()
        until_ns = monotonic_ns() + int(STOP_S * 1e9)
        while os.path.exists(f"/proc/self/task/{self.thread}") and monotonic_ns() < until_ns:
            sleep(STOP_S / 10_000)  # the kernel's thread ends a little later

    def _look(self, last_ns: int, due_ns: int) -> int:
        """Sample all stacks; return the time in ns, or ``last_ns`` near a collection. ``due_ns``: planned time."""
        if _collection_is_near():
            return last_ns
        frames = sys._current_frames()
        del frames[get_ident()]  # A cycle through this frame's own dict would keep all frames alive.
        recorded = phases.recorded_thread or 0
        frame = frames.get(recorded)
        now = monotonic_ns()
        interval_ns = sys.getswitchinterval() * 1e9
        others = len(self.others)
        self._look_at_others(frames, now - last_ns)
        self.alone &= len(self.others) == others
        self._wait_shortly(self.alone and self.counted > ALONE_LOOKS)
        collections = _collections
        if collections is not None:
            if collections.begun_ns:
                return last_ns  # a garbage collection is running, in another callback
            # Collections are timed separately. They also delay a look, which then finds the line after them.
            collected_ns, self.collected_ns = collections.ended_ns - self.collected_ns, collections.ended_ns
            last_ns = min(last_ns + collected_ns, now)
        since_ns = min(now - last_ns, MAX_LOOK_NS)
        if (before := _phase_at(due_ns)) is not None:
            self.looks.append((before, None, kinds.LATE, since_ns))
            return now
        phase = (phases.state.open or ("",))[-1]
        if phase == "backward" and frame is not None and (hook := _hook(frame, frames)) is not None:
            phase, frame = kinds.HOOKS, hook
        if frame is not None and (place := self._where(frame)) is not None:
            waited_ns = now - due_ns
            waited = kinds.EXACT if waited_ns <= PROMPT_NS else kinds.LATE if waited_ns < interval_ns else kinds.FORCED
            self.looks.append((phase, place, waited, since_ns))
            if _waits_for_lock(place):
                names = _names_of_lock(place)
                stacks = [stack for thread, stack in frames.items() if thread != recorded and _uses_one(stack, names)]
                places = map(self._where, stacks)
                self.holders += [(holder, since_ns) for holder in places if holder is not None and _may_hold(holder)]
        return now

    def _wait_shortly(self, shortly: bool) -> None:
        """Set Python's switch interval: INTERVAL_S if ``shortly`` and less than the program's, else the program's."""
        now_s = sys.getswitchinterval()
        is_ours = abs(now_s - self.short_s) < ROUNDING_S
        if not is_ours:
            self.usual_s = now_s
        if shortly and self.usual_s > INTERVAL_S:
            sys.setswitchinterval(INTERVAL_S)
            self.short_s = sys.getswitchinterval()
        elif not shortly and is_ours:
            sys.setswitchinterval(self.usual_s)

    def _look_at_others(self, frames: dict[int, FrameType], since_ns: int) -> None:
        """Note places of other threads that ran for over OTHER_SHARE_MIN of ``since_ns``. ``frames``: by thread id."""
        thread_ids = [ident for ident in frames if ident != phases.recorded_thread][:MAX_THREADS]
        before, self.ran_ns = self.ran_ns, {}
        for thread_id in thread_ids:
            thread = _THREADS.get(thread_id)
            number = None if thread is None else vars(thread).get("_native_id")  # A property could run program code.
            if number is None:
                continue
            try:
                ran_ns = self.ran_ns[number] = clock_gettime_ns((~number << 3) | THREAD_CLOCK)
            except OSError:  # The thread has ended.
                continue
            # A thread that the last look did not see began after it.
            ns = min(ran_ns - before.get(number, 0 if self.others_known else ran_ns), since_ns)
            if ns > OTHER_SHARE_MIN * since_ns and (place := self._where(frames[thread_id])) is not None:
                self.others.append((place, ns, 0))
        self.others_known = True

    def _read_memory(self) -> None:
        """Read the memory of this process and its children, and the demand for cores, if a reading is due."""
        begun_ns, cpu_ns = monotonic_ns(), thread_time_ns()
        if begun_ns < self.memory_due_ns:
            return
        reading = memory.read()
        if reading is None:
            self.memory_due_ns = sys.maxsize
            return
        self.memory.append(reading)
        self._read_demand()
        took_ns = thread_time_ns() - cpu_ns  # On a busy machine, a reading takes longer but costs no more CPU time.
        wait_ns = max(MEMORY_S * 1e9, MEMORY_SHARE * (begun_ns - self.begun_ns), took_ns / MEMORY_COST)
        self.memory_due_ns = begun_ns + int(wait_ns)

    def _read_demand(self) -> None:
        """Record for how long other threads and child processes ran or waited for a core since the last time."""
        now, asked = monotonic_ns(), run_queue.children_asked_ns()
        asked |= {number: sum(run_queue.times_ns(os.getpid(), number)) for number in self.ran_ns}
        if self.asked is not None:
            then, before = self.asked
            since_ns = sum(max(0, ns - before.get(number, ns)) for number, ns in asked.items())
            self.demand.append((since_ns, now - then))
        self.asked = now, asked

    @staticmethod
    def _where(frame: FrameType | None) -> Where | None:
        """Return the program's innermost place in the stack of ``frame``, and the library function called there."""
        innermost, inner, name = frame, None, ""
        for _ in range(MAX_FRAMES):
            if frame is None:
                break
            file = frame.f_code.co_filename
            if not file.startswith(watching.OURS):  # else a wrapper of the agent around a call of the program
                if not watching.is_library(file):
                    if inner is None:
                        return frame.f_code, frame.f_lineno, None, name or _lock_entered(frame)
                    return frame.f_code, frame.f_lineno, inner.f_code, str(inner.f_globals.get("__name__", ""))
                inner = frame
            elif frame.f_code.co_name == "__next__":
                name = LOADER_NEXT
            frame = frame.f_back
        return None if innermost is None else (innermost.f_code, innermost.f_lineno, None, "")

    def number(self, where: Where | None) -> int:
        """Return the number of a place, noting a new one; 0 without one or after :data:`MAX_PLACES`."""
        if where is None:
            return 0
        code, line, called, module = where
        key = code, line, called or module
        assigned = self.places.get(key)
        if assigned is not None:
            return assigned
        if len(self.places) >= MAX_PLACES:
            return 0
        number = self.places[key] = len(self.places) + 1
        text = " ".join(linecache.getline(code.co_filename, line).split())[:MAX_CODE]
        if _waits_for_lock(where):
            module = THREAD_LOCK
        callee = module if called is None else f"{module}.{called.co_qualname}"
        place = f"{os.path.basename(code.co_filename)}:{line}"
        record.note(PLACE, (number, place, code.co_qualname, text, callee))
        return number

    def events(self) -> list[tuple[Any, ...]]:
        """Return SAMPLED, OTHER_RAN, MEMORY_READ and DEMAND events since the last call; equal looks are one event."""
        looks, self.looks = self.looks, []
        summed: dict[tuple[str, int, int], tuple[int, int]] = {}
        for phase, place, late, ns in looks:
            key = phase, self.number(place), late
            before_ns, times = summed.get(key, (0, 0))
            summed[key] = before_ns + ns, times + 1
        others, self.others = self.others, []
        holders, self.holders = self.holders, []
        readings, self.memory = self.memory, []
        demand, self.demand = self.demand, []
        return [
            *((kinds.SAMPLED, *key, *sums) for key, sums in summed.items()),
            *((kinds.SAMPLED, kinds.HOLDER, self.number(holder), kinds.EXACT, ns, 0) for holder, ns in holders),
            *((kinds.OTHER_RAN, self.number(thread_place), *times) for thread_place, *times in others),
            *((kinds.MEMORY_READ, *reading) for reading in readings),
            *((kinds.DEMAND, *times) for times in demand),
        ]


def _waits_for_lock(where: Where) -> bool:
    """Return True if the place takes a lock of the program: by a statement "with", or by a call of ``acquire()``."""
    code, line, called, module = where
    return called is None and (module == THREAD_LOCK or ".acquire(" in linecache.getline(code.co_filename, line))


def _names_of_lock(where: Where) -> set[str]:
    """Return the names in the line that takes the lock, such as "lock" of ``with self.lock:``."""
    line = linecache.getline(where[0].co_filename, where[1])
    return set(re.findall(r"[^\W\d]\w*", line)) - {"with", "self", "cls", "acquire"}


def _uses_one(frame: FrameType | None, names: set[str]) -> bool:
    """Return True if a function in the stack of ``frame`` has one of ``names`` as a variable, attribute or global."""
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        if not names.isdisjoint((*code.co_names, *code.co_varnames, *code.co_freevars)):
            return True
        frame = frame.f_back
    return False


def _may_hold(where: Where) -> bool:
    """Return True if a thread at this place may hold a lock: in program code, and not waiting for a lock or queue."""
    waits = _waits_for_lock(where) or where[3].partition(".")[0] in WAITING_MODULES
    return not waits and not watching.is_library(where[0].co_filename)


def _lock_entered(frame: FrameType) -> str:
    """Return THREAD_LOCK if ``frame`` enters the object of a "with" without a Python frame of its own, else ""."""
    offset, instructions = frame.f_lasti, frame.f_code.co_code
    enters = instructions[offset] == ENTERS or (offset >= 2 and instructions[offset - 2] == ENTERS_NEXT)
    return THREAD_LOCK if offset >= 0 and enters else ""


def _collection_is_near() -> bool:
    """Return True if the next look could trigger a garbage collection, which is dangerous before Python 3.12."""
    if sys.version_info >= (3, 12) or not gc.isenabled():
        return False
    return 0 < gc.get_threshold()[0] <= gc.get_count()[0] + SPARE_OBJECTS


def _hook(frame: FrameType, frames: dict[int, FrameType]) -> FrameType | None:
    """Return the innermost frame of a running gradient hook; None without one. ``frame``: of the recorded thread.

    The stacks of autograd's own threads (one per device) begin with the code that they call.
    """
    if frame.f_code.co_name != _ENGINE:
        return frame if _calls_hook(frame, engine=True) else None
    for thread_id, stack in frames.items():
        thread = _THREADS.get(thread_id)
        foreign = thread is None or isinstance(thread, _FOREIGN)
        if thread_id != phases.recorded_thread and foreign and _calls_hook(stack, engine=False):
            return stack
    return None


def _calls_hook(frame: FrameType | None, *, engine: bool) -> bool:
    """True if autograd called program code in the stack of ``frame``. ``engine``: the stack has the backward pass."""
    calls_program = False
    for _ in range(MAX_FRAMES):
        if frame is None or frame.f_code.co_name == _ENGINE:
            return calls_program and (frame is not None or not engine)
        if str(frame.f_globals.get("__name__")).startswith(MODEL_MODULES):
            return False
        file = frame.f_code.co_filename
        calls_program |= not file.startswith(watching.OURS) and not watching.is_library(file)
        frame = frame.f_back
    return False


def _phase_at(due_ns: int) -> str | None:
    """Return the unwritten phase ("": none) at ``due_ns`` if one began or ended since then; else None."""
    later = False
    for event in reversed(phases.state.events):
        if event[0] in (kinds.ENTER, kinds.EXIT):
            if event[2] <= due_ns:
                return None if not later else str(event[1]) if event[0] == kinds.ENTER else ""
            later = True
    return None


class _Collections:
    """Callback that counts the recorded thread's garbage collections of a step, with the longest one's place."""

    def __init__(self) -> None:
        self.times = self.total_ns = self.longest_ns = self.begun_ns = 0
        self.ended_ns = 0  # nanoseconds of all collections that have ended
        self.longest: Where | None = None

    def __call__(self, phase: str, _information: dict[str, int]) -> None:
        """Handle a callback of :mod:`gc`. ``phase`` is "start" or "stop" of a garbage collection."""
        if get_ident() != phases.recorded_thread:
            return
        now = monotonic_ns()
        if phase == "start":
            self.begun_ns = now
            return
        if not self.begun_ns:
            return
        ns, self.begun_ns = now - self.begun_ns, 0
        self.times += 1
        self.total_ns += ns
        self.ended_ns += ns
        if ns > max(self.longest_ns, LEAST_PLACED_NS):
            self.longest_ns, self.longest = ns, self._caller()

    @staticmethod
    def _caller() -> Where | None:
        try:
            frame = watching.users_frame(sys._getframe(2))
        except ValueError:  # The interpreter shuts down: no code runs any more.
            return None
        return None if frame is None else (frame.f_code, frame.f_lineno, None, "")

    def event(self, sampler: _Sampler) -> tuple[Any, ...]:
        place = 0 if self.longest is None else sampler.number(self.longest)
        times, ns = self.times, self.total_ns
        self.times = self.total_ns = self.longest_ns = 0
        self.longest = None
        return kinds.COLLECTED, times, ns, place


_sampler: _Sampler | None = None
_collections: _Collections | None = None


def patch() -> None:
    # Python 3.12 warns about a fork with threads, and a program may turn warnings into errors.
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
    boundaries.on_some_steps.append(_on_step)
    boundaries.on_step_end.append(_step_ended)


def _before_fork() -> None:
    if _sampler is not None:
        guard.carefully(_sampler.stop)


def _after_fork() -> None:
    if _sampler is not None:
        _sampler.ended.acquire(blocking=False)
        guard.carefully(_sampler.start)


def forget() -> None:
    global _sampler, _collections
    sampler, _sampler = _sampler, None
    collections, _collections = _collections, None
    run_queue.own.clear()
    if sampler is not None and sampler.ended.locked():
        sampler.ended.release()
    if collections is not None and collections in gc.callbacks:
        gc.callbacks.remove(collections)


def _on_step(number: int) -> None:
    global _sampler, _collections
    try:
        if number >= FIRST and _sampler is None and not boundaries.measuring.alternates:
            _sampler, _collections = _Sampler(), _Collections()
            gc.callbacks.append(_collections)
            _sampler.start()
    except Exception as error:
        _give_up(error)


def _step_ended() -> list[tuple[Any, ...]]:
    sampler, collections = _sampler, _collections
    if sampler is None or collections is None:
        return []
    try:
        if sampler.fault is not None:
            raise sampler.fault
        events = sampler.events() if sampler.looks or sampler.memory else []
        if collections.times:
            events.append(collections.event(sampler))
    except Exception as error:
        _give_up(error)
        return []
    return events


def _give_up(error: Exception) -> None:
    guard.part_failed("own_time", error)
    forget()
    boundaries.on_step_end.remove(_step_ended)
    boundaries.on_some_steps.remove(_on_step)
