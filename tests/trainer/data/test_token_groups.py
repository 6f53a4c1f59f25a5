"""Documents become tokens in bounded groups, in order, whatever the number of workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import count, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.data.conftest import WORDS, make_texts
from trainer.config import CorpusConfig, TokenizerConfig, TrainTokenizer
from trainer.data import token_groups
from trainer.data.corpus import prepare_corpus
from trainer.data.engines.base import Encoded, Engine, flat
from trainer.data.token_groups import TextGroup, corpus_groups, encode_long, encoded_groups, text_groups
from trainer.data.tokenizers import TokenizerInfo, document_tokens, load_tokenizer, prepare_tokenizer
from trainer.errors import InputError


def documents(groups: Iterator[token_groups.TokenGroup]) -> list[list[int]]:
    found = []
    for group in groups:
        places = np.concatenate([[0], np.cumsum(group.lengths)])
        found += [group.ids[start:end].tolist() for start, end in pairwise(places)]
    return found


def test_groups_are_bounded_in_documents_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_groups, "GROUP_BYTES", 10)
    groups = list(text_groups([["12345", "123456"], ["é" * 4, "", "x" * 50], ["y"]]))
    assert [group.texts for group in groups] == [["12345"], ["123456"], ["éééé", ""], ["x" * 50], ["y"]]
    assert [group.text_bytes for group in groups] == [5, 6, 8, 50, 1]
    assert [len(group.texts) for group in text_groups([[""] * 2500])] == [1000, 1000, 500]


def test_a_long_document_is_a_group_by_itself_behind_empty_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only alone is it encoded in parts: with an empty document beside it, it would take 120 times its size."""
    monkeypatch.setattr(token_groups, "GROUP_BYTES", 10)
    groups = [group.texts for group in text_groups([["", "x" * 50, ""], ["", "y" * 50]])]
    assert groups == [[""], ["x" * 50], ["", ""], ["y" * 50]]


@pytest.mark.parametrize(("workers", "start"), [(1, 0), (2, 1), (5, 44), (2, 60), (5, 0)])
def test_the_tokens_are_those_of_each_document(corpus, info, texts, monkeypatch, workers, start) -> None:
    monkeypatch.setattr(token_groups, "GROUP_BYTES", 200)
    expected = document_tokens([load_tokenizer(info).encode(text) for text in texts], info.eos_id)
    found = list(corpus_groups(corpus, info, start, workers))
    assert documents(iter(found)) == expected[start:]
    assert sum(group.text_bytes for group in found) == sum(len(text.encode()) for text in texts[start:])
    assert {group.ids.dtype.name for group in found} <= {"uint16"}


def test_no_more_text_is_read_than_may_be_in_flight(info: TokenizerInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_groups, "IN_FLIGHT_BYTES", 100)
    read: list[int] = []

    def groups() -> Iterator[TextGroup]:
        for number in range(20):
            read.append(number)
            yield TextGroup(["x" * 60], 60)

    for done, _ in enumerate(encoded_groups(groups(), info, workers=4)):
        # One is encoded, one waits for its turn, one lies ready, one is held by who reads.
        assert len(read) <= done + 4
    assert len(read) == 20


def reads_corpus() -> bool:
    return any(one.name == "read corpus" for one in threading.enumerate())


def test_what_cannot_be_read_is_raised_where_groups_are_taken(info: TokenizerInfo) -> None:
    def groups() -> Iterator[TextGroup]:
        yield TextGroup(["a"], 1)
        raise InputError("no such row")

    with pytest.raises(InputError, match="no such row"):
        list(encoded_groups(groups(), info, workers=2))
    assert not reads_corpus()


def test_whoever_stops_taking_groups_ends_the_reading(info: TokenizerInfo) -> None:
    found = encoded_groups((TextGroup(["x" * 60], 60) for _ in count()), info, workers=2)
    next(found)
    assert reads_corpus()
    found.close()  # type: ignore[attr-defined]
    assert not reads_corpus()


def test_what_the_engine_cannot_encode_ends_it_at_once(info: TokenizerInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load_tokenizer(info)

    def refuse(_: object) -> None:
        raise InputError("no such word")

    monkeypatch.setattr(engine, "encode_flat", refuse)
    monkeypatch.setattr(token_groups, "load_tokenizer", lambda _: engine)
    with pytest.raises(InputError, match="no such word"):
        list(encoded_groups(text_groups([["a"]] * 3), info, workers=2))


def test_an_id_outside_of_the_vocabulary_is_refused_and_not_cut_off(info: TokenizerInfo) -> None:
    from dataclasses import replace

    with pytest.raises(InputError, match=r"gave the id \d+, outside of its vocabulary of 5"):
        list(encoded_groups(text_groups([["a fox"]]), replace(info, vocab_size=5), workers=1))


@pytest.mark.slow
@pytest.mark.nightly
def test_an_engine_that_holds_pythons_lock_works_in_processes(info, texts, monkeypatch) -> None:
    """As of transformers without a fast backend; here any engine is taken for one."""
    monkeypatch.setattr(token_groups, "Slow", type(load_tokenizer(info)))
    monkeypatch.setattr(token_groups, "GROUP_BYTES", 2000)
    expected = document_tokens([load_tokenizer(info).encode(text) for text in texts], info.eos_id)
    assert documents(encoded_groups(text_groups([texts]), info, workers=2)) == expected


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
