"""Packs documents' tokens into batches: padded (one document per row) or packed (documents end to end).

Each packer exists twice: over Python lists, as in the founding study, and over numpy arrays (:mod:`packing_arrays`).
Both give the same batches. Labels follow :class:`trainer.data.batch.Batch`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from numpy.typing import NDArray

from trainer.data.batch import IGNORED, Batch

Array = NDArray[Any]
# One document: its tokens or, from a padded file, (input_ids, attention_mask) of the final length.
Document = Any


class Packer(Protocol):
    """Documents in, batches out."""

    def add(self, documents: Sequence[Document]) -> None:
        """Add documents, each with at least one token."""

    def missing_tokens(self, rows: int) -> int:
        """Estimate how many tokens are missing before ``pack(rows)`` can be called; 0 means none."""

    def skip(self, tokens: int) -> None:
        """Leave out the first tokens of what is held: an earlier run packed them. All are of the first document."""

    def pack(self, rows: int) -> Batch:
        """Return the next ``rows`` rows as a batch. At least that many must be ready."""

    @property
    def ready(self) -> int:
        """How many whole rows are ready."""

    @property
    def remainder(self) -> int:
        """Tokens held that do not fill a row (0 where every document is a row)."""


class _Padded:
    """The part that both padded packers share: one document per row, truncated and padded on the right."""

    def __init__(self, length: int, pad_id: int) -> None:
        self._length, self._pad_id = length, pad_id
        self._held: deque[Document] = deque()

    def add(self, documents: Sequence[Document]) -> None:
        self._held.extend(documents)

    def missing_tokens(self, rows: int) -> int:
        return max(0, rows - len(self._held)) * self._length

    def skip(self, tokens: int) -> None:
        assert not tokens, "a padded row holds a whole document"

    @property
    def ready(self) -> int:
        return len(self._held)

    @property
    def remainder(self) -> int:
        return 0

    def _take(self, rows: int) -> list[Document]:
        return [self._held.popleft() for _ in range(rows)]


class ScalarPadded(_Padded):
    """Builds padded rows through Python lists."""

    def pack(self, rows: int) -> Batch:
        inputs, masks, labels, trained = [], [], [], 0
        for document in self._take(rows):
            if isinstance(document, tuple):
                ids, mask = document
            else:
                kept = document[: self._length]
                padding = self._length - len(kept)
                ids = kept + [self._pad_id] * padding
                mask = [1] * len(kept) + [0] * padding
            targets = [token if real else IGNORED for token, real in zip(ids, mask, strict=True)]
            targets[0] = IGNORED
            trained += sum(mask) - 1
            inputs.append(ids)
            masks.append(mask)
            labels.append(targets)
        return Batch(
            input_ids=torch.tensor(inputs, dtype=torch.int64),
            labels=torch.tensor(labels, dtype=torch.int64),
            attention_mask=torch.tensor(masks, dtype=torch.int64),
            tokens=rows * self._length,
            trained_tokens=trained,
            samples=rows,
        )


class _Packed:
    """Counts the tokens that are waiting to be packed into rows."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._available = 0
        self._position = 0  # tokens held that were packed already: of the list, or of the first document

    def skip(self, tokens: int) -> None:
        self._position += tokens
        self._available -= tokens

    def missing_tokens(self, rows: int) -> int:
        return max(0, rows * self._length - self._available)

    @property
    def ready(self) -> int:
        return self._available // self._length

    @property
    def remainder(self) -> int:
        return self._available % self._length


class ScalarPacked(_Packed):
    """Builds packed rows through Python lists: one growing list of tokens, cut into rows."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._tokens: list[int] = []
        self._labels: list[int] = []

    def add(self, documents: Sequence[Document]) -> None:
        for document in documents:
            self._tokens.extend(document)
            self._available += len(document)
            self._labels.append(IGNORED)
            self._labels.extend(document[1:])

    def pack(self, rows: int) -> Batch:
        length, start = self._length, self._position
        cuts = range(start, start + rows * length, length)
        inputs = [self._tokens[cut : cut + length] for cut in cuts]
        labels = [self._labels[cut : cut + length] for cut in cuts]
        self._position += rows * length
        self._available -= rows * length
        if self._position > len(self._tokens) // 2:  # not at every batch: one 10 MB document holds a thousand batches
            del self._tokens[: self._position]
            del self._labels[: self._position]
            self._position = 0
        return Batch(
            input_ids=torch.tensor(inputs, dtype=torch.int64),
            labels=torch.tensor(labels, dtype=torch.int64),
            attention_mask=None,
            tokens=rows * length,
            trained_tokens=rows * (length - 1) - sum(row[1:].count(IGNORED) for row in labels),
            samples=rows,
        )


def make_packer(packed: bool, length: int, pad_id: int) -> Packer:
    """Choose the packer of a scalar data path; ``length`` is the sequence length in tokens."""
    return ScalarPacked(length) if packed else ScalarPadded(length, pad_id)
