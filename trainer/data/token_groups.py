"""Turns a corpus' documents into tokens on all cores, a bounded group of documents at a time, in their order.

Whoever joins the groups gets the same tokens whatever the number of workers: a document is encoded by itself, and
groups come in the order of the corpus. Nothing is forked: engines that let go of Python's lock while they encode are
called from threads, the others from processes that start afresh.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from errno import ENOMEM
from functools import partial
from typing import TYPE_CHECKING, Any

from trainer.data.corpus import CORPUS_ROW_GROUP, Corpus, iter_encoded, iter_texts
from trainer.data.engines.base import Encoded, Engine, with_end_of_text
from trainer.data.engines.own import Slow
from trainer.data.long_document import encode_long
from trainer.data.tokenizers import TokenizerInfo, load_tokenizer
from trainer.errors import InputError
from trainer.lifetime import die_with_parent

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

GROUP_BYTES = 1 << 20  # of text in a group: 10 ms of the fastest engine, and 120 MB of memory of tokenizers
LONG_CHARACTERS = 2 << 20  # of a document that is encoded in parts
IN_FLIGHT_BYTES = 64 << 20  # of text that is being encoded or waits to be written; a larger document goes by itself
_AHEAD = 16  # of that, one part more may lie ready to be encoded
_GROUP_ENDING_S = 5.0


@dataclass(frozen=True)
class TextGroup:
    """Documents that are encoded in one call. ``text_bytes``: of their UTF-8."""

    texts: list[str]
    text_bytes: int


@dataclass(frozen=True)
class TokenGroup:
    """The finished tokens of consecutive documents, end to end, each with its end-of-document id.

    ``ids``: (tokens,) of the type in which they are stored. ``lengths``: (documents,) int64.
    """

    ids: NDArray[Any]
    lengths: NDArray[np.int64]
    text_bytes: int


TokenGroups = Iterator[TokenGroup]


def corpus_groups(corpus: Corpus, info: TokenizerInfo, start: int = 0, workers: int | None = None) -> TokenGroups:
    """The tokens of the corpus' documents from number ``start`` on."""
    if corpus.content == "tokens":
        return _stored_from(corpus, info, start)
    return encoded_groups(text_groups(_texts_from(corpus, start)), info, workers)


def text_groups(batches: Iterable[list[str]]) -> Iterator[TextGroup]:
    """Cut documents into groups of at most 1000 and ``GROUP_BYTES``; a longer document is a group by itself."""
    texts: list[str] = []
    total = 0
    for batch in batches:
        first = 0
        for place, size in enumerate(map(utf8_bytes, batch)):
            held = len(texts) + place - first  # empty ones among them: a long document goes by itself all the same
            if held and (total + size > GROUP_BYTES or held == CORPUS_ROW_GROUP):
                yield TextGroup(texts + batch[first:place], total)
                texts, total, first = [], 0, place
            total += size
        texts += batch[first:]
    if texts:
        yield TextGroup(texts, total)


def utf8_bytes(text: str) -> int:
    """How many bytes ``text`` takes as UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def encoded_groups(groups: Iterable[TextGroup], info: TokenizerInfo, workers: int | None = None) -> TokenGroups:
    """Encode groups of documents, in their order. This is all that a machine of a cluster does with its share.

    ``workers``: threads, or processes where the engine holds Python's lock (default: as many as this process may use
    cores). What is in flight is bounded by ``IN_FLIGHT_BYTES`` of text, and by ``workers`` + 1 groups; a little more
    is read ahead.
    """
    count = workers or len(os.sched_getaffinity(0))
    if count == 1:
        engine = load_tokenizer(info)
        for group in groups:
            yield _encode(engine, info, group)
        return
    with _ReadAhead(groups) as read:
        yield from _encoded_by_many(read, info, count)


def _encoded_by_many(groups: Iterable[TextGroup], info: TokenizerInfo, count: int) -> TokenGroups:
    executor, encode = _executor(load_tokenizer(info), info, count)
    pending: deque[tuple[Future[TokenGroup], int]] = deque()
    held_bytes = 0

    def first() -> TokenGroup:
        nonlocal held_bytes
        future, size = pending.popleft()
        held_bytes -= size
        try:
            return future.result()
        except BrokenProcessPool as error:
            raise OSError(ENOMEM, "a process that tokenizes was ended from outside (out of memory?)") from error

    try:
        for group in groups:
            while pending and (len(pending) > count or held_bytes + group.text_bytes > IN_FLIGHT_BYTES):
                yield first()
            pending.append((executor.submit(encode, group), group.text_bytes))
            held_bytes += group.text_bytes
        while pending:
            yield first()
    finally:
        executor.shutdown(cancel_futures=True)  # interrupted, it waits for what is being encoded, not for the queue


class _ReadAhead:
    """Groups of documents that another thread reads, while this one writes what was made of those before."""

    def __init__(self, groups: Iterable[TextGroup]) -> None:
        self._groups = iter(groups)
        self._ready: deque[TextGroup] = deque()
        self._bytes = 0  # of their text
        self._state = threading.Condition()
        self._error: BaseException | None = None
        self._ended = False  # all was read, or nobody takes any more
        self._thread = threading.Thread(target=self._read, name="read corpus", daemon=True)

    def __enter__(self) -> _ReadAhead:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread, where not all was read. One that waits for a network for long ends with the process."""
        with self._state:
            self._ended = True
            self._state.notify_all()
        self._thread.join(_GROUP_ENDING_S)

    def __iter__(self) -> Iterator[TextGroup]:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._ready or self._ended)
                if not self._ready:
                    break
                group = self._ready.popleft()
                self._bytes -= group.text_bytes
                self._state.notify_all()
            yield group
        if self._error is not None:
            raise self._error

    def _read(self) -> None:
        try:
            for group in self._groups:
                with self._state:
                    self._state.wait_for(partial(self._has_room, group.text_bytes))
                    if self._ended:
                        return
                    self._ready.append(group)
                    self._bytes += group.text_bytes
                    self._state.notify_all()
        except BaseException as error:
            self._error = error
        with self._state:
            self._ended = True
            self._state.notify_all()

    def _has_room(self, size: int) -> bool:
        return self._ended or not self._ready or self._bytes + size <= IN_FLIGHT_BYTES // _AHEAD


def _executor(engine: Engine, info: TokenizerInfo, count: int) -> tuple[Executor, Callable[[TextGroup], TokenGroup]]:
    if not isinstance(engine, Slow):
        return ThreadPoolExecutor(count, "tokenize"), lambda group: _encode(engine, info, group)
    spawn = multiprocessing.get_context("spawn")  # a fork would copy threads' locks
    return ProcessPoolExecutor(count, spawn, _begin, (info, os.getpid())), _encode_here


def _encode(engine: Engine, info: TokenizerInfo, group: TextGroup) -> TokenGroup:
    long = len(group.texts) == 1 and len(group.texts[0]) > LONG_CHARACTERS
    encoded = encode_long(engine, group.texts[0]) if long else engine.encode_flat(group.texts)
    return _stored(encoded, info, group.text_bytes)


def _stored(ids: Encoded, info: TokenizerInfo, text_bytes: int) -> TokenGroup:
    """Plain ids as they are stored."""
    from trainer.data.formats.flat import token_type

    if len(ids.ids) and (largest := int(ids.ids.max())) >= info.vocab_size:
        raise InputError(
            f"data.tokenizer: {info.location} gave the id {largest}, outside of its vocabulary of {info.vocab_size:,}"
        )
    # Narrowed first: half as much is moved when the end-of-text ids are put in.
    narrow = Encoded(ids.ids.astype(token_type(info.vocab_size)), ids.lengths)
    encoded = with_end_of_text(narrow, info.eos_id)
    return TokenGroup(encoded.ids, encoded.lengths, text_bytes)


_here: list[tuple[Engine, TokenizerInfo]] = []  # of a process that tokenizes


def _begin(info: TokenizerInfo, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this process
    die_with_parent(parent)
    _here.append((load_tokenizer(info), info))


def _encode_here(group: TextGroup) -> TokenGroup:
    return _encode(*_here[0], group)


def _texts_from(corpus: Corpus, start: int) -> Iterator[list[str]]:
    """The corpus' documents without the first ``start``."""
    for texts in iter_texts(corpus):
        if start < len(texts):
            yield texts[start:]
        start = max(start - len(texts), 0)


def _stored_from(corpus: Corpus, info: TokenizerInfo, start: int) -> TokenGroups:
    """The documents of a corpus of token ids without the first ``start``: each ends in one end-of-text id."""
    import numpy as np

    for encoded in iter_encoded(corpus, eos_id=info.eos_id):
        skipped = min(start, len(encoded.lengths))
        start -= skipped
        lengths = encoded.lengths[skipped:]
        if len(lengths):
            ids = encoded.ids[int(np.sum(encoded.lengths[:skipped])) :]
            yield _stored(Encoded(ids, lengths), info, 0)
