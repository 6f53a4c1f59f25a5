"""What is counted is what a plain count over all documents gives, in bounded memory."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.trainer.data.conftest import make_texts
from tests.trainer.data.corpus.corpora import jsonl
from trainer.config import CorpusConfig, TokenizerConfig, TrainTokenizer
from trainer.data.corpus import prepare_corpus
from trainer.data.corpus.statistics import _EXACT, CorpusStatistics, DuplicateCounter, _Lengths, statistics_of
from trainer.data.tokenizers import TokenizerInfo, document_tokens, load_tokenizer, prepare_tokenizer, special_ids

LENGTHS = (2, 16, 64, 1000)


def counted(path: Path, tokenizer: TokenizerConfig, column: str = "text") -> tuple[CorpusStatistics, TokenizerInfo]:
    corpus = prepare_corpus(CorpusConfig(path=str(path), column=column))
    info = prepare_tokenizer(tokenizer, corpus)
    return statistics_of(corpus, info, LENGTHS), info


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_counts_are_those_of_a_plain_count(tmp_path: Path, kind: str) -> None:
    texts = [*make_texts(), "x", "the lazy fox", "the lazy fox"]
    found, info = counted(
        jsonl(tmp_path, texts), TokenizerConfig.model_validate({"train": {"kind": kind, "vocab_size": 300}})
    )
    ids = load_tokenizer(info).encode_batch(texts)
    documents = [one for one in document_tokens(ids, info.eos_id) if one]
    lengths = sorted(map(len, documents))
    size = sum(len(text.encode()) for text in texts)
    assert (found.documents, found.empty, found.text_bytes) == (len(texts), texts.count(""), size)
    assert found.tokens == sum(lengths)
    assert found.text_tokens == sum(map(len, ids))
    assert found.tokens_per_byte == pytest.approx(sum(map(len, ids)) / size)
    assert found.mean_tokens == pytest.approx(sum(lengths) / len(lengths))
    assert found.median_tokens == lengths[(len(lengths) + 1) // 2 - 1]
    assert found.longest_tokens == lengths[-1]
    assert found.vocabulary_used_share == len({one for part in ids for one in part}) / info.vocab_size
    again = sum(number - 1 for text, number in Counter(texts).items() if text)
    assert again == 2  # of "x" and of the fox
    assert found.duplicate_documents == again
    assert found.duplicate_share == pytest.approx(again / (len(texts) - texts.count("")))
    assert found.duplicate_bytes_share == pytest.approx(len("x" + "the lazy fox") / size)
    for one, limit in zip(found.at, LENGTHS, strict=True):
        kept = sum(min(length, limit) for length in lengths)
        assert (one.sequence_length, one.padded_rows) == (limit, len(lengths))
        assert one.padding_share == pytest.approx(1 - kept / (len(lengths) * limit))
        assert one.cut_off_share == pytest.approx(1 - kept / sum(lengths))
        assert one.packed_rows == -(-sum(lengths) // limit)
        assert one.packed_padding_share == pytest.approx(1 - sum(lengths) / (one.packed_rows * limit))
    for one in found.bins:
        inside = [length for length in lengths if one.low <= length <= one.high]
        assert (one.documents, one.tokens) == (len(inside), sum(inside))
    assert sum(one.documents for one in found.bins) == len(lengths)


def test_stored_tokens_have_the_statistics_of_their_text(tmp_path: Path, texts: list[str]) -> None:
    of_text, info = counted(jsonl(tmp_path, texts), TokenizerConfig(train=TrainTokenizer(vocab_size=300)))
    ids = document_tokens(load_tokenizer(info).encode_batch(texts), info.eos_id)
    found, _ = counted(jsonl(tmp_path, ids, "input_ids"), TokenizerConfig(pretrained=info.location), "input_ids")
    assert (found.content, found.text_bytes, found.tokens_per_byte) == ("tokens", None, None)
    assert (found.tokens, found.text_tokens, found.bins, found.at) == (
        of_text.tokens, of_text.text_tokens, of_text.bins, of_text.at
    )  # fmt: skip
    assert found.duplicate_documents == of_text.duplicate_documents


def test_unknown_and_special_tokens_are_told_apart(tmp_path: Path) -> None:
    """WordPiece has one unknown token for a whole word; an end-of-text in the text itself is special."""
    texts = ["the lazy fox"] * 30 + ["the <|endoftext|> fox", "the ☃ fox"]
    config = TokenizerConfig(train=TrainTokenizer(kind="wordpiece", vocab_size=300))
    known, info = counted(jsonl(tmp_path, texts[:30]), config)
    assert (known.unknown_share, known.special_share) == (0.0, 0.0)
    special = special_ids(info)
    assert special.unknown in special.ids
    assert info.eos_id in special.ids
    found, _ = counted(jsonl(tmp_path, texts), TokenizerConfig(pretrained=info.location))
    ids = [one for part in load_tokenizer(info).encode_batch(texts) for one in part]
    assert found.unknown_share == pytest.approx(ids.count(special.unknown or 0) / len(ids))
    assert found.special_share == pytest.approx(1 / len(ids))
    assert found.unknown_share


def test_a_tokenizer_without_an_unknown_token_says_so(tmp_path, texts, bare_sentencepiece) -> None:
    found, _ = counted(jsonl(tmp_path, texts), TokenizerConfig(train=TrainTokenizer(vocab_size=300)))
    assert found.unknown_share is None
    of_pieces, info = counted(jsonl(tmp_path, [*texts, "☃ ☃"]), TokenizerConfig(sentencepiece=bare_sentencepiece))
    assert of_pieces.unknown_share
    assert special_ids(info).unknown == 0


@examples(50)
@given(st.lists(st.one_of(st.integers(0, 200), st.integers(_EXACT - 2, 3_000_000)), min_size=1, max_size=60))
def test_quantiles_are_exact_or_within_their_fineness(values: list[int]) -> None:
    lengths = _Lengths([])
    for part in np.array_split(np.array(values, dtype=np.int64), 3):
        lengths.add(part)
    filled = sorted(value for value in values if value)
    if not filled:
        assert lengths.documents == 0
        return
    for share in (0.01, 0.5, 0.9, 1.0):
        exact = filled[max(1, int(np.ceil(share * len(filled)))) - 1]
        found = lengths.quantile(share)
        assert found == exact if exact < _EXACT else exact - 1 <= found <= exact * 2 ** (1 / 60)
    assert lengths.quantile(1.0) <= lengths.longest == filled[-1]


@pytest.mark.parametrize("held", [1, 7, 10_000])
def test_duplicates_are_counted_in_memory_as_in_files(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    monkeypatch.setattr("trainer.data.corpus.statistics._HELD", held)
    draw = random.Random(0)
    contents = [str(draw.randrange(400)).encode() * draw.randrange(3) for _ in range(1000)]
    with DuplicateCounter() as counter:
        for at in range(0, len(contents), 10):
            counter.add(contents[at : at + 10])
        found = counter.count()
        assert bool(counter._files) == (held < 1000)
    assert all(file.closed for file in counter._files)
    counts = Counter(one for one in contents if one)
    assert found.documents == sum(number - 1 for number in counts.values())
    assert found.bytes == sum((number - 1) * len(one) for one, number in counts.items())
