"""Watch two early steps with ``sys.setprofile``, to find functions that are then timed by name:

- the outermost modules that training calls: the forward phase (a GAN has two, and a loss may be one)
- user functions whose tensors enter these modules: a hand-written ``get_batch`` is the fetch phase
- calls outside all phases in which the main thread blocks, to name a place for unseen time

The modules' classes get a ``__call__`` that times only these instances, and a function is replaced under its name. No
object that the user may pickle is changed.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections import Counter
from threading import get_ident
from time import monotonic_ns, thread_time_ns
from types import CodeType, FrameType
from typing import Any

import torch
from _harness_agent import batches, boundaries, controls, guard, phases, record, run_queue, stages
from _harness_agent.events import UNKNOWN_NUMBER
from torch import is_grad_enabled
from torch.compiler import is_compiling, is_dynamo_compiling

FIRST, STEPS = 2, 2  # first watched step, and number of watched steps: programs build much in the steps before
AGAIN = 50  # step of another search: compute threads may start late
_BLOCKED_NS = 100_000  # a shorter blocking call is not worth naming
_GENERATOR = 0x20  # inspect.CO_GENERATOR: a running generator cannot be replaced
_CALL = torch.nn.Module._wrapped_call_impl.__code__
_PACKAGES = ("site-packages", "dist-packages")
_LIBRARIES = tuple(
    os.path.realpath(root) + os.sep
    for root in {*(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")), sys.prefix}
)
OURS = os.path.dirname(os.path.abspath(__file__))
_MOST_MADE = 256
MOST_ROOTS = 8  # timed outermost modules


class _Seen:
    def __init__(self) -> None:
        self.depth = 0  # depth of nested modules
        self.roots: Counter[int] = Counter()
        self.modules: dict[int, Any] = {}
        self.made: dict[int, tuple[CodeType, Any, Any]] = {}  # keyed by tensor: last returning code, its namespace
        self.makers: Counter[CodeType] = Counter()
        self.named: dict[CodeType, Any] = {}
        self.calls: list[tuple[int, int]] = []  # open calls of C functions: wall and CPU time
        self.called: set[CodeType] = set()
        self.blocked: list[tuple[str, int, set[CodeType]]] = []  # place, duration, and the user's running code


_seen: _Seen | None = None
_until = 0  # step before which watching ends; 0: not begun


def forget() -> None:
    global _seen, _until
    if _seen is not None:
        sys.setprofile(None)
    _seen, _until = None, 0


def patch() -> None:
    boundaries.on_some_steps.append(_on_step)


def busy() -> bool:
    """Return True while steps are being watched with ``sys.setprofile``."""
    return _seen is not None


def _on_step(number: int) -> None:
    global _seen, _until
    if number == 0 and record.settings.get("fetch"):
        _time_named(str(record.settings["fetch"]))
    if number >= FIRST and not _until:
        _until = number + STEPS
        run_queue.find_threads()
        if sys.getprofile() is None:  # else another profiler is in use
            _seen = _Seen()
            sys.setprofile(_profile)
    elif number >= _until and _seen is not None:
        sys.setprofile(None)
        seen, _seen = _seen, None
        _conclude(seen)
    elif number == AGAIN:
        run_queue.find_threads()


def _profile(frame: FrameType, event: str, given: Any) -> None:
    seen = _seen
    if seen is None or not guard.on:
        sys.setprofile(None)
        return
    try:
        if event == "call":
            seen.called.add(frame.f_code)
            if frame.f_code is _CALL:
                _module_begins(seen, frame)
        elif event == "return":
            if frame.f_code is _CALL:
                seen.depth = max(0, seen.depth - 1)
            elif not seen.depth and given is not None and not phases.state.open:
                _returned(seen, frame, given)
        elif event == "c_call":
            seen.calls.append((monotonic_ns(), thread_time_ns()))
        elif seen.calls:  # c_return, c_exception
            _c_call_ended(seen, frame, given)
    except Exception as error:
        sys.setprofile(None)
        guard.let_through(error)
        guard.fail(error)


def _module_begins(seen: _Seen, frame: FrameType) -> None:
    seen.depth += 1
    inner = set(phases.state.open) - {"optimizer"}  # closures and Lightning run forward within the optimizer
    if seen.depth > 1 or inner or not torch.is_grad_enabled():
        return
    values = frame.f_locals
    module = values.get("self")
    seen.roots[id(module)] += 1
    seen.modules[id(module)] = module
    for tensor in _tensors((values.get("args"), values.get("kwargs"))):
        made = seen.made.get(id(tensor))
        if made is not None:
            seen.makers[made[0]] += 1
            seen.named[made[0]] = made[1]


def _returned(seen: _Seen, frame: FrameType, result: Any) -> None:
    """Store for each tensor in ``result`` the outermost program function (``frame``) that returned it."""
    code = frame.f_code
    file = code.co_filename
    if file.startswith("<") or file.startswith(OURS) or is_library(file):
        return
    if len(seen.made) > _MOST_MADE:
        seen.made.clear()
    owner = frame.f_locals.get("self")
    for tensor in _tensors(result):
        seen.made[id(tensor)] = (code, (frame.f_globals, type(owner) if owner is not None else None), tensor)


def _c_call_ended(seen: _Seen, frame: FrameType, function: Any) -> None:
    wall_ns, cpu_ns = seen.calls.pop()
    blocked_ns = (monotonic_ns() - wall_ns) - (thread_time_ns() - cpu_ns)
    if blocked_ns < _BLOCKED_NS or phases.state.open or frame.f_code.co_filename.startswith(OURS):
        return
    if seen.depth:  # the forward pass: not a phase yet, but one in measured steps
        return
    caller = users_frame(frame)
    if caller is None:
        return
    name = getattr(function, "__qualname__", "a call")
    place = f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno} ({name})"
    running: set[CodeType] = set()
    while caller is not None:
        running.add(caller.f_code)
        caller = caller.f_back
    seen.blocked.append((place, blocked_ns, running))


def is_installed(path: str) -> bool:
    """Return True if the file belongs to an installed package."""
    return any(f"{os.sep}{package}{os.sep}" in path for package in _PACKAGES)


@functools.cache
def is_library(file: str) -> bool:
    """Return True if the file belongs to Python or to an installed package."""
    path = os.path.realpath(file)
    return path.startswith(_LIBRARIES) or is_installed(path)


def users_frame(frame: FrameType | None) -> FrameType | None:
    """Return the program's innermost frame; ``frame`` if all is library code; None if the agent's frame comes first."""
    caller = frame
    while caller is not None and is_library(caller.f_code.co_filename):
        caller = caller.f_back
    caller = caller or frame
    return None if caller is None or caller.f_code.co_filename.startswith(OURS) else caller


def _tensors(value: Any, depth: int = 0) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if depth > 2:
        return []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for part in value[:16] for tensor in _tensors(part, depth + 1)]
    return []


def _conclude(seen: _Seen) -> None:
    """Evaluate the watched steps: time modules and the function that makes batches; note breaks and blocking places."""
    timed: CodeType | None = None
    from _harness_agent import causes, inspection

    causes.note_breaks({(code.co_filename, code.co_name) for code in seen.called})
    roots = [seen.modules[root] for root, _ in seen.roots.most_common(MOST_ROOTS)]
    inspection.trains(roots)
    for kind in dict.fromkeys(map(type, roots)):
        _time_calls(kind, frozenset(id(module) for module in roots if type(module) is kind))
    if roots:
        record.note("forward", ", ".join(dict.fromkeys(type(module).__name__ for module in roots)))
    if seen.makers and not batches.state.trained_on and not record.settings.get("fetch"):
        ((code, _),) = seen.makers.most_common(1)
        if _time_function(code, *seen.named[code]):
            timed = code
    places: Counter[str] = Counter()
    for place, blocked_ns, running in seen.blocked:
        if timed not in running:  # else it is a wait for data from now on
            places[place] += blocked_ns
    for place, blocked_ns in places.most_common(3):
        record.note("blocked", (place, blocked_ns // STEPS))


def _time_calls(kind: Any, roots: frozenset[int]) -> None:
    """Time calls of the instances ``roots`` (ids) of module class ``kind`` as the phase "forward"."""
    before = kind.__call__

    @functools.wraps(before)
    def __call__(self: Any, *given: Any, **named: Any) -> Any:
        if is_dynamo_compiling() or id(self) not in roots or not guard.on:
            return before(self, *given, **named)
        begun = False
        try:
            begun = _forward_begins()
        except BaseException as error:
            if not guard.swallows(error):
                raise
        if not begun:
            return before(self, *given, **named)
        try:
            return before(self, *given, **named)
        finally:
            if guard.on:
                try:
                    phases.leave("forward")
                except BaseException as error:
                    if not guard.swallows(error):
                        raise

    kind.__call__ = __call__


def _forward_begins() -> bool:
    """Begin the phase "forward" and return True, if this module call is the forward pass of a training step."""
    if get_ident() != phases.recorded_thread or "forward" in phases.state.open:
        return False
    if not is_grad_enabled():
        batches.evaluated()
        return False
    if not batches.state.loader_seen:
        if is_compiling():
            return False
        boundaries.begin_step()
        boundaries.leave_if_enough()
    phases.enter("forward")
    return True


def _time_function(code: CodeType, namespace: dict[str, Any], owner: Any) -> bool:
    """Replace the program's function with ``code`` by one timed as "fetch"; False if impossible. ``owner``: class."""
    if code.co_flags & _GENERATOR:
        return False
    holder: Any = owner if owner is not None and code.co_name in vars(owner) else None
    before = vars(holder)[code.co_name] if holder is not None else namespace.get(code.co_name)
    if getattr(before, "__code__", None) is not code:
        return False
    after = _fetching(before)
    if holder is not None:
        setattr(holder, code.co_name, after)
    else:
        namespace[code.co_name] = after
    record.note("fetch", f"{code.co_name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})")
    return True


def _time_named(name: str) -> None:
    """Time ``[module:][Class.]function`` of ``--fetch`` as the phase "fetch", or note that it is missing."""
    module, _, path = name.rpartition(":")
    owner: Any = sys.modules.get(module or "__main__")
    *classes, function = path.split(".")
    for part in classes:
        owner = getattr(owner, part, None)
    before = getattr(owner, function, None)
    if not callable(before):
        record.note("unknown_fetch", name)
        return
    setattr(owner, function, _fetching(before))
    record.note("fetch", name)


def _fetching(before: Any) -> Any:
    source = id(before)

    @functools.wraps(before)
    def fetch(*given: Any, **named: Any) -> Any:
        while guard.carefully(_fetch_begins, source):
            try:
                batch = guard.carefully(controls.kept, source)
                if batch is None:
                    for _ in range(guard.carefully(controls.times_more) or 0):
                        before(*given, **named)
                    batch = before(*given, **named)
            finally:
                guard.carefully(stages.leave)
                guard.carefully(phases.leave, "fetch")
            guard.carefully(_fetched, batch)
            if not guard.carefully(controls.thrown_away, source, batch):
                return batch
        return before(*given, **named)

    return fetch


def _fetch_begins(source: int) -> bool:
    if not phases.watched() or stages.busy() or not boundaries.fetching(source, False):
        return False
    boundaries.leave_if_enough()
    phases.enter("fetch")
    stages.enter("read")
    return True


def _fetched(batch: Any) -> None:
    from _harness_agent import loading

    loading.arrived(batch, ("main", *stages.origin(), UNKNOWN_NUMBER, stages.take()), (0, 1, False))
