"""Says which pieces of flat tokens the next packed rows consist of, and where documents begin in them.

*By documents*: the documents in their order, end to end, cut into rows; what does not fill a row is carried on, also
over the end of an epoch. *By windows*: pieces of a row's length at fixed places of the flat tokens, in a seeded order,
as in nanoGPT (which draws places at random; here no token comes twice in an epoch). Both plan by arrays: no Python
object for a token, a row or a document.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.data.formats.flat import FlatTokens
from trainer.data.order import IndexSampler
from trainer.errors import InputError

Places = NDArray[np.int64]
# Epochs in a row without a token before the pipeline gives up. One is not enough: a small shard may draw only empty
# documents in one shuffled epoch and real ones in the next.
EMPTY_EPOCHS = 16
_BATCHES_AHEAD, _FEWEST, _MOST = 8, 64, 8192  # documents whose places are looked up at once
_WINDOWS = 256  # the same


class TokenStretch(NamedTuple):
    """``tokens`` tokens of whole rows: pieces of flat tokens, end to end.

    Each piece lies from ``sources`` to ``ends``, but for the first ``cut`` tokens of the first one and the last
    ``overhang`` of the last one. ``starts``: where documents begin in the stretch, ``inner``: how many of them within a
    row. ``document``, ``used``: where the next one begins, as in :class:`trainer.data.position.Position`.
    ``adjacent``: the pieces lie one after the other.
    """

    tokens: int
    sources: Places
    ends: Places
    cut: int
    overhang: int
    starts: Places
    inner: int
    document: int
    used: int
    adjacent: bool


class RowPlan(Protocol):
    """The endless (or one epoch's) stream of tokens, in stretches."""

    @property
    def remainder(self) -> int:
        """Tokens that do not fill a row."""

    def next(self, rows: int) -> TokenStretch | None:
        """The next ``rows`` rows; fewer at the end of a stream that has one, then None."""

    def skip(self, rows: int) -> None:
        """Leave out ``rows`` rows: others make them."""


class DocumentPlan:
    """Packs documents end to end."""

    def __init__(self, flat: FlatTokens, order: IndexSampler, length: int, document: int = 0, used: int = 0) -> None:
        """``document``, ``used``: where an earlier run was."""
        self._places, self._order, self._length = flat.places, order, length
        self._mean = max(1.0, len(flat.tokens) / max(1, flat.documents))
        if document:
            order.seek(document)
        self._taken = document  # documents taken of the order so far, empty ones included
        # Of the documents that are planned and have a token: where they lie in the flat tokens and in the stream, which
        # is counted from the begin of the first one, and their numbers.
        self._source = self._source_end = self._begin = self._end = self._number = np.empty(0, dtype=np.int64)
        self._inner = np.zeros(1, dtype=np.int64)  # how many of those before each one begin within a row
        self._first = 0  # which of these the next stretch begins in
        self._planned, self._at = 0, used  # in tokens of the stream
        self._empty_since, self._ended, self._sequential = order.epoch, False, not order.shuffled

    @property
    def remainder(self) -> int:
        """Tokens that do not fill a row."""
        return self._planned - self._at

    def next(self, rows: int) -> TokenStretch | None:
        at, size = self._at, rows * self._length
        while self._planned < at + size and not self._ended:
            self._plan(at + size - self._planned)
        if self._planned < at + size:
            size = (self._planned - at) // self._length * self._length
            if size <= 0:
                return None
        # numpy's .item and its methods: functions and indexing cost three times as much, and this is all overhead.
        self._at = until = at + size
        first, last = self._first, int(self._end.searchsorted(until))
        sources, ends = self._source[first : last + 1], self._source_end[first : last + 1]
        starts = self._begin[first : last + 1] - at
        inner = self._inner.item(last + 1) - self._inner.item(first)
        cut, overhang = -starts.item(0), self._end.item(last) - until
        if cut > 0:  # its first tokens went into the stretch before
            starts, inner = starts[1:], self._inner.item(last + 1) - self._inner.item(first + 1)
        document, used = self._number.item(last), until - self._begin.item(last)
        self._first = last
        if not overhang:
            document, used, self._first = document + 1, 0, last + 1
        adjacent = self._sequential and ends.item(-1) - overhang - sources.item(0) - cut == size
        if adjacent:  # over the end of a shard's epoch, documents with gaps between them may span as many tokens
            adjacent = bool((ends[:-1] == sources[1:]).all())
        return TokenStretch(size, sources, ends, cut, overhang, starts, inner, document, used, adjacent)

    def skip(self, rows: int) -> None:
        self._at += rows * self._length
        while self._planned < self._at and not self._ended:
            self._plan(self._at - self._planned)
        self._first = int(self._end.searchsorted(self._at, "right"))

    def _plan(self, missing_tokens: int) -> None:
        """Look up the places of the next documents; those before the current one are dropped."""
        count = min(_MOST, max(_FEWEST, _BATCHES_AHEAD * round(missing_tokens / self._mean)))
        indices = self._order.take(count)
        self._ended = not len(indices)
        source = self._places[indices]
        lengths = self._places[indices + 1] - source
        numbers = np.arange(self._taken, self._taken + len(indices))
        self._taken += len(indices)
        full = lengths > 0
        if not full.all():
            source, lengths, numbers = source[full], lengths[full], numbers[full]
        if len(lengths):
            self._empty_since = self._order.epoch
        elif self._order.epoch - self._empty_since > EMPTY_EPOCHS:
            raise InputError(
                "data.corpus: no document with a token in "
                f"{EMPTY_EPOCHS} epochs of this worker's share; use fewer data.workers or another corpus"
            )
        ends = self._planned + np.cumsum(lengths)
        kept, self._first = int(self._end.searchsorted(self._at, "right")), 0
        self._source = np.concatenate([self._source[kept:], source])
        self._source_end = np.concatenate([self._source_end[kept:], source + lengths])
        self._begin = np.concatenate([self._begin[kept:], ends - lengths])
        self._end = np.concatenate([self._end[kept:], ends])
        self._number = np.concatenate([self._number[kept:], numbers])
        self._planned += int(lengths.sum())
        within = (self._begin - self._at) % self._length != 0
        self._inner = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(within)])


class WindowPlan:
    """Takes each row from a window of its own. What is left over at the end of the flat tokens is never taken."""

    def __init__(self, flat: FlatTokens, order: IndexSampler, length: int, window: int = 0) -> None:
        """``order``: of the windows; ``window``: where an earlier run was."""
        self._places, self._order, self._length = flat.places, order, length
        if window:
            order.seek(window)
        self._taken = window
        self._remainder = len(flat.tokens) % length
        # Windows that were looked up together: where they lie, where documents begin in them, one window after the
        # other, how many do so before each window, and how many of those within one.
        self._source = self._starts = np.empty(0, dtype=np.int64)
        self._before = self._inner = np.zeros(1, dtype=np.int64)
        self._next = 0
        self._sequential = not order.shuffled

    @property
    def remainder(self) -> int:
        return self._remainder

    def next(self, rows: int) -> TokenStretch | None:
        if self._next + rows > len(self._source):
            self._plan(rows)
            rows = min(rows, len(self._source))
            if not rows:
                return None
        first, length = self._next, self._length
        self._next = last = first + rows
        self._taken += rows
        sources = self._source[first:last]
        begin, end = self._before.item(first), self._before.item(last)
        starts = self._starts[begin:end] - first * length
        inner = self._inner.item(end) - self._inner.item(begin)
        adjacent = self._sequential and sources.item(-1) - sources.item(0) == (rows - 1) * length
        return TokenStretch(rows * length, sources, sources + length, 0, 0, starts, inner, self._taken, 0, adjacent)

    def skip(self, rows: int) -> None:
        if self._next + rows > len(self._source):
            self._plan(rows)
        skipped = min(rows, len(self._source) - self._next)
        self._next += skipped
        self._taken += skipped

    def _plan(self, rows: int) -> None:
        """Look up the next windows, at least ``rows`` of them unless the order ends, also over the end of an epoch."""
        found = [self._source[self._next :] // self._length]
        count = len(found[0])
        while count < rows and len(more := self._order.take(max(rows - count, _WINDOWS))):
            found.append(more)
            count += len(more)
        self._source, self._next = np.concatenate(found) * self._length, 0
        places = np.arange(0, count * self._length, self._length)
        self._starts, self._before = self._documents_in(self._source, places)
        within = self._starts % self._length != 0
        self._inner = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(within)])

    def _documents_in(self, sources: Places, places: Places) -> tuple[Places, Places]:
        """Where documents with a token begin in the windows at ``sources``, which lie at ``places`` of a stretch.

        Also how many do so before each window, and in all.
        """
        first = self._places.searchsorted(sources)
        counts = self._places.searchsorted(sources + self._length) - first
        before = np.cumsum(counts) - counts
        documents = np.repeat(first - before, counts) + np.arange(int(counts.sum()))
        begins = self._places[documents]
        full = begins < self._places[documents + 1]
        starts = (begins + np.repeat(places - sources, counts))[full]
        return starts, starts.searchsorted(np.append(places, len(places) * self._length))
