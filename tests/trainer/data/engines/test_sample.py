"""The sample is bounded, always the same, spread over the corpus, and holds every character at least once."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.trainer.data.conftest import write_parquet
from trainer.config import CorpusConfig
from trainer.data.corpus import Corpus, prepare_corpus
from trainer.data.engines import proof_texts
from trainer.data.engines.proof_texts import Excerpt


def corpus_of(folder: Path, texts: list[str]) -> Corpus:
    return prepare_corpus(CorpusConfig(parquet=str(write_parquet(folder / "texts.parquet", texts))))


def test_a_small_corpus_is_taken_whole(tmp_path: Path) -> None:
    texts = ["one", "", "two é", "three"]
    pieces = proof_texts.sample(corpus_of(tmp_path, texts))
    assert [piece for piece in pieces if piece.start == 0][:4] == [
        Excerpt(at, 0, text) for at, text in enumerate(texts)
    ]


def test_a_large_one_is_spread_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_texts, "SAMPLE_BYTES", 10_000)
    corpus = corpus_of(tmp_path, [f"{number:010d}" * 10 for number in range(1000)])
    pieces = proof_texts.sample(corpus)
    assert pieces == proof_texts.sample(corpus)
    assert 5_000 <= sum(len(piece.text) for piece in pieces) <= 10_000
    steps = {second.document - first.document for first, second in pairwise(pieces)}
    assert steps == {16}
    assert all(piece.text == f"{piece.document:010d}" * 10 for piece in pieces)


def test_every_character_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_texts, "SAMPLE_BYTES", 2_000)
    texts = [f"{'plain ' * 20}{chr(0x4E00 + number)}{' text' * 200}" for number in range(200)]
    pieces = proof_texts.sample(corpus_of(tmp_path, texts))
    assert set("".join(texts)) == set("".join(piece.text for piece in pieces))
    assert sum(len(piece.text) for piece in pieces) < 0.5 * sum(map(len, texts))
    assert all(texts[piece.document][piece.start :].startswith(piece.text) for piece in pieces)
    monkeypatch.setattr(proof_texts, "RARE_CHARACTERS", 1000)
    assert sum(len(piece.text) for piece in proof_texts.sample(corpus_of(tmp_path, texts))) < 2_000 + 1_000 + 500


def test_a_long_document_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_texts, "PIECE_CHARACTERS", 10)
    pieces = proof_texts.sample(corpus_of(tmp_path, ["short", "0123456789abc", ""]))
    assert pieces == [Excerpt(0, 0, "short"), Excerpt(1, 0, "0123456789"), Excerpt(1, 10, "abc"), Excerpt(2, 0, "")]
    assert [piece.place for piece in pieces[1:3]] == ["document 1", "document 1 from character 10"]


def test_the_whole_corpus_is_uncut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_texts, "PIECE_CHARACTERS", 10)
    monkeypatch.setattr(proof_texts, "_PART_BYTES", 20)
    texts = ["short", "0123456789abc", "", "é" * 12, "x"]
    pieces = list(proof_texts.whole(corpus_of(tmp_path, texts)))
    assert pieces == [Excerpt(at, 0, text) for at, text in enumerate(texts)]
    parts = list(proof_texts.parts(pieces))
    assert sum(parts, []) == pieces  # noqa: RUF017
    assert [len(part) for part in parts] == [4, 1]
