"""Profile a few steps if the settings ask for it: torch.profiler in this process, or py-spy in the launcher.

    window           once the program is warm, before any measured step; steps on its batches are not measured either
    closing window   after the measured steps of a program that ends after a given number, if events cannot tell device
                     work from waits for launches in more than NOTICEABLE of the time
    py-spy           asked for and answered by files (``attach/sampling.py``); this module spins its clock marks

An error here ends only the profiling. A program that profiles itself is not profiled: torch has one profiler.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from time import monotonic_ns, time_ns
from types import FunctionType
from typing import Any

import torch
from _harness_agent import batches, boundaries, device, gate, guard, record, watching

MOST_EVALUATING = 3  # evaluation batches within a step: more are a whole evaluation, which may be long
NOTICEABLE = 0.05  # share of the measured time, as in harness.explain.bounds
WARMUP = 1  # steps in which torch's profiler gets ready: its first events are slow
TRACE = ".torch_profile.json"  # file suffix of torch's profiler trace, beside the frames
# Files beside the frames. ASKED: this program asks for py-spy. READY: the launcher samples. DONE: the program has
# marked the window's end. OVER: py-spy has ended.
ASKED, READY, DONE, OVER = (f"py-spy.{word}" for word in ("asked", "ready", "done", "over"))
FROM = "py-spy.from"  # file of the process that asked: step from which all ranks continue, see _agree
MOST_WAIT_S = 240.0  # seconds to wait for the launcher, besides the window: more than the sum of its time limits
# Functions at both ends of py-spy's window, which its samples show at known times. See probes.profilers.py_spy.
MARK = "harness_clock_mark_"
MARKS, MARK_NS, GAP_NS = 6, 30_000_000, 20_000_000
HEADER, OFFSET, CUT = "harness", "realtime_minus_monotonic_ns", "cut"  # same keys as in harness.study.traces.kineto
_TRIES = 32  # readings of both clocks: the tightest counts, as in harness.probes.profilers.torch_session
# Kineto prints "USDT:" lines about each window at its highest level, 5. Hiding these lines hides its errors too.
# Kineto reads the variable once, when the first profiler of a process starts.
LOG_LEVEL, QUIET = "KINETO_LOG_LEVEL", "6"
_PR_SET_PTRACER = 0x59616D61  # linux/prctl.h: "Yama"


class _Window:
    """State of this process's profiling window: torch.profiler and py-spy. A forked child begins with a new state."""

    def __init__(self) -> None:
        self.profiler: Any = None  # torch's profiler, from its warm-up to the end of the window
        self.first = 0  # first recorded step
        self.start_ns = 0
        self.clock = (0, 0)  # nanoseconds: CLOCK_REALTIME - CLOCK_MONOTONIC at the start, and its maximum error
        self.torch_over = False
        self.begun = 0  # step in which it began or would have begun; 0: not yet
        self.agreed = 0  # step from which all ranks continue
        self.evaluating = 0  # evaluation batches in this step
        self.asked_ns = 0  # time at which a process of the command asked for py-spy
        self.asks = False  # True if this process asked for py-spy
        self.sampled_ns = 0  # start of py-spy's window
        self.marked = False  # True once the end of py-spy's window is marked
        self.at_torch = False  # True while this module calls torch's profiler
        self.on_demand = False  # True if `harness profile` asked for it (on_demand.py)
        self.tell: Callable[[str, Any], None] = record.note  # called with the outcome: a kind of note, its content


state = _Window()
_inherited: list[_Window] = []  # windows of parent processes: a forked child does not end its parent's profiler
_program_profiles = False  # True once the program has begun to profile itself


def asked() -> bool:
    """Return True if the settings ask for a profile of this program's steps."""
    return bool(record.settings.get("profile_steps") or record.settings.get("profile_seconds"))


def patch() -> None:
    """Register what the requested profilers do at every step, and notice when the program starts its own profiler."""
    closes = bool(record.settings.get("closing_steps"))
    if asked():
        boundaries.on_step.append(_on_step)
    elif closes:
        boundaries.on_step.append(_on_measured_step)
        boundaries.before_end.append(_may_end)
    batches.on_evaluation.append(_on_evaluation)
    from torch.autograd import profiler

    for name in ("_prepare_profiler", "_enable_profiler"):
        setattr(profiler, name, _noticed(getattr(profiler, name)))


def begin() -> None:
    """Prepare a requested profile: measure no step before it, and permit py-spy to trace this process (Yama)."""
    if record.settings.get("profile_seconds"):
        allow_tracing()
    boundaries.measuring.measured_from = None if asked() else 0


def allow_tracing(allowed: bool = True) -> None:
    """Permit any process of this user to trace this one where Yama restricts it to parents, or forbid it again."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1 if allowed else 0), 0, 0, 0)


def begin_on_demand(tell: Callable[[str, Any], None]) -> _Window:
    """Begin another window, whose outcome ``tell`` gets instead of the record. Return the state to restore after it."""
    global state
    before, state = state, _Window()
    state.on_demand, state.tell = True, tell
    return before


def end_on_demand(before: _Window) -> None:
    """Go on with the state ``before`` of :func:`begin_on_demand`."""
    global state
    state = before


def forget() -> None:
    global state
    if state.profiler is not None:
        torch._C._autograd._enable_record_function(False)
    _inherited.append(state)
    state = _Window()
    begin()


def finish() -> None:
    """Write the trace so far if the program ends while torch's profiler runs."""
    if state.profiler is not None:
        carefully(_write, boundaries.steps.begun)


def abandon() -> None:
    """Stop torch's profiler without writing a trace. Do nothing if it does not run."""
    profiler, state.profiler, state.torch_over = state.profiler, None, True
    if profiler is not None:
        _call(profiler.stop)


def _on_step(number: int) -> None:
    """Advance the profiling window at step ``number``: begin it once warm; after it, set the first measured step."""
    state.evaluating = 0
    if boundaries.measuring.measured_from is not None or watching.busy() or state.on_demand:
        return
    if number < max(gate.LEAST_WARM, record.number("warmup") or 0):
        return
    state.begun = state.begun or number
    if _over(_torch_is_over, number) and _over(_py_spy_is_over, number):
        # All ranks have to measure the same steps, even if only some could be profiled: --steps ends all at one step.
        active = record.number("profile_steps")
        over = max(number, state.agreed, state.begun + WARMUP + active if active else 0)
        # The next batches were made during the window.
        boundaries.measuring.measured_from = over + 1 + batches.state.in_flight
        if state.first or state.asked_ns:
            record.note("profiled", number)  # first step that is not profiled


def _on_measured_step(_number: int) -> None:
    """Start to sum device time that may be work or waits for launches (see :class:`device.Open`), once measured."""
    if not boundaries.measuring.warming and not device.state.open.since_ns:
        device.state.open = device.Open(monotonic_ns())


def _may_end(number: int) -> bool:
    """Return False while a window after the measured steps runs. Ranks have none: all must end at the same step."""
    if boundaries.measuring.window_from is None:
        open_ = device.state.open
        if device.state.stream is None or not open_.since_ns or open_.share(monotonic_ns()) <= NOTICEABLE:
            return True
        if (record.ranks()[1] or 1) > 1:  # Ranks have to end at the same step, but some may need no window.
            return True
        boundaries.measuring.window_from = number
        record.note("closing", number)
    state.evaluating = 0
    return _over(_torch_is_over, number)


def _on_evaluation() -> None:
    """Stop torch's profiler after more than MOST_EVALUATING evaluation batches in a step, to save memory."""
    if state.profiler is None or boundaries.steps.begun <= state.first:
        return
    state.evaluating += 1
    if state.evaluating > MOST_EVALUATING:
        carefully(_write, boundaries.steps.begun)


def _over(part: Callable[[int], bool], number: int) -> bool:
    """True if ``part``, which advances a profiler's window to step ``number``, says that it is over, or fails."""
    return carefully(part, number) is not False


def carefully(action: Callable[..., Any], *given: Any) -> Any:
    """Return ``action(*given)``. An error ends the profiling: return None, or raise it again if it is the program's."""
    try:
        return action(*given)
    except Exception as error:
        _give_up(error)
        guard.let_through(error)
        return None


def _torch_is_over(number: int) -> bool:
    """Advance torch's profiler. True if its window is over, was not asked for, or cannot begin."""
    active = record.number("profile_steps") or record.number("closing_steps")
    if not state.torch_over and active:
        advance(number, active)
    return state.torch_over or not active


def advance(number: int, active: int) -> None:
    """Advance torch's profiler to step ``number``: start it, go on, or end it after ``active`` steps and tell so."""
    state.evaluating = 0
    if state.profiler is None:
        reason = _own_profiler()
        if reason is not None:
            state.torch_over = True
            state.tell("not_profiled", reason)
            return
        _start(active)
        state.first = number + WARMUP
    elif number < state.first + active:
        _call(state.profiler.step)
        if number == state.first:
            state.start_ns = monotonic_ns()
    else:
        _write(number)


def _start(active: int) -> None:
    from torch.profiler import ProfilerActivity, profile, schedule

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        activities.append(ProfilerActivity.CUDA)
    steps = schedule(wait=0, warmup=WARMUP, active=active, repeat=1)
    state.clock = _realtime_minus_monotonic()
    state.profiler = profile(activities=activities, schedule=steps, acc_events=True)
    is_quiet = LOG_LEVEL not in os.environ
    os.environ.setdefault(LOG_LEVEL, QUIET)
    try:
        _call(state.profiler.start)
    finally:
        if is_quiet:
            del os.environ[LOG_LEVEL]  # The program's child processes get the user's value.


def _write(number: int) -> None:
    """Stop torch's profiler at the start of step ``number``; write its trace, or note that it never became active."""
    profiler, end_ns = state.profiler, monotonic_ns()
    if number <= state.first:
        abandon()
        state.tell("not_profiled", "the program ended before torch.profiler was warm")
        return
    offset, error_ns = _realtime_minus_monotonic()
    offsets = (state.clock[0], offset)
    profiler.add_metadata_json(HEADER, json.dumps({OFFSET: offsets, CUT: None}))
    abandon()
    name = f"{os.getpid()}-{end_ns}{TRACE}"
    profiler.export_chrome_trace(os.path.join(record.folder(), name))
    state.tell("torch_profiler", (name, (state.start_ns, end_ns, state.first, number - 1), offsets, error_ns))


def _call(action: Callable[[], None]) -> None:
    """Call ``action``, a method of torch's profiler, so that it is not mistaken for the program's own profiling."""
    state.at_torch = True
    try:
        action()
    finally:
        state.at_torch = False


def _py_spy_is_over(number: int) -> bool:
    """Advance py-spy's window to step ``number``; True if over or not asked for. May raise TimeoutError."""
    seconds = record.number("profile_seconds")
    if not seconds:
        return True
    if not state.asked_ns:
        state.asked_ns = monotonic_ns()
        state.asks = _create(ASKED)
        if state.asks:
            record.note("import_roots", _import_roots())
    if _exists(OVER):
        return _agree(number)
    if monotonic_ns() - state.asked_ns > (seconds + MOST_WAIT_S) * 1e9:
        raise TimeoutError("py-spy: no answer from the launcher")
    if state.asks and not state.sampled_ns and _exists(READY):
        record.note("clock_marks", list(_spin_marks(0)))
        state.sampled_ns = monotonic_ns()
        record.note("py_spy_window", (state.sampled_ns, 0))
    elif state.sampled_ns and not state.marked and monotonic_ns() - state.sampled_ns >= seconds * 10**9:
        state.marked = True
        record.note("py_spy_window", (state.sampled_ns, monotonic_ns()))
        record.note("clock_marks", list(_spin_marks(MARKS)))
        _create(DONE)
    return False


def _agree(number: int) -> bool:
    """Return True once this rank knows the step from which all go on: ``number`` + 2 of the rank that asked (FROM)."""
    _, world = record.ranks()
    path = os.path.join(record.folder(), FROM)
    if world is None or world == 1:
        return True
    if state.asks:
        state.agreed = number + 2
        record.write_whole(path, str(state.agreed))
        return True
    try:
        with open(path, encoding="utf-8") as file:
            agreed = int(file.read())
    except FileNotFoundError:
        return not _lives(ASKED)
    if abs(agreed - number) <= 2:  # otherwise they do not train together
        state.agreed = agreed
    return True


def _lives(name: str) -> bool:
    """Return True if the process that created the file ``name`` in the record folder is alive."""
    with open(os.path.join(record.folder(), name), encoding="utf-8") as file:
        pid = file.read()
    return not pid.isdecimal() or os.path.exists(f"/proc/{pid}")


def _exists(name: str) -> bool:
    return os.path.exists(os.path.join(record.folder(), name))


def _create(name: str) -> bool:
    """Create the file ``name``, with this process's id, in the record folder. Return False if it exists."""
    try:
        with open(os.path.join(record.folder(), name), "x", encoding="utf-8") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True


def _spin_marks(first: int) -> Iterator[tuple[int, int]]:
    """Run MARKS functions, named from ``first`` on, for MARK_NS each; yield (start, end) in ns, which samples show."""
    for number in range(first, first + MARKS):
        _spin_until(monotonic_ns() + GAP_NS)
        name = f"{MARK}{number}"
        code = _spin_until.__code__
        named: dict[str, Any] = {part: name for part in ("co_name", "co_qualname") if hasattr(code, part)}
        mark = FunctionType(code.replace(**named), globals(), name)  # name in the sampled stacks
        start_ns = monotonic_ns()
        mark(start_ns + MARK_NS)
        yield start_ns, monotonic_ns()


def _spin_until(end_ns: int) -> None:
    while monotonic_ns() < end_ns:
        pass


def _give_up(error: Exception) -> None:
    """End the profiling and note the reason. The recording of steps continues."""
    try:
        abandon()
    except Exception as another:
        guard.let_through(another)  # The profiler cannot be stopped.
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" ({os.path.basename(frames[0].filename)}:{frames[0].lineno})" if frames else ""
    state.tell("profile_fault", f"{type(error).__name__}: {error}"[:500] + place)


def _noticed(before: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(before)
    def begins(*given: Any, **named: Any) -> Any:
        if not state.at_torch:
            guard.carefully(_give_way)
        return before(*given, **named)

    return begins


def _give_way() -> None:
    """End this module's profiling before the program starts its own profiler, because torch refuses a second one."""
    global _program_profiles
    _program_profiles = True
    if state.profiler is not None:
        try:
            abandon()
        except Exception as error:
            guard.let_through(error)  # torch then reports the second profiler to the program
        state.tell("not_profiled", "the program started its own profiler")


def _own_profiler() -> str | None:
    """Return a sentence that names the program's own profiler, running now or earlier; None if it has none."""
    if _program_profiles or torch._C._autograd._profiler_enabled():
        return "the program profiles itself with torch's profiler"
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12: cProfile uses it
    if sys.getprofile() is not None or (monitoring is not None and monitoring.get_tool(monitoring.PROFILER_ID)):
        return "the program profiles itself (sys.setprofile)"
    return None


def _realtime_minus_monotonic() -> tuple[int, int]:
    """Return (CLOCK_REALTIME - CLOCK_MONOTONIC, its maximum error), both in ns."""
    best_width, best = 1 << 62, 0
    for _ in range(_TRIES):
        before = monotonic_ns()
        realtime = time_ns()
        after = monotonic_ns()
        if after - before < best_width:
            best_width, best = after - before, realtime - (before + after) // 2
    return best, (best_width + 1) // 2


def _import_roots() -> list[str]:
    """Return the folders of imported modules, longest first, to shorten file names in py-spy's stacks."""
    roots = {os.path.abspath(entry) for entry in sys.path}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        # An editable install need not be on sys.path.
        if isinstance(path, str) and "." not in name and name != __package__:
            folder = os.path.dirname(os.path.abspath(path))
            roots.add(os.path.dirname(folder) if hasattr(module, "__path__") else folder)
    return sorted(roots, key=len, reverse=True)
