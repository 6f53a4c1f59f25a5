"""An engine that is wrong anywhere is refused, with the place; one that is right is timed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from trainer.config import CorpusConfig, TokenizerConfig
from trainer.data.corpus import prepare_corpus
from trainer.data.engines import proof as proofs
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
    (lambda text: "\r\n" in text, "CRLF"),
    (lambda text: "e\u0301" in text, "combining marks"),
    (lambda text: "\u200d" in text, "emoji"),
    (lambda text: "\u05d0" in text, "mixed scripts"),
    (lambda text: "\u202b" in text, "right to left"),
    (lambda text: text.endswith("   "), "trailing spaces"),
    (lambda text: " " * 4097 in text, "5,000 spaces"),
    (lambda text: "\n" * 100 in text, "3,000 newlines"),
    (lambda text: "a" * 10_000 in text, "one letter 20,000 times"),
    (lambda text: "'LL" in text, "contractions"),
    (lambda text: "1234567890" in text, "numbers"),
    (lambda text: len(text) > 150_000, "a long document"),
    (lambda text: "\U0010ffff" in text, "beyond the basic plane"),
    (lambda text: text == "<|endoftext|>", "special token 0"),
    (lambda text: "<|endoftext" in text and text != "<|endoftext|>", "special token 0 in text"),
])  # fmt: skip
def test_a_hard_case_refuses(reference: Fast, condition: Callable[[str], bool], case: str) -> None:
    proof = proof_of(reference, Wrong(reference, changed(condition)))
    assert proof.refused["other"].startswith(f"hard case {case!r}: token ")
    assert proof.mb_per_cpu_s == {}


@pytest.mark.usefixtures("_few")
def test_a_token_of_the_vocabulary_refuses(reference: Fast) -> None:
    text = reference.token_texts()[290]
    assert text not in HARD.values()
    proof = proof_of(reference, Wrong(reference, changed(lambda one: one == text)))
    assert proof.refused["other"].startswith("token 290 of the vocabulary: token 0 is ")


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


@pytest.mark.usefixtures("_few")
@pytest.mark.parametrize("wrong", [lambda ids: ids[:-1], lambda ids: [*ids, 5], lambda _: []])
def test_more_or_fewer_tokens_refuse(reference: Fast, wrong: Callable[[list[int]], list[int]]) -> None:
    engine = Wrong(reference, lambda text, ids: wrong(ids) if text == "two" else ids)
    refused = proof_of(reference, engine, ["one", "two", "three"]).refused["other"]
    assert refused.startswith("document 1: token ")


@pytest.mark.usefixtures("_few")
def test_a_document_too_few_refuses(reference: Fast) -> None:
    class Short(Wrong):
        def encode_flat(self, texts: Sequence[str]) -> Encoded:
            return super().encode_flat([text for text in texts if text != "two"])

    refused = proof_of(reference, Short(reference, lambda _, ids: ids), ["one", "two", "x"]).refused["other"]
    assert refused.startswith("document 1: ")


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
def test_one_whose_methods_disagree_is_refused(reference: Fast) -> None:
    class Two(Wrong):
        def encode_flat(self, texts: Sequence[str]) -> Encoded:
            return self._reference.encode_flat(texts)

    proof = proof_of(reference, Two(reference, changed(lambda text: "\x00" in text)))
    assert proof.refused == {"other": "hard case 'NUL': its methods disagree with one another"}


@pytest.mark.usefixtures("_few")
def test_one_that_changes_with_what_it_has_seen_is_refused(reference: Fast) -> None:
    """As a cache of words would that mixes two of them up."""
    seen = set()

    def wrong(text: str, ids: list[int]) -> list[int]:
        if text == "some text" and text in seen:
            return ids[::-1]
        seen.add(text)
        return ids

    refused = proof_of(reference, Wrong(reference, wrong)).refused
    assert refused == {"other": "its ids change when 2 threads encode the same text once more"}


@pytest.mark.usefixtures("_few")
def test_one_that_is_wrong_in_other_threads_is_refused(reference: Fast) -> None:
    main = threading.get_ident()
    engine = Wrong(reference, changed(lambda _: threading.get_ident() != main))
    assert "threads encode the same text" in proof_of(reference, engine).refused["other"]


@pytest.mark.usefixtures("_few")
def test_one_that_encodes_a_text_alone_in_another_way_is_refused(reference: Fast) -> None:
    class Alone(Wrong):
        def encode_flat(self, texts: Sequence[str]) -> Encoded:
            return super().encode_flat(texts) if len(texts) == 1 else self._reference.encode_flat(texts)

    refused = proof_of(reference, Alone(reference, changed(lambda text: text == "some text"))).refused
    assert refused == {"other": "its ids change when 'some text' is encoded by itself"}


@pytest.mark.usefixtures("_few")
def test_a_text_that_the_reference_refuses_proves_nothing(reference: Fast) -> None:
    class Picky(Fast):
        def encode(self, text: str) -> list[int]:
            if "\x00" in text:
                raise InputError("no unknown token")
            return super().encode(text)

    picky = Picky(reference._location)
    engine = Wrong(reference, changed(lambda text: text == HARD["NUL"]))
    assert proof_of(picky, engine).refused == {}


@pytest.mark.usefixtures("_few")
def test_a_hard_case_that_the_reference_refuses_is_not_counted(
    reference: Fast, monkeypatch: pytest.MonkeyPatch
) -> None:
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
