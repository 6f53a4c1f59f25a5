"""Watches torch's DataLoader: how long the main thread waits for each batch, and how it was made, by whom.

Every wrapper calls what was there before with the same arguments and hands on its result as it is.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from _harness_agent import arrivals, boundaries, controls, guard, record, stages
from torch.utils.data import IterableDataset, get_worker_info

_received_of: dict[int, int] = {}  # batches received from each worker, by process
_doubtful: set[int] = set()  # workers that may have made batches nobody received: which is which is not known
_made_here = 0  # batches of this process, where it is a worker
_depth = 0  # of fetches within fetches: a dataset may read another loader
_MOST_TENSORS = 16  # of a batch that are looked at for its size


def patch() -> None:
    """Wrap the methods of torch's iterators and fetchers, whoever subclasses them."""
    from torch.utils.data import dataloader
    from torch.utils.data._utils import fetch

    _replace(dataloader._BaseDataLoaderIter, "__next__", _next)
    multi = dataloader._MultiProcessingDataLoaderIter
    _replace(multi, "_process_data", _process_data)
    _replace(multi, "_reset", _reset)
    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        _replace(kind, "fetch", _fetch)


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    before = getattr(owner, name)
    if not getattr(before, "_harness_seam", False):
        after: Any = functools.wraps(before)(make(before))
        after._harness_seam = True
        setattr(owner, name, after)


def _next(before: Any) -> Any:
    def __next__(self: Any) -> Any:
        if not guard.on or threading.current_thread() is not threading.main_thread():
            return before(self)
        global _depth
        around = _depth
        controlled = bool(record.settings.get("control"))  # hooks that nobody needs cost microseconds of each step
        while True:
            try:
                begun = bool(guard.carefully(_begin, self))
                try:
                    batch = guard.carefully(controls.kept, _source(self)) if begun and controlled else None
                    if batch is None:
                        batch = before(self)
                except BaseException:
                    guard.carefully(_ended, self, begun, None)
                    raise
                guard.carefully(_ended, self, begun, batch)
            finally:  # also where a signal handler of the program raised within these hooks
                _depth = around
            if not begun or not controlled or not guard.carefully(controls.thrown_away, _source(self), batch):
                return batch

    return __next__


def _begin(iterator: Any) -> bool:
    """Whether this is the main thread's own wait for a batch; the only hook that may end the program (``--steps``)."""
    global _depth
    _depth += 1
    if getattr(iterator, "_num_workers", 0):
        arrivals.watch(iterator)
    if _depth > 1 or stages.busy() or _in_worker():
        return False
    if not boundaries.fetching(_source(iterator)):
        return False
    boundaries.leave_if_enough()
    if boundaries.state.marked is None:
        boundaries.enter("fetch")
    return True


def _ended(iterator: Any, begun: bool, batch: Any) -> None:
    global _depth
    _depth -= 1
    if not begun:
        if _depth == 0:
            stages.take()
            boundaries.made_by(None)
        return
    if boundaries.state.marked is None:
        boundaries.leave("fetch")
    trace = boundaries.maker()
    if trace is None:
        own = not getattr(iterator, "_num_workers", 0)
        trace = ("main", *stages.origin(), -1, stages.take()) if own else boundaries.NO_TRACE
    if not boundaries.state.doubtful:
        _note_kind(iterator)
    if batch is not None:
        boundaries.received(trace, *sizes(batch), _loader(iterator))
    else:  # an epoch ended: a wait for data all the same, and no batch
        pieces = trace[4] if trace[0] == "main" else ()
        boundaries.received(("main", *stages.origin(), boundaries.ENDED, pieces), 0, 0, _loader(iterator))
        boundaries.ran_out(_source(iterator))


def _note_kind(iterator: Any) -> None:
    """Note a dataset without an index: each worker of its loader has all of it, unless it shares itself out."""
    if isinstance(getattr(iterator, "_dataset", None), IterableDataset) and "iterable" not in boundaries.state.noted:
        boundaries.state.noted.add("iterable")
        record.note("iterable", True)


def _source(iterator: Any) -> int:
    return id(getattr(iterator, "_dataset", iterator))


def _loader(iterator: Any) -> tuple[int, int]:
    """Workers, and batches in flight for each."""
    workers = int(getattr(iterator, "_num_workers", 0) or 0)
    return workers, int(getattr(iterator, "_prefetch_factor", None) or 2)


def _process_data(before: Any) -> Any:
    def _process_data(self: Any, data: Any, worker_id: int = -1, *more: Any, **named: Any) -> Any:
        if guard.on and worker_id >= 0:
            guard.carefully(_from_worker, self, worker_id)
        elif guard.on:
            guard.carefully(boundaries.made_by, boundaries.NO_TRACE)
        return before(self, data, worker_id, *more, **named) if worker_id != -1 else before(self, data, *more, **named)

    return _process_data


def _from_worker(iterator: Any, worker_id: int) -> None:
    boundaries.state.unpacked = arrivals.taken(iterator)
    pid = int(iterator._workers[worker_id].pid)
    number = _received_of.get(pid, 0)
    _received_of[pid] = number + 1
    boundaries.made_by((f"loader-{worker_id}", pid, pid, -1 if pid in _doubtful else number, ()))


def _reset(before: Any) -> Any:
    def _reset(self: Any, loader: Any, first_iter: bool = False) -> Any:
        if guard.on and not first_iter:
            guard.carefully(_drained, self)
        return before(self, loader, first_iter)

    return _reset


def _drained(iterator: Any) -> None:
    """An epoch that was left early throws batches away: from then on nobody knows which one a worker sends."""
    arrivals.forget(iterator)
    if getattr(iterator, "_tasks_outstanding", 0) or getattr(iterator, "_task_info", None):
        _doubtful.update(int(worker.pid) for worker in iterator._workers)


def _in_worker() -> bool:
    return get_worker_info() is not None


def _fetch(before: Any) -> Any:
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        if not guard.on:
            return before(self, possibly_batched_index)
        opened = guard.carefully(_open, self)
        try:
            for _ in range(
                (guard.carefully(controls.times_more) or 0) if opened and record.settings.get("control") else 0
            ):
                before(self, possibly_batched_index)
            data = before(self, possibly_batched_index)
        except BaseException:
            if opened:
                guard.carefully(_close, self, False)
            raise
        if opened:
            guard.carefully(_close, self, True)
        return data

    return fetch


def _open(fetcher: Any) -> bool:
    if stages.busy():  # a loader within a dataset
        return False
    collate = fetcher.collate_fn
    if not getattr(collate, "_harness_seam", False):
        fetcher.collate_fn = _packing(collate)
    stages.enter("read")
    return True


class _packing:  # noqa: N801 - stands in for a function
    """A collate function that is timed; everything else of it is as before."""

    _harness_seam = True

    def __init__(self, collate: Any) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Any:
        if not guard.carefully(stages.enter_within, "pack"):
            return self._collate(samples)
        try:
            return self._collate(samples)
        finally:
            guard.carefully(stages.leave)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collate, name)


def _close(_fetcher: Any, made: bool) -> None:
    global _made_here
    stages.leave()
    if not _in_worker():
        return  # the wait that this is part of takes the pieces
    pieces = stages.take()
    if made:
        info: Any = get_worker_info()
        record.write("batch", (info.id, _made_here, pieces))
        _made_here += 1


def sizes(batch: Any) -> tuple[int, int]:
    """(tokens, samples) of a batch: elements and rows of its first tensor, ``input_ids`` before others.

    Zero where it has none, and no tokens where that tensor holds no integers.
    """
    first = next(_tensors(batch), None)
    if first is None:
        return 0, 0
    try:
        shape = tuple(first.shape)
        ids = len(shape) > 1 and not (first.is_floating_point() or first.is_complex())
        return (int(first.numel()) if ids else 0), (int(shape[0]) if shape else 1)
    except Exception as error:
        guard.let_through(error)
        return 0, 0


def _tensors(batch: Any, depth: int = 0) -> Iterator[Any]:
    if hasattr(batch, "shape") and hasattr(batch, "numel"):
        yield batch
    elif depth > 2:
        return
    elif hasattr(batch, "keys") and hasattr(batch, "__getitem__"):
        names = list(batch.keys())[:_MOST_TENSORS]
        for name in sorted(names, key=lambda one: one != "input_ids"):
            yield from _tensors(batch[name], depth + 1)
    elif isinstance(batch, (list, tuple)):
        for one in batch[:_MOST_TENSORS]:
            yield from _tensors(one, depth + 1)
