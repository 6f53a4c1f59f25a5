"""Serves an endless sequence of batches, built inline or by loader workers (``transport``: how they hand over)."""

from __future__ import annotations

import math
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from functools import partial
from multiprocessing import connection
from multiprocessing.queues import Queue
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from trainer import telemetry
from trainer.config import DataConfig
from trainer.data.arrivals import Arrival, Arrivals
from trainer.data.batch import Batch, BatchPipeline
from trainer.data.buffers import Buffers
from trainer.data.dataset import buffers_of, is_packed, make_pipeline
from trainer.data.order import dealt_to, shard_of
from trainer.data.position import DataPosition, Position
from trainer.data.prepare import Prepared, check_workers
from trainer.data.ring import NotYetError, RingBatches
from trainer.data.tokenizers import keep_single_threaded
from trainer.errors import EndedWorkerError, InputError, LostBatchError, in_words
from trainer.ranks import ALONE, Rank

# A helper thread sends a worker's batch and needs the GIL several times while the worker already builds its next batch.
# At Python's default switch interval of 5 ms a finished batch can arrive tens of milliseconds late.
_SWITCH_INTERVAL_S = 2e-4

# Longest single wait for a batch (torch's own interval). Workers are checked after each wait. A suspended run is
# charged for one wait at most.
_LOOK_S = 5.0
_TIMED_OUT = "DataLoader timed out"  # begin of torch's message
_WORKER = "DataLoader worker (pid"  # begin of torch's message about an ended worker, raised anywhere in the main thread
_ENDING_S = 2.0  # time for a worker whose files are gone to end
_SPARE_LOOKS = 1  # The alarm comes this many waits after torch's own timeout, which costs less.

WorkerInit = Callable[[int], None]


class LateBatch:
    """Limits a batch's wait to ``timeout_s``, in timed-out waits of ``look_s``: suspended time does not count."""

    def __init__(self, workers: int, timeout_s: float, made_again: int = 0) -> None:
        """Set the limit. ``made_again``: batches dropped after a resume, for which the first one may take longer."""
        self._made_again, self._first = made_again, workers if made_again else 0
        self.look_s = timeout_s / math.ceil(timeout_s / _LOOK_S)
        self._workers, self._timeout_s = workers, timeout_s
        self._limit_s = timeout_s  # limit of the current wait
        self._alarms = 0
        self._armed = False
        self._before: Any = None

    def wait(self, iterator: Iterator[Batch | InputError | LostBatchError]) -> Batch | InputError | LostBatchError:
        """Return the next item of a DataLoader of timeout ``look_s``. Raises LostBatchError or EndedWorkerError."""
        waited_s, self._limit_s = 0.0, self._timeout_s
        if self._first:
            self._first -= 1
            self._limit_s *= 1 + self._made_again
        self._ring_every(self.look_s)
        try:
            while True:
                try:
                    return next(iterator)
                except (InputError, LostBatchError, StopIteration):
                    raise
                except Exception as error:  # A worker that is gone also raises errors of its files and its socket.
                    waited_s += self.look_s
                    if not (isinstance(error, NotYetError) or str(error).startswith(_TIMED_OUT)):
                        if (worker_error := _ended(iterator, _ENDING_S)) is not None:
                            raise worker_error from error
                        raise
                    if waited_s >= self._limit_s:
                        raise self._lost() from error
        finally:
            self._ring_every(0)

    def arm(self) -> None:
        """Limit also waits without a timeout in torch, by SIGALRM, until :meth:`disarm`; only if it is free to use."""
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, signal.SIG_IGN):
            self._before = signal.signal(signal.SIGALRM, self._rung)
            self._armed = True

    def disarm(self) -> None:
        """Restore the handler of SIGALRM that was set before :meth:`arm`."""
        if self._armed:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)

    def _ring_every(self, interval_s: float) -> None:
        if self._armed:
            self._alarms = 0
            signal.setitimer(signal.ITIMER_REAL, interval_s, interval_s)

    def _rung(self, *_: object) -> None:
        self._alarms += 1
        if (self._alarms - _SPARE_LOOKS) * self.look_s >= self._limit_s:
            raise self._lost()

    def _lost(self) -> LostBatchError:
        return LostBatchError(
            f"no batch came from {self._workers} loader worker{'s' * (self._workers > 1)} "
            f"within {self._timeout_s:g} s (data.timeout_s)"
        )


def _ended(iterator: Any, wait_s: float = 0) -> EndedWorkerError | None:
    """Return the error that names workers ended within ``wait_s``; None without any, and for SIGBUS (torch's)."""
    descriptions, codes = [], []
    workers = list(getattr(iterator, "_workers", ()))
    if wait_s and workers and not any(process.exitcode is not None for process in workers):
        connection.wait([process.sentinel for process in workers], wait_s)
    for place, process in enumerate(workers):
        if (code := process.exitcode) == -signal.SIGBUS:
            return None
        if code is not None:
            codes.append(code)
            cause = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            descriptions.append(f"loader-{place} (process {process.pid}) {cause}")
    return EndedWorkerError(", ".join(descriptions), codes) if descriptions else None


class Batches:
    """Iterates over batches without end. ``close()``, or leaving the with block, ends its workers."""

    def __init__(
        self,
        iterator: Iterator[Batch | InputError | LostBatchError],
        pin: bool,
        late: LateBatch | None = None,
        position: DataPosition | None = None,
        arrival: Callable[[], Arrival | None] | None = None,
    ) -> None:
        """Serve the batches of ``iterator``. ``pin``: copy to page-locked memory; only without workers.

        ``position``: advanced with each batch. ``arrival``: returns when the last one arrived; None records none.
        """
        self.position = position or DataPosition(1)
        self._iterator: Iterator[Batch | InputError | LostBatchError] | None = iterator
        self._pin = pin  # only without workers: DataLoader pins its workers' batches itself
        self._late = late
        self._arrival = arrival
        if late is not None:
            late.arm()

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Batch:
        if self._iterator is None:
            raise StopIteration
        batch = next(self._iterator) if self._late is None else self._late.wait(self._iterator)
        if isinstance(batch, InputError | LostBatchError):
            self.close()
            raise batch
        if self._arrival is not None and (arrival := self._arrival()) is not None:
            telemetry.unpacked(*arrival)
        self.position.receive(batch.position)
        return batch.pin_memory() if self._pin else batch

    def ended(self, error: Exception) -> EndedWorkerError | None:
        """Return the error that names the workers that have ended, if ``error`` is torch's message about one."""
        return _ended(self._iterator, _ENDING_S) if str(error).startswith(_WORKER) else None

    def ended_workers(self) -> EndedWorkerError | None:
        """Return the error that names the workers that have ended; None if all run."""
        return _ended(self._iterator)

    def close(self) -> None:
        """End the workers and wait for them. Afterwards there are no more batches. A second call does nothing."""
        iterator, self._iterator = self._iterator, None
        if self._late is not None:
            self._late.disarm()
        shutdown = getattr(iterator, "_shutdown_workers", None)  # DataLoader has no public way to end them at once.
        if shutdown is not None:
            shutdown()

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_batches(
    config: DataConfig,
    prepared: Prepared,
    seed: int,
    worker_init: WorkerInit | None = None,
    start: DataPosition | None = None,
    rank: Rank = ALONE,
) -> Batches:
    """Start the workers of ``rank``, which prefetch at once. Return their batches. Raises InputError.

    ``worker_init(worker_id)`` runs first in each worker and must be picklable. ``start``: position to continue from.
    """
    start = start or DataPosition(max(1, config.workers))
    keep_single_threaded()
    check_workers(config, prepared, rank.of)
    if config.inject is not None and config.inject.rank not in (None, rank.number):
        config = config.model_copy(update={"inject": None})
    pin = config.pin_memory and torch.cuda.is_available()
    if config.workers == 0:
        shard = _part(config, 0, 1, rank)
        arrays = config.source is None and (config.is_flat or config.access == "zero-copy")
        buffers = buffers_of(config, pinned=True) if pin and arrays else None
        pipeline = make_pipeline(config, prepared, seed, *shard, _at(start, shard[0]), buffers)
        return Batches(_endless(pipeline), pin, position=start)
    made_again = 0 if config.source is None else -(-start.received // config.workers)
    late = LateBatch(config.workers, config.timeout_s, made_again)
    # A copy, because this process advances its own position.
    dataset = _BatchDataset(config, prepared, seed, copy(start), rank)
    if config.transport == "ring":
        ring = RingBatches(
            dataset.batches,
            (config.batch_size, config.sequence_length),
            _fields(config),
            config.workers,
            config.prefetch,
            start_method=config.start_method,
            worker_init=partial(_start_worker, worker_init),
            seed=seed,
            look_s=late.look_s,
            pinned=pin,
        )
        return Batches(ring, pin=False, late=late, position=start, arrival=lambda: ring.arrival)
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=config.workers,
        collate_fn=_identity,
        pin_memory=pin,
        prefetch_factor=config.prefetch,
        timeout=late.look_s,
        persistent_workers=True,
        multiprocessing_context=config.start_method,
        worker_init_fn=partial(_start_worker, worker_init),
        generator=torch.Generator().manual_seed(seed),  # Otherwise DataLoader draws from the model's random state.
    )
    iterator = iter(loader)
    return Batches(iterator, pin=False, late=late, position=start, arrival=Arrivals(iterator))


class _BatchDataset(IterableDataset[Any]):
    """Dataset of the loader workers. Each worker yields the batches of its own share of the documents."""

    def __init__(self, config: DataConfig, prepared: Prepared, seed: int, start: DataPosition, rank: Rank) -> None:
        self._config, self._prepared, self._seed, self._start, self._rank = config, prepared, seed, start, rank

    def __iter__(self) -> Iterator[Batch | InputError]:
        worker = get_worker_info()
        assert worker is not None
        yield from self.batches(worker.id, worker.num_workers)

    def batches(self, process: int, workers: int, buffers: Buffers | None = None) -> Iterator[Batch | InputError]:
        """Yield the batches of loader process ``process`` of ``workers``, or an InputError as the last item."""
        # InputError is yielded: an exception that crosses the process boundary gets a traceback in its message.
        role = self._start.role(process)
        shard = _part(self._config, role, workers, self._rank)
        position = _at(self._start, shard[0])
        try:
            yield from _endless(make_pipeline(self._config, self._prepared, self._seed, *shard, position, buffers))
        except InputError as error:
            yield error


def _fields(config: DataConfig) -> tuple[str, ...]:
    """Return the names of the tensors that batches of this configuration may contain, such as ``input_ids``."""
    fields = ["input_ids", "labels"]
    if config.source is not None or not is_packed(config):
        fields.append("attention_mask")
    if config.source is None and config.documents == "separated":
        fields.append("position_ids")
    return tuple(fields)


def _part(config: DataConfig, worker: int, workers: int, rank: Rank) -> tuple[int, int]:
    """Return (number, count) of a worker's share, or with ``config.global_order`` its batches' (offset, stride)."""
    return (dealt_to if config.global_order else shard_of)(worker, workers, rank.number, rank.of)


def _at(start: DataPosition, shard: int) -> Position:
    """Return the position from which shard ``shard`` continues: as in ``start``, or the shard's beginning."""
    return start.of(shard)._replace(worker=shard)


def _start_worker(hook: WorkerInit | None, worker: int) -> None:
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    Queue._on_queue_feeder_error = _send_error  # type: ignore[attr-defined]
    torch.set_num_threads(1)  # Packing is too small to share, and the cores belong to the model.
    keep_single_threaded()
    if hook is not None:
        hook(worker)


def _send_error(queue: Queue[Any], error: Exception, item: Any) -> None:
    """Send a LostBatchError in place of a batch that a worker cannot send; DataLoader would only print the error."""
    number, content = item
    if not isinstance(content, LostBatchError):
        info = get_worker_info()
        worker = "a loader worker" if info is None else f"loader-{info.id}"
        queue.put((number, LostBatchError(f"{worker} could not hand over a batch: {in_words(error)}")))
    with suppress(OSError):  # The same limit may stop the log, and an exception here would end the feeder thread.
        traceback.print_exception(error)


def _endless(pipeline: BatchPipeline) -> Iterator[Batch | InputError]:
    while (batch := pipeline.next_batch()) is not None:
        yield batch


def _identity(batch: Any) -> Any:
    return batch
