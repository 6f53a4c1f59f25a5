"""Decide which batches are for training, and record their arrival.

A source (a dataset, or a function that returns batches) is for training once a backward pass followed its batches. The
use of a later source's batches is unknown until a backward pass (training), or a model run without gradients, the end
of its data or a batch of an earlier source (evaluation). Their events wait in ``phases.state.events``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

from _harness_agent import events as kinds
from _harness_agent import phases, record, run_queue

MOST_UNKNOWN = 64  # batches of unknown use, before they count as evaluation
Loader = tuple[int, int, bool]  # workers, batches in flight per worker, True if the workers outlive an epoch
Trace = tuple[str, int, int, int, Any]  # role, pid, thread, number of the batch, pieces of stages
NO_TRACE = ("unknown", 0, 0, kinds.UNKNOWN_NUMBER, ())


@dataclass(slots=True)
class _Batches:
    """Sources of batches (ids of datasets or functions) with their use, and facts about the batch that is arriving."""

    trained_on: set[int] = field(default_factory=set)  # sources whose batches were followed by a backward pass
    sources: set[int] = field(default_factory=set)  # other sources with batches since the last backward pass
    settled: set[int] = field(default_factory=set)  # see boundaries.fetching()
    ended: set[int] = field(default_factory=set)  # sources whose last iterator ran out of data
    unknown: int = 0  # batches of unknown use
    unknown_loaders: list[Loader] = field(default_factory=list)  # loaders of these batches
    ran_without_gradients: bool = False  # True if the model did so since the last wait for a batch
    anew: bool = False  # True if the next batch is the first since its loader restarted
    early: bool = False  # True if the iterator before it was left before its end
    trace: Trace | None = None  # maker of the batch that arrives
    unpacked: tuple[int, int, bool] | None = None  # see arrivals.py
    in_marked_fetch: list[tuple[Any, ...]] | None = None  # RECEIVED events within a fetch that the program marks
    arrived: int = 0  # batches that arrived, for training or not
    loader_seen: bool = False  # True if a DataLoader serves this program: its fetches open the steps
    in_flight: int = 0  # maximum batches in flight over all loaders
    noted: set[Any] = field(default_factory=set)  # sources and loaders that were noted


state = _Batches()
on_evaluation: list[Callable[[], None]] = []  # called before each evaluation batch


def forget() -> None:
    global state
    state = _Batches()


def interrupted() -> None:
    """Forget the maker of the arriving batch, and a marked fetch, after a signal handler raised within a hook."""
    state.in_marked_fetch = state.trace = None


def evaluates(*, graphs: bool = False) -> None:
    """Record an evaluation batch. ``graphs``: True if the model ran with gradients, so that autograd made graphs."""
    phases.state.events.append((kinds.EVALUATION, graphs))
    for action in on_evaluation:
        action()


def use_is_unknown() -> None:
    """Append an UNKNOWN_FETCH event for a wait. After MOST_UNKNOWN such batches, count those as evaluation first."""
    if state.unknown >= MOST_UNKNOWN:
        drop_unknown()
    phases.state.events.append((kinds.UNKNOWN_FETCH, monotonic_ns(), run_queue.read()))
    state.unknown += 1


def take_unknown() -> tuple[int, tuple[Any, ...], list[tuple[Any, ...]], list[Loader]]:
    """Remove the batches of unknown use; return (their number, first UNKNOWN_FETCH, other events since, loaders)."""
    events = phases.state.events
    first = next(place for place, event in enumerate(events) if event[0] == kinds.UNKNOWN_FETCH)
    wait, since = events[first], [event for event in events[first:] if event[0] != kinds.UNKNOWN_FETCH]
    del events[first:]
    number, state.unknown = state.unknown, 0
    loaders, state.unknown_loaders = state.unknown_loaders, []
    return number, wait, since, loaders


def drop_unknown() -> None:
    """Count all batches of unknown use as evaluation batches: their waits are dropped."""
    if not state.unknown:
        return
    number, _, since, _ = take_unknown()
    runs = any(event[0] == kinds.ENTER and event[1] == "forward" for event in since)
    phases.state.events += [event for event in since if not _of_fetch(event)]
    for _ in range(number):
        evaluates(graphs=runs and not state.ran_without_gradients)


def _of_fetch(event: tuple[Any, ...]) -> bool:
    return event[0] in (kinds.RECEIVED, kinds.UNPACKED, kinds.BEGUN_ANEW) or (
        event[0] in (kinds.ENTER, kinds.EXIT) and event[1] == "fetch"
    )


def evaluated() -> None:
    """Record that the model ran without gradients: an evaluation, unless a backward pass follows."""
    state.ran_without_gradients = True
    state.settled.clear()


def ran_out(source: int) -> None:
    """Record the end of dataset ``source`` (id). Batches of unknown use, without a backward pass, were evaluation."""
    state.ended.add(source)
    if state.unknown:
        state.sources.discard(source)
        drop_unknown()


def begins_anew(source: int) -> bool:
    """Record a new iterator over dataset ``source`` (id); return True if its previous iterator reached the end."""
    ended = source in state.ended
    if source in state.trained_on:
        state.anew, state.early = True, not ended
    state.ended.discard(source)
    return ended


def made_by(trace: Trace | None) -> None:
    """Store the maker (:data:`Trace`) of the batch that is about to arrive; None for a batch that is not recorded."""
    state.trace = trace
    if trace is None:
        state.unpacked = None


def received(trace: Trace | None, tokens: int, samples: int, loader: Loader, items: int = 0) -> None:
    """Record a training batch. ``trace``: its maker. ``items``: those that this process put into it; 0: unknown."""
    recording = state
    if recording.unknown:
        recording.unknown_loaders.append(loader)
    elif loader not in recording.noted:
        note_loader(loader)
    events = phases.state.events
    arrived = (kinds.RECEIVED, trace, tokens, items, samples)
    if recording.anew:
        recording.anew = False
        events.append((kinds.BEGUN_ANEW, recording.early))
    unpacked, recording.unpacked = recording.unpacked, None
    if recording.in_marked_fetch is not None:  # a single wait, maybe for several batches
        recording.in_marked_fetch.append(arrived)
        return
    if unpacked is not None:
        events.append((kinds.UNPACKED, *unpacked))
    events.append(arrived)


def note_loader(loader: Loader) -> None:
    if loader not in state.noted:
        state.noted.add(loader)
        state.in_flight = max(state.in_flight, loader[0] * loader[1])
        record.note("loader", loader)
