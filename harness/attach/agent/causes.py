"""Find causes of slow steps that no phase shows: device waits, pageable copies, full memory, compilations.

A few early steps are audited for calls that wait for a CUDA device, by torch's warnings (``set_sync_debug_mode``,
unless the program sets it) and by wrappers. Code with such a call is monitored from then on (``sys.monitoring``, Python
3.12): torch warns as the call returns, so the wait is the time from the call to its warning.
"""

from __future__ import annotations

import functools
import linecache
import os
import re
import sys
import warnings
from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns
from types import CodeType, FrameType
from typing import Any

import torch
from _harness_agent import boundaries, device, guard, phases, record, watching
from _harness_agent.events import COMPILED, COUNTED, RETRIES

RECOMPILED = "recompiled"  # note: (place of the function, Dynamo's reason, seconds)
BREAKS = "breaks"  # note: (graph breaks in functions that the watched steps call, place of the last, reason)
MAX_RECOMPILED = 64  # notes
MAX_REASON = 100  # characters
WAIT, COPY, PAGEABLE = "device wait", "copy", "pageable"  # kinds of a noted cause
FIRST = watching.FIRST + watching.STEPS  # first audited step: sys.setprofile slows the steps before it
CAUSE_STEPS = 4  # audited steps
LEAST_CAUSE_STEPS = 2  # minimum audited steps with waits at a place, to name that place
SPARSELY = 10  # steps between two looks at the allocator, until it has retried once
MOST_NOTED, MOST_CODE = 3, 16  # places noted, and code objects monitored
MAX_CODE_SHOWN = 60  # characters of a line of code
LARGE_BYTES = 1 << 20  # per step: less pageable memory does not matter
_MESSAGE = re.compile(r".*(called a synchronizing CUDA operation|ynchronization debug mode is a prototype)", re.DOTALL)
_SYNCHRONIZING = "called a synchronizing"
_VALUE = re.compile(r"\.(item|tolist|cpu|numpy|nonzero)\(|\b(float|int|bool)\(")  # reads values from the device
_GUARD = re.compile(r"^\d+/\d+: ")  # number of the compiled code that a guard belongs to
_WARN, _DEFAULT = 1, 0  # modes of torch.cuda.set_sync_debug_mode
_TOOLS = (4, 3)  # sys.monitoring tool numbers that no tool has by convention


class _Counts:
    """Counters at the end of the last step: allocator retries and compiled graphs. None: not yet read."""

    def __init__(self) -> None:
        self.retries: int | None = None
        self.each_step = False  # True if the allocator is checked after each step
        self.compiled: int | None = None
        self.compiled_us = 0  # start of the last noted compilation
        self.reasons = 0  # number of noted reasons


current: _WaitAudit | None = None  # audit of the current steps
_counts = _Counts()


def patch() -> None:
    boundaries.on_some_steps.append(_on_step)
    boundaries.on_step_end.append(_step_ended)


def forget() -> None:
    global current, _counts
    audit, current, _counts = current, None, _Counts()
    if audit is not None:
        audit.stop()


def batch_arrived(batch: Any) -> None:
    """Add the bytes of a batch's pageable CPU tensors to the running audit of device waits. Do nothing without one."""
    if current is not None:
        _carefully(_add_pageable, current, batch)


def _add_pageable(audit: _WaitAudit, batch: Any) -> None:
    from _harness_agent import loading

    tensors = [tensor for tensor in loading.tensors(batch) if isinstance(tensor, torch.Tensor) and tensor.is_cpu]
    audit.pageable_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors if not tensor.is_pinned())


def _on_step(number: int) -> None:
    _carefully(_audit_from, number)


def _audit_from(number: int) -> None:
    global current
    if number == FIRST and current is None and device.state.stream is not None:
        cuda: Any = torch._C  # a build without CUDA lacks these functions
        if hasattr(cuda, "_cuda_set_sync_debug_mode") and cuda._cuda_get_sync_debug_mode() == _DEFAULT:
            current = _WaitAudit()
            current.start()
    elif number >= FIRST + CAUSE_STEPS and current is not None:
        audit, current = current, None
        if audit.on:  # else it ended early
            audit.stop()
            audit.note()


def _carefully(action: Callable[..., None], *given: Any) -> None:
    try:
        action(*given)
    except Exception as error:
        _give_up(error)


def _give_up(error: Exception) -> None:
    global current
    guard.part_failed("cause", error)
    audit, current = current, None
    if audit is not None:
        audit.stop()


class _WaitAudit:
    """Audit of a few early steps on CUDA: the recorded thread's calls that wait for the device, by line of code."""

    def __init__(self) -> None:
        self.on = False
        self.inside = False  # True within a call that is wrapped by name
        self.paused = 0  # open contexts of the program that catch warnings
        self.pageable_bytes = 0
        self.places: dict[tuple[str, int, bool], _Place] = {}  # key: file, line, True between fetch and forward pass
        self.calls = _CallTimes()
        self.filter: tuple[Any, ...] = ("always", _MESSAGE, Warning, None, 0)
        self.show_before: Any = warnings.showwarning
        self.show = self._show  # one bound method, so that identity checks work
        self.set_mode: Any = torch._C._cuda_set_sync_debug_mode
        self.replaced: list[tuple[Any, str, Any, Any]] = []  # owner, name, before, after

    def start(self) -> None:
        self.on = True
        self.calls.start()
        # filterwarnings() would make Python show its once-only warnings again.
        warnings.filters.insert(0, self.filter)  # type: ignore[attr-defined]
        warnings.showwarning = self.show
        cuda: Any = torch._C
        self._replace(cuda, "_cuda_synchronize", self._timed)
        self._replace(torch.cuda.Event, "synchronize", self._timed)
        self._replace(cuda, "_cuda_set_sync_debug_mode", self._giving_way)
        self._replace(warnings.catch_warnings, "__enter__", self._pausing)
        self._replace(warnings.catch_warnings, "__exit__", self._resuming)
        # Undocumented, but filterwarnings() and simplefilter() call it in every Python so far.
        self._replace(sys.modules[warnings.simplefilter.__module__], "_add_filter", self._staying_first)
        self.set_mode(_WARN)

    def stop(self) -> None:
        """Undo all changes of the audit: torch's warning mode, replaced functions, the warnings and the monitoring."""
        if not self.on:
            return
        self.set_mode(_DEFAULT)
        self.on = False
        while self.replaced:
            owner, name, before, after = self.replaced.pop()
            if getattr(owner, name, None) is after:
                setattr(owner, name, before)
        self._restore_warnings()
        self.calls.stop()

    def _restore_warnings(self) -> None:
        if warnings.showwarning is self.show:
            warnings.showwarning = self.show_before
        if self.filter in warnings.filters:
            warnings.filters.remove(self.filter)  # type: ignore[attr-defined]

    def note(self) -> None:
        """Note the MOST_NOTED places with the longest waits, and the bytes copied from pageable memory per step."""
        # Compiling and autotuning wait hundreds of times, but in one step only.
        waits = [entry for entry in self.places.items() if len(entry[1].steps) >= LEAST_CAUSE_STEPS]
        waits.sort(key=lambda entry: (-entry[1].wait_ns, -entry[1].calls))
        per_step = self.pageable_bytes // CAUSE_STEPS
        for (file, line, before_forward), place in waits[:MOST_NOTED]:
            code = " ".join(linecache.getline(file, line).split())
            is_copy = before_forward and not _VALUE.search(code)
            size, per_step = (per_step, 0) if is_copy else (0, per_step)
            content = {
                "kind": COPY if is_copy else WAIT,
                "place": f"{os.path.basename(file)}:{line}",
                "code": code[:MAX_CODE_SHOWN],
                "times": place.calls / CAUSE_STEPS,
                "share": len(place.steps) / CAUSE_STEPS,
                "ms": place.wait_ns / CAUSE_STEPS / 1e6 if place.timed else None,
                "bytes": size,
            }
            record.note("cause", content)
        if per_step >= LARGE_BYTES:  # copied by calls that do not wait, or not copied at all
            record.note("cause", {"kind": PAGEABLE, "bytes": per_step})

    def _add(self, frame: FrameType | None, wait_ns: int | None) -> None:
        caller = watching.users_frame(frame)
        if caller is None:
            return
        state = phases.state
        before_forward = state.last == "fetch" and not state.open
        place = self.places.setdefault((caller.f_code.co_filename, caller.f_lineno, before_forward), _Place())
        place.calls += 1
        place.steps.add(boundaries.steps.begun)
        if wait_ns is not None:
            place.timed += 1
            place.timed_ns += wait_ns

    def _show(
        self, message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: str | None = None
    ) -> None:
        """Replace ``warnings.showwarning``: record torch's warnings, as waiting calls return; pass on others."""
        now = monotonic_ns()
        if not self.on or not _MESSAGE.match(str(message)):
            self.show_before(message, category, filename, lineno, file, line)
        elif not self.inside and _SYNCHRONIZING in str(message):
            _carefully(self._warned, sys._getframe(1), now)

    def _warned(self, frame: FrameType | None, now: int) -> None:
        if get_ident() != phases.recorded_thread:
            return
        while frame is not None and frame.f_globals.get("__name__") in ("warnings", "_py_warnings"):
            frame = frame.f_back
        if frame is None:
            return
        begun_ns = self.calls.begun(frame.f_code)
        self._add(frame, None if begun_ns is None else now - begun_ns)

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        if (before := getattr(owner, name, None)) is not None:
            after = functools.wraps(before)(make(before))
            setattr(owner, name, after)
            self.replaced.append((owner, name, before, after))

    def _timed(self, before: Any) -> Any:
        def wait(*given: Any, **named: Any) -> Any:
            if not self.on or self.inside or get_ident() != phases.recorded_thread:
                return before(*given, **named)
            self.inside, begun_ns = True, monotonic_ns()
            try:
                return before(*given, **named)
            finally:
                self.inside = False
                _carefully(self._add, sys._getframe(1), monotonic_ns() - begun_ns)

        return wait

    def _giving_way(self, before: Any) -> Any:
        def set_mode(*given: Any) -> Any:
            """End the audit, because the program sets torch's sync debug mode itself."""
            _carefully(self.stop)
            return before(*given)

        return set_mode

    def _pausing(self, before: Any) -> Any:
        def __enter__(catcher: Any) -> Any:
            """Switch torch's warnings of waits off while the program catches warnings or turns them into errors."""
            self.paused += 1
            if self.on:
                self.set_mode(_DEFAULT)
            return before(catcher)

        return __enter__

    def _staying_first(self, before: Any) -> Any:
        def _add_filter(*given: Any, **named: Any) -> Any:
            """Add the program's warning filter, but keep ours first: else it could make errors of torch's warnings."""
            before(*given, **named)
            if not self.on or self.paused:
                return
            if self.filter not in warnings.filters:  # the program has reset the filters
                self.stop()
                return
            warnings.filters.remove(self.filter)  # type: ignore[attr-defined]
            warnings.filters.insert(0, self.filter)  # type: ignore[attr-defined]

        return _add_filter

    def _resuming(self, before: Any) -> Any:
        def __exit__(catcher: Any, *error: Any) -> Any:
            try:
                return before(catcher, *error)
            finally:
                self.paused = max(0, self.paused - 1)
                if not self.on:
                    self._restore_warnings()  # The context restored the audit's hooks.
                elif not self.paused:
                    # The exit of a context entered before the audit removes the audit's filter.
                    if warnings.showwarning is self.show and self.filter in warnings.filters:
                        self.set_mode(_WARN)
                    else:
                        self.stop()

        return __exit__


class _Place:
    """Waits for the device at one line: steps with a wait, number of calls, and ns of those calls that were timed."""

    def __init__(self) -> None:
        self.steps: set[int] = set()
        self.calls = self.timed = 0
        self.timed_ns = 0  # nanoseconds of the timed calls

    @property
    def wait_ns(self) -> int:
        """Time of all calls in nanoseconds, extrapolated from the mean of the timed calls."""
        return round(self.timed_ns / self.timed * self.calls) if self.timed else 0


class _CallTimes:
    """Start time (ns) of the last line or call in each monitored code object; empty before Python 3.12."""

    def __init__(self) -> None:
        self.monitoring: Any = getattr(sys, "monitoring", None)
        self.tool: int | None = None
        self.codes: dict[int, CodeType] = {}
        self.last: dict[int, int] = {}

    def start(self) -> None:
        if self.monitoring is None:
            return
        self.tool = next((tool for tool in _TOOLS if self.monitoring.get_tool(tool) is None), None)
        if self.tool is not None:
            self.monitoring.use_tool_id(self.tool, "harness")
            for event in (self.monitoring.events.LINE, self.monitoring.events.CALL):
                self.monitoring.register_callback(self.tool, event, self._began)

    def stop(self) -> None:
        if self.tool is None:
            return
        tool, self.tool = self.tool, None
        for code in self.codes.values():
            self.monitoring.set_local_events(tool, code, 0)
        for event in (self.monitoring.events.LINE, self.monitoring.events.CALL):
            self.monitoring.register_callback(tool, event, None)
        self.monitoring.free_tool_id(tool)

    def begun(self, code: CodeType) -> int | None:
        """Return the start (ns) of the last line or call in ``code``; None at first, and if it is not monitored."""
        if self.tool is not None and id(code) not in self.codes and len(self.codes) < MOST_CODE:
            self.codes[id(code)] = code
            events = self.monitoring.events
            self.monitoring.set_local_events(self.tool, code, events.LINE | events.CALL)
        return self.last.pop(id(code), None)

    def _began(self, code: CodeType, *_where: Any) -> None:
        self.last[id(code)] = monotonic_ns()


def _step_ended() -> list[tuple[Any, ...]]:
    """Return COUNTED events of the step: compilations, and allocations that first had to free cached blocks."""
    try:
        return _counted()
    except Exception as error:
        _give_up(error)
        boundaries.on_step_end.remove(_step_ended)
        return []


def _counted() -> list[tuple[Any, ...]]:
    counted: list[tuple[Any, ...]] = []
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", None)
    compiled = counters.get("stats", {}).get("unique_graphs", 0) if counters else 0
    if _counts.compiled is not None and compiled > _counts.compiled:
        counted.append((COUNTED, COMPILED, compiled - _counts.compiled))
    if compiled != _counts.compiled:
        _note_reasons(dynamo)
    _counts.compiled = compiled
    each_step = _counts.each_step or _counts.retries is None
    if device.state.stream is not None and (each_step or boundaries.steps.begun % SPARSELY == 0):
        retries = _retries()
        if _counts.retries is not None and retries > _counts.retries:
            if _counts.each_step:
                counted.append((COUNTED, RETRIES, retries - _counts.retries))
            _counts.each_step = True
        _counts.retries = retries
    return counted


def _note_reasons(dynamo: Any) -> None:
    """Note new reasons for recompilation from ``dynamo`` (its utils module), MAX_RECOMPILED in all."""
    for metrics in dynamo.get_compilation_metrics() if hasattr(dynamo, "get_compilation_metrics") else ():
        begun_us, reason = getattr(metrics, "start_time_us", None) or 0, getattr(metrics, "recompile_reason", None)
        if begun_us > _counts.compiled_us and reason and _counts.reasons < MAX_RECOMPILED:
            _counts.compiled_us, _counts.reasons = begun_us, _counts.reasons + 1
            # A compiled module is called by a function of torch, which is not a place in the program.
            is_program_code = not watching.is_library(metrics.co_filename or "")
            place = f"{os.path.basename(metrics.co_filename)}:{metrics.co_firstlineno}" if is_program_code else ""
            record.note(RECOMPILED, (place, _first_line(reason), metrics.entire_frame_compile_time_s or 0.0))


def note_breaks(called: set[tuple[str, str]]) -> None:
    """Note torch.compile's graph breaks in ``called``, the (file, name) of functions that the watched steps called."""
    reasons = getattr(sys.modules.get("torch._dynamo.utils"), "graph_break_reasons", ())
    places = [(frame, graph_break.reason) for graph_break in reasons for frame in graph_break.user_stack[-1:]]
    places = [(frame, reason) for frame, reason in places if (frame.filename, frame.name) in called]
    if places:
        frame, reason = places[-1]
        record.note(BREAKS, (len(places), f"{os.path.basename(frame.filename)}:{frame.lineno}", _first_line(reason)))


def _first_line(reason: str) -> str:
    """Return ``self.scale == 1.0`` of a reason ``0/0: self.scale == 1.0 # def ...``, cut to MAX_REASON."""
    return _GUARD.sub("", reason.partition("\n")[0]).partition("  #")[0].strip()[:MAX_REASON]


def _retries() -> int:
    cuda: Any = torch._C
    if not hasattr(cuda, "_cuda_memoryStats"):
        return 0
    index = device.state.device.index
    statistics = cuda._cuda_memoryStats(torch.cuda.current_device() if index is None else index)
    return int(statistics.get("num_alloc_retries", 0))
