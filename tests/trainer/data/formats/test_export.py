"""Files of llm.c and nanoGPT, read by readers written here from their published layout, without this package."""

from __future__ import annotations

import array
import json
import struct
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.refusals import refusal
from trainer.data.formats import exchange
from trainer.data.formats.exchange import ExchangeFormat, document_chunks
from trainer.data.formats.export import Division, Vocabulary, costs, export, import_tokens
from trainer.data.formats.flat import FlatTokens
from trainer.errors import InputError

EOS = 9
VOCABULARY = Vocabulary(60_000, EOS)
DOCUMENTS = [[1, 2, 3, EOS], [], [59_999, EOS], [4, 5, 6, 7, 8, EOS], [], [1, EOS]]


def flat_of(documents: list[list[int]]) -> FlatTokens:
    places = np.cumsum([0, *map(len, documents)])
    return FlatTokens(np.array([one for document in documents for one in document], "<u2"), places)


def uint16(content: bytes) -> list[int]:
    values = array.array("H", content)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def llmc_shard(path: Path) -> list[int]:
    """As llm.c's dataloader.h reads one: 256 int32 of header, then the tokens."""
    content = path.read_bytes()
    header = struct.unpack("<256i", content[:1024])
    assert header[:2] == (20240520, 1)
    assert not any(header[3:])
    tokens = uint16(content[1024:])
    assert len(tokens) == header[2]
    return tokens


def written(folder: Path, format: ExchangeFormat, documents: list[list[int]], **division: object) -> Path:
    export(flat_of(documents), format, VOCABULARY, "abc", folder, Division(**division))  # type: ignore[arg-type]
    return folder


def test_llmc_token_for_token(tmp_path: Path) -> None:
    out = written(tmp_path / "out", "llmc", DOCUMENTS, name="corpus", shard_tokens=5)
    names = ["corpus_val_000000.bin", "corpus_train_000001.bin", "corpus_train_000002.bin"]
    assert sorted(path.name for path in out.glob("*.bin")) == sorted(names)
    shards = [llmc_shard(out / name) for name in names]
    assert [len(shard) for shard in shards] == [5, 5, 4]
    expected = [EOS, 1, 2, 3, EOS, 59_999, EOS, 4, 5, 6, 7, 8, EOS, 1]
    assert [token for shard in shards for token in shard] == expected
    facts = json.loads((out / "export.json").read_text())
    assert (facts["documents"], facts["empty"], facts["tokens"], facts["files"]) == (6, 2, 14, names)


def test_nanogpt_token_for_token(tmp_path: Path) -> None:
    out = written(tmp_path / "out", "nanogpt", DOCUMENTS, validation_share=0.0)
    assert uint16((out / "train.bin").read_bytes()) == [token for document in DOCUMENTS for token in document]
    assert (out / "val.bin").read_bytes() == b""


def test_nanogpt_holds_a_share_out_and_no_copy_of_it_stays(tmp_path: Path) -> None:
    documents = [[1 + number % 200, 2, EOS] for number in range(1000)]  # five copies of each
    out = written(tmp_path / "out", "nanogpt", documents, validation_share=0.3)
    train, val = (uint16((out / name).read_bytes()) for name in ("train.bin", "val.bin"))
    assert set(train[::3]).isdisjoint(val[::3])
    assert set(train[::3]) | set(val[::3]) == set(range(1, 201))
    assert 600 < len(val) < 1200  # of 3,000 tokens


@given(
    documents=st.lists(
        st.lists(st.integers(0, 8), max_size=6).map(lambda ids: [*ids, EOS] if ids else ids), max_size=20
    ),
    format=st.sampled_from(["llmc", "nanogpt"]),
    shard=st.integers(1, 20),
    chunk=st.integers(1, 9),
)
def test_import_gives_back_what_export_wrote(tmp_path_factory, documents, format, shard, chunk) -> None:
    folder = tmp_path_factory.mktemp("round")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "CHUNK_TOKENS", chunk)
        out = written(folder / "out", format, documents, shard_tokens=shard, validation_share=0.0)
        files = sorted(out.glob("*.bin"), key=lambda path: path.stem.rpartition("_")[2])
        if not any(documents):
            with pytest.raises(InputError, match="no token in it"):
                import_tokens(format, files, VOCABULARY, folder / "back.parquet")
            assert not (folder / "back.parquet").exists()
            return
        found = import_tokens(format, files, VOCABULARY, folder / "back.parquet")
    whole = [document for document in documents if document]
    assert pq.read_table(folder / "back.parquet").to_pydict() == {"tokens": whole}
    assert (found.documents, found.tokens, found.cut) == (len(whole), sum(map(len, whole)), False)


def test_documents_that_are_cut_are_said(tmp_path: Path) -> None:
    out = written(tmp_path / "out", "llmc", DOCUMENTS, shard_tokens=5)
    files = [out / "tokens_train_000001.bin", out / "tokens_train_000002.bin"]  # without validation
    found = import_tokens("llmc", files, VOCABULARY, tmp_path / "back.parquet")
    assert found.cut
    assert pq.read_table(tmp_path / "back.parquet")["tokens"].to_pylist() == [
        [59_999, EOS],  # its end-of-text stands in the shard that is missing
        [4, 5, 6, 7, 8, EOS],
        [1, EOS],
    ]


def test_without_an_end_of_text_id_all_is_one_document(tmp_path: Path) -> None:
    array.array("H", [1, 2, 3]).tofile((tmp_path / "train.bin").open("wb"))
    found = import_tokens("nanogpt", [tmp_path / "train.bin"], Vocabulary(10, None), tmp_path / "x.parquet")
    assert found.documents == 1
    assert any("where documents end" in line for line in found.lost)
    assert pq.read_table(tmp_path / "x.parquet")["tokens"].to_pylist() == [[1, 2, 3]]


def shard_of(
    path: Path, *, magic: int = 20240520, version: int = 1, tokens: int = 2, content: bytes = b"\1\0\2\0"
) -> Path:
    path.write_bytes(struct.pack("<256i", magic, version, tokens, *[0] * 253) + content)
    return path


@pytest.mark.parametrize(("changes", "words"), [
    ({"magic": 1}, "not a .bin of llm.c (its first int32 must be 20240520)"),
    ({"version": 7}, "version 7 of llm.c's .bin; allowed: 1"),
    ({"content": b"\1\0"}, "1,026 bytes, but its header has 2 tokens"),
    ({"tokens": 1}, "but its header has 1 tokens: cut short, or more than that"),
    ({"tokens": -1}, "but its header has -1 tokens"),
    ({"content": b"\1\0\xff\xff"}, "the files hold the id 65,535, and the tokenizer's ids end at 59,999"),
])  # fmt: skip
def test_a_wrong_shard_is_one_line(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    path = shard_of(tmp_path / "x.bin", **changes)  # type: ignore[arg-type]
    assert words in refusal(import_tokens, "llmc", [path], VOCABULARY, tmp_path / "out.parquet")
    assert [one.name for one in tmp_path.iterdir()] == ["x.bin"]


@pytest.mark.parametrize("format", ["llmc", "nanogpt"])
def test_files_that_are_none(tmp_path: Path, format: ExchangeFormat) -> None:
    (tmp_path / "odd").write_bytes(b"\1\2\3")
    for name, words in (("missing", "cannot be read"), ("odd", "odd: ")):
        with pytest.raises(InputError, match=words):
            import_tokens(format, [tmp_path / name], VOCABULARY, tmp_path / "out.parquet")


@pytest.mark.parametrize("format", ["llmc", "nanogpt"])
def test_a_large_vocabulary_is_refused_in_one_line(tmp_path: Path, format: ExchangeFormat) -> None:
    with pytest.raises(InputError, match=f"{format}: its ids are uint16, at most 65,536; this vocabulary has 65,537"):
        export(flat_of(DOCUMENTS), format, Vocabulary(65_537, EOS), "abc", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_llmc_needs_an_end_of_text_id(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="llmc: each document needs an end-of-text id before it"):
        export(flat_of(DOCUMENTS), "llmc", Vocabulary(100, None), "abc", tmp_path / "out")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="already exists"):
        written(tmp_path / "out", "llmc", DOCUMENTS)


@given(lengths=st.lists(st.integers(0, 12), max_size=30), start=st.integers(0, 31), chunk=st.integers(1, 20))
def test_chunks_are_all_documents_in_order(lengths: list[int], start: int, chunk: int) -> None:
    documents = [list(range(length)) for length in lengths]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "CHUNK_TOKENS", chunk)
        patch.setattr(exchange, "CHUNK_DOCUMENTS", 4)
        found = []
        for ids, some in document_chunks(flat_of(documents), start):
            assert len(some) <= 4
            assert len(ids) <= chunk or len(some) == 1
            ends = np.cumsum(some)
            found += [ids[end - length : end].tolist() for end, length in zip(ends, some, strict=True)]
    assert found == documents[start:]


LENGTHS = [5, 0, 40, 3]


@pytest.mark.parametrize(("size", "bytes_each"), [(300, 2), (70_000, 4)])
def test_sizes_and_tokens(tmp_path: Path, size: int, bytes_each: int) -> None:
    flat = FlatTokens(np.arange(48, dtype="<u2" if bytes_each == 2 else "<u4"), np.cumsum([0, *LENGTHS]))
    found = {one.format: one for one in costs(flat, Vocabulary(size, 7), 16, 0, tmp_path, repeats=2)}
    assert found["flat"].size_bytes == 48 * bytes_each + 5 * 8
    assert found["padded"].tokens == 5 + 16 + 3
    assert found["token-list"].tokens == found["flat"].tokens == 48
    for name, header in (("llmc", 1024), ("nanogpt", 0)):
        if bytes_each == 2:
            assert (found[name].tokens, found[name].size_bytes) == (48, 48 * 2 + header)
        else:
            assert "its ids are uint16" in found[name].reason
    assert all(one.write_s > 0 and one.read_s > 0 for one in found.values() if not one.reason)
    assert list(tmp_path.iterdir()) == []
