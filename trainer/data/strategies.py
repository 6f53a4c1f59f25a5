"""Tokenizes what is read at once in one call, a call per document, or shared among processes (``data.tokenize``).

All give the same ids. Processes are forked: the tokenizer is in their memory already, and its libraries run no threads
of their own here (``keep_single_threaded``).
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from trainer.config import DataConfig
from trainer.data.tokenizers import Tokenizer
from trainer.errors import InputError, LostBatchError
from trainer.lifetime import die_with_parent

_LOOK_S = 2.0  # an idle process looks this often whether its parent is still there
_END_S = 5.0


def by_strategy(tokenizer: Tokenizer, config: DataConfig) -> Tokenizer:
    """``tokenizer``, called as ``config.tokenize`` says."""
    if config.tokenize == "batched":
        return tokenizer
    if config.tokenize == "per-sample":
        return PerSample(tokenizer)
    stay = config.tokenize == "pool"
    return InProcesses(tokenizer, config.tokenize_processes, stay=stay, timeout_s=config.timeout_s)


class PerSample:
    """One call of the library for each document."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.encode = tokenizer.encode

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]


class _Worker(NamedTuple):
    process: Any
    connection: Connection


class InProcesses:
    """Shares the documents out among processes in turn; each tokenizes its share in one call.

    ``stay``: they are started once and serve every batch (a pool). Otherwise each batch starts them and ends them.
    """

    def __init__(self, tokenizer: Tokenizer, processes: int, *, stay: bool, timeout_s: float) -> None:
        self.encode = tokenizer.encode
        self._tokenizer, self._count, self._stay, self._timeout_s = tokenizer, processes, stay, timeout_s
        self._workers: list[_Worker] = []

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        shares = [texts[place :: self._count] for place in range(min(self._count, len(texts)))]
        while len(self._workers) < len(shares):
            self._workers.append(self._start())
        found: list[list[int]] = [[] for _ in texts]
        try:
            for worker, share in zip(self._workers, shares, strict=False):
                self._ask(worker, share)
            for place, worker in enumerate(self._workers[: len(shares)]):
                found[place :: self._count] = self._answer(worker)
        finally:
            if not self._stay:
                self.close()
        return found

    def close(self) -> None:
        """End the processes; the next batch starts others."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.connection.close()
        for worker in workers:
            worker.process.terminate()
            worker.process.join(_END_S)

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._tokenizer, os.getpid()), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _ask(self, worker: _Worker, share: list[str]) -> None:
        try:
            worker.connection.send(share)
        except ConnectionError as error:
            raise _ended(worker) from error

    def _answer(self, worker: _Worker) -> list[list[int]]:
        """What it found. Raises InputError of its own, and LostBatchError where it has ended or takes too long."""
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
        return list(answer)


def _ended(worker: _Worker) -> LostBatchError:
    worker.process.join(_END_S)
    code = worker.process.exitcode
    return LostBatchError(f"process {worker.process.pid} of data.tokenize ended with exit code {code}")


def _serve(connection: Connection, tokenizer: Tokenizer, parent: int) -> None:
    """Tokenize what comes until nothing more can come: its other end is closed, or the parent is gone."""
    die_with_parent(parent)  # while it is suspended it could not look
    while os.getppid() == parent:
        # Another worker, forked later, holds the parent's end of this pipe as well: it may never be seen closed.
        if not connection.poll(_LOOK_S):
            continue
        try:
            texts = connection.recv()
            try:
                connection.send(tokenizer.encode_batch(texts))
            except InputError as error:
                connection.send(error)
        except (EOFError, ConnectionError):
            return
