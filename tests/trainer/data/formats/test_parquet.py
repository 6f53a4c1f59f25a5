"""Rows hold each document's tokens, however the documents came, and row groups stay small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data import pretokenize
from trainer.data.pretokenize import PaddedWriter, TokenListWriter

DOCUMENTS = st.lists(st.lists(st.integers(0, 65_535), max_size=12), max_size=30)


def write(writer: PaddedWriter | TokenListWriter, documents: list[list[int]], at_once: int) -> None:
    with writer:
        for start in range(0, len(documents), at_once):
            some = documents[start : start + at_once]
            ids = np.array([one for document in some for one in document], np.uint16)
            writer.add(ids, np.array([len(document) for document in some], np.int64))


@given(documents=DOCUMENTS, at_once=st.integers(1, 7))
def test_whole_documents(tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], at_once: int) -> None:
    path = tmp_path_factory.mktemp("list") / "x.parquet"
    write(TokenListWriter(path), documents, at_once)
    assert pq.read_table(path).to_pydict() == {"tokens": documents}


@given(documents=DOCUMENTS, at_once=st.integers(1, 7), length=st.integers(2, 14))
def test_padded_rows(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], at_once: int, length: int
) -> None:
    path = tmp_path_factory.mktemp("padded") / "x.parquet"
    write(PaddedWriter(path, length, 3), documents, at_once)
    kept = [document[:length] for document in documents]
    assert pq.read_table(path).to_pydict() == {
        "input_ids": [ids + [3] * (length - len(ids)) for ids in kept],
        "attention_mask": [[1] * len(ids) + [0] * (length - len(ids)) for ids in kept],
    }


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_row_groups_depend_on_the_documents_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(pretokenize, "MOST_VALUES", 10)
    lengths = [4, 4, 4, 30, 1, 9, 0, 10, 2]
    write(TokenListWriter(tmp_path / "x"), [[7] * length for length in lengths], at_once)
    metadata = pq.read_metadata(tmp_path / "x")
    rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert rows == [3, 1, 2, 2, 1]


def test_long_padded_rows_make_small_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretokenize, "MOST_VALUES", 100)
    write(PaddedWriter(tmp_path / "x", 40, 0), [[1]] * 5, 5)
    metadata = pq.read_metadata(tmp_path / "x")
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [2, 2, 1]
