"""An engine that is wrong anywhere is refused, with the place; one that is right is timed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.data.conftest import write_parquet
from trainer.config import CorpusConfig, TokenizerConfig
from trainer.data.corpus import Corpus, prepare_corpus
from trainer.data.engines import proof as proofs
from trainer.data.engines import proof_texts
from trainer.data.engines.base import Encoded, flat
from trainer.data.engines.libraries import Fast
from trainer.data.engines.proof import Proof, prove
from trainer.data.engines.proof_texts import HARD, Excerpt, special_cases
from trainer.data.tokenizers import prepare_tokenizer
from trainer.errors import InputError


class Wrong:
    """Encodes as ``reference``, but for texts of which ``wrong`` says what comes of them instead."""

    def __init__(self, reference: Fast, wrong: Callable[[str, list[int]], list[int]]) -> None:
        self._reference, self._wrong = reference, wrong

    def encode(self, text: str) -> list[int]:
        return self._wrong(text, self._reference.encode(text))

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        return flat(self.encode_batch(list(texts)))


@pytest.fixture(scope="module")
def reference(corpus_glob: str) -> Fast:
    config = TokenizerConfig.model_validate({"train": {"kind": "bpe", "vocab_size": 300}})
    return Fast(prepare_tokenizer(config, prepare_corpus(CorpusConfig(parquet=corpus_glob))).location)


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few hard cases, for what the others say nothing of."""
    monkeypatch.setattr(proofs, "HARD", {name: HARD[name] for name in ("empty", "NUL", "emoji")})


@pytest.fixture
def _without_long(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the hard cases no longer one than 10,000 letters, but for the case that the test is about."""
    case = getattr(request.node, "callspec", None) and request.node.callspec.params["case"]
    short = {name: text for name, text in HARD.items() if len(text) <= 10_000 or name == case}
    monkeypatch.setattr(proofs, "HARD", short)


def changed(condition: Callable[[str], bool]) -> Callable[[str, list[int]], list[int]]:
    """Of such texts the last token is another."""
    return lambda text, ids: [*ids[:-1], ids[-1] + 1 if ids else 7] if condition(text) else ids


def proof_of(reference: Fast, engine: Any, texts: Sequence[str] = ("some text", "and more")) -> Proof:
    pieces = [Excerpt(number, 0, text) for number, text in enumerate(texts)]
    return prove("own", reference, {"other": engine}, pieces)


@pytest.mark.usefixtures("_without_long")
def test_the_same_ids_are_proved_and_timed(reference: Fast) -> None:
    texts = ["some text", "", "étude 漢字"] * 10
    proof = proof_of(reference, Wrong(reference, lambda _, ids: ids), texts)
    assert proof.refused == {}
    assert (proof.documents, proof.bytes) == (30, len("".join(texts).encode()))
    assert proof.hard_cases == len(proofs.HARD) + len(special_cases(["<|endoftext|>"])) + 300
    assert set(proof.mb_per_cpu_s) == {"own", "other"}
    assert all(speed > 0 for speed in proof.mb_per_cpu_s.values())


@pytest.mark.usefixtures("_without_long")
@pytest.mark.parametrize(("condition", "case"), [
    (lambda text: not text, "empty"),
    (lambda text: "\x00" in text, "NUL"),
    (lambda text: "e\u0301" in text, "combining marks"),
    (lambda text: "\u200d" in text, "emoji"),
    (lambda text: text.endswith("   "), "trailing spaces"),
    (lambda text: " " * 4097 in text, "5,000 spaces"),
    (lambda text: "a" * 10_000 in text, "one letter 20,000 times"),
    pytest.param(lambda text: len(text) > 150_000, "a long document", marks=(pytest.mark.slow, pytest.mark.nightly)),
    (lambda text: "\U0010ffff" in text, "beyond the basic plane"),
    (lambda text: text == "<|endoftext|>", "special token 0"),
    (lambda text: "<|endoftext" in text and text != "<|endoftext|>", "special token 0 in text"),
])  # fmt: skip
def test_a_hard_case_refuses(reference: Fast, condition: Callable[[str], bool], case: str) -> None:
    proof = proof_of(reference, Wrong(reference, changed(condition)))
    assert proof.refused["other"].startswith(f"hard case {case!r}: token ")
    assert proof.mb_per_cpu_s == {}


@pytest.mark.usefixtures("_few")
def test_a_document_refuses_with_its_place(reference: Fast) -> None:
    text = "a plain beginning, then a word that goes wrong: étude! and a plain end"

    def wrong(given: str, ids: list[int]) -> list[int]:
        return [*ids[:-9], 11, 12] if "étude!" in given else ids

    expected = reference.encode(text)
    proof = proof_of(reference, Wrong(reference, wrong), ["right", "", text, text])
    position = len(expected) - 9
    place = reference.place(text, position)
    theirs = " ".join(map(str, expected[position : position + 4]))
    assert proof.refused["other"] == (
        f"document 2: token {position} is 11 12, the tokenizer's own is {theirs} ..., "
        f"at character {place}, within {text[place - 24 : place + 24]!r}"
    )


class Short(Wrong):
    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        return super().encode_flat([text for text in texts if text != "two"])


class FlatIsRight(Wrong):
    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        return self._reference.encode_flat(texts)


class Alone(Wrong):
    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        return super().encode_flat(texts) if len(texts) == 1 else self._reference.encode_flat(texts)


def once() -> Callable[[str, list[int]], list[int]]:
    """As a cache of words would that mixes two of them up: right when a text comes for the first time."""
    seen: set[str] = set()

    def wrong(text: str, ids: list[int]) -> list[int]:
        again = text == "two" and text in seen
        seen.add(text)
        return ids[::-1] if again else ids

    return wrong


MAIN = threading.get_ident()


@pytest.mark.usefixtures("_few")
@pytest.mark.parametrize(("kind", "wrong", "line"), [
    (Wrong, lambda text, ids: ids[:-1] if text == "two" else ids, "document 1: token "),
    (Wrong, lambda text, ids: [*ids, 5] if text == "two" else ids, "document 1: token "),
    (Wrong, lambda text, ids: [] if text == "two" else ids, "document 1: token "),
    (Short, lambda _, ids: ids, "document 1: "),
    (FlatIsRight, changed(lambda text: "\x00" in text), "hard case 'NUL': its methods disagree with one another"),
    (Wrong, once(), "its ids change when 2 threads encode the same text once more"),
    (Wrong, changed(lambda _: threading.get_ident() != MAIN), "its ids change when 2 threads encode the same text"),
    (Alone, changed(lambda text: text == "one"), "its ids change when 'one' is encoded by itself"),
])  # fmt: skip
def test_one_that_is_wrong_in_any_way_is_refused(reference: Fast, kind: type[Wrong], wrong, line: str) -> None:
    assert proof_of(reference, kind(reference, wrong), ["one", "two", "three"]).refused["other"].startswith(line)


@pytest.mark.usefixtures("_few")
def test_a_token_of_the_vocabulary_refuses(reference: Fast) -> None:
    text = reference.token_texts()[290]
    proof = proof_of(reference, Wrong(reference, changed(lambda one: one == text)))
    assert proof.refused["other"].startswith("token 290 of the vocabulary: token 0 is ")


@pytest.mark.usefixtures("_few")
def test_one_that_raises_is_refused_and_the_others_go_on(reference: Fast) -> None:
    def raises(text: str, ids: list[int]) -> list[int]:
        if text == "two":
            raise InputError("it panics")
        return ids

    pieces = [Excerpt(number, 0, text) for number, text in enumerate(["one", "two", "three"])]
    others = {"panics": Wrong(reference, raises), "right": Wrong(reference, lambda _, ids: ids)}
    proof = prove("own", reference, others, pieces)
    assert proof.refused == {"panics": "it panics (document 0 to document 2)"}
    assert set(proof.mb_per_cpu_s) == {"own", "right"}


@pytest.mark.usefixtures("_few")
def test_a_hard_case_that_the_reference_refuses_is_not_counted(reference, monkeypatch) -> None:
    encode = reference.encode

    def without_emoji(text: str) -> list[int]:
        if text == HARD["emoji"]:
            raise InputError("data.tokenizer: no unknown token")
        return encode(text)

    engine = Wrong(reference, lambda _, ids: ids)
    counted = proof_of(reference, engine).hard_cases
    monkeypatch.setattr(reference, "encode", without_emoji)
    proof = proof_of(reference, engine)
    assert proof.refused == {}
    assert proof.hard_cases == counted - 1


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
