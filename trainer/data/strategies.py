"""Tokenizes in one call, one per document, or shared among threads or forked processes (``data.tokenize``)."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from trainer.config import DataConfig
from trainer.data.engines.base import Encoded, Engine, concatenated
from trainer.errors import InputError, LostBatchError
from trainer.lifetime import die_with_parent

_STRATEGY_LOOK_S = 2.0  # interval at which an idle process checks that its parent lives
_STRATEGY_END_S = 5.0


def by_strategy(tokenizer: Engine, config: DataConfig) -> Engine:
    """Return an engine that calls ``tokenizer`` in the way of ``config.tokenize``, for example in several threads."""
    if config.tokenize == "batched":
        return tokenizer
    if config.tokenize == "per-sample":
        return PerSample(tokenizer)
    if config.tokenize == "threads":
        return InThreads(tokenizer, config.tokenize_threads)
    is_pool = config.tokenize == "pool"
    return InProcesses(tokenizer, config.tokenize_processes, is_pool=is_pool, timeout_s=config.timeout_s)


class PerSample:
    """Engine that calls the tokenizer's library once per document."""

    def __init__(self, tokenizer: Engine) -> None:
        self._tokenizer, self.encode = tokenizer, tokenizer.encode

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        return concatenated([self._tokenizer.encode_flat([text]) for text in texts])


class InThreads:
    """Engine that divides the documents among threads of this process, as the libraries release Python's lock."""

    def __init__(self, tokenizer: Engine, threads: int) -> None:
        self.encode = tokenizer.encode
        self._tokenizer, self._count = tokenizer, threads
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [ids for share in self._each(self._tokenizer.encode_batch, texts) for ids in share]

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        return concatenated(self._each(self._tokenizer.encode_flat, texts))

    def close(self) -> None:
        """End the threads; the next batch starts new ones."""
        pool, self._pool = self._pool, None
        if pool is not None and self._process == os.getpid():
            pool.shutdown()

    def _each(self, encode: Callable[[Any], Any], texts: Sequence[str]) -> list[Any]:
        shares = even_shares(texts, self._count)
        if len(shares) < 2:
            return [encode(share) for share in shares]
        if self._pool is None or self._process != os.getpid():
            self._pool, self._process = ThreadPoolExecutor(self._count, "tokenize"), os.getpid()
        futures = [self._pool.submit(encode, share) for share in shares[1:]]
        try:
            return [encode(shares[0]), *(future.result() for future in futures)]
        finally:
            wait(futures)  # An error in one share must not leave the others running.


def even_shares(texts: Sequence[str], count: int) -> list[list[str]]:
    """Divide ``texts`` into at most ``count`` lists, in order, of about equal numbers of characters, none empty."""
    shares: list[list[str]] = []
    total, offset, share = sum(map(len, texts)), 0, -1
    for text in texts:
        place = min((offset + len(text) // 2) * count // total, count - 1) if total else 0
        if place != share:
            share = place
            shares.append([])
        shares[-1].append(text)
        offset += len(text)
    return shares


class _Worker(NamedTuple):
    process: Any
    connection: Connection


class InProcesses:
    """Engine that divides the documents among processes. ``is_pool``: these are kept for all batches."""

    def __init__(self, tokenizer: Engine, processes: int, *, is_pool: bool, timeout_s: float) -> None:
        self.encode = tokenizer.encode
        self._tokenizer, self._count, self._is_pool, self._timeout_s = tokenizer, processes, is_pool, timeout_s
        self._workers: list[_Worker] = []

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        shares = [texts[place :: self._count] for place in range(min(self._count, len(texts)))]
        encoded: list[list[int]] = [[] for _ in texts]
        for place, answer in enumerate(self._each("encode_batch", shares)):
            encoded[place :: self._count] = answer
        return encoded

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        return concatenated(self._each("encode_flat", even_shares(texts, self._count)))

    def _each(self, method: str, shares: list[list[str]]) -> list[Any]:
        while len(self._workers) < len(shares):
            self._workers.append(self._start())
        try:
            for worker, share in zip(self._workers, shares, strict=False):
                self._ask(worker, method, share)
            return [self._answer(worker) for worker in self._workers[: len(shares)]]
        finally:
            if not self._is_pool:
                self.close()

    def close(self) -> None:
        """End the processes; the next batch starts new ones."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.connection.close()
        for worker in workers:
            worker.process.terminate()
            worker.process.join(_STRATEGY_END_S)

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("fork")
        own_end, worker_end = context.Pipe()
        process = context.Process(target=_serve, args=(worker_end, self._tokenizer, os.getpid()), daemon=True)
        process.start()
        worker_end.close()
        return _Worker(process, own_end)

    def _ask(self, worker: _Worker, method: str, share: list[str]) -> None:
        try:
            worker.connection.send((method, share))
        except ConnectionError as error:
            raise _ended(worker) from error

    def _answer(self, worker: _Worker) -> Any:
        """Return the tokens that ``worker`` sent, or raise its InputError, or LostBatchError if it is gone or late."""
        try:
            if not worker.connection.poll(self._timeout_s):
                raise LostBatchError(
                    f"no tokens came from process {worker.process.pid} of data.tokenize within {self._timeout_s:g} s "
                    "(data.timeout_s)"
                )
            answer = worker.connection.recv()
        except (EOFError, ConnectionError) as error:
            raise _ended(worker) from error
        if isinstance(answer, InputError):
            raise answer
        return answer


def _ended(worker: _Worker) -> LostBatchError:
    worker.process.join(_STRATEGY_END_S)
    code = worker.process.exitcode
    return LostBatchError(f"process {worker.process.pid} of data.tokenize ended with exit code {code}")


def _serve(connection: Connection, tokenizer: Engine, parent: int) -> None:
    """Run a worker process: tokenize requests until the parent or its end of the pipe is gone."""
    die_with_parent(parent)  # The check below cannot run while the process is suspended.
    while os.getppid() == parent:
        # A worker that was forked later also holds the parent's end of this pipe, which may keep it open.
        if not connection.poll(_STRATEGY_LOOK_S):
            continue
        try:
            method, texts = connection.recv()
            try:
                connection.send(getattr(tokenizer, method)(texts))
            except InputError as error:
                connection.send(error)
        except (EOFError, ConnectionError):
            return
