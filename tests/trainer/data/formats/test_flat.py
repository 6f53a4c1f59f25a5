"""Flat tokens come back document by document, as they were written."""

from pathlib import Path

import numpy as np
import pytest

from trainer.data.engines.base import Encoded, with_end_of_text
from trainer.data.formats.flat import PLACES, TOKENS, FlatWriter, open_flat, token_type
from trainer.errors import InputError


def written(folder: Path, documents: list[list[int]], vocab_size: int = 100) -> Path:
    with FlatWriter(folder, token_type(vocab_size)) as writer:
        for document in documents:
            writer.add(np.asarray(document, np.uint32), [len(document)])
    return folder


@pytest.mark.parametrize(("vocab_size", "bytes_each"), [(65_536, 2), (65_537, 4)])
def test_documents_come_back(tmp_path: Path, vocab_size: int, bytes_each: int) -> None:
    documents = [[1, vocab_size - 1], [], [7, 8, 9]]
    found = open_flat(written(tmp_path, documents, vocab_size), token_type(vocab_size))
    assert [found.document(number).tolist() for number in range(found.documents)] == documents
    assert (tmp_path / TOKENS).stat().st_size == 5 * bytes_each


def test_no_document_at_all(tmp_path: Path) -> None:
    assert open_flat(written(tmp_path, []), token_type(9)).documents == 0


@pytest.mark.parametrize("name", [TOKENS, PLACES])
@pytest.mark.parametrize("cut", [1, 8])
def test_files_cut_short_are_refused(tmp_path: Path, name: str, cut: int) -> None:
    written(tmp_path, [[1, 2, 3, 4], [5]])
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(InputError, match=name):
        open_flat(tmp_path, token_type(100))


def test_end_of_text_follows_each_document_that_has_a_token() -> None:
    encoded = Encoded(np.array([1, 2, 3], np.uint32), np.array([2, 0, 1]))
    ended = with_end_of_text(encoded, 9)
    assert (ended.ids.tolist(), ended.lengths.tolist()) == ([1, 2, 9, 3, 9], [3, 0, 2])
    assert with_end_of_text(encoded, None) is encoded
