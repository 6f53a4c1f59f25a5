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
from trainer.data.order import Sampler
from trainer.errors import InputError

Places = NDArray[np.int64]
# Epochs in a row without a token before the pipeline gives up. One is not enough: a small shard may draw only empty
# documents in one shuffled epoch and real ones in the next.
EMPTY_EPOCHS = 16
_BATCHES_AHEAD, _FEWEST, _MOST = 8, 64, 8192  # documents whose places are looked up at once


class Stretch(NamedTuple):
    """``tokens`` tokens of whole rows: pieces of flat tokens, end to end.

    ``sources``: where each piece begins in the flat tokens; ``places``: and in the stretch; ``lengths``: how many
    tokens it has. ``starts``: where documents begin in the stretch. ``document``, ``used``: where the next one begins,
    as in :class:`trainer.data.position.Position`. ``adjacent``: the pieces lie one after the other.
    """

    tokens: int
    sources: Places
    places: Places
    lengths: Places
    starts: Places
    document: int
    used: int
    adjacent: bool


class Plan(Protocol):
    """The endless (or one epoch's) stream of tokens, in stretches."""

    @property
    def remainder(self) -> int:
        """Tokens that do not fill a row."""

    def next(self, rows: int) -> Stretch | None:
        """The next ``rows`` rows; fewer at the end of a stream that has one, then None."""

    def skip(self, rows: int) -> None:
        """Leave out ``rows`` rows: others make them."""


class DocumentPlan:
    """Packs documents end to end."""

    def __init__(self, flat: FlatTokens, order: Sampler, length: int, document: int = 0, used: int = 0) -> None:
        """``document``, ``used``: where an earlier run was."""
        self._places, self._order, self._length = flat.places, order, length
        self._mean = max(1.0, len(flat.tokens) / max(1, flat.documents))
        if document:
            order.seek(document)
        self._taken = document  # documents taken of the order so far, empty ones included
        self._source = self._begin = self._end = self._number = np.empty(0, dtype=np.int64)
        self._planned, self._at = 0, used  # in tokens, counted from the begin of the first document
        self._empty_since, self._ended = order.epoch, False

    @property
    def remainder(self) -> int:
        """Tokens that do not fill a row."""
        return self._planned - self._at

    def next(self, rows: int) -> Stretch | None:
        at, size = self._at, rows * self._length
        while self._planned < at + size and not self._ended:
            self._plan(at + size - self._planned)
        size = min(size, (self._planned - at) // self._length * self._length)
        if size <= 0:
            return None
        until = at + size
        first = int(self._end.searchsorted(at, "right"))
        last = int(self._end.searchsorted(until, "left"))
        begins = self._begin[first : last + 1] - at
        places, sources = begins, self._source[first : last + 1]
        if (cut := -int(begins[0])) > 0:  # its first tokens went into the stretch before
            places, sources = begins.copy(), sources.copy()
            places[0], sources[0] = 0, sources[0] + cut
            begins = begins[1:]
        lengths = np.empty(len(places), dtype=np.int64)
        np.subtract(places[1:], places[:-1], out=lengths[:-1])
        lengths[-1] = size - places[-1]
        self._at = until
        whole = int(self._end[last]) == until
        document = int(self._number[last]) + whole
        used = 0 if whole else until - int(self._begin[last])
        adjacent = not self._order.shuffled and int(sources[-1] + lengths[-1] - sources[0]) == size
        return Stretch(size, sources, places, lengths, begins, document, used, adjacent)

    def skip(self, rows: int) -> None:
        self._at += rows * self._length
        while self._planned < self._at and not self._ended:
            self._plan(self._at - self._planned)

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
        kept = int(self._end.searchsorted(self._at, "right"))
        self._source = np.concatenate([self._source[kept:], source])
        self._begin = np.concatenate([self._begin[kept:], ends - lengths])
        self._end = np.concatenate([self._end[kept:], ends])
        self._number = np.concatenate([self._number[kept:], numbers])
        self._planned += int(lengths.sum())


class WindowPlan:
    """Takes each row from a window of its own. What is left over at the end of the flat tokens is never taken."""

    def __init__(self, flat: FlatTokens, order: Sampler, length: int, window: int = 0) -> None:
        """``order``: of the windows; ``window``: where an earlier run was."""
        self._places, self._order, self._length = flat.places, order, length
        if window:
            order.seek(window)
        self._taken = window
        self._remainder = len(flat.tokens) % length

    @property
    def remainder(self) -> int:
        return self._remainder

    def next(self, rows: int) -> Stretch | None:
        windows = self._take(rows)
        if not (rows := len(windows)):
            return None
        length = self._length
        sources = windows * length
        places = np.arange(0, rows * length, length)
        return Stretch(
            rows * length,
            sources,
            places,
            np.full(rows, length),
            self._starts(sources, places),
            self._taken,
            0,
            not self._order.shuffled and int(sources[-1] - sources[0]) == (rows - 1) * length,
        )

    def skip(self, rows: int) -> None:
        self._take(rows)

    def _take(self, rows: int) -> Places:
        """The next windows, also over the end of an epoch."""
        found = self._order.take(rows)
        while len(found) < rows and len(more := self._order.take(rows - len(found))):
            found = np.concatenate([found, more])
        self._taken += len(found)
        return found

    def _starts(self, sources: Places, places: Places) -> Places:
        """Where documents with a token begin in the windows at ``sources``, which lie at ``places`` of the stretch."""
        first = self._places.searchsorted(sources)
        counts = self._places.searchsorted(sources + self._length) - first
        before = np.cumsum(counts) - counts
        documents = np.repeat(first - before, counts) + np.arange(int(counts.sum()))
        begins = self._places[documents]
        full = begins < self._places[documents + 1]
        starts: Places = (begins + np.repeat(places - sources, counts))[full]
        return starts
