"""Tokenizes a corpus' documents on all cores, a bounded group of documents at a time, in order.

The tokens do not depend on the number of workers: each document is encoded separately, and groups keep the order of the
corpus. Nothing is forked. Engines that release Python's lock while they encode run in threads, the others in spawned
processes.

A very long document is encoded in parts, because tokenizers takes 120 times a text's size in memory. A part ends where
the text around it gives the same ids in one piece and in two. Libraries first split text into words, for example at
white space, and encode each word separately. If no such place is found, the document is encoded whole.
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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.corpus import CORPUS_ROW_GROUP, Corpus, iter_encoded, iter_texts
from trainer.data.engines.base import Encoded, Engine, concatenated, utf8_bytes, with_end_of_text
from trainer.data.engines.libraries import Slow
from trainer.data.formats.flat import token_type
from trainer.data.tokenizers import TokenizerInfo, load_tokenizer
from trainer.errors import InputError
from trainer.lifetime import die_with_parent

GROUP_BYTES = 1 << 20  # text of a group: 10 ms of the fastest engine, and 120 MB of memory in tokenizers
LONG_CHARACTERS = 2 << 20  # length beyond which a document is encoded in parts
IN_FLIGHT_BYTES = 64 << 20  # text that is being encoded or waits to be written; a larger document is processed alone
_AHEAD = 16  # divisor of these bytes for the text that may be read ahead in addition
_GROUP_ENDING_S = 5.0
PART_CHARACTERS = 1 << 20
AROUND_CHARACTERS = 1 << 12  # text compared before and after a possible end: hundreds of words
ENDS_TRIED = 8  # places of each kind that are tried per part


@dataclass(frozen=True)
class TextGroup:
    """Documents that are encoded in one call. ``text_bytes``: their length in UTF-8."""

    texts: list[str]
    text_bytes: int


@dataclass(frozen=True)
class TokenGroup:
    """Tokens of consecutive documents (stored type), and their ``lengths`` (int64), end-of-document ids included."""

    ids: NDArray[Any]
    lengths: NDArray[np.int64]
    text_bytes: int


TokenGroups = Iterator[TokenGroup]


def corpus_groups(corpus: Corpus, info: TokenizerInfo, start: int = 0, workers: int | None = None) -> TokenGroups:
    """Yield the tokens of the corpus' documents from number ``start`` on, by :func:`encoded_groups`."""
    if corpus.content == "tokens":
        return _stored_from(corpus, info, start)
    return encoded_groups(text_groups(texts_from(corpus, start)), info, workers)


def text_groups(batches: Iterable[list[str]]) -> Iterator[TextGroup]:
    """Yield the documents in groups of at most 1000 and ``GROUP_BYTES``; a longer document is a group by itself."""
    texts: list[str] = []
    total = 0
    for batch in batches:
        first = 0
        for place, size in enumerate(map(utf8_bytes, batch)):
            held_count = len(texts) + place - first  # Empty documents count, so that a long one forms its own group.
            if held_count and (total + size > GROUP_BYTES or held_count == CORPUS_ROW_GROUP):
                yield TextGroup(texts + batch[first:place], total)
                texts, total, first = [], 0, place
            total += size
        texts += batch[first:]
    if texts:
        yield TextGroup(texts, total)


def encoded_groups(groups: Iterable[TextGroup], info: TokenizerInfo, workers: int | None = None) -> TokenGroups:
    """Yield the tokens of groups in order, by ``workers`` threads or processes; IN_FLIGHT_BYTES of text at most."""
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
        executor.shutdown(cancel_futures=True)  # An interrupt waits for running calls only, not for the queue.


class _ReadAhead:
    """Reads groups of documents in another thread, while this one writes the tokens of earlier groups."""

    def __init__(self, groups: Iterable[TextGroup]) -> None:
        self._groups = iter(groups)
        self._ready: deque[TextGroup] = deque()
        self._bytes = 0  # text of the groups in ``_ready``
        self._state = threading.Condition()
        self._error: BaseException | None = None
        self._ended = False  # True once all groups are read, or the reader of this object has left
        self._thread = threading.Thread(target=self._read, name="read corpus", daemon=True)

    def __enter__(self) -> _ReadAhead:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the reading thread. A thread that waits for a network ends only with the process."""
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
    spawn = multiprocessing.get_context("spawn")  # A fork would copy threads' locks.
    return ProcessPoolExecutor(count, spawn, _begin, (info, os.getpid())), _encode_here


def _encode(engine: Engine, info: TokenizerInfo, group: TextGroup) -> TokenGroup:
    long = len(group.texts) == 1 and len(group.texts[0]) > LONG_CHARACTERS
    encoded = encode_long(engine, group.texts[0]) if long else engine.encode_flat(group.texts)
    return _stored(encoded, info, group.text_bytes)


def _stored(ids: Encoded, info: TokenizerInfo, text_bytes: int) -> TokenGroup:
    """Return the documents in the stored type, with end-of-text ids. Raises InputError for an unknown id."""
    if len(ids.ids) and (largest := int(ids.ids.max())) >= info.vocab_size:
        raise InputError(
            f"data.tokenizer: {info.location} gave the id {largest}, outside of its vocabulary of {info.vocab_size:,}"
        )
    # Narrow first: inserting the end-of-text ids then moves half as much.
    narrow = Encoded(ids.ids.astype(token_type(info.vocab_size)), ids.lengths)
    encoded = with_end_of_text(narrow, info.eos_id)
    return TokenGroup(encoded.ids, encoded.lengths, text_bytes)


_here: list[tuple[Engine, TokenizerInfo]] = []  # engine of this spawned process


def _begin(info: TokenizerInfo, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this process.
    die_with_parent(parent)
    _here.append((load_tokenizer(info), info))


def _encode_here(group: TextGroup) -> TokenGroup:
    return _encode(*_here[0], group)


def texts_from(corpus: Corpus, start: int) -> Iterator[list[str]]:
    """Yield the corpus' documents without the first ``start``."""
    for texts in iter_texts(corpus):
        if start < len(texts):
            yield texts[start:]
        start = max(start - len(texts), 0)


def _stored_from(corpus: Corpus, info: TokenizerInfo, start: int) -> TokenGroups:
    """Yield the documents of a corpus of token ids without the first ``start``. Each ends in one end-of-text id."""
    for encoded in iter_encoded(corpus, eos_id=info.eos_id):
        skipped = min(start, len(encoded.lengths))
        start -= skipped
        lengths = encoded.lengths[skipped:]
        if len(lengths):
            ids = encoded.ids[int(np.sum(encoded.lengths[:skipped])) :]
            yield _stored(Encoded(ids, lengths), info, 0)


def encode_long(engine: Engine, text: str) -> Encoded:
    """Return the ids of one long document, the same as ``engine.encode_flat([text])``."""
    parts = []
    start = 0
    for end in _ends(engine, text):
        parts.append(engine.encode_flat([text[start:end]]))
        start = end
    encoded = concatenated(parts)
    return Encoded(encoded.ids, np.array([len(encoded.ids)], np.int64))


def _ends(engine: Engine, text: str) -> Iterator[int]:
    """Yield the characters at which the parts of a long text end; the last one is the text's end."""
    target = PART_CHARACTERS
    while target < len(text):
        end = next((place for place in _places(text, target) if _parts_are_the_whole(engine, text, place)), None)
        if end is not None:
            yield end
        target = (target if end is None else end) + PART_CHARACTERS
    yield len(text)


def _places(text: str, start: int) -> Iterator[int]:
    """Yield where a part of ``text`` may end: line ends, then spaces that stand alone, ENDS_TRIED of each."""
    for separator in ("\n", " "):
        place = start - 1
        for _ in range(ENDS_TRIED):
            place = text.find(separator, place + 1, start + PART_CHARACTERS)
            if place < 1:
                break
            if not text[place - 1].isspace() and not text[place + 1 : place + 2].isspace():
                yield place


def _parts_are_the_whole(engine: Engine, text: str, place: int) -> bool:
    before = text[max(place - AROUND_CHARACTERS, 0) : place]
    after = text[place : place + AROUND_CHARACTERS]
    encoded = engine.encode_flat([before, after])
    return bool(
        (ids := engine.encode_flat([before + after]).ids).shape == encoded.ids.shape and (ids == encoded.ids).all()
    )
