"""A document that is encoded in parts has the ids of the whole, and one that cannot be is encoded whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.data.conftest import WORDS, make_texts
from trainer.config import CorpusConfig, TokenizerConfig, TrainTokenizer
from trainer.data import token_groups
from trainer.data.corpus import prepare_corpus
from trainer.data.engines.base import Encoded, Engine, flat
from trainer.data.token_groups import encode_long
from trainer.data.tokenizers import load_tokenizer, prepare_tokenizer

KINDS = ("bpe", "unigram", "wordpiece", "sentencepiece")


@pytest.fixture(scope="module", params=KINDS)
def engine(request: pytest.FixtureRequest, corpus_glob: str) -> Engine:
    config = TokenizerConfig(train=TrainTokenizer(kind=request.param, vocab_size=320))
    return load_tokenizer(prepare_tokenizer(config, prepare_corpus(CorpusConfig(parquet=corpus_glob))))


class Counting:
    """An engine, and the longest text that it was given."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.longest = 0

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    encode_batch = encode

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        self.longest = max(self.longest, *map(len, texts))
        return self._engine.encode_flat(texts)


def small(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(token_groups, "PART_CHARACTERS", 200)
    patch.setattr(token_groups, "AROUND_CHARACTERS", 60)


def test_the_ids_are_those_of_the_whole_and_no_part_is_long(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    text = "\n".join(make_texts())
    counting = Counting(engine)
    found = encode_long(counting, text)
    assert found.ids.tolist() == engine.encode(text)
    assert found.lengths.tolist() == [len(found.ids)]
    assert counting.longest < 800 < len(text)


PIECES = st.sampled_from([*WORDS, " ", "\n", "  ", "\n\n", "\t", "x" * 70, "'s", "<eos>", "\u00a0", "\r\n", "1", "."])


@given(pieces=st.lists(PIECES, min_size=20, max_size=300))
def test_whatever_the_white_space(engine: Engine, pieces: list[str]) -> None:
    text = "".join(pieces)
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        assert encode_long(engine, text).ids.tolist() == engine.encode(text)


def test_what_cannot_be_cut_is_encoded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted:
        """Each id is the number of characters before: nothing of it is right in parts."""

        def encode_flat(self, texts: Sequence[str]) -> Encoded:
            return flat([list(range(len(text))) for text in texts])

    small(monkeypatch)
    text = "word " * 300
    assert encode_long(Counted(), text).ids.tolist() == list(range(1500))  # type: ignore[arg-type]
    assert encode_long(Counted(), "x" * 1500).ids.tolist() == list(range(1500))  # type: ignore[arg-type]
