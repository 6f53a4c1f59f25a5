"""Packs documents' tokens into batches without a Python object for a token, a row or a document.

They give the same batches as the packers over lists (:mod:`trainer.data.packing`). Each token is copied once, into
memory that is used again for a later batch (:mod:`trainer.data.buffers`).
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.data.batch import IGNORED, Batch
from trainer.data.buffers import Buffers
from trainer.data.engines.base import Encoded

if TYPE_CHECKING:
    import torch

Places = NDArray[np.int64]


class PaddedRows(NamedTuple):
    """Documents as a padded file has them: (documents, length) each."""

    ids: NDArray[Any]
    mask: NDArray[Any]


class _Texts(NamedTuple):
    """Documents that wait for their rows: where each begins in ``ids``, and how many of its tokens are kept."""

    ids: NDArray[np.uint32]
    begins: Places
    kept: Places


class ArrayPadded:
    """Builds padded rows: one document per row, truncated and padded on the right."""

    remainder = 0

    def __init__(self, length: int, pad_id: int, buffers: Buffers) -> None:
        self._length, self._pad_id, self._buffers = length, pad_id, buffers
        self._held: deque[PaddedRows | _Texts] = deque()
        self._first = 0  # documents of the first of these that were packed already
        self._ready = 0
        self._columns = np.arange(length)
        self._real = np.empty((0, length), dtype=np.int64)  # room for an intermediate result

    def add(self, documents: Encoded | PaddedRows) -> None:
        """Add documents, each with at least one token."""
        if isinstance(documents, PaddedRows):
            count = len(documents.ids)
            if count:
                self._held.append(documents)
        else:
            lengths = documents.lengths
            count = len(lengths)
            if count:
                kept = np.minimum(lengths, self._length)
                self._held.append(_Texts(documents.ids, np.cumsum(lengths) - lengths, kept))
        self._ready += count

    def missing_tokens(self, rows: int) -> int:
        return max(0, rows - self._ready) * self._length

    def skip(self, tokens: int) -> None:
        assert not tokens, "a padded row holds a whole document"

    @property
    def ready(self) -> int:
        return self._ready

    def pack(self, rows: int) -> Batch:
        buffer = self._buffers.take()
        ids, mask = buffer.ids[:rows], buffer.mask
        assert mask is not None, "a padded path has buffers with a mask"
        if len(self._real) < rows:
            self._real = np.empty((rows, self._length), dtype=np.int64)
        mask, filled = mask[:rows], 0
        while filled < rows:
            held, begin = self._held[0], self._first
            count = min(rows - filled, len(held[1]) - begin)
            to, of = slice(filled, filled + count), slice(begin, begin + count)
            if isinstance(held, PaddedRows):
                ids[to], mask[to] = held.ids[of], held.mask[of]
            else:
                self._fill(ids[to], mask[to], _Texts(held.ids, held.begins[of], held.kept[of]))
            filled += count
            self._first += count
            if self._first == len(held[1]):
                self._held.popleft()
                self._first = 0
        self._ready -= rows
        labels = buffer.labels[:rows]
        # ids where the mask is 1, IGNORED where it is 0: arithmetic is five times as fast as copying by a condition.
        np.subtract(1, mask, out=labels)
        labels *= IGNORED
        np.multiply(ids, mask, out=self._real[:rows])
        labels += self._real[:rows]
        labels[:, 0] = IGNORED
        inputs, targets, attention = buffer.tensors(rows)
        trained = int(mask.sum()) - rows
        return Batch(inputs, targets, attention, rows * self._length, trained, rows)

    def _fill(self, ids: Places, mask: Places, held: _Texts) -> None:
        begins, kept = held.begins, held.kept
        real = self._columns < kept[:, None]
        total, first = int(kept.sum()), int(begins[0])
        if int(begins[-1] + kept[-1]) - first == total:  # nothing is truncated: they lie end to end
            tokens = held.ids[first : first + total]
        else:
            at = np.repeat(begins - (np.cumsum(kept) - kept), kept)
            at += np.arange(total)
            tokens = held.ids[at]
        ids.fill(self._pad_id)
        ids[real] = tokens
        mask[...] = real


class ArrayPacked:
    """Builds packed rows: documents end to end. ``separated``: with positions that begin anew with each."""

    def __init__(self, length: int, buffers: Buffers, *, separated: bool = False) -> None:
        self._length, self._buffers, self._separated = length, buffers, separated
        self._held: deque[NDArray[np.uint32]] = deque()
        self._first = 0  # tokens of the first of these that were packed already
        self._starts: Places = np.empty(0, dtype=np.int64)  # of documents, counted from the first token ever added
        self._added = self._packed = 0

    def add(self, documents: Encoded) -> None:
        """Add documents, each with at least one token."""
        if not len(documents.ids):
            return
        self._held.append(documents.ids)
        starts = self._added + np.cumsum(documents.lengths) - documents.lengths
        self._starts = np.concatenate([self._starts[self._starts.searchsorted(self._packed) :], starts])
        self._added += len(documents.ids)

    def skip(self, tokens: int) -> None:
        """Leave out the first tokens: an earlier run packed them. All are of the first document."""
        self._first += tokens
        self._packed += tokens

    def missing_tokens(self, rows: int) -> int:
        return max(0, rows * self._length - self._available)

    @property
    def _available(self) -> int:
        return self._added - self._packed

    @property
    def ready(self) -> int:
        return self._available // self._length

    @property
    def remainder(self) -> int:
        return self._available % self._length

    def pack(self, rows: int) -> Batch:
        buffer, length = self._buffers.take(), self._length
        size, filled, ids = rows * length, 0, buffer.flat_ids
        while filled < size:
            tokens, begin = self._held[0], self._first
            copied = min(len(tokens) - begin, size - filled)
            ids[filled : filled + copied] = tokens[begin : begin + copied]
            filled += copied
            self._first += copied
            if self._first == len(tokens):
                self._held.popleft()
                self._first = 0
        first, last = self._starts.searchsorted([self._packed, self._packed + size])
        starts = self._starts[first:last] - self._packed
        self._packed += size
        labels = buffer.flat_labels
        np.copyto(labels[:size], ids[:size])
        labels[starts] = IGNORED
        inputs, targets, _ = buffer.tensors(rows)
        trained = rows * (length - 1) - int(np.count_nonzero(starts % length))
        batch = Batch(inputs, targets, None, size, trained, rows)
        if self._separated:
            batch.position_ids = positions_within(starts, rows, length)
        return batch


def positions_within(starts: Places, rows: int, length: int) -> torch.Tensor:
    """Positions that begin at 0 with each document and each row. ``starts``: where documents begin in the rows."""
    from torch import from_numpy

    size = rows * length
    at = _numbers(size)
    firsts = np.zeros(size, dtype=np.bool_)
    firsts[starts] = True
    firsts[::length] = True
    begins = firsts.nonzero()[0]
    lengths = np.empty(len(begins), dtype=np.int64)
    np.subtract(begins[1:], begins[:-1], out=lengths[:-1])
    lengths[-1] = size - begins[-1]
    return from_numpy((at - begins.repeat(lengths)).reshape(rows, length))


@lru_cache(maxsize=4)
def _numbers(count: int) -> Places:
    return np.arange(count)
