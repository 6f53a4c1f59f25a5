"""Makes batches of a data source that the user wrote (``data.source``), with the stages that the ledger knows.

    read       what the dataset does for the items of a batch
    tokenize   a tokenizer's calls within it (tokenizers, transformers, tiktoken, sentencepiece)
    pack       collating

Of a DataLoader its dataset, its order, drop_last, its collate function and its worker_init_fn are taken. Workers,
prefetch and pinning are the scenario's, so that they can be varied; a worker makes every n-th batch of one order, as a
DataLoader's does.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    get_worker_info,
)
from torch.utils.data import default_collate as collate_by_torch
from torch.utils.data._utils import worker as torch_worker

from trainer import telemetry
from trainer.config import DataConfig
from trainer.data import encoders
from trainer.data.batch import Batch
from trainer.data.position import Position
from trainer.data.user_batch import KEY, as_batch
from trainer.errors import InputError
from trainer.inject import Injector
from trainer.user_code import call, failed

# Batches of indices drawn together, so that the random states are changed once for all of them. One of 8 takes 300 B.
MOST_DRAWN = 100_000


@dataclass(frozen=True)
class Order:
    """The indices of each batch of an epoch. ``batches``: how many there are; None where nobody knows, or no end is."""

    begin: Callable[[], Iterator[list[Any]]]
    batches: int | None


@dataclass(frozen=True)
class UserSource:
    """What the user's function gave. ``order``: None for an iterable dataset."""

    dataset: Any
    order: Order | None
    collate: Callable[[Any], Any]
    batch_size: int | None
    """Items in a batch of an iterable dataset; None where each item is a batch."""
    drop_last: bool = False
    """Whether the last batch of an iterable dataset is left out where it has fewer items."""
    worker_init: Callable[[int], object] | None = None
    """What each worker calls first, as a DataLoader's does."""


def open_source(config: DataConfig, seed: int) -> UserSource:
    """Call the user's function. Raises InputError where it fails, or gives something else."""
    assert config.source is not None
    offered = {"seed": seed, "batch_size": config.batch_size, "sequence_length": config.sequence_length}
    given = call(KEY, config.source, config.arguments, offered)
    collate: Callable[[Any], Any] = collate_by_torch
    if isinstance(given, tuple) and len(given) == 2 and callable(given[1]):
        given, collate = given
    if isinstance(given, DataLoader):
        return _of_loader(given)
    if isinstance(given, IterableDataset) or (not hasattr(given, "__getitem__") and hasattr(given, "__iter__")):
        return UserSource(given, None, collate, config.batch_size)
    if not (isinstance(given, Dataset) or (hasattr(given, "__getitem__") and hasattr(given, "__len__"))):
        kind = type(given).__name__
        raise InputError(
            f"{KEY}: {config.source} gave a {kind}; allowed: a Dataset, an IterableDataset, a DataLoader, or a pair "
            "(dataset, collate function)"
        )
    if len(given) < config.batch_size:
        raise InputError(f"{KEY}: {config.source} gave {len(given)} items, less than one batch of {config.batch_size}")
    sampler = RandomSampler(given) if config.shuffle else SequentialSampler(given)
    batches = BatchSampler(sampler, config.batch_size, drop_last=True)
    return UserSource(given, Order(lambda: iter(batches), len(batches)), collate, None)


def _of_loader(loader: DataLoader[Any]) -> UserSource:
    if isinstance(loader.dataset, IterableDataset):
        start = loader.worker_init_fn
        return UserSource(loader.dataset, None, loader.collate_fn, loader.batch_size, loader.drop_last, start)
    if loader.batch_sampler is None:  # each item is a batch
        order = Order(lambda: ([index] for index in loader.sampler), _length_of(loader.sampler))
        return UserSource(loader.dataset, order, _only, None, worker_init=loader.worker_init_fn)
    sampler = loader.batch_sampler
    order = Order(lambda: iter(sampler), _length_of(sampler))
    return UserSource(loader.dataset, order, loader.collate_fn, None, worker_init=loader.worker_init_fn)


def _length_of(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except Exception:  # torch's samplers need none, and DataLoader does not ask
        return None


def _only(items: list[Any]) -> Any:
    return items[0]


class Randomness:
    """A random state of its own for torch, numpy and Python's ``random``, in place of this process's within ``with``.

    So what is drawn in it is the same in every process, whatever that process drew before; and it goes on where it was.
    """

    def __init__(self, seed: int) -> None:
        self._others = _random_states()
        torch.default_generator.manual_seed(seed % 2**63)  # torch.manual_seed also sets those of devices
        set_bit_generator(np.random.MT19937(seed % 2**32))
        random.seed(seed)
        self._own = _random_states()
        _set_random_states(self._others)

    def __enter__(self) -> None:
        self._others = _random_states()
        _set_random_states(self._own)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._own = _random_states()
        _set_random_states(self._others)

    def pass_on(self) -> None:
        """Let numpy and ``random`` go on outside as they were left within: what was seeded there is drawn from here."""
        _set_random_states((torch.random.get_rng_state(), *self._own[1:]))


def _random_states() -> tuple[Any, Any, Any]:
    # numpy's generator itself: reading and setting its state takes 0.3 ms, for each batch of an order without an end.
    return torch.random.get_rng_state(), get_bit_generator(), random.getstate()


def _set_random_states(states: tuple[Any, Any, Any]) -> None:
    torch.random.set_rng_state(states[0])
    set_bit_generator(states[1])
    random.setstate(states[2])


class UserPipeline:
    """Endless batches of a user's source: those of worker ``worker`` of ``workers`` (0 of 1: inline)."""

    def __init__(
        self,
        config: DataConfig,
        seed: int,
        worker: int,
        workers: int,
        injector: Injector,
        marked: bool = True,
        shifted: bool = True,
        start: Position = Position(),  # noqa: B008  # a tuple never changes
    ) -> None:
        """``shifted``: whether the model shifts the labels; of a masked-LM it does not."""
        assert config.source is not None
        self._name, self._seed = config.source, seed
        self._worker, self._workers = worker, workers
        self._injector, self._extra = injector, config.extra_reads
        self._length, self._shifted = config.sequence_length, shifted
        randomness = Randomness(seed)
        with randomness:  # a split of the rows that nobody seeded must be the same in every worker
            self._source = open_source(config, seed)
        if (here := get_worker_info()) is None and marked and workers > 1 and self._source.order is None:
            # Of several ranks without workers. Nothing tells its code which part is theirs: all would read all of it.
            raise InputError(
                f"{KEY}: {self._name} gave an iterable dataset, which {workers} ranks divide by the get_worker_info "
                "of their loader workers; allowed: data.workers of at least 1, launch with nproc 1, or a dataset with "
                "__getitem__"
            )
        if here is None:  # torch's own state is the model's
            randomness.pass_on()
        else:  # which goes on with the states that torch gave it
            # A resumed training's loader processes take other workers' parts: what is drawn belongs to the part.
            self._begin_worker(here.seed - here.id + worker, reseed=worker != here.id)
        if self._extra and self._source.order is None:
            raise InputError(
                f"data.extra_reads: {self._name} gave an iterable dataset, which reads nothing twice (controls: dose)"
            )
        self._span: Callable[[str], AbstractContextManager[None]] = telemetry.span if marked else _unmarked
        self._marked = marked
        if marked:
            encoders.watch()
        self._batches = 0
        self._saves = start.keeps_state and callable(getattr(self._source.dataset, "state_dict", None))
        self._wanted = self._endless()
        if start.batches:
            self._resume(start)

    def _resume(self, start: Position) -> None:
        """Go to where an earlier run was: by the dataset's own state, else by making its batches and dropping them."""
        dataset = self._source.dataset
        self._injector.skip(start.batches, more=1 + self._extra)
        if start.state is not None and self._source.order is None and hasattr(dataset, "load_state_dict"):
            self._guarded(lambda: dataset.load_state_dict(start.state))
            self._batches = start.batches
            return
        if self._worker == 0:
            which = f"first {start.batches} batches{' of each worker' * (self._workers > 1)}"
            print(
                f"{KEY}: {self._name} has no state_dict and load_state_dict: its {which} are made again and dropped",
                file=sys.stderr,
            )
        injector, self._injector = self._injector, Injector(None, 0)
        span, self._span = self._span, _unmarked
        with encoders.making:
            for _ in range(start.batches):
                wanted = self._guarded(lambda: next(self._wanted))
                for _ in range(1 + self._extra):
                    self._make(wanted)
        self._injector, self._span = injector, span
        self._batches = start.batches
        telemetry.take()  # nobody asked for what that took

    def _after(self) -> Position:
        """Where it goes on after a batch; counted in batches, as nobody knows what the user's documents are."""
        self._batches += 1
        order, state = self._source.order, None
        if self._saves:
            state = self._guarded(self._source.dataset.state_dict)
        per_epoch = -(-((order.batches or 0) - self._worker) // self._workers) if order is not None else 0
        return Position(self._worker, self._batches, 0, self._batches, per_epoch, state, self._saves)

    def _begin_worker(self, seed: int, reseed: bool = False) -> None:
        """What a DataLoader does in each worker: the user's code finds his own dataset there, not ours."""
        if reseed:  # as torch.utils.data._utils.worker does
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(torch_worker._generate_state(seed - self._worker, self._worker))  # type: ignore[no-untyped-call]
        found = torch_worker.WorkerInfo(
            id=self._worker, num_workers=self._workers, seed=seed, dataset=self._source.dataset
        )
        torch_worker._worker_info = found
        start = self._source.worker_init
        if start is not None:
            self._guarded(lambda: start(self._worker))

    def next_batch(self) -> Batch:
        """The next batch, with its declared costs spent and its trace."""
        with encoders.making:
            with self._span("read"):
                wanted = self._guarded(lambda: next(self._wanted))
            for _ in range(1 + self._extra):
                batch = self._make(wanted)
        batch.position = self._after()
        self._injector.spend("transfer")
        if self._marked:
            batch.trace = telemetry.take()
        return batch

    def of_first_epoch(self, most: int) -> list[Batch]:
        """Its first batches, at most ``most``, and none twice."""
        found: list[Batch] = []
        wanted = self._epoch(0)
        while len(found) < most and (one := self._guarded(lambda: next(wanted, None))) is not None:
            found.append(self._make(one))
        return found

    def _make(self, wanted: list[Any]) -> Batch:
        """A batch of these indices; of an iterable dataset, of these items."""
        with self._span("read"):
            items = wanted if self._source.order is None else self._guarded(lambda: self._read(wanted))
            self._injector.spend("read")
        if self._injector.cost_ms("tokenize"):
            with self._span("tokenize"):
                self._injector.spend("tokenize")
        with self._span("pack"):
            whole = self._source.order is None and self._source.batch_size is None
            made = items[0] if whole else self._guarded(lambda: self._source.collate(items))
            batch = as_batch(made, self._name, self._length, self._shifted)
            self._injector.spend("pack")
        return batch

    def _read(self, indices: list[Any]) -> list[Any]:
        dataset = self._source.dataset
        together = getattr(dataset, "__getitems__", None)  # as DataLoader does
        found: list[Any] = together(indices) if together is not None else [dataset[index] for index in indices]
        return found

    def _guarded(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except InputError:
            raise
        except Exception as error:
            raise failed(KEY, self._name, error) from error

    def _endless(self) -> Iterator[list[Any]]:
        epoch = 0
        while True:
            found = False
            for wanted in self._epoch(epoch):
                found = True
                yield wanted
            if not found:
                share = f" for worker {self._worker} of {self._workers}" if self._workers > 1 else ""
                raise InputError(f"{KEY}: {self._name} gave no batch{share} in epoch {epoch}")
            epoch += 1

    def _epoch(self, epoch: int) -> Iterator[list[Any]]:
        source = self._source
        if source.order is None:
            items = iter(source.dataset)
            size = source.batch_size or 1
            while batch := list(islice(items, size)):
                if len(batch) == size or not source.drop_last:
                    yield batch
            return
        yield from islice(self._order(epoch), self._worker, None, self._workers)

    def _order(self, epoch: int) -> Iterator[list[Any]]:
        """One epoch's batches of indices, the same in every worker, whatever the sampler draws them from and when."""
        assert self._source.order is not None
        randomness = Randomness(self._seed * 1_000_003 + epoch)
        with randomness:
            order = self._source.order.begin()
        # Of an order without an end only the next batch may be drawn.
        at_once = max(1, min(self._source.order.batches or 1, MOST_DRAWN))
        while True:
            with randomness:
                drawn = list(islice(order, at_once))
            yield from drawn
            if len(drawn) < at_once:
                return


def _unmarked(_: str) -> AbstractContextManager[None]:
    return nullcontext()
