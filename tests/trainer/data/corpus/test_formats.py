"""The same documents in every format are the same corpus: same texts, same batches, same losses."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.data.conftest import write_parquet
from tests.trainer.data.corpus.corpora import WRITERS, compressed, jsonl, parquet, saved_to_disk, texts_in_files
from tests.trainer.data.test_packing import assert_same
from tests.trainer.refusals import refusal
from trainer.config import CorpusConfig, DataConfig
from trainer.data.corpus import by_row, iter_contents, iter_texts, prepare_corpus
from trainer.data.dataset import Epoch
from trainer.data.prepare import prepare

Make = Callable[..., DataConfig]


def texts_of(config: CorpusConfig, rows: int = 1000) -> list[str]:
    return [text for texts in iter_texts(prepare_corpus(config), rows) for text in texts]


def refused(**settings: Any) -> str:
    return refusal(prepare_corpus, CorpusConfig(**settings))


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_documents(tmp_path: Path, texts: list[str], name: str) -> None:
    path = WRITERS[name](tmp_path, texts)
    corpus = prepare_corpus(CorpusConfig(path=str(path)))
    assert (corpus.documents, corpus.empty, corpus.content) == (len(texts), texts.count(""), "text")
    for rows in (1, 7, 1000):
        lists = list(iter_texts(corpus, rows))
        assert [text for part in lists for text in part] == texts
        assert max(map(len, lists)) <= rows
    assert [one for part in iter_contents(corpus) for one in part] == [text.encode() for text in texts]
    assert texts_of(CorpusConfig(path=str(path), documents=23)) == texts[:23]
    copied = by_row(corpus, "data.path")
    assert copied.fingerprint == corpus.fingerprint
    assert [text for part in iter_texts(copied) for text in part] == texts
    assert (copied is corpus) == (name in ("parquet", "large strings"))  # no copy of what can be read by row as it is


@pytest.mark.parametrize("name", ["dictionary", "jsonl.zst", "save_to_disk", "text files"])
@pytest.mark.parametrize("path", ["text-padded", "tokens-stream"])
def test_every_format_gives_the_same_batches(tmp_path, texts, make_config, bare_pretrained, path, name) -> None:
    shared = {"path": path, "access": "zero-copy", "tokenizer": {"pretrained": bare_pretrained}}
    here = make_config(corpus=CorpusConfig(path=str(WRITERS[name](tmp_path, texts))), **shared)
    for left, right in zip(*(Epoch(one, prepare(one), seed=3) for one in (make_config(**shared), here)), strict=True):
        assert_same(left, right)


def test_path_and_parquet_are_one_corpus_where_both_name_the_same_file(tmp_path: Path, texts: list[str]) -> None:
    path = str(parquet(tmp_path, texts))
    assert prepare_corpus(CorpusConfig(path=path)).fingerprint == prepare_corpus(CorpusConfig(parquet=path)).fingerprint


def test_the_fingerprint_follows_content_and_how_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    shutil.copy(tmp_path / "a.txt", tmp_path / "b.txt")

    def fingerprint(name: str, split: str = "file") -> str:
        return prepare_corpus(CorpusConfig.model_validate({"path": str(tmp_path / name), "split": split})).fingerprint

    assert fingerprint("a.txt") == fingerprint("b.txt")
    assert len({fingerprint("a.txt", split) for split in ("file", "line", "blank-line")}) == 3
    (tmp_path / "b.txt").write_text("one\n\ntwo")
    assert fingerprint("a.txt") != fingerprint("b.txt")


def test_a_last_line_of_white_space_is_blank_without_a_line_end_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("é b\r\n ".encode())
    assert texts_of(CorpusConfig(path=str(tmp_path / "a.txt"), split="blank-line")) == ["é b"]


@pytest.mark.parametrize(("split", "expected"), [
    ("file", ["\nfirst line\r\nsecond\n\n \t\nthird é\n\n\n\nfourth"]),
    ("line", ["", "first line", "second", "", " \t", "third é", "", "", "", "fourth"]),
    ("blank-line", ["first line\r\nsecond", "third é", "fourth"]),
])  # fmt: skip
def test_what_a_document_of_a_text_file_is(tmp_path, monkeypatch, split, expected) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeff\nfirst line\r\nsecond\n\n \t\nthird é\n\n\n\nfourth".encode())
    config = CorpusConfig.model_validate({"path": str(tmp_path / "a.txt"), "split": split})
    assert texts_of(config) == expected
    for block in range(1, 40):  # wherever blocks are cut
        monkeypatch.setattr("trainer.data.corpus.text.BLOCK", block)
        assert texts_of(config) == expected
    assert texts_of(
        CorpusConfig.model_validate({"path": str(compressed(tmp_path / "a.txt", ".gz")), "split": split})
    ) == (expected)


def test_json_lines_are_cut_wherever_blocks_end(tmp_path, monkeypatch, texts) -> None:
    path = jsonl(tmp_path, texts)
    path.write_text("\n\n" + path.read_text().replace("\n", "\r\n", 5).rstrip("\n"))  # blank lines are no rows
    monkeypatch.setattr("trainer.data.corpus.text.BLOCK", 64)
    assert texts_of(CorpusConfig(path=str(path))) == texts


def test_what_json_allows_and_arrow_does_not_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "n": NaN}\n{"text": "\\ud83d\\ude42", "n": Infinity}\n')
    assert texts_of(CorpusConfig(path=str(tmp_path / "a.jsonl"))) == ["a", "🙂"]


def test_a_folder_gives_its_tables_and_leaves_text_beside_them_out(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_parquet(tmp_path / "data" / "b.parquet", ["b"])
    write_parquet(tmp_path / "data" / "a.parquet", ["a"])
    for name in ("README.md", "LICENSE", "info.json", ".hidden.parquet"):
        (tmp_path / name).write_text("no corpus")
    assert texts_of(CorpusConfig(path=str(tmp_path))) == ["a", "b"]
    assert texts_of(CorpusConfig(path=str(tmp_path), format="parquet")) == ["a", "b"]
    assert texts_of(CorpusConfig(path=f"{tmp_path}/**/*.parquet")) == ["a", "b"]
    (tmp_path / "more.jsonl").write_text('{"text": "c"}\n')
    assert "several formats (2 parquet, 1 jsonl)" in refused(path=str(tmp_path))
    assert texts_of(CorpusConfig(path=str(tmp_path), format="jsonl")) == ["c"]
    assert "holds no file with a suffix of it" in refused(path=str(tmp_path), format="arrow")


def test_text_takes_every_file_of_a_folder(tmp_path: Path) -> None:
    texts_in_files(tmp_path, ["a", "b"], ".py")
    assert "format: text reads each of its files" in refused(path=str(tmp_path))
    assert texts_of(CorpusConfig(path=str(tmp_path), format="text")) == ["a", "b"]


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in ("save_to_disk", "text files")])
def test_content_says_what_the_name_does_not(tmp_path: Path, texts: list[str], name: str) -> None:
    path = WRITERS[name](tmp_path, texts)
    path.rename(tmp_path / "data")
    assert texts_of(CorpusConfig(path=str(tmp_path / "data"))) == texts


def test_what_save_to_disk_wrote_is_recognised(tmp_path: Path) -> None:
    splits = tmp_path / "splits"
    (splits / "train").mkdir(parents=True)
    saved_to_disk(splits / "train", ["a", "b", "c"])
    (splits / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    assert texts_of(CorpusConfig(path=str(splits / "train"))) == ["a", "b", "c"]
    assert f"holds the splits 'train', 'test'; give one of them, such as {splits}/train" in refused(path=str(splits))
    assert "written by save_to_disk; allowed: auto, arrow" in refused(path=str(splits / "train"), format="text")
    (splits / "train" / "data-00001-of-00002.arrow").unlink()
    assert re.search(
        r"state.json: names .*data-00001-of-00002.arrow, which is not there", refused(path=str(splits / "train"))
    )
    (splits / "train" / "state.json").write_text('{"_data_files": []}')  # as save_to_disk writes it of no rows
    assert refused(path=str(splits / "train")) == (
        f"data.corpus.path: {splits / 'train'} was written by save_to_disk of a dataset without rows"
    )
    (splits / "train" / "state.json").write_text('{"_data_files": [{"filename": "../x.arrow"}]}')
    assert "names no data files" in refused(path=str(splits / "train"))


@pytest.mark.parametrize(("settings", "line"), [
    ({}, "give exactly one of builtin, parquet, path"),
    ({"builtin": "python-docs", "path": "x"}, "give exactly one of builtin, parquet, path"),
    ({"parquet": "x", "format": "jsonl"}, "format needs path, not parquet"),
    ({"builtin": "python-docs", "split": "line"}, "split needs path, not builtin"),
    ({"parquet": "x", "chat_template": "x"}, "chat_template needs path, not parquet"),
])  # fmt: skip
def test_keys_that_do_not_go_together(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        CorpusConfig(**settings)


def test_lines_go_with_text_alone(tmp_path: Path) -> None:
    path = jsonl(tmp_path, ["a"])
    assert f"data.corpus.split: line divides text files, and {path} is jsonl" in refused(path=str(path), split="line")


def test_nothing_is_there(tmp_path: Path) -> None:
    assert refused(path=str(tmp_path / "no")) == f"data.corpus.path: no {tmp_path}/no"
    assert "no file matches" in refused(path=str(tmp_path / "*.jsonl"))
    assert "holds no file" in refused(path=str(tmp_path))


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scandir(path: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", scandir)
    assert "cannot be read (Permission denied)" in refused(path=str(tmp_path))


def test_schemas_that_do_not_fit_each_other(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ["a"])
    pq.write_table(pa.table({"text": [[1, 2]]}), tmp_path / "b.parquet")
    message = refused(path=f"{tmp_path}/*.parquet")
    assert message == f"{tmp_path}/b.parquet: column 'text' is list<element: int64>, not string"
    pq.write_table(pa.table({"text": [1.5]}), tmp_path / "c.parquet")
    assert "column 'text' is double; allowed: string, a list of whole numbers" in refused(path=f"{tmp_path}/c.parquet")
    assert f"{tmp_path}/c.parquet: no column 'body'; it has text" in refused(
        path=f"{tmp_path}/c.parquet", column="body"
    )
