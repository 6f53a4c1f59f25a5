"""Plans which pieces of flat tokens form the next packed rows, and where documents begin in them.

*By documents* in their order, cut into rows across epochs; *by windows* of a row's length at fixed places, in a seeded
order. Both plan by arrays, without a Python object for a token, a row or a document.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.data.formats.flat import FlatTokens
from trainer.data.order import EmptyEpochs, IndexSampler

Places = NDArray[np.int64]
_BATCHES_AHEAD, _FEWEST, _MOST = 8, 64, 8192  # documents whose places are looked up at once
_WINDOWS = 256  # windows that are looked up at once


class TokenStretch(NamedTuple):
    """Pieces of flat tokens which, end to end, are whole rows. ``tokens``: number of tokens in all these rows.

    Piece i is ``sources[i]`` to ``ends[i]`` of the flat tokens. The first ``cut`` tokens of the first piece and the
    last ``overhang`` tokens of the last piece are not in the rows. ``starts``: places, counted from the first row's
    begin, where documents begin. ``inner``: number of ``starts`` that are not at a row's begin. ``document``, ``used``:
    place where the next stretch begins, as in :class:`trainer.data.position.Position`. ``adjacent``: True if the pieces
    also lie end to end in the flat tokens.
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
    """Plans packed rows over flat tokens: the rows of one epoch, or rows without end."""

    @property
    def remainder(self) -> int:
        """Number of tokens that are left over because they do not fill a row."""

    def next(self, rows: int) -> TokenStretch | None:
        """Return the pieces of the next ``rows`` rows. At the end of a plan for one epoch: fewer rows, then None."""

    def skip(self, rows: int) -> None:
        """Skip ``rows`` rows, which other workers make."""


class DocumentPlan:
    """Plans rows from documents end to end. Tokens that do not fill a row go into the next one."""

    def __init__(self, flat: FlatTokens, order: IndexSampler, length: int, document: int = 0, used: int = 0) -> None:
        """Set up rows of ``length`` tokens, from the place (``document``, ``used``) of a Position."""
        self._places, self._order, self._length = flat.places, order, length
        self._mean = max(1.0, len(flat.tokens) / max(1, flat.documents))
        if document:
            order.seek(document)
        self._taken = document  # number of documents taken from the order, empty ones included
        # Planned documents with a token: begin and end in the flat tokens, begin and end in the stream (counted from
        # the begin of the first one), and number in the order.
        self._source = self._source_end = self._begin = self._end = self._number = np.empty(0, dtype=np.int64)
        self._inner = np.zeros(1, dtype=np.int64)  # for each: number of documents before it that begin within a row
        self._first = 0  # planned document in which the next stretch begins
        self._planned, self._at = 0, used  # tokens of the stream
        self._empty_epochs, self._ended, self._sequential = EmptyEpochs(order), False, not order.shuffled

    @property
    def remainder(self) -> int:
        return self._planned - self._at

    def next(self, rows: int) -> TokenStretch | None:
        position, size = self._at, rows * self._length
        while self._planned < position + size and not self._ended:
            self._plan(position + size - self._planned)
        if self._planned < position + size:
            size = (self._planned - position) // self._length * self._length
            if size <= 0:
                return None
        # numpy's methods, such as .item, take a third of the time of its functions and of indexing. All of it is
        # overhead.
        self._at = stop = position + size
        first, last = self._first, int(self._end.searchsorted(stop))
        sources, ends = self._source[first : last + 1], self._source_end[first : last + 1]
        starts = self._begin[first : last + 1] - position
        inner = self._inner.item(last + 1) - self._inner.item(first)
        cut, overhang = -starts.item(0), self._end.item(last) - stop
        if cut > 0:  # The stretch before took the first tokens of this document.
            starts, inner = starts[1:], self._inner.item(last + 1) - self._inner.item(first + 1)
        document, used = self._number.item(last), stop - self._begin.item(last)
        self._first = last
        if not overhang:
            document, used, self._first = document + 1, 0, last + 1
        adjacent = self._sequential and ends.item(-1) - overhang - sources.item(0) - cut == size
        if adjacent:  # Over the end of a shard's epoch, documents with gaps between them may span as many tokens.
            adjacent = bool((ends[:-1] == sources[1:]).all())
        return TokenStretch(size, sources, ends, cut, overhang, starts, inner, document, used, adjacent)

    def skip(self, rows: int) -> None:
        self._at += rows * self._length
        while self._planned < self._at and not self._ended:
            self._plan(self._at - self._planned)
        self._first = int(self._end.searchsorted(self._at, "right"))

    def _plan(self, missing_tokens: int) -> None:
        """Plan :data:`_BATCHES_AHEAD` times ``missing_tokens`` of documents; forget those that rows have used up."""
        count = min(_MOST, max(_FEWEST, _BATCHES_AHEAD * round(missing_tokens / self._mean)))
        indices = self._order.take(count)
        self._ended = not len(indices)
        source = self._places[indices]
        lengths = self._places[indices + 1] - source
        numbers = np.arange(self._taken, self._taken + len(indices))
        self._taken += len(indices)
        is_nonempty = lengths > 0
        if not is_nonempty.all():
            source, lengths, numbers = source[is_nonempty], lengths[is_nonempty], numbers[is_nonempty]
        self._empty_epochs.check(len(lengths))
        ends = self._planned + np.cumsum(lengths)
        first_kept, self._first = int(self._end.searchsorted(self._at, "right")), 0
        self._source = np.concatenate([self._source[first_kept:], source])
        self._source_end = np.concatenate([self._source_end[first_kept:], source + lengths])
        self._begin = np.concatenate([self._begin[first_kept:], ends - lengths])
        self._end = np.concatenate([self._end[first_kept:], ends])
        self._number = np.concatenate([self._number[first_kept:], numbers])
        self._planned += int(lengths.sum())
        begins_inside = (self._begin - self._at) % self._length != 0
        self._inner = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(begins_inside)])


class WindowPlan:
    """Plans a row between each two multiples of its length in the flat tokens; a last part is never used."""

    def __init__(self, flat: FlatTokens, order: IndexSampler, length: int, window: int = 0) -> None:
        """Set up the plan. ``window``: number of windows of ``order`` that an earlier run has used."""
        self._places, self._order, self._length = flat.places, order, length
        if window:
            order.seek(window)
        self._taken = window
        self._remainder = len(flat.tokens) % length
        # Windows that were looked up together: their places; where documents begin in them, one window after the
        # other; the number of document begins before each window, and the number of these within a window.
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
        """Take the next windows from the order, at least ``rows`` of them unless it ends."""
        windows = [self._source[self._next :] // self._length]
        count = len(windows[0])
        while count < rows and len(taken := self._order.take(max(rows - count, _WINDOWS))):
            windows.append(taken)
            count += len(taken)
        self._source, self._next = np.concatenate(windows) * self._length, 0
        places = np.arange(0, count * self._length, self._length)
        self._starts, self._before = self._documents_in(self._source, places)
        begins_inside = self._starts % self._length != 0
        self._inner = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(begins_inside)])

    def _documents_in(self, sources: Places, places: Places) -> tuple[Places, Places]:
        """Return where documents begin in windows end to end (``sources``: in flat tokens), and counts before each."""
        first = self._places.searchsorted(sources)
        counts = self._places.searchsorted(sources + self._length) - first
        before = np.cumsum(counts) - counts
        documents = np.repeat(first - before, counts) + np.arange(int(counts.sum()))
        begins = self._places[documents]
        is_nonempty = begins < self._places[documents + 1]
        starts = (begins + np.repeat(places - sources, counts))[is_nonempty]
        return starts, starts.searchsorted(np.append(places, len(places) * self._length))
