"""Time backward passes and optimizer updates, and find the optimizer that closes a step (see :mod:`boundaries`)."""

from __future__ import annotations

import functools
from threading import get_ident
from time import monotonic_ns
from typing import Any

import torch
from _harness_agent import batches, boundaries, guard, inspection, phases, record
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling

OFTEN = 0.5  # share of the busiest optimizer's steps that counts as "about as often"
IN_BACKWARD = -1  # id for all optimizers that step within a backward pass


def patch() -> None:
    """Wrap torch's backward pass and gradient scaler, and register hooks before and after each optimizer step."""
    from torch.amp import grad_scaler
    from torch.autograd import graph
    from torch.optim import optimizer

    before = graph._engine_run_backward
    after = functools.wraps(before)(_backward(before))
    for module in (graph, torch.autograd):
        if getattr(module, "_engine_run_backward", None) is before:
            module._engine_run_backward = after  # type: ignore[attr-defined]
    optimizer.register_optimizer_step_pre_hook(_before_update)
    optimizer.register_optimizer_step_post_hook(_after_update)
    scaled = grad_scaler.GradScaler.step
    grad_scaler.GradScaler.step = functools.wraps(scaled)(_scaler_step(scaled))  # type: ignore[method-assign]


def _backward(before: Any) -> Any:
    def _engine_run_backward(*given: Any, **named: Any) -> Any:
        begun = False
        if guard.on:
            try:
                begun = _backward_begins(given)
            except BaseException as error:
                if not guard.swallows(error):
                    raise
        if not begun:
            return before(*given, **named)
        try:
            return before(*given, **named)
        finally:
            if guard.on:
                try:
                    _backward_ended()
                except BaseException as error:
                    if not guard.swallows(error):
                        raise

    return _engine_run_backward


def _backward_begins(given: tuple[Any, ...]) -> bool:
    """Begin the phase "backward"; return False within another one, in another thread, and while compiling."""
    if is_compiling() or (get_ident() != phases.recorded_thread and not _adopted()):
        return False
    known = batches.state
    if "backward" in phases.state.open:
        return False
    if inspection.parallel is not None:
        inspection.backward_begins()
    if not known.settled and (known.sources or known.unknown or known.ran_without_gradients):
        boundaries.trains()
    if not known.loader_seen:
        boundaries.begin_step()
    outputs = given[0] if given else None
    loss = outputs[0] if isinstance(outputs, tuple) and outputs else None
    if isinstance(loss, Tensor):
        boundaries.backward_of(loss)
    phases.enter("backward")
    return True


def _adopted() -> bool:
    """Return True if the calling training thread is recorded from now on. See :func:`boundaries.adopt`."""
    if not boundaries.adopt():
        return False
    from _harness_agent import watching

    watching.forget()
    return True


def _backward_ended() -> None:
    steps, optimizers = boundaries.steps, boundaries.optimizers
    phases.leave("backward")
    steps.backward_since = True
    if not optimizers.updates:
        steps.closed_ns = monotonic_ns()
    if optimizers.within_backward:
        optimizers.within_backward = False
        _count(IN_BACKWARD, "optimizers within the backward pass")


def _before_update(_optimizer: Any, _given: Any, _named: Any) -> None:
    if is_dynamo_compiling() or not guard.on:  # a call that Dynamo may inline
        return
    try:
        if get_ident() == phases.recorded_thread and "backward" not in phases.state.open:
            phases.enter("optimizer")
    except BaseException as error:
        if not guard.swallows(error):
            raise


def _update_begins() -> bool:
    if get_ident() != phases.recorded_thread or "backward" in phases.state.open:
        return False
    phases.enter("optimizer")
    return True


def _after_update(optimizer: Any, _given: Any, _named: Any) -> None:
    if is_dynamo_compiling() or not guard.on:  # a call that Dynamo may inline
        return
    try:
        if get_ident() != phases.recorded_thread:
            return
        if "backward" in phases.state.open:
            boundaries.optimizers.within_backward = True
            return
        phases.leave("optimizer")
        number, optimizers = id(optimizer), boundaries.optimizers
        if number == optimizers.single:  # shortcut: same result as _count() with a single optimizer
            optimizers.updates[number] += 1
            steps = boundaries.steps
            steps.closed, steps.closed_ns = True, monotonic_ns()
        else:
            _count(number, type(optimizer).__name__)
    except BaseException as error:
        if not guard.swallows(error):
            raise


def _count(optimizer: int, name: str) -> None:
    """Count an update of an optimizer (``optimizer``: id, ``name``: class). End the step if its updates end steps."""
    optimizers = boundaries.optimizers
    optimizers.single = None
    if boundaries.steps.possible:
        boundaries.decide(optimizer=True)
    counts = optimizers.updates
    before = counts.get(optimizer, 0)
    counts[optimizer] = before + 1
    closer = optimizer
    if len(counts) > 1:
        busiest = max(counts.values())
        closer = [number for number, updates in counts.items() if updates >= OFTEN * busiest][-1]
    asked = optimizers.step_ends
    if optimizer == closer if asked is None else name == asked:
        boundaries.close_step()
        if optimizers.closer != optimizer:
            optimizers.closer = optimizer
            record.note("closes", name)
        optimizers.single = optimizer if len(counts) == 1 else None
    if not before:
        record.note("optimizer", (len(counts), name))


def _scaler_step(before: Any) -> Any:
    def step(self: Any, optimizer: Any, *given: Any, **named: Any) -> Any:
        """Stand in for ``GradScaler.step``: a skipped update (infinite gradient) ends the step, too."""
        updates = boundaries.optimizers.updates.get(id(optimizer), 0)
        if is_compiling() or not guard.carefully(_update_begins):
            return before(self, optimizer, *given, **named)
        try:
            return before(self, optimizer, *given, **named)
        finally:
            guard.carefully(phases.leave, "optimizer")
            if updates == boundaries.optimizers.updates.get(id(optimizer), 0):
                guard.carefully(_count, id(optimizer), type(optimizer).__name__)

    return step
