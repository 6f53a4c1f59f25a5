"""Every kind of tokenizer gives the same ids as lists and end to end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainer.config import CorpusConfig, TokenizerConfig
from trainer.data.corpus import prepare_corpus
from trainer.data.engines.base import Encoded, Engine, with_end_of_text
from trainer.data.tokenizers import TokenizerInfo, document_tokens, load_tokenizer, prepare_tokenizer

KINDS = {
    "bpe": {"train": {"kind": "bpe", "vocab_size": 300}},
    "unigram": {"train": {"kind": "unigram", "vocab_size": 300}},
    "wordpiece": {"train": {"kind": "wordpiece", "vocab_size": 300}},
    "sentencepiece": {"train": {"kind": "sentencepiece", "vocab_size": 300}},
}


def lists(encoded: Encoded) -> list[list[int]]:
    return (
        [part.tolist() for part in np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])]
        if len(encoded.lengths)
        else []
    )


def check_same(engine: Engine, texts: list[str], eos_id: int | None) -> None:
    expected = engine.encode_batch(texts)
    assert any(expected)
    found = engine.encode_flat(tuple(texts))
    assert (found.ids.dtype, found.lengths.dtype) == (np.uint32, np.int64)
    assert lists(found) == expected == [engine.encode(text) for text in texts]
    assert lists(with_end_of_text(found, eos_id)) == document_tokens(expected, eos_id)
    for nothing in ([], [""], ["", ""]):
        none = engine.encode_flat(nothing)
        assert (none.ids.dtype, none.lengths.tolist()) == (np.uint32, [0] * len(nothing))


@pytest.mark.parametrize("kind", KINDS)
def test_flat_and_lists_are_the_same_ids(kind: str, corpus_glob: str, texts: list[str]) -> None:
    corpus = prepare_corpus(CorpusConfig(parquet=corpus_glob))
    info = prepare_tokenizer(TokenizerConfig.model_validate(KINDS[kind]), corpus)
    check_same(load_tokenizer(info), texts, info.eos_id)


def test_flat_of_an_older_sentencepiece(texts: list[str], bare_sentencepiece: str) -> None:
    from trainer.data.engines.libraries import SentencePiece
    from trainer.data.tokenizers import sentencepiece_model

    class Older:
        """As the library was before it could give arrays."""

        def __init__(self) -> None:
            self.encode = sentencepiece_model(bare_sentencepiece).encode

    assert hasattr(sentencepiece_model(bare_sentencepiece), "EncodeAsNumpy")
    check_same(SentencePiece(Older()), texts, None)


@pytest.mark.slow
def test_flat_of_a_tokenizer_without_a_fast_backend(tmp_path: Path, texts: list[str]) -> None:
    (tmp_path / "vocab.json").write_text('{"<unk>": 0, "a": 1, "th": 2, "e": 3}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "CTRLTokenizer"}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    info = TokenizerInfo("pretrained", str(tmp_path), 4, None, None, None, "", "transformers")
    check_same(load_tokenizer(info), texts, None)
