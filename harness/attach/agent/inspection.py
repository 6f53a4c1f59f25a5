"""Look in a few steps, ever more rarely, for causes without a duration: hooks that pile up, and settings left on.

In the first step, fingerprint the program's own loaded modules: a different one in another run means edited code.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from _harness_agent import boundaries, device, guard, profiling, record, watching

LOOK = "look"  # note: (step, hooks by kind, active settings, place of the newest hook of a module)
SYNCED = "synced"  # note: (backward passes of a DistributedDataParallel, passes that synchronized gradients, steps)
FIRST = watching.FIRST + watching.STEPS  # step of the first look: the outermost modules are known by then
SYNCED_STEPS = 16  # number of steps whose backward passes are counted
HOOKS = {
    "forward": ("_forward_hooks", "_forward_pre_hooks"),
    "backward": ("_backward_hooks", "_backward_pre_hooks"),
}  # attributes of a module, by kind
DEBUGGER, COVERAGE, PROFILER = 0, 1, 2  # tools of sys.monitoring
ABSENT = ("", "0", "OFF", "INFO")  # values of an environment variable that switch nothing on
_ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 3))
_OURS = tuple(os.path.join(_ROOT, package) + os.sep for package in ("harness", "trainer"))
_MOST_FILES = 2000  # maximum number of files, in order of module names


class _Inspection:
    """Inspection of one process: the modules to look at, the step of the next look, and counted backward passes."""

    def __init__(self) -> None:
        self.roots: list[Any] = []  # weak references to the outermost modules that training calls
        self.next = FIRST  # step of the next look
        self.passes = self.synced = 0


_inspection = _Inspection()
parallel: Any = None  # weak reference to the DistributedDataParallel whose backward passes are counted


def forget() -> None:
    global _inspection, parallel
    _inspection, parallel = _Inspection(), None


def patch() -> None:
    boundaries.on_some_steps.append(_on_step)


def trains(roots: list[Any]) -> None:
    """Store the outermost modules that training calls: later looks count the hooks of these modules."""
    global parallel
    _inspection.roots = [weakref.ref(root) for root in roots]
    wrapper = next((root for root in roots if type(root).__name__ == "DistributedDataParallel"), None)
    parallel = None if wrapper is None else weakref.ref(wrapper)


def backward_begins() -> None:
    """Count DistributedDataParallel's backward passes and those that synchronize, for SYNCED_STEPS steps."""
    global parallel
    module = parallel() if parallel is not None else None
    if module is None:
        return
    inspection, steps = _inspection, boundaries.steps.begun - FIRST
    if steps > SYNCED_STEPS:  # all passes of the earlier steps are counted
        parallel = None
        record.note(SYNCED, (inspection.passes, inspection.synced, SYNCED_STEPS))
    elif steps > 0:
        inspection.passes += 1
        inspection.synced += bool(getattr(module, "require_backward_grad_sync", False))


def _on_step(number: int) -> None:
    inspection = _inspection
    if number == 0:  # The training code is loaded by then.
        record.note("code", fingerprint())
    if number < inspection.next:
        return
    inspection.next = boundaries.later(number)
    try:
        if profiling.state.profiler is None:  # the agent's profiler is not a setting of the program
            hooks, place = _hooks(inspection)
            record.note(LOOK, (number, hooks, _settings(inspection), place))
    except Exception as error:
        guard.part_failed("inspection", error)
        inspection.next = sys.maxsize


def _hooks(this: _Inspection) -> tuple[dict[str, int], str]:
    """Return the number of hooks by kind, and the place ("train.py:31" or "") of the newest where most are."""
    counts = dict.fromkeys((*HOOKS, "tensor"), 0)
    largest, newest = 0, None
    for module in _modules(this):
        for kind, names in HOOKS.items():
            for name in names:
                hooks = getattr(module, name, None)
                if hooks:
                    counts[kind] += len(hooks)
                    if len(hooks) > largest:
                        largest, newest = len(hooks), next(reversed(hooks.values()))
        for tensor in module._parameters.values():
            if tensor is not None:
                counts["tensor"] += _hooks_of(tensor)
    return counts, _place(newest)


def _hooks_of(tensor: Any) -> int:
    return len(tensor._backward_hooks or ()) + len(getattr(tensor, "_post_accumulate_grad_hooks", None) or ())


def _modules(this: _Inspection) -> Iterator[Any]:
    for reference in this.roots:
        root = reference()
        if root is not None:
            yield from root.modules()


def _place(hook: Any) -> str:
    code = getattr(hook, "__code__", None) or getattr(getattr(hook, "func", None), "__code__", None)
    return "" if code is None else f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").upper() not in ABSENT


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _is_monitored() -> bool:
    """Return True if a debugger, coverage tool or profiler of the program traces its lines or calls."""
    monitoring: Any = getattr(sys, "monitoring", None)  # Python 3.12
    tools = () if monitoring is None else (DEBUGGER, COVERAGE, PROFILER)
    return sys.gettrace() is not None or any(monitoring.get_tool(tool) is not None for tool in tools)


def _looks_for_unused(this: _Inspection) -> bool:
    roots = [reference() for reference in this.roots]
    return any(
        getattr(root, "find_unused_parameters", False) is True and not getattr(root, "static_graph", False)
        for root in roots
    )


SETTINGS: dict[str, Callable[[_Inspection], bool]] = {
    "anomaly": lambda _: bool(torch.is_anomaly_enabled()),
    "deterministic": lambda _: bool(torch.are_deterministic_algorithms_enabled()),
    "launch blocking": lambda _: device.state.stream is not None and _is_set("CUDA_LAUNCH_BLOCKING"),
    "profiler": lambda _: bool(torch._C._autograd._profiler_enabled()),
    "profile function": lambda _: sys.getprofile() is not None,
    "trace function": lambda _: _is_monitored(),
    "logs": lambda _: _is_set("TORCH_LOGS"),
    "distributed debug": lambda _: _is_set("TORCH_DISTRIBUTED_DEBUG") and _is_distributed(),
    "unused parameters": _looks_for_unused,
}  # functions by setting; each returns True if the setting is on


def _settings(this: _Inspection) -> tuple[str, ...]:
    return tuple(name for name, is_on in SETTINGS.items() if is_on(this))


def fingerprint() -> str:
    """Return a digest (16 hexadecimal digits) of the names and contents of the program's own loaded Python modules."""
    digest = hashlib.sha256()
    for name, path in sorted(_own_files())[:_MOST_FILES]:
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError:
            continue  # deleted meanwhile, or within an archive
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def _own_files() -> Iterator[tuple[str, str]]:
    library = os.path.realpath(sysconfig.get_paths()["stdlib"]) + os.sep
    folders: dict[str, str] = {}  # without links: to resolve each of thousands of files takes 0.1 s
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not path.endswith(".py"):
            continue
        folder, file = os.path.split(path)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        real = os.path.realpath(path) if os.path.islink(path) else os.path.join(folders[folder], file)
        if not real.startswith((library, *_OURS)) and not watching.is_installed(real):
            yield name, real
