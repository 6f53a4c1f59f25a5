"""Every corpus that cannot serve is refused in one line; every one that can is read whole."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.data.conftest import write_parquet
from tests.trainer.refusals import refusal
from trainer.config import CorpusConfig
from trainer.data import python_docs
from trainer.data.corpus import Corpus, iter_texts, prepare_corpus
from trainer.errors import InputError


def refused(pattern: Path | str, column: str = "text") -> str:
    return refusal(prepare_corpus, CorpusConfig(parquet=str(pattern), column=column))


def all_texts(corpus: Corpus) -> list[str]:
    return [text for texts in iter_texts(corpus) for text in texts]


@pytest.mark.parametrize("limit", [1, 7, 21, 60, 1000])
def test_only_the_first_documents_count(corpus_glob: str, texts: list[str], limit: int) -> None:
    if limit == 1:  # the first document is empty, alone it is no corpus
        with pytest.raises(InputError, match="all of them empty"):
            prepare_corpus(CorpusConfig(parquet=corpus_glob, documents=1))
        return
    corpus = prepare_corpus(CorpusConfig(parquet=corpus_glob, documents=limit))
    assert all_texts(corpus) == texts[:limit]
    assert corpus.documents == min(limit, len(texts))
    assert corpus.empty == texts[:limit].count("")
    assert corpus.text_bytes == sum(len(text.encode()) for text in texts[:limit])


def test_no_file(tmp_path: Path) -> None:
    assert "no file matches" in refused(tmp_path / "*.parquet")
    assert "no file matches" in refused(tmp_path / "corpus.parquet")
    assert "is a folder" in refused(tmp_path)


def cut(path: Path, texts: list[str], kept: int) -> None:
    path.write_bytes(write_parquet(path, texts).read_bytes()[:kept])


def damage(path: Path, texts: list[str]) -> None:
    content = bytearray(write_parquet(path, texts * 20, row_group=10_000).read_bytes())
    content[40 : len(content) // 2] = os.urandom(len(content) // 2 - 40)
    path.write_bytes(content)


BROKEN_UTF8 = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"], pa.binary()).buffers())


@pytest.mark.parametrize(("make", "line"), [
    (lambda path, _: path.write_text("just some text, longer than the twelve bytes of a footer"),
     "x.parquet: not a parquet file"),
    (lambda path, _: path.write_bytes(b""), "x.parquet: not a parquet file"),
    (lambda path, texts: cut(path, texts, 4), "truncated or damaged"),
    (lambda path, texts: cut(path, texts, 100), "truncated or damaged"),
    (lambda path, texts: cut(path, texts, -1), "truncated or damaged"),
    (damage, "damaged parquet file"),
    (lambda path, _: pq.write_table(pa.table({"body": ["a"], "title": ["b"]}), path),
     "x.parquet: no column 'text'; it has body, title"),
    (lambda path, _: write_parquet(path, [1, 2], pa.int64()), "x.parquet: column 'text' is int64, not string"),
    (lambda path, _: write_parquet(path, BROKEN_UTF8), "UTF8"),
    (lambda path, _: write_parquet(path, []), "empty corpus"),
    (lambda path, _: write_parquet(path, ["", "", ""]), "empty corpus"),
])  # fmt: skip
def test_a_file_that_is_no_corpus(tmp_path, texts, make, line) -> None:
    make(tmp_path / "x.parquet", texts)
    message = refused(tmp_path / "x.parquet")
    assert line in (message.replace("-", "").upper() if line == "UTF8" else message)
    assert not line.startswith("x.parquet") or message == f"{tmp_path}/{line}"


def test_nulls_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ["a"] * 5, row_group=2)
    write_parquet(tmp_path / "b.parquet", ["b", "b", "b", None, None], row_group=2)
    message = refused(tmp_path / "*.parquet")
    assert "2 nulls" in message
    assert f"first: {tmp_path / 'b.parquet'}, row 3" in message


def test_nulls_after_the_documents_in_use_do_no_harm(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["a", "b", None])
    assert prepare_corpus(CorpusConfig(parquet=str(path), documents=2)).documents == 2


def test_unreadable_cache_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "file" / "cache"))
    path = write_parquet(tmp_path / "a.parquet", ["a"])
    assert "HARNESS_CACHE" in refused(path)


def test_fingerprint_follows_content_not_place(tmp_path: Path) -> None:
    def fingerprint(name: str, content: list[str], documents: int | None = None) -> str:
        path = write_parquet(tmp_path / name, content)
        return prepare_corpus(CorpusConfig(parquet=str(path), documents=documents)).fingerprint

    first = fingerprint("a.parquet", ["a", "b"])
    assert fingerprint("b.parquet", ["a", "b"]) == first
    assert fingerprint("c.parquet", ["a", "c"]) != first
    assert fingerprint("a.parquet", ["a", "b"], documents=1) != first
    assert fingerprint("a.parquet", ["a", "b", "c"]) != first  # rewritten in place: found by size and mtime


@pytest.fixture
def small_stdlib(tmp_path: Path) -> Path:
    root = tmp_path / "stdlib"
    (root / "test").mkdir(parents=True)
    (root / "pydoc_data").mkdir()
    (root / "pydoc_data" / "topics.py").write_text("topics = {'one': 'The first topic.', 'two': 'The second.'}\n")
    (root / "test" / "test_a.py").write_text("'''never collected'''")
    (root / "_sysconfigdata_x.py").write_text("paths = 'of this machine'")
    (root / "broken.py").write_text("def (")
    (root / "surrogate.py").write_text('"""' + "x" * 300 + '\\ud800"""')
    for number in range(120):
        (root / f"m{number}.py").write_text(f'def f():\n    """{"Long docstring. " * 20}"""\n    return {number}\n')
    return root


def test_python_docs_are_deduplicated_and_ordered_by_content(small_stdlib: Path) -> None:
    texts = python_docs.collect(small_stdlib)
    assert len(texts) == len(set(texts))
    assert "The first topic." in texts
    assert sum(text.startswith("Long docstring.") for text in texts) == 1
    assert sum(text.startswith("def f()") for text in texts) == 120
    assert not any("never collected" in text or "of this machine" in text for text in texts)
    assert texts == python_docs.collect(small_stdlib)


def test_python_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without its sources"):
        python_docs.collect(tmp_path)


@pytest.mark.slow
def test_the_builtin_corpus_is_real_text_with_a_long_tail() -> None:
    before = set(sys.modules)
    corpus = prepare_corpus(CorpusConfig(builtin="python-docs"))
    assert not {"antigravity", "this", "turtle"} & (set(sys.modules) - before)  # parsed, not imported
    texts = all_texts(corpus)
    lengths = sorted(map(len, texts))
    assert corpus.documents == len(texts) == len(set(texts)) > 1000
    assert corpus.empty == 0
    assert lengths[-1] > 50 * lengths[len(lengths) // 2]
    assert prepare_corpus(CorpusConfig(builtin="python-docs")) == corpus
    assert prepare_corpus(CorpusConfig(builtin="python-docs", documents=10)).documents == 10


# Wherever a definition can stand.
NESTS = """
if a:
    {0}
elif b:
    {1}
else:
    {2}
try:
    {3}
except A:
    {4}
else:
    {5}
finally:
    {6}
match a:
    case 1:
        {7}
while a:
    {8}
else:
    {9}
async def outer():
    async with a:
        {10}
    async for b in c:
        {11}
class Of:
    @decorated
    def __init__(self):
        def within(): {12}
"""


def test_docstrings_are_found_wherever_a_definition_may_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{place}: {'x' * 200}" for place in range(13)]
    source = NESTS.format(*(f'class C: "{text}"' for text in texts[:-1]), repr(texts[-1]))
    (tmp_path / "module.py").write_text(source)
    monkeypatch.setattr(python_docs, "_FEWEST_DOCUMENTS", 1)
    assert set(python_docs.collect(tmp_path)) == {source.strip(), *texts}
