"""No token is lost or doubled at any seam, labels are right, and lists and arrays give the same batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.batch import IGNORED, Batch
from trainer.data.buffers import BatchBuffers
from trainer.data.engines.base import flat as end_to_end
from trainer.data.packing import ArrayPacked, ArrayPadded, PaddedRows, make_packer

Documents = list[list[int]]
DOCUMENTS = st.lists(st.lists(st.integers(1, 40_000), min_size=1, max_size=30), min_size=1, max_size=25)
LENGTH = st.integers(2, 12)
ROWS = st.integers(1, 5)
CHUNK = st.integers(1, 6)


def packer_of(packed: bool, scalar: bool, length: int, pad_id: int) -> Any:
    if scalar:
        return make_packer(packed, length, pad_id)
    buffers = BatchBuffers(9, length, mask=not packed)
    return ArrayPacked(length, buffers) if packed else ArrayPadded(length, pad_id, buffers)


def feed(packer: Any, documents: Any, rows: int, chunk: int) -> list[Batch]:
    """Batches of all documents, added ``chunk`` at a time; the last batch has what whole rows remain."""
    batches, rest = [], list(documents)
    arrays = isinstance(packer, ArrayPacked | ArrayPadded)
    while True:
        while rest and packer.missing_tokens(rows):
            if arrays and isinstance(rest[0], tuple):
                packer.add(PaddedRows(*(np.stack(column) for column in zip(*rest[:chunk], strict=True))))
            else:
                packer.add(end_to_end(rest[:chunk]) if arrays else rest[:chunk])
            rest = rest[chunk:]
        count = min(rows, packer.ready)
        if not count:
            return batches
        batches.append(packer.pack(count))


def flat(batches: list[Batch], field: str) -> list[int]:
    return [value for batch in batches for value in getattr(batch, field).reshape(-1).tolist()]


@given(DOCUMENTS, LENGTH, ROWS, CHUNK, st.booleans())
def test_stream_rows_concatenate_to_the_documents(documents, length, rows, chunk, scalar) -> None:
    packer = packer_of(True, scalar, length, 0)
    batches = feed(packer, documents, rows, chunk)
    tokens = [token for document in documents for token in document]
    labels = [label for document in documents for label in [IGNORED, *document[1:]]]
    whole = len(tokens) - len(tokens) % length
    assert flat(batches, "input_ids") == tokens[:whole]
    assert flat(batches, "labels") == labels[:whole]
    assert packer.remainder == len(tokens) % length
    assert all(batch.attention_mask is None for batch in batches)
    assert all(batch.samples == rows for batch in batches[:-1])


@given(DOCUMENTS, LENGTH, ROWS, CHUNK, st.booleans(), st.integers(0, 3))
def test_padded_rows_hold_a_document_each(documents, length, rows, chunk, scalar, pad_id) -> None:
    batches = feed(packer_of(False, scalar, length, pad_id), documents, rows, chunk)
    ids, labels, mask = (
        torch.cat([getattr(batch, field) for batch in batches]) for field in ("input_ids", "labels", "attention_mask")
    )
    assert len(ids) == len(documents)
    for row, document in enumerate(documents):
        kept = min(len(document), length)
        padding = length - kept
        assert ids[row].tolist() == document[:kept] + [pad_id] * padding
        assert mask[row].tolist() == [1] * kept + [0] * padding
        assert labels[row].tolist() == [IGNORED] + document[1:kept] + [IGNORED] * padding


@given(DOCUMENTS, LENGTH, ROWS, CHUNK, st.booleans())
def test_lists_and_arrays_give_the_same_batches(documents, length, rows, chunk, stream) -> None:
    by_lists = feed(packer_of(stream, True, length, 0), documents, rows, chunk)
    by_arrays = feed(packer_of(stream, False, length, 0), documents, rows, chunk)
    assert len(by_lists) == len(by_arrays)
    for left, right in zip(by_lists, by_arrays, strict=True):
        assert_same(left, right)
        assert left.trained_tokens == int((left.labels[:, 1:] != IGNORED).sum())
        assert left.tokens == left.input_ids.numel()


@given(DOCUMENTS, LENGTH, ROWS, st.booleans())
def test_rows_read_from_a_padded_file_pack_like_documents(documents, length, rows, scalar) -> None:
    stored = []
    for document in documents:
        kept = document[:length]
        padding = [0] * (length - len(kept))
        ids, mask = kept + padding, [1] * len(kept) + padding
        stored.append((ids, mask) if scalar else (np.array(ids, np.int32), np.array(mask, np.int8)))
    read = feed(packer_of(False, scalar, length, 0), stored, rows, 2)
    packed = feed(packer_of(False, scalar, length, 0), documents, rows, 2)
    assert_all_same(read, packed)


def assert_same(left: Batch, right: Batch) -> None:
    assert left.input_ids.dtype == left.labels.dtype == right.input_ids.dtype == right.labels.dtype == torch.int64
    assert torch.equal(left.input_ids, right.input_ids)
    assert torch.equal(left.labels, right.labels)
    assert (left.attention_mask is None) == (right.attention_mask is None)
    if left.attention_mask is not None:
        assert right.attention_mask is not None
        assert torch.equal(left.attention_mask, right.attention_mask)
    assert (left.tokens, left.trained_tokens, left.samples) == (right.tokens, right.trained_tokens, right.samples)


def assert_all_same(
    found: Iterable[Batch], expected: Iterable[Batch], *, strict: bool = True, positions: bool = False
) -> None:
    for left, right in zip(found, expected, strict=strict):
        assert_same(left, right)
        assert not positions or left.position == right.position
