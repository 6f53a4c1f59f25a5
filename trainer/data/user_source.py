"""Makes batches of a data source that the user wrote (``data.source``), with the stages of the ledger.

    read       the dataset's work for the items of a batch
    tokenize   a tokenizer's calls within it (tokenizers, transformers, tiktoken, sentencepiece)
    pack       collating

A DataLoader's dataset, order, drop_last, collate function and worker_init_fn are used. Workers, prefetch and pinning
come from the scenario, so that they can be varied. A worker makes every n-th batch of one order, as in a DataLoader.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
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
from trainer.data.batch import IGNORED, Batch
from trainer.data.position import Position
from trainer.errors import InputError
from trainer.inject import Injector
from trainer.user_code import call, failed

KEY = "data.source"
ALLOWED = (
    "a mapping with input_ids (and labels, attention_mask), a pair (inputs, targets) with targets one ahead, "
    "or one tensor of ids; each of shape (samples, sequence)"
)
ACCEPTED = ("input_ids", "labels", "attention_mask")
# Outputs of tokenizers that no model takes. They are dropped.
LEFT_OUT = ("special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping", "length")
# Batches of indices drawn at once, so that the random states change once for all. A batch of 8 takes 300 bytes.
MOST_DRAWN = 100_000


@dataclass(frozen=True)
class Order:
    """Order of a user's dataset: ``begin`` starts an epoch of item indices; ``batches`` per epoch (None: unknown)."""

    begin: Callable[[], Iterator[list[Any]]]
    batches: int | None


@dataclass(frozen=True)
class UserSource:
    """Data source that the user's function returned. ``order``: None for an iterable dataset."""

    dataset: Any
    order: Order | None
    collate: Callable[[Any], Any]
    batch_size: int | None
    """Items in a batch of an iterable dataset; None if each item is a batch."""
    drop_last: bool = False
    """True if a last batch with fewer items is dropped (iterable datasets)."""
    worker_init: Callable[[int], object] | None = None
    """Function that each worker calls first, as in a DataLoader."""


def open_source(config: DataConfig, seed: int) -> UserSource:
    """Call the user's function and return its data source. Raises InputError if it fails or returns anything else."""
    assert config.source is not None
    offered = {"seed": seed, "batch_size": config.batch_size, "sequence_length": config.sequence_length}
    source = call(KEY, config.source, config.arguments, offered)
    collate: Callable[[Any], Any] = collate_by_torch
    if isinstance(source, tuple) and len(source) == 2 and callable(source[1]):
        source, collate = source
    if isinstance(source, DataLoader):
        return _of_loader(source)
    if isinstance(source, IterableDataset) or (not hasattr(source, "__getitem__") and hasattr(source, "__iter__")):
        return UserSource(source, None, collate, config.batch_size)
    if not (isinstance(source, Dataset) or (hasattr(source, "__getitem__") and hasattr(source, "__len__"))):
        kind = type(source).__name__
        raise InputError(
            f"{KEY}: {config.source} gave a {kind}; allowed: a Dataset, an IterableDataset, a DataLoader, or a pair "
            "(dataset, collate function)"
        )
    if len(source) < config.batch_size:
        raise InputError(f"{KEY}: {config.source} gave {len(source)} items, less than one batch of {config.batch_size}")
    sampler = RandomSampler(source) if config.shuffle else SequentialSampler(source)
    batches = BatchSampler(sampler, config.batch_size, drop_last=True)
    return UserSource(source, Order(lambda: iter(batches), len(batches)), collate, None)


def _of_loader(loader: DataLoader[Any]) -> UserSource:
    if isinstance(loader.dataset, IterableDataset):
        start = loader.worker_init_fn
        return UserSource(loader.dataset, None, loader.collate_fn, loader.batch_size, loader.drop_last, start)
    if loader.batch_sampler is None:  # Each item is a batch.
        order = Order(lambda: ([index] for index in loader.sampler), _length_of(loader.sampler))
        return UserSource(loader.dataset, order, itemgetter(0), None, worker_init=loader.worker_init_fn)
    sampler = loader.batch_sampler
    order = Order(lambda: iter(sampler), _length_of(sampler))
    return UserSource(loader.dataset, order, loader.collate_fn, None, worker_init=loader.worker_init_fn)


def _length_of(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except Exception:  # A sampler needs no length in torch.
        return None


class Randomness:
    """Context with its own states of torch (CPU), numpy and ``random``, from ``seed``, restored afterwards."""

    def __init__(self, seed: int) -> None:
        self._others = _random_states()
        torch.default_generator.manual_seed(seed % 2**63)  # torch.manual_seed also changes the devices' generators.
        set_bit_generator(np.random.MT19937(seed % 2**32))
        random.seed(seed)
        self._own = _random_states()
        _set_random_states(self._others)

    def __enter__(self) -> None:
        self._others = _random_states()
        _set_random_states(self._own)

    def __exit__(self, *_: object) -> None:
        self._own = _random_states()
        _set_random_states(self._others)

    def pass_on(self) -> None:
        """Give the process the context's states of numpy and ``random``, which a user's code may have seeded."""
        _set_random_states((torch.random.get_rng_state(), *self._own[1:]))


def _random_states() -> tuple[Any, Any, Any]:
    # numpy's generator object: reading and setting its state instead takes 0.3 ms.
    return torch.random.get_rng_state(), get_bit_generator(), random.getstate()


def _set_random_states(states: tuple[Any, Any, Any]) -> None:
    torch.random.set_rng_state(states[0])
    set_bit_generator(states[1])
    random.setstate(states[2])


class UserPipeline:
    """Endless batches of a user's source, made by worker ``worker`` of ``workers`` (0 of 1: in this process)."""

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
        """Open the source. ``marked``: with spans. ``shifted``: causal, see :func:`as_batch`. ``start``: position."""
        assert config.source is not None
        self._name, self._seed = config.source, seed
        self._worker, self._workers = worker, workers
        self._injector, self._extra = injector, config.extra_reads
        self._length, self._shifted = config.sequence_length, shifted
        randomness = Randomness(seed)
        with randomness:  # An unseeded split of the rows must be the same in every worker.
            self._source = open_source(config, seed)
        if (worker_info := get_worker_info()) is None and marked and workers > 1 and self._source.order is None:
            # Ranks without workers: the user's code cannot learn which part is theirs, so all would read all of it.
            raise InputError(
                f"{KEY}: {self._name} gave an iterable dataset, which {workers} ranks divide by the get_worker_info "
                "of their loader workers; allowed: data.workers of at least 1, launch with nproc 1, or a dataset with "
                "__getitem__"
            )
        if worker_info is None:  # torch's own state belongs to the model.
            randomness.pass_on()
        else:
            # A resumed training's loader processes may take other workers' parts; the draws belong to the part.
            self._begin_worker(worker_info.seed - worker_info.id + worker, reseed=worker != worker_info.id)
        if self._extra and self._source.order is None:
            raise InputError(
                f"data.extra_reads: {self._name} gave an iterable dataset, which reads nothing twice (controls: dose)"
            )
        self._span: Callable[[str], AbstractContextManager[Any]] = telemetry.span if marked else nullcontext
        self._marked = marked
        if marked:
            encoders.watch()
        self._batches = 0
        self._saves = start.keeps_state and callable(getattr(self._source.dataset, "state_dict", None))
        self._wanted = self._endless()
        if start.batches:
            self._resume(start)

    def _resume(self, start: Position) -> None:
        """Continue at ``start``: restore the dataset's state, or make the batches up to there again."""
        dataset = self._source.dataset
        self._injector.skip(start.batches, more=1 + self._extra)
        if start.state is not None and self._source.order is None and hasattr(dataset, "load_state_dict"):
            self._guarded(lambda: dataset.load_state_dict(start.state))
            self._batches = start.batches
            return
        if self._worker == 0:
            batches_text = f"first {start.batches} batches{' of each worker' * (self._workers > 1)}"
            print(
                f"{KEY}: {self._name} has no state_dict and load_state_dict: its {batches_text} are made again and "
                "dropped",
                file=sys.stderr,
            )
        injector, self._injector = self._injector, Injector(None, 0)
        span, self._span = self._span, nullcontext
        with encoders.making:
            for _ in range(start.batches):
                indices = self._guarded(lambda: next(self._wanted))
                for _ in range(1 + self._extra):
                    self._make(indices)
        self._injector, self._span = injector, span
        self._batches = start.batches
        telemetry.take()  # Discard the spans of the dropped batches.

    def _after(self) -> Position:
        """Return the position after the batch just made, in batches: the user's documents are unknown."""
        self._batches += 1
        order, state = self._source.order, None
        if self._saves:
            state = self._guarded(self._source.dataset.state_dict)
        per_epoch = -(-((order.batches or 0) - self._worker) // self._workers) if order is not None else 0
        return Position(self._worker, self._batches, 0, self._batches, per_epoch, state, self._saves)

    def _begin_worker(self, seed: int, reseed: bool = False) -> None:
        """Set up torch's worker info and the user's worker_init_fn; ``reseed``: seed first, as a DataLoader does."""
        if reseed:  # same seeding as torch.utils.data._utils.worker
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(torch_worker._generate_state(seed - self._worker, self._worker))  # type: ignore[no-untyped-call]
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=self._worker, num_workers=self._workers, seed=seed, dataset=self._source.dataset
        )
        start = self._source.worker_init
        if start is not None:
            self._guarded(lambda: start(self._worker))

    def next_batch(self) -> Batch:
        """Return the next batch with its trace. Declared costs are spent inside its stages."""
        with encoders.making:
            with self._span("read"):
                indices = self._guarded(lambda: next(self._wanted))
            for _ in range(1 + self._extra):
                batch = self._make(indices)
        batch.position = self._after()
        self._injector.spend("transfer")
        if self._marked:
            batch.trace = telemetry.take()
        return batch

    def of_first_epoch(self, most: int) -> list[Batch]:
        """Return the first batches of one epoch, at most ``most``. Their number may be smaller."""
        batches: list[Batch] = []
        epoch = self._epoch(0)
        while len(batches) < most and (indices := self._guarded(lambda: next(epoch, None))) is not None:
            batches.append(self._make(indices))
        return batches

    def _make(self, wanted: list[Any]) -> Batch:
        """Return a batch of the items ``wanted``: indices, or the items themselves of an iterable dataset."""
        with self._span("read"):
            items = wanted if self._source.order is None else self._guarded(lambda: self._read(wanted))
            self._injector.spend("read")
        if self._injector.cost_ms("tokenize"):
            with self._span("tokenize"):
                self._injector.spend("tokenize")
        with self._span("pack"):
            is_batch = self._source.order is None and self._source.batch_size is None
            raw = items[0] if is_batch else self._guarded(lambda: self._source.collate(items))
            batch = as_batch(raw, self._name, self._length, self._shifted)
            self._injector.spend("pack")
        return batch

    def _read(self, indices: list[Any]) -> list[Any]:
        dataset = self._source.dataset
        read_many = getattr(dataset, "__getitems__", None)  # DataLoader prefers it, too.
        items: list[Any] = read_many(indices) if read_many is not None else [dataset[index] for index in indices]
        return items

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
            is_empty = True
            for indices in self._epoch(epoch):
                is_empty = False
                yield indices
            if is_empty:
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
        """Yield the index lists of one epoch's batches, the same in every worker for any sampler."""
        assert self._source.order is not None
        randomness = Randomness(self._seed * 1_000_003 + epoch)
        with randomness:
            order = self._source.order.begin()
        # An endless order is drawn batch by batch.
        at_once = max(1, min(self._source.order.batches or 1, MOST_DRAWN))
        while True:
            with randomness:
                chunk = list(islice(order, at_once))
            yield from chunk
            if len(chunk) < at_once:
                return


def as_batch(made: Any, name: str, sequence_length: int, shifted: bool = True) -> Batch:
    """Convert the user's collated batch; InputError, naming ``name``, for an unknown form or (masked) no labels."""
    if isinstance(made, Batch):
        return made
    if not shifted and not (hasattr(made, "keys") and made.get("labels") is not None):
        raise InputError(
            f"{KEY}: {name} masks no tokens: with model.objective masked its batches must be mappings with input_ids "
            "and labels (-100 where nothing is predicted), as DataCollatorForLanguageModeling gives them"
        )
    ids, labels, mask = _parts(made, name)
    if ids.dim() != 2 or labels.shape != ids.shape or ids.is_floating_point():
        form = f"{ids.dtype} {tuple(ids.shape)}, labels {tuple(labels.shape)}".replace("torch.", "")
        raise InputError(f"{KEY}: {name} gives ids of {form}; allowed: {ALLOWED}")
    if ids.shape[1] > sequence_length:
        raise InputError(
            f"data.sequence_length: {sequence_length}, but {name} gives sequences of {ids.shape[1]}: give that"
        )
    trained = int(((labels[:, 1:] if shifted else labels) != IGNORED).sum())
    masked = mask is not None and (not shifted or _is_needed(mask, labels))
    return Batch(ids.long(), labels.long(), mask, ids.numel(), trained, ids.shape[0], masked=masked, shifted=shifted)


def _is_needed(mask: torch.Tensor, labels: torch.Tensor) -> bool:
    """Return True if the mask changes a causal model's loss: in a row, padding comes before text or before a label."""
    padding = mask[:, :-1] == 0
    return bool((padding & ((mask[:, 1:] != 0) | (labels[:, 1:] != IGNORED))).any())


def _parts(made: Any, name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    if isinstance(made, Mapping) or hasattr(made, "keys"):
        ids, labels, mask = (made.get(key) for key in ("input_ids", "labels", "attention_mask"))
        if isinstance(ids, torch.Tensor):
            if unknown := [str(key) for key in made.keys() if key not in ACCEPTED + LEFT_OUT]:  # noqa: SIM118
                raise InputError(
                    f"{KEY}: {name} gives batches with {', '.join(unknown)}, which are not supported; accepted: "
                    f"{', '.join(ACCEPTED)}; left out: {', '.join(LEFT_OUT)}"
                )
            for key, value in (("labels", labels), ("attention_mask", mask)):
                if value is not None and not (isinstance(value, torch.Tensor) and value.shape == ids.shape):
                    shape = tuple(getattr(value, "shape", ())) or type(value).__name__
                    raise InputError(
                        f"{KEY}: {name} gives {key} of {shape}; allowed: that of its ids, {tuple(ids.shape)}"
                    )
            if labels is None:
                labels = ids if mask is None else ids.masked_fill(mask == 0, IGNORED)
            return ids, labels, mask
        raise InputError(f"{KEY}: {name} gives batches with {', '.join(map(str, made))}; allowed: {ALLOWED}")
    if isinstance(made, torch.Tensor):
        return made, made, None
    if isinstance(made, list | tuple) and len(made) == 2 and all(isinstance(part, torch.Tensor) for part in made):
        ids, targets = made
        # targets[:, t] is predicted from t, but labels[:, t] from t - 1, so the last target is left out.
        ignored = torch.full_like(targets[:, :1], IGNORED)
        return ids, torch.cat([ignored, targets[:, :-1]], dim=1), None
    raise InputError(f"{KEY}: {name} gives batches of type {type(made).__name__}; allowed: {ALLOWED}")
