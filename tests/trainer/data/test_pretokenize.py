"""Both formats hold every document, and a file that is not what was asked for is refused with the reason."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.trainer.data.conftest import write_parquet
from tests.trainer.refusals import refusal
from trainer.config import CorpusConfig, TokenizerConfig, TrainTokenizer
from trainer.data.corpus import Corpus, prepare_corpus
from trainer.data.manifest import read_manifest
from trainer.data.prepare import prepare, warnings_of
from trainer.data.pretokenize import PaddedWriter, TokenListWriter, check_manifest, pretokenize
from trainer.data.tokenizers import TokenizerInfo, document_tokens, load_tokenizer, prepare_tokenizer
from trainer.errors import InputError


@pytest.fixture(scope="module")
def expected(info: TokenizerInfo, texts: list[str]) -> list[list[int]]:
    return document_tokens([load_tokenizer(info).encode(text) for text in texts], info.eos_id)


def test_files_are_snappy_with_row_groups_of_1000(info: TokenizerInfo, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "many.parquet", [f"document {number}" for number in range(2300)], row_group=450)
    corpus = prepare_corpus(CorpusConfig(parquet=str(path)))
    metadata = pq.ParquetFile(pretokenize(corpus, info, "padded", 4).data).metadata
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [1000, 1000, 300]
    assert metadata.row_group(0).column(0).compression == "SNAPPY"


def test_the_cache_is_found_again(corpus: Corpus, info: TokenizerInfo) -> None:
    first = pretokenize(corpus, info, "padded", 16)
    written = first.data.stat().st_mtime_ns
    assert pretokenize(corpus, info, "padded", 16) == first
    assert first.data.stat().st_mtime_ns == written
    assert pretokenize(corpus, info, "padded", 17).folder != first.folder
    # Whole documents do not depend on the sequence length.
    assert pretokenize(corpus, info, "token-list", 16) == pretokenize(corpus, info, "token-list", 17)


def refused(folder: Path, corpus: Corpus, info: TokenizerInfo, format: str = "padded", length: int = 16) -> str:
    return refusal(check_manifest, folder, corpus, info, format, length)


def test_stale_or_foreign_files_are_refused_with_the_reason(corpus, info, tmp_path, texts) -> None:
    out = tmp_path / "out"
    pretokenize(corpus, info, "padded", 16, out)
    check_manifest(out, corpus, info, "padded", 16)

    other_corpus = prepare_corpus(CorpusConfig(parquet=str(write_parquet(tmp_path / "other.parquet", texts[1:]))))
    other_info = prepare_tokenizer(TokenizerConfig(train=TrainTokenizer(vocab_size=310)), corpus)
    assert "corpus_fingerprint" in refused(out, other_corpus, info)
    assert "tokenizer_fingerprint" in refused(out, corpus, other_info)
    assert "sequence_length is 16, expected 32" in refused(out, corpus, info, length=32)
    assert "format is 'padded', expected 'token-list'" in refused(out, corpus, info, "token-list")
    with pytest.raises(InputError, match="stale or foreign"):  # and never overwritten
        pretokenize(corpus, info, "padded", 32, out)
    check_manifest(out, corpus, info, "padded", 16)


def test_the_users_folder_may_be_moved_and_renamed(corpus: Corpus, info: TokenizerInfo, tmp_path: Path) -> None:
    made = pretokenize(corpus, info, "padded", 16, tmp_path / "out")
    Path(made.folder).rename(tmp_path / "renamed")
    (tmp_path / "renamed" / "README.md").write_text("it may hold more")
    assert pretokenize(corpus, info, "padded", 16, tmp_path / "renamed").manifest == made.manifest
    cached = pretokenize(corpus, info, "padded", 16)  # and so may a copy of what is in the cache
    shutil.copytree(cached.folder, tmp_path / "copy")
    assert pretokenize(corpus, info, "padded", 16, tmp_path / "copy").manifest == made.manifest


def test_edited_files_are_refused(corpus: Corpus, info: TokenizerInfo, tmp_path: Path) -> None:
    out = tmp_path / "out"
    data = pretokenize(corpus, info, "padded", 16, out).data
    content = data.read_bytes()
    data.write_bytes(content[:-1])
    assert "was changed after it was written" in refused(out, corpus, info)
    flipped = bytearray(content)
    flipped[100] ^= 1
    written = data.stat()
    data.write_bytes(flipped)  # same size
    os.utime(data, ns=(written.st_atime_ns, written.st_mtime_ns))
    assert "was changed after it was written" in refused(out, corpus, info)
    data.write_bytes(content)
    manifest = out / "manifest.json"
    tokens = json.loads(manifest.read_text())["tokens"]
    manifest.write_text(manifest.read_text().replace(f'"tokens": {tokens}', f'"tokens": {tokens + 1}'))
    assert "manifest.json differs from what was written" in refused(out, corpus, info)
    data.unlink()
    assert "is missing" in refused(out, corpus, info)


@pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"schema": 1}', '{"schema": 99}'])
def test_a_folder_that_is_not_ours(corpus: Corpus, info: TokenizerInfo, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    assert "manifest" in refused(tmp_path, corpus, info)


def test_an_output_folder_that_cannot_be_written(corpus: Corpus, info: TokenizerInfo, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be written"):
        pretokenize(corpus, info, "padded", 16, tmp_path / "file" / "out")


def test_a_corpus_without_a_single_token(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "blank.parquet", ["  ", "\n\n"])
    corpus = prepare_corpus(CorpusConfig(parquet=str(path)))
    config = TokenizerConfig(train=TrainTokenizer(kind="wordpiece", vocab_size=300))  # drops white space
    with pytest.raises(InputError, match=r"none of .* has a token"):
        pretokenize(corpus, prepare_tokenizer(config, corpus), "padded", 16)


def test_each_format_holds_every_document(corpus, info, expected: list[list[int]], tmp_path) -> None:
    made = {name: pretokenize(corpus, info, name, 16, tmp_path / name) for name in ("token-list", "padded", "flat")}
    kept = [tokens[:16] for tokens in expected]
    assert pq.read_table(made["token-list"].data).to_pydict() == {"tokens": expected}
    assert pq.read_table(made["padded"].data).to_pydict() == {
        "input_ids": [tokens + [0] * (16 - len(tokens)) for tokens in kept],
        "attention_mask": [[1] * len(tokens) + [0] * (16 - len(tokens)) for tokens in kept],
    }
    flat = made["flat"].flat()
    assert [flat.document(number).tolist() for number in range(flat.documents)] == expected
    assert (made["flat"].manifest.token_type, flat.tokens.dtype.name) == ("uint16", "uint16")
    for name, one in made.items():
        facts = one.manifest
        assert (facts.documents, facts.empty) == (len(expected), expected.count([]))
        assert facts.tokens == sum(map(len, expected))
        assert facts.rows_tokens == sum(map(len, kept if name == "padded" else expected))
        assert facts.sequence_length == (16 if name == "padded" else None)
    assert made["flat"].data.stat().st_size == made["flat"].manifest.data_bytes == 2 * made["flat"].manifest.tokens
    places = tmp_path / "flat" / "documents.bin"
    content = bytearray(places.read_bytes())
    content[8] ^= 1
    places.write_bytes(content)
    assert "documents.bin differs from what was written" in refused(tmp_path / "flat", corpus, info, "flat")


@pytest.mark.parametrize("path", ["text-padded", "text-stream", "tokens-padded", "tokens-stream", "tokens-mmap"])
def test_a_path_that_joins_or_cuts_documents_is_announced(make_config, bare_pretrained, path) -> None:
    def lines(**changes: object) -> list[str]:
        config = make_config(path=path, **changes)
        return warnings_of(config, prepare(config))

    joined = [line for line in lines(tokenizer={"pretrained": bare_pretrained}) if "end-of-text" in line]
    assert len(joined) == (not path.endswith("-padded"))  # a padded row holds one document
    announced = lines()
    assert len(announced) == (path == "tokens-padded")  # its tokenizer ends documents; these rows of 16 cut them
    if announced:
        config = make_config(path=path)
        facts = read_manifest(Path(str(prepare(config).pretokenized)))
        assert facts.cut == facts.tokens - facts.rows_tokens > 0
        assert f"{facts.cut:,} of the {facts.tokens:,} tokens" in announced[0]
        assert not lines(sequence_length=4096)


def write(writer: PaddedWriter | TokenListWriter, documents: list[list[int]], at_once: int) -> None:
    with writer:
        for start in range(0, len(documents), at_once):
            some = documents[start : start + at_once]
            ids = np.array([one for document in some for one in document], np.uint16)
            writer.add(ids, np.array([len(document) for document in some], np.int64))


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_row_groups_depend_on_the_documents_alone(tmp_path, monkeypatch, at_once) -> None:
    monkeypatch.setattr("trainer.data.pretokenize.MOST_VALUES", 10)
    lengths = [4, 4, 4, 30, 1, 9, 0, 10, 2]
    write(TokenListWriter(tmp_path / "x"), [[7] * length for length in lengths], at_once)
    metadata = pq.read_metadata(tmp_path / "x")
    rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert rows == [3, 1, 2, 2, 1]


def test_long_padded_rows_make_small_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.pretokenize.MOST_VALUES", 100)
    write(PaddedWriter(tmp_path / "x", 40, 0), [[1]] * 5, 5)
    metadata = pq.read_metadata(tmp_path / "x")
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [2, 2, 1]
