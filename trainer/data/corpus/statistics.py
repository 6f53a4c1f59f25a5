"""Statistics of a corpus under a tokenizer, in one pass and bounded memory: lengths, padding, duplicates."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray

from trainer.data.corpus.base import Corpus, PassedOver
from trainer.data.corpus.reading import iter_contents, iter_texts
from trainer.data.token_groups import TokenGroups, corpus_groups, encoded_groups, text_groups
from trainer.data.tokenizers import TokenizerInfo, special_ids

SEQUENCE_LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
_EXACT = 65_536  # tokens; shorter documents are counted by their exact length
_FINENESS = 64  # bins per factor of two for longer documents: 1.1 % each
_PARTS = 64
_HELD = 1_000_000  # hashes in memory (24 MB); more go to files, 24 bytes per document
_ROW = np.dtype([("high", "<u8"), ("low", "<u8"), ("size", "<i8")])


@dataclass(frozen=True)
class LengthBin:
    """Bin of a histogram: number of documents with ``low`` to ``high`` tokens (both included), and their tokens."""

    low: int
    high: int
    documents: int
    tokens: int


@dataclass(frozen=True)
class AtLength:
    """Rows of ``sequence_length`` tokens, padded or packed; shares of positions and of all tokens (0 to 1)."""

    sequence_length: int
    padded_rows: int
    padding_share: float
    cut_off_share: float
    packed_rows: int
    packed_padding_share: float  # padding of the last row; the other rows are full


@dataclass(frozen=True)
class CorpusStatistics:
    """Statistics of a corpus. Numbers of tokens include each document's end-of-text id, except for "text tokens"."""

    corpus: str
    format: str
    content: str
    fingerprint: str
    files: int
    tokenizer: str
    vocab_size: int
    documents: int
    empty: int
    text_bytes: int | None  # UTF-8; None for a corpus of token ids
    tokens: int
    text_tokens: int
    tokens_per_byte: float | None  # text tokens per byte of text
    mean_tokens: float  # mean length of the documents that have a token; the next four count the same documents
    median_tokens: int
    tokens_90_percent: int  # 90th percentile
    tokens_99_percent: int
    longest_tokens: int
    bins: tuple[LengthBin, ...]
    at: tuple[AtLength, ...]
    unknown_share: float | None  # share of text tokens; None if the tokenizer has no token for unknown text
    special_share: float  # share of text tokens that are special tokens in the text itself
    vocabulary_used_share: float  # share of the tokenizer's ids
    duplicate_documents: int  # non-empty documents that are equal to an earlier one
    duplicate_share: float  # share of the non-empty documents
    duplicate_bytes_share: float
    passed_over: tuple[PassedOver, ...] = ()  # files that were not read


class _Lengths:
    """Histogram of document lengths in tokens: exact, or for long documents in bins of 1.1 % of the length."""

    def __init__(self, sequence_lengths: Sequence[int]) -> None:
        self.exact = np.zeros(_EXACT, dtype=np.int64)
        self.long: dict[int, int] = {}  # upper end of a bin -> documents
        self.kept = dict.fromkeys(sequence_lengths, 0)  # sequence length -> tokens that padded rows keep
        self.bins: dict[int, list[int]] = {}  # power of two -> [documents, tokens]
        self.tokens = self.longest = 0

    def add(self, lengths: NDArray[np.int64]) -> None:
        lengths = lengths[lengths > 0]
        if not len(lengths):
            return
        self.tokens += int(lengths.sum())
        self.longest = max(self.longest, int(lengths.max()))
        self.exact += np.bincount(lengths[lengths < _EXACT], minlength=_EXACT)
        for length in lengths[lengths >= _EXACT].tolist():
            step = int(np.ceil(np.log2(length) * _FINENESS))
            top = int(2 ** (step / _FINENESS))
            self.long[top] = self.long.get(top, 0) + 1
        for limit in self.kept:
            self.kept[limit] += int(np.minimum(lengths, limit).sum())
        powers = np.frexp(lengths)[1] - 1  # bins 1, 2-3, 4-7, ...
        counts = np.bincount(powers)
        sums = np.bincount(powers, weights=lengths)
        for power in np.flatnonzero(counts).tolist():
            total = self.bins.setdefault(power, [0, 0])
            total[0] += int(counts[power])
            total[1] += int(sums[power])

    @property
    def documents(self) -> int:
        return int(self.exact.sum()) + sum(self.long.values())

    def quantile(self, share: float) -> int:
        """Return the length in tokens that ``share`` of the documents (0 to 1) do not exceed."""
        rank = max(1, int(np.ceil(share * self.documents)))
        below = np.cumsum(self.exact)
        if rank <= below[-1]:
            return int(np.searchsorted(below, rank))
        remaining = rank - int(below[-1])
        for top in sorted(self.long):
            remaining -= self.long[top]
            if remaining <= 0:
                return min(top, self.longest)
        raise AssertionError("share must be at most 1")


def statistics_of(
    corpus: Corpus,
    info: TokenizerInfo,
    sequence_lengths: Sequence[int] = SEQUENCE_LENGTHS,
    progress: Callable[[int], None] = lambda _: None,
) -> CorpusStatistics:
    """Read the corpus once and return its statistics. ``progress`` is called with the number of documents done."""
    lengths, bytes_ = _Lengths(sorted(set(sequence_lengths))), 0
    used = np.zeros(info.vocab_size, dtype=np.int64)
    documents = 0
    with DuplicateCounter() as duplicates:
        for group in _groups(corpus, info, duplicates):
            documents += len(group.lengths)
            bytes_ += group.text_bytes
            lengths.add(group.lengths)
            used += np.bincount(group.ids, minlength=info.vocab_size)
            progress(documents)
        equal = duplicates.count()
        content_bytes = duplicates.bytes
    filled = lengths.documents
    ends = filled if info.eos_id is not None else 0
    if info.eos_id is not None:
        used[info.eos_id] -= ends
    special = special_ids(info)
    text_tokens = lengths.tokens - ends
    unknown = None if special.unknown is None else int(used[special.unknown]) / max(text_tokens, 1)
    stray = int(used[sorted(special.ids - {special.unknown})].sum())
    not_empty = max(1, documents - corpus.empty)
    return CorpusStatistics(
        corpus=corpus.name,
        format=corpus.format,
        content=corpus.content,
        fingerprint=corpus.fingerprint,
        files=len(corpus.files),
        tokenizer=f"{info.kind} ({info.engine})",
        vocab_size=info.vocab_size,
        documents=documents,
        empty=corpus.empty,
        text_bytes=None if corpus.content == "tokens" else bytes_,
        tokens=lengths.tokens,
        text_tokens=text_tokens,
        tokens_per_byte=text_tokens / bytes_ if bytes_ else None,
        mean_tokens=lengths.tokens / max(1, filled),
        median_tokens=lengths.quantile(0.5),
        tokens_90_percent=lengths.quantile(0.9),
        tokens_99_percent=lengths.quantile(0.99),
        longest_tokens=lengths.longest,
        bins=tuple(LengthBin(2**power, 2 ** (power + 1) - 1, *total) for power, total in sorted(lengths.bins.items())),
        at=tuple(_at(limit, kept, filled, lengths.tokens) for limit, kept in lengths.kept.items()),
        unknown_share=unknown,
        special_share=stray / max(text_tokens, 1),
        vocabulary_used_share=int(np.count_nonzero(used)) / info.vocab_size,
        duplicate_documents=equal.documents,
        duplicate_share=equal.documents / not_empty,
        duplicate_bytes_share=equal.bytes / max(1, content_bytes),
        passed_over=corpus.passed_over,
    )


def _groups(corpus: Corpus, info: TokenizerInfo, duplicates: DuplicateCounter) -> TokenGroups:
    """Yield groups of tokenized documents, and add each document's content to ``duplicates``."""
    if corpus.content == "tokens":
        for contents in iter_contents(corpus):
            duplicates.add(contents)
        yield from corpus_groups(corpus, info)
        return

    def noted() -> Iterator[list[str]]:
        for texts in iter_texts(corpus):
            duplicates.add(text.encode() for text in texts)
            yield texts

    yield from encoded_groups(text_groups(noted()), info)


def _at(limit: int, kept: int, documents: int, tokens: int) -> AtLength:
    packed = -(-tokens // limit)
    return AtLength(
        sequence_length=limit,
        padded_rows=documents,
        padding_share=1 - kept / (documents * limit) if documents else 0.0,
        cut_off_share=1 - kept / tokens if tokens else 0.0,
        packed_rows=packed,
        packed_padding_share=1 - tokens / (packed * limit) if packed else 0.0,
    )


@dataclass(frozen=True)
class Duplicates:
    """Number of documents that are equal to an earlier one, and their bytes. Empty documents are not counted."""

    documents: int
    bytes: int


class DuplicateCounter:
    """Context that counts exact duplicates by 128 bits of BLAKE2b, with unnamed temporary files."""

    def __init__(self) -> None:
        self.bytes = 0  # length of all contents
        self._held: list[bytes] = []
        self._files: list[IO[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> DuplicateCounter:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, contents: Iterable[bytes]) -> None:
        """Add documents, given as bytes. Empty ones are ignored."""
        for content in contents:
            if content:
                self.bytes += len(content)
                digest = hashlib.blake2b(content, digest_size=16).digest()
                self._held.append(digest + len(content).to_bytes(8, "little"))
        if len(self._held) >= _HELD:
            self._spill()

    def count(self) -> Duplicates:
        """Return the number of duplicates among all added documents, and their bytes."""
        if not self._files:
            return _count(self._rows())
        self._spill()
        documents = size = 0
        for file in self._files:
            file.seek(0)
            part = _count(np.frombuffer(file.read(), _ROW))
            documents += part.documents
            size += part.bytes
        return Duplicates(documents, size)

    def _rows(self) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        return np.frombuffer(b"".join(self._held), _ROW)

    def _spill(self) -> None:
        if not self._files:
            make = tempfile.TemporaryFile
            self._files = [self._stack.enter_context(make()) for _ in range(_PARTS)]
        rows = self._rows()
        part = rows["high"] % _PARTS
        for number, file in enumerate(self._files):
            file.write(rows[part == number].tobytes())
        self._held = []


def _count(rows: np.ndarray[tuple[int], np.dtype[np.void]]) -> Duplicates:
    """Return the number of rows whose hash an earlier row has, and their bytes."""
    if not len(rows):
        return Duplicates(0, 0)
    order = np.lexsort((rows["low"], rows["high"]))
    high, low = rows["high"][order], rows["low"][order]
    is_repeat = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    return Duplicates(int(is_repeat.sum()), int(rows["size"][order][1:][is_repeat].sum()))
