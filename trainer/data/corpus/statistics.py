"""Counts what a corpus is made of under a tokenizer: lengths, padding against packing, special tokens, duplicates.

One pass over the documents, with memory for some of them only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.data.corpus.base import Corpus, PassedOver
from trainer.data.corpus.duplicates import DuplicateCounter
from trainer.data.corpus.reading import iter_contents, iter_texts
from trainer.data.special_ids import special_ids
from trainer.data.token_groups import TokenGroups, corpus_groups, encoded_groups, text_groups
from trainer.data.tokenizers import TokenizerInfo

SEQUENCE_LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
_EXACT = 65_536  # tokens: documents of fewer are counted by their exact length
_FINENESS = 64  # above: bins a factor of 2 ** (1 / 64) wide, 1.1 %


@dataclass(frozen=True)
class LengthBin:
    """Documents of ``low`` to ``high`` tokens (both included), and how many tokens they have together."""

    low: int
    high: int
    documents: int
    tokens: int


@dataclass(frozen=True)
class AtLength:
    """What rows of ``sequence_length`` would hold: padded (a document each, cut off there) and packed (end to end).

    A share of padding is of the positions in all rows; a share that is cut off is of all tokens.
    """

    sequence_length: int
    padded_rows: int
    padding_share: float
    cut_off_share: float
    packed_rows: int
    packed_padding_share: float  # of the last row, as the others are full


@dataclass(frozen=True)
class CorpusStatistics:
    """Counts tokens with the end-of-text that each document gets, where the tokenizer has one, unless it says text."""

    corpus: str
    format: str
    content: str
    fingerprint: str
    files: int
    tokenizer: str
    vocab_size: int
    documents: int
    empty: int
    text_bytes: int | None  # as UTF-8; None for a corpus of token ids
    tokens: int
    text_tokens: int  # without those that end documents
    tokens_per_byte: float | None  # of text
    mean_tokens: float  # of documents that have a token, as are all that follow
    median_tokens: int
    tokens_90_percent: int  # 90 % of the documents have at most so many
    tokens_99_percent: int
    longest_tokens: int
    bins: tuple[LengthBin, ...]
    at: tuple[AtLength, ...]
    unknown_share: float | None  # of text tokens; None where the tokenizer has no token for what it does not know
    special_share: float  # of text tokens: special tokens that stand in the text itself
    vocabulary_used_share: float  # of the tokenizer's ids
    duplicate_documents: int  # that an equal one precedes; empty ones left out
    duplicate_share: float  # of the documents that are not empty
    duplicate_bytes_share: float
    passed_over: tuple[PassedOver, ...] = ()  # files that were not read


class _Lengths:
    """How many documents have how many tokens: exactly, or to 1.1 % where they are long."""

    def __init__(self, sequence_lengths: Sequence[int]) -> None:
        self.exact = np.zeros(_EXACT, dtype=np.int64)
        self.long: dict[int, int] = {}  # upper end of the bin: documents
        self.kept = dict.fromkeys(sequence_lengths, 0)
        self.bins: dict[int, list[int]] = {}
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
        powers = np.frexp(lengths)[1] - 1  # 1, 2-3, 4-7, ...: exact, as floats hold such integers
        counts = np.bincount(powers)
        sums = np.bincount(powers, weights=lengths)
        for power in np.flatnonzero(counts).tolist():
            one = self.bins.setdefault(power, [0, 0])
            one[0] += int(counts[power])
            one[1] += int(sums[power])

    @property
    def documents(self) -> int:
        return int(self.exact.sum()) + sum(self.long.values())

    def quantile(self, share: float) -> int:
        """The length that ``share`` of the documents do not exceed."""
        wanted = max(1, int(np.ceil(share * self.documents)))
        below = np.cumsum(self.exact)
        if wanted <= below[-1]:
            return int(np.searchsorted(below, wanted))
        left = wanted - int(below[-1])
        for top in sorted(self.long):
            left -= self.long[top]
            if left <= 0:
                return min(top, self.longest)
        raise AssertionError("a share of at most 1")


def statistics_of(
    corpus: Corpus,
    info: TokenizerInfo,
    sequence_lengths: Sequence[int] = SEQUENCE_LENGTHS,
    progress: Callable[[int], None] = lambda _: None,
) -> CorpusStatistics:
    """Read the corpus once and count. ``progress`` is called with the number of documents that are done."""
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
        bins=tuple(LengthBin(2**power, 2 ** (power + 1) - 1, *found) for power, found in sorted(lengths.bins.items())),
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
    """The corpus' tokens; each document's content is handed to ``duplicates`` on its way."""
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
