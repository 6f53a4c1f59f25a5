"""A column attention_mask beside one of token ids: padding is no token, whatever the file's format."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.config import CorpusConfig
from trainer.data.corpus import iter_encoded, prepare_corpus
from trainer.errors import InputError

FORMATS = ("parquet", "arrow", "jsonl")
Row = list[tuple[int, int]]  # ids, each with its mask


def in_columns(format: str, folder: Path, ids: list[list[int]], masks: list[list[int]] | None) -> str:
    """Write a file with both columns, or with token ids alone."""
    path = folder / f"x.{format}"
    columns = {"input_ids": pa.array(ids, pa.list_(pa.int32()))}
    if masks is not None:
        columns["attention_mask"] = pa.array(masks, pa.list_(pa.int8()))
    table = pa.table(columns)
    if format == "parquet":
        pq.write_table(table, path, row_group_size=3)
    elif format == "arrow":
        with pa.ipc.new_stream(str(path), table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    else:
        path.write_text("".join(json.dumps(line) + "\n" for line in table.to_pylist()))
    return str(path)


def written(rows: list[Row], format: str, folder: Path) -> str:
    ids, masks = ([[pair[part] for pair in row] for row in rows] for part in (0, 1))
    return in_columns(format, folder, ids, masks)


def documents(path: str) -> list[list[int]]:
    corpus = prepare_corpus(CorpusConfig(path=path, column="input_ids"))
    found: list[list[int]] = []
    for encoded in iter_encoded(corpus):
        ends = encoded.lengths.cumsum()
        found += [encoded.ids[end - n : end].tolist() for end, n in zip(ends, encoded.lengths, strict=True)]
    assert corpus.documents == len(found)
    assert corpus.empty == found.count([])
    return found


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 1)), max_size=8), min_size=1, max_size=9),
    format=st.sampled_from(FORMATS),
)
def test_tokens_are_those_whose_mask_is_not_0(rows: list[Row], format: str) -> None:
    rows = [*rows, [(7, 1)]]  # a corpus without a token is refused
    with tempfile.TemporaryDirectory() as folder:
        assert documents(written(rows, format, Path(folder))) == [[at for at, real in row if real] for row in rows]


def test_the_largest_id_is_one_that_is_no_padding(tmp_path: Path) -> None:
    path = written([[(3, 1), (9000, 0)]], "parquet", tmp_path)
    assert prepare_corpus(CorpusConfig(path=path, column="input_ids")).largest_id == 3


@pytest.mark.parametrize("masked_first", [True, False])
@pytest.mark.parametrize("format", FORMATS)
def test_files_with_and_without_a_mask_are_no_corpus(format: str, masked_first: bool, tmp_path: Path) -> None:
    """Only the first file was asked, so the padding of the others was trained on."""
    names = ("a", "b") if masked_first else ("b", "a")
    for name, masked in zip(names, (True, False), strict=True):
        (tmp_path / name).mkdir()
        in_columns(format, tmp_path / name, [[3, 0]], [[1, 0]] if masked else None)
    with pytest.raises(InputError, match="no column attention_mask, which"):
        documents(str(tmp_path / "*" / f"x.{format}"))


def test_a_row_without_a_mask_is_refused_wherever_it_is(tmp_path: Path) -> None:
    masked = '{"input_ids": [3, 0], "attention_mask": [1, 0]}\n'
    for lines in (['{"input_ids": [3, 0]}\n', masked], [masked, '{"input_ids": [3, 0]}\n']):
        (tmp_path / "x.jsonl").write_text("".join(lines))
        with pytest.raises(InputError, match="attention_mask"):
            documents(str(tmp_path / "x.jsonl"))


def test_a_mask_that_is_neither_0_nor_1_is_refused_with_its_row(tmp_path: Path) -> None:
    path = written([[(1, 1)], [(2, 1), (3, 1)], [(4, 1), (5, 2)]], "parquet", tmp_path)
    with pytest.raises(
        InputError, match=r"row 2 \(from 0\): attention_mask is not a 0 or 1 for each of its 2 token ids"
    ):
        documents(path)


@pytest.mark.parametrize("format", FORMATS)
def test_a_mask_of_another_length_is_refused_with_its_row(format: str, tmp_path: Path) -> None:
    path = in_columns(format, tmp_path, [[1], [2, 2], [3]], [[1], [1], [1]])
    with pytest.raises(InputError, match=r"row 1 \(from 0\): attention_mask"):
        documents(path)


def test_a_mask_that_is_none_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2]], "attention_mask": ["11"]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="column 'attention_mask' is string"):
        documents(str(tmp_path / "x.parquet"))
