"""Watch torch's DataLoader: how long the main thread waits for each batch, and which code and process made it.

Every wrapper calls the original function with the same arguments and returns its result unchanged.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from threading import get_ident
from time import monotonic_ns
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from _harness_agent import (
    arrivals,
    batches,
    boundaries,
    causes,
    controls,
    copies,
    guard,
    padding,
    phases,
    record,
    repeats,
    stages,
    watching,
)
from _harness_agent.events import BATCH, ENDED, UNKNOWN_NUMBER
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    get_worker_info,
)

_received_of: dict[int, int] = {}  # batches received from each worker, by process id
_unnumbered: set[int] = set()  # workers that may have lost batches: their batch numbers are unknown
_made_here = 0  # batches made by this process, if it is a worker
_depth = 0  # depth of nested fetches: a dataset may read another loader
_MOST_TENSORS = 16  # maximum tensors of a batch that are examined for its size
_SERVED = "_harness_served"  # attribute that stores an iterator's _Served
LOADER = "loader-"  # prefix of a loader worker's role, before its number
LEAST_SAMPLE_NS = 10_000  # minimum duration of a separate record
SAMPLE = "sample"  # stage in which a sampler chooses items; the study counts it as reading
MAKER = "maker"  # note: (stage, "train.py:31", function, True if it makes one row at a time)
EPOCH = "epoch_batches"  # note: number of batches in an epoch
_MOST_NESTED = 8  # maximum depth of datasets within datasets, or samplers within samplers


class _Served(NamedTuple):
    """Facts about a DataLoader iterator's dataset and workers. Collected again when persistent workers restart."""

    source: int  # id of the dataset
    workers: bool  # False: the calling process makes the batches
    loader: batches.Loader
    shared: bool  # True for a dataset without an index: each worker reads all of it, unless it splits itself
    by_worker: bool  # True if a worker of another loader asks for the batches
    first: copies.FirstBatches | None  # first batches, if several workers share a dataset
    makers: list[tuple[str, str, str, bool]]  # notes of the kind MAKER
    batches: int  # batches in an epoch; 0 if unknown


def forget() -> None:
    global _depth
    _depth = 0


def patch() -> None:
    """Wrap the methods of torch's DataLoader iterators and fetchers. Subclasses that inherit them are timed as well."""
    from torch.utils.data import dataloader
    from torch.utils.data._utils import fetch

    _replace(dataloader.DataLoader, "__iter__", _iter)
    _replace(dataloader._BaseDataLoaderIter, "__next__", _next)
    _replace(dataloader._BaseDataLoaderIter, "_next_index", _next_index)
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


def _iter(before: Any) -> Any:
    def __iter__(self: Any) -> Any:
        begun_ns = monotonic_ns()
        iterator = before(self)
        if guard.on:
            guard.carefully(boundaries.iterated, id(self.dataset), monotonic_ns() - begun_ns)
        return iterator

    return __iter__


def _next(before: Any) -> Any:
    def __next__(self: Any) -> Any:
        if not guard.on or get_ident() != phases.recorded_thread:
            return before(self)
        if boundaries.measuring.controlled:
            return _controlled(before, self)
        global _depth
        around, _depth = _depth, _depth + 1
        try:
            begun = None
            try:
                begun = _begin(self)
            except BaseException as error:
                if not guard.swallows(error):
                    raise
            try:
                batch = before(self)
            except BaseException:
                guard.carefully(_ended, begun, None)
                raise
            if guard.on:
                try:
                    _ended(begun, batch)
                except BaseException as error:
                    if not guard.swallows(error):
                        raise
            return batch
        finally:  # also if a signal handler of the program raised within these hooks
            _depth = around

    return __next__


def _controlled(before: Any, iterator: Any) -> Any:
    """Return the next batch that the control keeps: a kept one, or one made by torch's ``__next__`` (``before``)."""
    global _depth
    around = _depth
    while True:
        _depth = around + 1
        try:
            begun = guard.carefully(_begin, iterator)
            try:
                batch = guard.carefully(controls.kept, begun.source) if begun else None
                if batch is None:
                    batch = before(iterator)
            except BaseException:
                guard.carefully(_ended, begun, None)
                raise
            guard.carefully(_ended, begun, batch)
        finally:
            _depth = around
        if not begun or not guard.carefully(controls.thrown_away, begun.source, batch):
            return batch


def _begin(iterator: Any) -> _Served | None:
    """Begin the fetch of a batch that may be for training; return facts, else None. May raise SystemExit."""
    cached = getattr(iterator, _SERVED, None)
    served = cached or _look_at(iterator)
    making = phases.state.making or phases.making()
    if _depth > 1 or making.open or served.by_worker or not boundaries.fetching(served.source):
        return None
    if cached is None and batches.begins_anew(served.source):
        repeats.epoch_ended()
    if boundaries.steps.enough:
        boundaries.leave_if_enough()
    if batches.state.in_marked_fetch is None:
        phases.enter("fetch")
    if served.first is not None:
        _count_empty(iterator, served.first)
    return served


def _count_empty(iterator: Any, first: copies.FirstBatches) -> None:
    """Note how many workers ran out of data without a batch, when that number rises. ``first``: the last numbers."""
    status = getattr(iterator, "_workers_status", None)
    if not status or not _received_of or (ended := status.count(False)) == first.ended:
        return
    first.ended = ended
    workers = zip(status, iterator._workers, strict=True)
    empty = sum(not active and int(worker.pid) not in _received_of for active, worker in workers)
    if empty > first.empty:
        first.empty = empty
        record.note("empty_workers", empty)


def _look_at(iterator: Any) -> _Served:
    """Collect the facts about an iterator's source and store them in the iterator. Runs once per epoch."""
    dataset = getattr(iterator, "_dataset", iterator)
    workers = int(getattr(iterator, "_num_workers", 0) or 0)
    if workers:
        arrivals.watch(iterator)
    persistent = bool(workers and getattr(iterator, "_persistent_workers", False))
    loader = workers, int(getattr(iterator, "_prefetch_factor", None) or 2), persistent
    by_worker = get_worker_info() is not None
    shared = isinstance(dataset, IterableDataset)
    first = copies.FirstBatches() if shared and workers > 1 else None
    new = id(dataset) not in batches.state.noted
    makers = guard.carefully(_makers, iterator, dataset, shared) if new else None
    epoch = guard.carefully(_epoch_batches, iterator) if new else None
    served = _Served(id(dataset), workers > 0, loader, shared, by_worker, first, makers or [], epoch or 0)
    setattr(iterator, _SERVED, served)
    return served


def _epoch_batches(iterator: Any) -> int:
    """Return the number of batches in an epoch; 0 if the sampler is not one of torch's own, whose length is known."""
    sampler = getattr(iterator, "_index_sampler", None)
    innermost = sampler.sampler if type(sampler) is BatchSampler else sampler
    if type(innermost) not in (RandomSampler, SequentialSampler, DistributedSampler):
        return 0  # The length of another sampler is program code that nothing else calls.
    return len(sampler)  # type: ignore[arg-type]


def _makers(iterator: Any, dataset: Any, shared: bool) -> list[tuple[str, str, str, bool]]:
    """Return (stage, place, function, True if row by row) of dataset, collation, sampler. ``shared``: no index."""
    sampler = getattr(iterator, "_index_sampler", None)
    dataset, sampler = _innermost(dataset, "dataset"), _innermost(sampler, "sampler")
    batched = _stored(dataset, "__getitems__") is not None
    method = "__iter__" if shared else "__getitems__" if batched else "__getitem__"
    # A dataset with __getattr__ may read whole batches.
    reads_batches = (
        shared or batched or _stored(dataset, "__getattr__") or not getattr(iterator, "_auto_collation", False)
    )
    makers = [("read", type(dataset), method), ("pack", *_collator(iterator)), ("sampler", type(sampler), "__iter__")]
    return [(stage, *_defined(owner, name), stage == "read" and not reads_batches) for stage, owner, name in makers]


def _collator(iterator: Any) -> tuple[Any, str]:
    """Return (owner, name) of the function that collates a batch; for an object, the ``__call__`` of its class."""
    collate = _innermost(_stored(iterator, "_collate_fn"), "data_collator")
    return (iterator, "_collate_fn") if _code(collate) is not None else (type(collate), "__call__")


def _stored(owner: Any, name: str) -> Any:
    """Return the attribute ``name`` of ``owner`` without running code of the program; None if it does not exist."""
    return inspect.getattr_static(owner, name, None)


def _code(function: Any) -> CodeType | None:
    """Return the code object of a plain function or method; None for other objects, whose attributes may run code."""
    function = function.__func__ if type(function) is MethodType else function
    return function.__code__ if type(function) is FunctionType else None


def _innermost(one: Any, attribute: str) -> Any:
    """Return the dataset or sampler inside library wrappers. ``attribute``: where a wrapper stores it ("dataset")."""
    for _ in range(_MOST_NESTED):
        code, inner = _code(_stored(type(one), "__init__")), _stored(one, attribute)
        if inner is None or hasattr(type(inner), "__get__"):  # A property is code of the program.
            break
        if code is None or not watching.is_library(code.co_filename):
            break
        one = inner
    return one


def _defined(owner: Any, name: str) -> tuple[str, str]:
    """Return (place, qualified name) of a function of ``owner``; place "" in libraries or without Python code."""
    code = _code(_stored(owner, name))
    if code is None:
        return "", f"{getattr(owner, '__qualname__', '')}.{name}".lstrip("._")
    file = code.co_filename
    place = "" if watching.is_library(file) else f"{os.path.basename(file)}:{code.co_firstlineno}"
    return place, code.co_qualname


def _ended(served: _Served | None, batch: Any) -> None:
    recording = batches.state
    if served is None:
        if _depth == 1:
            stages.take()
            batches.made_by(None)
        return
    if recording.in_marked_fetch is None:
        phases.leave("fetch")
    pieces = stages.take()
    trace: batches.Trace | None
    if served.workers:
        trace, recording.trace = recording.trace or batches.NO_TRACE, None
        if pieces:  # chosen by the main thread for a worker
            trace = (*trace[:4], pieces)
    else:
        trace = (*(phases.state.origin or phases.origin()), pieces)
    if served.source not in recording.noted and not recording.unknown:
        recording.noted.add(served.source)
        if served.shared:
            record.note("iterable", True)
        for maker in served.makers:
            record.note(MAKER, maker)
        if served.batches:
            record.note(EPOCH, served.batches)
    if batch is not None and served.first is not None and trace[0].startswith(LOADER):
        served.first.add(trace[0], batch)
    if batch is not None:
        making = phases.state.making
        items = 0 if served.workers or making is None else making.items
        arrived(batch, trace, served.loader, items)
    else:  # an epoch ended: a wait without a batch
        pieces = trace[4] if trace[0] == "main" else ()
        batches.received(("main", *stages.origin(), ENDED, pieces), 0, 0, served.loader)
        batches.ran_out(served.source)


def arrived(batch: Any, trace: batches.Trace | None, loader: batches.Loader, items: int = 0) -> None:
    """Record a training batch: its size and, where due, padding, pageable memory and repeated rows."""
    recording = batches.state
    recording.arrived += 1
    if recording.arrived >= padding.due:
        padding.batch_arrived(batch)
    if causes.current is not None:
        causes.batch_arrived(batch)
    if boundaries.measuring.alternates:
        repeats.batch_arrived(batch)
    tokens, samples = sizes(batch)
    batches.received(trace, tokens, samples, loader, items)


def _process_data(before: Any) -> Any:
    def _process_data(self: Any, data: Any, worker_id: int = -1, *more: Any, **named: Any) -> Any:
        if guard.on and worker_id >= 0:
            guard.carefully(_from_worker, self, worker_id)
        elif guard.on:
            guard.carefully(batches.made_by, batches.NO_TRACE)
        return before(self, data, worker_id, *more, **named) if worker_id != -1 else before(self, data, *more, **named)

    return _process_data


def _from_worker(iterator: Any, worker_id: int) -> None:
    batches.state.unpacked = arrivals.taken(iterator)
    pid = int(iterator._workers[worker_id].pid)
    number = _received_of.get(pid, 0)
    _received_of[pid] = number + 1
    batches.made_by((f"{LOADER}{worker_id}", pid, pid, UNKNOWN_NUMBER if pid in _unnumbered else number, ()))


def _reset(before: Any) -> Any:
    def _reset(self: Any, loader: Any, first_iter: bool = False) -> Any:
        if guard.on and not first_iter:
            guard.carefully(_drained, self)
        return before(self, loader, first_iter)

    return _reset


def _drained(iterator: Any) -> None:
    """Handle a restart of persistent workers: if torch drops unserved batches, later ones have no known number."""
    arrivals.forget(iterator)
    setattr(iterator, _SERVED, None)
    if getattr(iterator, "_tasks_outstanding", 0) or getattr(iterator, "_task_info", None):
        _unnumbered.update(int(worker.pid) for worker in iterator._workers)


def _next_index(before: Any) -> Any:
    """Return ``before``, timed as the stage "sample": the sampler shuffles at its first call, perhaps for seconds."""

    def _next_index(self: Any) -> Any:
        if not guard.on or _depth != 1 or get_ident() != phases.recorded_thread:
            return before(self)
        try:
            making = phases.state.making or phases.making()
            core = making.core
            now = monotonic_ns()
            if now < core.near_ns and core.here[0] and core.count[0] == core.counted:
                cpu_ns = now + core.ahead_ns
            else:
                cpu_ns, now = core.read()
        except BaseException as error:
            if not guard.swallows(error):
                raise
            return before(self)
        try:
            return before(self)
        finally:
            if monotonic_ns() - now > LEAST_SAMPLE_NS and not making.open:
                guard.carefully(stages.add, SAMPLE, now, cpu_ns)

    return _next_index


def _fetch(before: Any) -> Any:
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        if not guard.on:
            return before(self, possibly_batched_index)
        opened = False
        try:
            index = possibly_batched_index
            items = len(index) if type(index) is list or type(index) is tuple else 0
            opened = stages.begin("read", items)  # False for a loader within a dataset
            if opened and type(self.collate_fn) is not _packing:
                self.collate_fn = _packing(self.collate_fn)
        except BaseException as error:
            if not guard.swallows(error):
                raise
        if not opened:
            return before(self, possibly_batched_index)
        try:
            if boundaries.measuring.controlled:
                for _ in range(guard.carefully(controls.times_more) or 0):
                    before(self, possibly_batched_index)
                    guard.carefully(stages.end, 1)  # keeps the stage "read" open
            data = before(self, possibly_batched_index)
        except BaseException:
            guard.carefully(stages.end)
            if not _depth:
                guard.carefully(_close, False)
            raise
        if guard.on:
            try:
                stages.end()
                if not _depth:  # else the enclosing wait takes the pieces
                    _close(True)
            except BaseException as error:
                if not guard.swallows(error):
                    raise
        return data

    return fetch


class _packing:  # noqa: N801 - stands in for a function
    """Stand-in for a collate function: starts the stage "pack" (ends with the fetch), forwards attributes."""

    def __init__(self, collate: Any) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Any:
        if guard.on:
            try:
                stages.cut("pack", True)
            except BaseException as error:
                if not guard.swallows(error):
                    raise
        return self._collate(samples)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collate, name)


def _close(made: bool) -> None:
    """Write the stages of the batch just made in a loader worker; drop them if it failed (``made`` is False)."""
    global _made_here
    pieces = stages.take()
    info: Any = get_worker_info()
    if made and info is not None:
        record.write(BATCH, (info.id, _made_here, pieces, stages.making().items))
        _made_here += 1


def sizes(batch: Any) -> tuple[int, int]:
    """Return (tokens, rows) by the first tensor, (0, 0) without one. Only integers of 2+ dimensions are tokens."""
    first = first_tensor(batch)
    if first is None:
        return 0, 0
    try:
        shape = first.shape
        ids = len(shape) > 1 and not (first.is_floating_point() or first.is_complex())
        return (int(first.numel()) if ids else 0), (int(shape[0]) if len(shape) else 1)
    except Exception as error:
        guard.let_through(error)
        return 0, 0


def first_tensor(batch: Any) -> Any:
    """Return the first tensor of a batch, preferring ``input_ids``; None if there is no tensor."""
    kind, first = type(batch), batch
    if (kind is list or kind is tuple) and batch:
        first = batch[0]
    elif kind is dict and batch:
        first = batch["input_ids"] if "input_ids" in batch else next(iter(batch.values()))
    return first if type(first) is Tensor else next(tensors(batch), None)


def tensors(batch: Any, depth: int = 0) -> Iterator[Any]:
    if hasattr(batch, "shape") and hasattr(batch, "numel"):
        yield batch
    elif depth > 2:
        return
    elif hasattr(batch, "keys") and hasattr(batch, "__getitem__"):
        names = list(batch.keys())[:_MOST_TENSORS]
        for name in sorted(names, key=lambda key: key != "input_ids"):
            yield from tensors(batch[name], depth + 1)
    elif isinstance(batch, (list, tuple)):
        for part in batch[:_MOST_TENSORS]:
            yield from tensors(part, depth + 1)
