"""What a hand-over costs takes time that grows with the steps, also where every eleventh begins a repetition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from harness.explain.lead_use import round_robin
from harness.explain.replay import batches
from harness.explain.replay.batches import Seen, handed_over

MS = 1e6
REPETITION = 11  # steps: ten measured ones after one of warm-up


class Counted(np.ndarray):
    """An array that counts the elements that every operation on it, or on what came of it, goes through."""

    elements = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **settings: Any) -> Any:
        if out is not None:
            settings["out"] = tuple(_plain(one) for one in out)
        result = getattr(ufunc, method)(*map(_plain, inputs), **settings)
        return _count(result, inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _count(function(*map(_plain, args), **{name: _plain(one) for name, one in kwargs.items()}), args)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    return value.view(np.ndarray) if isinstance(value, Counted) else value


def _count(result: Any, inputs: Any) -> Any:
    Counted.elements += max((one.size for one in (result, *inputs) if isinstance(one, np.ndarray)), default=0)
    return result.view(Counted) if isinstance(result, np.ndarray) else result


def elements(steps: int, *, arrivals: bool) -> int:
    """How many elements the estimate goes through for a run of ``steps``, suspended after every repetition."""
    number = np.arange(steps)
    start = number * 20 * MS + number // REPETITION * 200 * MS
    ends = [int(start[at] - 1 * MS) for at in range(REPETITION, steps, REPETITION)]
    seen = Seen(
        first=(start - 5 * MS).view(Counted),
        last=(start + 1 * MS + number % 3 * MS).view(Counted),
        known=(number >= 0).view(Counted),
        wait_start=start.view(Counted),
        wait_end=(start + 3 * MS).view(Counted),
        measured=(number % REPETITION != 0).view(Counted),
        pauses=[(end - int(199 * MS), end) for end in ends],
        arrived=(start + 2 * MS if arrivals else np.full(steps, np.nan)).view(Counted),
        unpacked=(start + 2.5 * MS if arrivals else np.full(steps, np.nan)).view(Counted),
        awaited=(number % 2 == 0).view(Counted),
    )
    Counted.elements = 0
    costs, _ = handed_over(seen, round_robin(steps, 2), prefetch=2, tensors=3, declared_ns=0.0)
    assert all(np.isfinite(cost).all() for cost in costs.values())
    return Counted.elements


def one_pause_at_a_time(starts: Any, ends: Any, pauses: Sequence[tuple[int, int]]) -> Any:
    """The same answer as ``crosses``, by comparing every batch with every pause."""
    found = np.zeros(len(starts), dtype=np.bool_)
    for since, until in pauses:
        found |= _plain((starts < until) & (ends > since))
    return found


def growth(*, arrivals: bool) -> float:
    return elements(4400, arrivals=arrivals) / elements(2200, arrivals=arrivals)


@pytest.mark.parametrize("arrivals", [False, True])
def test_the_work_grows_with_the_steps_and_not_with_their_square(
    monkeypatch: pytest.MonkeyPatch, arrivals: bool
) -> None:
    assert growth(arrivals=arrivals) < 2.1
    monkeypatch.setattr(batches, "crosses", one_pause_at_a_time)
    assert growth(arrivals=arrivals) > 3  # the count would show it


@pytest.mark.parametrize("pauses", [[], [(10, 20)], [(10, 20), (40, 50), (90, 95)]])
def test_a_pause_between_start_and_end_is_found(pauses: list[tuple[int, int]]) -> None:
    generator = np.random.default_rng(0)
    starts = generator.integers(0, 100, 500).astype(np.float64)
    ends = starts + generator.integers(0, 30, 500)
    crosses: Callable[..., Any] = batches.crosses
    assert (crosses(starts, ends, pauses) == one_pause_at_a_time(starts, ends, pauses)).all()
