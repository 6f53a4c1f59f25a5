"""Hands batches over from worker processes through memory that both sides share from the start (``transport: ring``).

A DataLoader worker makes new shared memory for each tensor and sends its file descriptor, which costs both sides a
millisecond per batch. Here each worker has a few slots for whole batches. The main process requests one slot to be
filled, the worker fills it and answers with a message of some hundred bytes. As with DataLoader, batches come from the
workers in order, and a worker's next batch is requested when one of its batches is received: ``prefetch`` batches of
each are under way.

A slot is filled again once nothing in the main process holds its batch (:mod:`trainer.data.buffers`). If a program
keeps so many batches that no slot is free, a batch is copied out of its slot before it is handed over.
"""

from __future__ import annotations

import math
import mmap
import os
import random
import select
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context, reduction
from multiprocessing.connection import Connection
from time import monotonic_ns
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import signal_handling
from torch.utils.data._utils import worker as torch_worker

from trainer.data.arrivals import Arrival
from trainer.data.batch import Batch
from trainer.data.buffers import BatchBuffer, BatchBuffers, Buffers
from trainer.errors import InputError

# Slots of a worker in addition to ``prefetch``: one for the batch being handed over, and one for the batch that the
# loop still holds while it fetches the next.
MORE_SLOTS = 2
_RING_END_S = 5.0  # time for a worker to end when requested, as in DataLoader
_LOOK_MS = 2000  # interval at which an idle worker checks that its parent lives
_NAME = "pt_data_worker"  # thread name of DataLoader's workers
_VALUE_BYTES = 8

Build = Callable[[int, int, Buffers], Iterator[Batch | InputError]]


FIELDS = ("input_ids", "labels", "attention_mask", "position_ids")


class NotYetError(RuntimeError):
    """Raised if no batch came within one wait, so that the caller can count the wait and try again."""


class _Filled(NamedTuple):
    """A worker's answer: the slot, the shapes of its tensors, and the values of the batch's other fields."""

    slot: int
    shapes: tuple[tuple[int, ...] | None, ...]
    rest: tuple[Any, ...]


class _Whole(NamedTuple):
    """A worker's answer if its batch does not fit its slot in size or type: its tensors travel as numpy arrays."""

    slot: int
    batch: Batch


class Slots:
    """Anonymous shared memory for ``count`` batches up to ``shape``: int64 arrays, allocated at once."""

    def __init__(
        self, count: int, shape: tuple[int, int], fields: tuple[str, ...], descriptor: int | None = None
    ) -> None:
        self.count, self.shape, self.fields = count, shape, fields
        size = shape[0] * shape[1] * _VALUE_BYTES
        total = count * len(fields) * size
        if descriptor is None:
            descriptor = os.memfd_create("batches")
            try:
                os.posix_fallocate(descriptor, 0, total)
            except OSError as error:
                os.close(descriptor)
                raise InputError(
                    f"data.transport: ring needs {total / 2**20:.0f} MiB of memory for the batches of a worker, which "
                    f"is not available ({error.strerror}); allowed: fewer data.workers or data.prefetch"
                ) from error
        mapped = mmap.mmap(descriptor, total)
        self._descriptor = descriptor
        # One array per field and slot: a view of a larger array would not show in the array's number of references.
        places = iter(range(0, total, size))
        self._arrays = [
            {field: np.ndarray(shape, np.int64, mapped, next(places)) for field in fields} for _ in range(count)
        ]

    def take_buffers(self) -> list[BatchBuffer]:
        """Return one buffer per slot. Only these buffers then refer to the slots' arrays. It can be called once."""
        arrays, self._arrays = self._arrays, []
        buffers = []
        while arrays:
            first: dict[str, Any] = arrays.pop(0)
            buffers.append(BatchBuffer(*(first.get(field) for field in FIELDS)))  # type: ignore[arg-type]
            del first
            buffers[-1].count()
        return buffers

    def close(self) -> None:
        """Close the file descriptor of the memory, which lives as long as its arrays."""
        os.close(self._descriptor)

    def __reduce__(self) -> Any:  # for spawned processes
        return _attached, (reduction.DupFd(self._descriptor), self.count, self.shape, self.fields)


def _attached(descriptor: Any, count: int, shape: tuple[int, int], fields: tuple[str, ...]) -> Slots:
    return Slots(count, shape, fields, descriptor.detach())


class _RingWorker:
    """The main process's view of one worker process: its slots and its connection."""

    def __init__(self, process: Any, connection: Connection, slots: Slots) -> None:
        self.process, self.connection = process, connection
        self.buffers = slots.take_buffers()
        self.arrived_ns, self.waited = 0, False  # arrival of its last answer, and True if this process waited for it
        self._requested = [False] * len(self.buffers)
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self._poll.register(process.sentinel, select.POLLIN)

    def request(self) -> bool:
        """Request one more batch from the worker, in a free slot. Return False if every slot is in use."""
        for number, buffer in enumerate(self.buffers):
            if not self._requested[number] and buffer.is_free:
                self._requested[number] = True
                with suppress(OSError):  # An ended worker is reported by the wait for its next batch.
                    self.connection.send_bytes(number.to_bytes(2, "little"))
                return True
        return False

    def receive(self, look_s: float) -> Any:
        """Return the worker's next answer. Raises NotYetError after ``look_s``, RuntimeError if it has ended."""
        events = self._poll.poll(0)
        self.waited = not events
        ready = {descriptor for descriptor, _ in events or self._poll.poll(look_s * 1000)}
        if self.connection.fileno() in ready:
            self.arrived_ns = monotonic_ns()
            answer = self.connection.recv()
            if isinstance(answer, _Filled | _Whole):
                self._requested[answer.slot] = False
            return answer
        if ready:
            raise RuntimeError(f"DataLoader worker (pid {self.process.pid}) has ended")
        raise NotYetError("no batch within one look")


class RingBatches:
    """Iterates over the batches of ``workers`` processes in turn, handed over through shared slots."""

    def __init__(
        self,
        build: Build,
        shape: tuple[int, int],
        fields: tuple[str, ...],
        workers: int,
        prefetch: int,
        *,
        start_method: str,
        worker_init: Callable[[int], None],
        seed: int,
        look_s: float,
        pinned: bool,
    ) -> None:
        """Start the workers, seeded as DataLoader's. ``shape``: (rows, length). ``look_s``: until NotYetError."""
        context: Any = get_context(start_method)
        self._look_s, self._next, self._pinned = look_s, 0, pinned
        self.arrival: Arrival | None = None  # arrival of the last batch
        self._copies = BatchBuffers(*shape, mask="attention_mask" in fields, pinned=pinned)
        self._ring: list[_RingWorker] = []
        self._workers: list[Any] = []  # the processes, by DataLoader's name for them
        base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=torch.Generator().manual_seed(seed)))
        try:
            for number in range(workers):
                slots = Slots(prefetch + MORE_SLOTS, shape, fields)
                own_end, worker_end = context.Pipe()
                arguments = (number, workers, build, slots, worker_end, worker_init, base_seed)
                process = context.Process(target=_work, args=arguments, daemon=True)
                process.start()
                worker_end.close()
                self._workers.append(process)
                self._ring.append(_RingWorker(process, own_end, slots))
                slots.close()
            for worker in self._ring:
                for _ in range(prefetch):
                    worker.request()
        except BaseException:
            self._shutdown_workers()
            raise

    def __iter__(self) -> RingBatches:
        return self

    def __next__(self) -> Batch | InputError:
        worker = self._ring[self._next]
        answer = worker.receive(self._look_s)
        self.arrival = Arrival(worker.arrived_ns, monotonic_ns(), worker.waited)
        if isinstance(answer, InputError):
            return answer
        if isinstance(answer, ExceptionWrapper):
            answer.reraise()  # type: ignore[no-untyped-call]
        self._next = (self._next + 1) % len(self._ring)
        if isinstance(answer, _Whole):
            worker.request()
            return _with_tensors(answer.batch)
        batch = _batch_in(worker.buffers[answer.slot], answer)
        if self._pinned or not worker.request():
            batch = _copied(batch, self._copies)
            worker.request()
        return batch

    def _shutdown_workers(self) -> None:
        """End the worker processes and wait for them. Processes that do not end are killed."""
        for worker in self._ring:
            with suppress(OSError):
                worker.connection.send_bytes(b"")
        for process in self._workers:
            process.join(_RING_END_S)
            if process.exitcode is None:
                process.terminate()
                process.join(_RING_END_S)
            if process.exitcode is None:
                process.kill()
                process.join()
        for worker in self._ring:
            worker.connection.close()
        self._ring = []


def _batch_in(buffer: BatchBuffer, answer: _Filled) -> Batch:
    """Return the batch that ``answer`` describes. Its tensors are views of ``buffer``."""
    tensors = [
        None if shape is None or array is None else torch.from_numpy(_part(array, shape))
        for array, shape in zip(buffer.all, answer.shapes, strict=True)
    ]
    ids, labels, mask, positions = tensors
    assert ids is not None
    assert labels is not None
    tokens, trained, samples, trace, masked, shifted, position = answer.rest
    return Batch(ids, labels, mask, tokens, trained, samples, trace, masked, shifted, position, positions)


def _part(array: Any, shape: tuple[int, ...]) -> Any:
    """Return the first values of ``array`` in the given shape."""
    return array if array.shape == shape else array.reshape(-1)[: math.prod(shape)].reshape(shape)


def _copied(batch: Batch, buffers: BatchBuffers) -> Batch:
    """Return the batch with its tensors copied into memory of this process alone, which frees its slot."""
    buffer = buffers.take()
    copies: dict[str, Any] = {}
    for field, array in zip(FIELDS, buffer.all, strict=True):
        if (tensor := getattr(batch, field)) is not None:
            if array is None:
                copies[field] = tensor.pin_memory() if buffers.pinned else tensor.clone()
            else:
                copies[field] = torch.from_numpy(_part(array, tuple(tensor.shape))).copy_(tensor)
    return replace(batch, **copies)


def _with_tensors(batch: Batch) -> Batch:
    arrays = {field: array for field in FIELDS if (array := getattr(batch, field)) is not None}
    tensors: dict[str, Any] = {field: torch.from_numpy(array) for field, array in arrays.items()}
    return replace(batch, **tensors)


class _Assigned:
    """Buffers of a worker process. The next buffer is always the slot that the main process has requested."""

    def __init__(self, slots: Slots) -> None:
        self._buffers = slots.take_buffers()
        self.slot = 0

    def take(self) -> BatchBuffer:
        return self._buffers[self.slot]

    def fill(self, batch: Batch) -> _Filled | _Whole:
        """Return the answer for ``batch``, whose tensors are copied into the slot if built elsewhere."""
        tensors = [getattr(batch, field) for field in FIELDS]
        arrays = self.take().all
        for tensor, array in zip(tensors, arrays, strict=True):
            if tensor is not None and (array is None or tensor.dtype != torch.int64 or tensor.numel() > array.size):
                numpy = {field: part.numpy() for field, part in zip(FIELDS, tensors, strict=True) if part is not None}
                return _Whole(self.slot, replace(batch, **numpy))
        for tensor, array in zip(tensors, arrays, strict=True):
            if tensor is not None and array is not None and tensor.data_ptr() != array.ctypes.data:
                np.copyto(_part(array, tuple(tensor.shape)), tensor.numpy())
        shapes = tuple(None if tensor is None else tuple(tensor.shape) for tensor in tensors)
        rest = (batch.tokens, batch.trained_tokens, batch.samples, batch.trace)
        return _Filled(self.slot, shapes, (*rest, batch.masked, batch.shifted, batch.position))


def _work(
    number: int,
    workers: int,
    build: Build,
    slots: Slots,
    connection: Connection,
    worker_init: Callable[[int], None],
    base_seed: int,
) -> None:
    """Run one worker process. It is set up like a worker of DataLoader (``_worker_loop``)."""
    parent = os.getppid()
    with suppress(KeyboardInterrupt):  # The main process raises it, too.
        signal_handling._set_worker_signal_handlers()  # type: ignore[attr-defined]
        torch.multiprocessing._set_thread_name(_NAME)
        torch.set_num_threads(1)
        seed = base_seed + number
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(torch_worker._generate_state(base_seed, number))  # type: ignore[no-untyped-call]
        nothing: Any = None
        torch_worker._worker_info = torch_worker.WorkerInfo(id=number, num_workers=workers, seed=seed, dataset=nothing)
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        buffers, batches = _Assigned(slots), None
        while True:
            if not poll.poll(_LOOK_MS):
                if os.getppid() != parent:
                    return
                continue
            try:
                request = connection.recv_bytes()
            except (EOFError, ConnectionError):
                return
            if not request:
                return
            buffers.slot = int.from_bytes(request, "little")
            answer: Any
            try:
                if batches is None:
                    worker_init(number)
                    batches = iter(build(number, workers, buffers))
                batch = next(batches)
                answer = batch if isinstance(batch, InputError) else buffers.fill(batch)
            except Exception:
                answer = ExceptionWrapper(where=f"in loader worker process {number}")  # type: ignore[no-untyped-call]
            try:
                connection.send(answer)
            except ConnectionError:
                return
