"""Corpora that are cut short, damaged, huge or empty: one clear line each, bounded memory, nothing half-written."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.trainer.data.corpus.corpora import WRITERS, arrow, jsonl, parquet
from tests.trainer.refusals import refusal
from trainer.config import CorpusConfig
from trainer.data.corpus import Corpus, base, by_row, iter_texts, prepare_corpus, reading, tables
from trainer.data.corpus import text as text_files
from trainer.data.train_tokenizer import sample
from trainer.errors import InputError


def refused(path: Path | str, **settings: Any) -> str:
    return refusal(prepare_corpus, CorpusConfig(path=str(path), **settings))


ONE_FILE = [name for name in WRITERS if name not in ("save_to_disk", "text files")]


@pytest.mark.parametrize("kept", [1, 4, 7, 0.5, -1, -9])
@pytest.mark.parametrize("name", ONE_FILE)
def test_a_file_that_was_cut_short_is_never_a_traceback(tmp_path, texts, name, kept) -> None:
    """What has a footer, an end mark or a checksum is refused; of JSON Lines the line that is cut."""
    path = WRITERS[name](tmp_path, [f"{text}." for text in texts])
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept) if kept == 0.5 else int(kept)])
    if name == "jsonl" and kept == -1:  # only its last line end is gone
        assert prepare_corpus(CorpusConfig(path=str(path))).documents == len(texts)
    else:
        assert str(path) in refused(path)


FLIPPED = {"parquet", "arrow file", "arrow stream", "jsonl.gz", "jsonl.zst", "jsonl"}


@pytest.mark.parametrize("name", sorted(FLIPPED))
@examples(40)
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_one_line_or_another_corpus(tmp_path_factory, texts, name, at, bit) -> None:
    """A bit within a document's letters makes other letters, of which no format here has a checksum; the fingerprint
    of the file's content differs then."""
    folder = tmp_path_factory.mktemp("flipped")
    path = WRITERS[name](folder, texts)
    before = prepare_corpus(CorpusConfig(path=str(path)))
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 1 << bit
    path.write_bytes(content)
    message, corpus = str(folder), None
    try:
        corpus = prepare_corpus(CorpusConfig(path=str(path)))
    except InputError as error:
        message = str(error)
    assert "\n" not in message
    assert str(folder) in message
    if corpus is not None:
        assert all(isinstance(text, str) for part in iter_texts(corpus) for text in part)
        assert corpus.fingerprint != before.fingerprint


@pytest.mark.parametrize(("content", "line"), [
    (b'{"text": "a"}\nnot json\n', "row 1 (from 0): not JSON (Expecting value"),
    (b'{"text": "a"}\n\n{"text": 5}\n',
     "row 1 (from 0): column 'text' holds a number; allowed: a string, as in other rows"),
    (b'{"text": "a"}\n{"body": "b"}\n', "1 null (first: "),
    (b'{"body": "b", "id": 1}\n', "row 0 (from 0): no column 'text'; it has 'body', 'id'"),
    (b'{"text": {"a": 1}}\n', "row 0 (from 0): column 'text' holds an object; allowed: a string, a list of token ids"),
    (b'{"text": "a"}\n["b"]\n', "row 1 (from 0): a list, not an object; give an object a line"),
    (b'[{"text": "a"},\n{"text": "b"}]', "row 0 (from 0): not JSON"),
    (b'{\n  "text": "a"\n}\n', "a .json file must have an object a line, too"),
    (b'{"text": "a"} {"text": "b"}\n', "row 0 (from 0): not JSON (Extra data"),
    (b'{"text": "\\ud800"}\n', "row 0 (from 0): column 'text' holds half of a surrogate pair (\\ud800)"),
    (b'{"text": "a"}\n{"text": "\xff"}\n', "row 1 (from 0): not JSON ('utf-8' codec"),
    (b'{"text": ' + b"[" * 100_000 + b"\n", "row 0 (from 0): not JSON (nested too deep)"),
    (b"", "empty corpus: no documents in column 'text'"),
    (b"\n\n \n", "empty corpus: no documents in column 'text'"),
    (b'{"text": ""}\n{"text": ""}\n', "empty corpus: 2 documents, all of them empty"),
])  # fmt: skip
def test_lines_that_are_none(tmp_path: Path, content: bytes, line: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    message = refused(tmp_path / "a.jsonl")
    assert line in message
    assert str(tmp_path / "a.jsonl") in message


def test_many_empty_documents_are_read_in_small_lists(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": ""}\n' * 100_000 + '{"text": "a"}\n')
    corpus = prepare_corpus(CorpusConfig(path=str(path)))
    assert (corpus.documents, corpus.empty) == (100_001, 100_000)
    assert sum(map(len, iter_texts(corpus))) == 100_001
    assert list(sample(corpus, 1000)) == ["a"]


@pytest.mark.parametrize(("name", "content", "line"), [
    ("a.txt", b"good\nb\xffd\n", "not UTF-8 text (byte 6: 0xff)"),
    ("a.bin", b"\x00\x01\xfe\xff" * 10, "neither Parquet, Arrow nor UTF-8 text; allowed: parquet, jsonl, text, arrow"),
    ("a.arrow", b"no arrow", "truncated or damaged Arrow file, or none"),
    ("a.arrow", b"", "truncated or damaged Arrow file, or none"),
    ("a.parquet", b"no parquet file", "not a parquet file"),
    ("a.txt", b"", "empty corpus: 1 documents, all of them empty"),
    ("a.jsonl.gz", b"\x1f\x8bno gzip", "cannot be read"),
    ("a.jsonl.zst", b"\x28\xb5\x2f\xfdno", "cannot be read"),
])  # fmt: skip
def test_files_that_are_not_what_they_seem(tmp_path: Path, name: str, content: bytes, line: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert line in refused(tmp_path / name)
    if content.startswith(b"good"):
        lines = refused(tmp_path / name, split="line")
        assert lines.startswith(f"{tmp_path}/a.txt, row 1 (from 0): not UTF-8 text (byte 1: 0xff)")


def test_a_document_larger_than_arrow_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.corpus.text.LARGEST_DOCUMENT", 1000)
    monkeypatch.setattr("trainer.data.corpus.text.BLOCK", 100)
    (tmp_path / "a.txt").write_text("x" * 1001)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x" * 1001}))
    for settings in ({}, {"split": "line"}, {"split": "blank-line"}):
        assert "a document of more than 1,000 bytes; divide it" in refused(tmp_path / "a.txt", **settings)
    assert "a document of more than 1,000 bytes; divide it" in refused(tmp_path / "a.jsonl")


def write_large(folder: Path, name: str, documents: list[str]) -> Path:
    if name == "one record batch":  # which is mapped, not read
        found = pa.table({"text": pa.array(documents)})
        with pa.ipc.new_file(folder / "data.arrow", found.schema) as writer:
            writer.write_table(found)
        return folder / "data.arrow"
    if name == "lines":
        (folder / "data.txt").write_text("\n".join(documents))
        return folder / "data.txt"
    if name == "paragraphs":
        (folder / "data.txt").write_text("\n\n".join(documents))
        return folder / "data.txt"
    return WRITERS[name](folder, documents)


GROUP_BYTES = 4 * 2**20


@pytest.fixture
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the bytes are read and handed on at once, so that a quarter of a corpus is as large beside them."""
    for module in (base, reading, tables):
        monkeypatch.setattr(module, "MAX_ROW_GROUP_BYTES", GROUP_BYTES)
    monkeypatch.setattr(text_files, "BLOCK", text_files.BLOCK // 4)


@pytest.mark.usefixtures("_small_groups")
@pytest.mark.parametrize(
    "name",
    [
        *("jsonl", "one record batch"),
        *(
            pytest.param(one, marks=(pytest.mark.slow, pytest.mark.nightly))
            for one in ("arrow stream", "paragraphs", "parquet", "lines")
        ),
    ],
)
def test_memory_is_bounded_whatever_the_size_of_the_corpus(tmp_path: Path, name: str) -> None:
    documents = [str(number) * 5_000 for number in range(1000, 1800)]  # 16 MB: four times what is handed on together
    path = write_large(tmp_path, name, documents)
    split = {"lines": "line", "paragraphs": "blank-line"}.get(name, "file")
    config = CorpusConfig.model_validate({"path": str(path), "split": split})
    before = pa.total_allocated_bytes()
    corpus = prepare_corpus(config)
    most = done = 0
    tracemalloc.start()
    try:
        for texts in iter_texts(corpus):
            assert sum(map(len, texts)) <= GROUP_BYTES
            assert texts[0] == documents[done]
            done += len(texts)
            most = max(most, pa.total_allocated_bytes() - before)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert done == len(documents)
    assert most < 3 * GROUP_BYTES
    assert peak < 5 * GROUP_BYTES  # the texts, and the block that they were cut from


@pytest.mark.usefixtures("_small_groups")
@pytest.mark.parametrize("name", ["jsonl", "parquet", "text files"])
def test_a_huge_document_among_small_ones(tmp_path: Path, name: str) -> None:
    """Of 5 MB: above all limits of what is handed on together."""
    huge = "0123456789abcde\n" * (5 * 2**16)
    documents = ["a", huge, "", "b"]
    corpus = prepare_corpus(CorpusConfig(path=str(WRITERS[name](tmp_path, documents))))
    assert (corpus.documents, corpus.empty) == (4, 1)
    assert [text for part in iter_texts(corpus) for text in part] == documents
    assert [text for part in iter_texts(by_row(corpus, "data.path")) for text in part] == documents


def test_nothing_half_written_stays_where_a_copy_fails(tmp_path, fresh_cache, monkeypatch, texts) -> None:
    corpus = prepare_corpus(CorpusConfig(path=str(jsonl(tmp_path, texts))))

    def cut(_: Corpus) -> Iterator[list[str]]:
        yield texts[:10]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trainer.data.corpus.reading.iter_texts", cut)
    with pytest.raises(OSError, match="No space left on device; HARNESS_CACHE=DIR chooses another cache"):
        by_row(corpus, "data.path")
    monkeypatch.setattr("trainer.data.corpus.reading.iter_texts", lambda _: iter([texts[:10]]))
    with pytest.raises(InputError, match="10 documents, 60 when it was checked; run it again"):
        by_row(corpus, "data.path")
    assert not list((fresh_cache / "corpus").iterdir())


def test_a_file_that_changes_between_check_and_reading(tmp_path: Path, texts: list[str]) -> None:
    writers: list[tuple[Callable[..., Path], str]] = [(jsonl, "data.jsonl"), (parquet, "data.parquet")]
    for write, name in writers:
        corpus = prepare_corpus(CorpusConfig(path=str(write(tmp_path, texts))))
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(InputError, match=str(tmp_path / name)):
            list(iter_texts(corpus))
    stream = arrow(tmp_path / "data.arrow", texts)
    corpus = prepare_corpus(CorpusConfig(path=str(stream)))
    stream.unlink()
    with pytest.raises(InputError, match=r"data\.arrow: cannot be read"):
        list(iter_texts(corpus))
