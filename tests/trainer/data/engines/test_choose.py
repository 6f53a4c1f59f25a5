"""An engine in place of a tokenizer's own gives the same ids, or is refused; ``auto`` takes the fastest that does."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.trainer.data.conftest import write_parquet
from tests.trainer.data.engines.test_proof import Wrong, changed
from trainer.config import CorpusConfig, TokenizerConfig
from trainer.data import tokenizers as loaded
from trainer.data.corpus import Corpus, prepare_corpus
from trainer.data.engines import choose, proof
from trainer.data.engines.base import lists
from trainer.data.engines.libraries import OTHERS, Fast
from trainer.data.engines.proof_texts import HARD, special_cases
from trainer.data.tokenizers import TokenizerInfo, load_tokenizer, prepare_tokenizer
from trainer.errors import InputError

BPE = {"train": {"kind": "bpe", "vocab_size": 300}}
PIECES = {"train": {"kind": "sentencepiece", "vocab_size": 300}}
LLAMA3 = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Corpus:
    path = write_parquet(tmp_path_factory.mktemp("engines") / "a.parquet", [*texts, "a<|endoftext|>b", "last"])
    return prepare_corpus(CorpusConfig(parquet=str(path)))


def prepared(corpus: Corpus, train: dict[str, Any] = BPE, **changes: Any) -> TokenizerInfo:
    return prepare_tokenizer(TokenizerConfig.model_validate({**train, **changes}), corpus)


@pytest.fixture(scope="module")
def like_llama(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> str:
    """A folder with a byte-level BPE that splits as Llama 3 does, and has two added tokens, one of them special."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken("<|eot|>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    folder = tmp_path_factory.mktemp("like-llama")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return str(folder)


AT_NIGHT = (pytest.mark.slow, pytest.mark.nightly)
DAILY = [
    ("tiktoken", None),
    ("tiktoken", "as-special"),
    ("gigatoken", None),
    ("gigatoken", "as-text"),
    ("fastokens", None),
]


@pytest.mark.parametrize(
    ("engine", "policy"),
    [
        pytest.param(engine, policy, marks=() if (engine, policy) in DAILY else AT_NIGHT)
        for engine in OTHERS
        for policy in (None, "as-special", "as-text")
    ],
)
def test_the_same_ids_whatever_becomes_of_special_tokens(engine, policy, corpus, texts) -> None:
    pytest.importorskip(engine)
    own = prepared(corpus, special_tokens_in_text=policy)
    info = prepared(corpus, special_tokens_in_text=policy, engine=engine)
    as_text = ", special tokens as text" if policy == "as-text" else ""
    assert info.engine.removesuffix(as_text) == f"{engine} {info.engine.split()[1].rstrip(',')}"
    assert info.engine.endswith(as_text)
    assert (info.proof.documents, info.proof.reference) == (corpus.documents, own.engine.removesuffix(as_text))
    assert pickle.loads(pickle.dumps(info)) == info
    reference, found = load_tokenizer(own), load_tokenizer(info)
    every = [
        *texts,
        *(text for text in HARD.values() if len(text) < 10_000),
        *special_cases(["<|endoftext|>"]).values(),
    ]
    expected = reference.encode_batch(every)
    assert (own.eos_id in reference.encode("a<|endoftext|>b")) == (policy != "as-text")
    assert found.encode_batch(every) == expected
    assert lists(found.encode_flat(every)) == expected
    assert [found.encode(text) for text in every[:20]] == expected[:20]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("engine", OTHERS)
def test_a_tokenizer_of_another_kind(engine: str, corpus: Corpus, like_llama: str) -> None:
    pytest.importorskip(engine)
    for policy in (None, "as-text"):
        own = load_tokenizer(prepared(corpus, {"pretrained": like_llama}, special_tokens_in_text=policy))
        found = load_tokenizer(
            prepared(corpus, {"pretrained": like_llama}, special_tokens_in_text=policy, engine=engine)
        )
        text = "a<|eot|>b<tool>c <|eot|> 1234567 it's IT'S\r\n\r\n  x"
        assert found.encode(text) == own.encode(text)
        assert len(own.encode("<tool>")) == 1  # not special: no policy is about it
        assert len(own.encode("<|eot|>")) == (1 if policy is None else 7)


def test_a_text_that_an_engine_cannot_encode_is_one_line(corpus: Corpus) -> None:
    """A million spaces are more than tiktoken's pattern can go back over; others may learn to."""
    pytest.importorskip("tiktoken")
    engine = load_tokenizer(prepared(corpus, engine="tiktoken"))
    expected = "^data.tokenizer.engine: tiktoken raises .*stack.*; without data.tokenizer.engine the tok"
    with pytest.raises(InputError, match=expected):
        engine.encode("x" + " " * 1_000_000 + "y")


@pytest.mark.parametrize(
    "engine", ["gigatoken", *(pytest.param(one, marks=AT_NIGHT) for one in ("tiktoken", "fastokens"))]
)
def test_one_engine_serves_several_threads_at_once(engine: str, corpus: Corpus) -> None:
    """On texts so long that the libraries let go of Python's lock, which some do not for short ones."""
    pytest.importorskip(engine)
    text = HARD["a long document"]
    found = load_tokenizer(prepared(corpus, engine=engine))
    expected = found.encode_flat([text] * 2)
    alone = found.encode_flat([text])
    assert np.array_equal(expected.ids, np.tile(alone.ids, 2))
    assert np.array_equal(expected.lengths, np.tile(alone.lengths, 2))
    with ThreadPoolExecutor(3) as pool:
        for encoded in pool.map(found.encode_flat, [[text] * 2] * 4):
            assert np.array_equal(encoded.ids, expected.ids)


def test_gigatoken_never_serves_two_threads_with_one_tokenizer(corpus: Corpus) -> None:
    """It raises "Already borrowed" then, but seldom: only while it lets go of Python's lock."""
    pytest.importorskip("gigatoken")
    found: Any = load_tokenizer(prepared(corpus, engine="gigatoken"))
    make, both, made = found._make, threading.Barrier(2), []

    class Borrowed:
        def __init__(self, content: str) -> None:
            self._tokenizer = make(content)
            self._busy = threading.Lock()
            made.append(self)

        def encode(self, text: str) -> Any:
            assert self._busy.acquire(blocking=False), "two threads at once"
            with self._busy_until_both():
                return self._tokenizer.encode(text)

        @contextmanager
        def _busy_until_both(self) -> Iterator[None]:
            both.wait(240)
            yield
            self._busy.release()

    found._make, found._idle = Borrowed, []
    expected = load_tokenizer(prepared(corpus)).encode("some text")
    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(found.encode, ["some text"] * 2)) == [expected] * 2
    assert len(made) == 2  # they are used again


@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
def test_tiktoken_refuses_what_it_cannot_express(kind: str, corpus: Corpus) -> None:
    pytest.importorskip("tiktoken")
    with pytest.raises(InputError, match=r"^data.tokenizer.engine: tiktoken cannot take the place of tokenizers: the"):
        prepared(corpus, {"train": {"kind": kind, "vocab_size": 300}}, engine="tiktoken")


@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
@pytest.mark.parametrize("engine", ["gigatoken", "fastokens"])
def test_what_a_library_cannot_read_is_one_line(engine: str, kind: str, corpus: Corpus) -> None:
    pytest.importorskip(engine)
    with pytest.raises(
        InputError, match=rf"^data.tokenizer.engine: {engine} cannot take .*: {engine} raises .*\w"
    ) as raised:
        prepared(corpus, {"train": {"kind": kind, "vocab_size": 300}}, engine=engine)
    assert "\n" not in str(raised.value)


def test_the_own_library_needs_no_proof(corpus: Corpus) -> None:
    assert prepared(corpus, engine="tokenizers") == prepared(corpus)
    assert prepared(corpus, PIECES, engine="sentencepiece") == prepared(corpus, PIECES)
    assert prepared(corpus).proof is None


@pytest.mark.parametrize(("train", "engine", "allowed"), [
    (BPE, "sentencepiece", "its own is tokenizers; allowed: tokenizers, tiktoken, gigatoken, fastokens, auto"),
    (PIECES, "tiktoken", "its own is sentencepiece; allowed: sentencepiece, gigatoken, auto"),
])  # fmt: skip
def test_a_library_of_other_tokenizers(train: dict[str, Any], engine: str, allowed: str, corpus: Corpus) -> None:
    with pytest.raises(InputError, match=f"^data.tokenizer.engine: {engine} cannot read this tokenizer; {allowed}$"):
        prepared(corpus, train, engine=engine)


def test_one_that_is_not_installed(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "installed", lambda _: False)
    expected = (
        r"^data.tokenizer.engine: fastokens is not installed \(pip install 'llm-training-harness\[fastokens\]'\)$"
    )
    with pytest.raises(InputError, match=expected):
        prepared(corpus, engine="fastokens")
    assert prepared(corpus, engine="auto") == prepared(corpus)


def test_an_engine_that_is_not_known() -> None:
    with pytest.raises(ValidationError, match="'tokenizers', 'sentencepiece', 'tiktoken', 'gigatoken'"):
        TokenizerConfig.model_validate({**BPE, "engine": "youtoken"})


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "HARD", {"empty": ""})


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, make: Any) -> None:
    """Another engine in the place of a library that need not be installed."""
    monkeypatch.setitem(OTHERS, name, make)
    monkeypatch.setattr(choose, "installed", lambda library: library == name)
    ours = lambda library: "1.0" if library == name else "2.0"  # noqa: E731
    monkeypatch.setattr(choose, "version", ours)
    monkeypatch.setattr(loaded, "version", ours)


@pytest.mark.usefixtures("_few", "fresh_cache")
def test_one_that_is_wrong_is_refused_and_auto_does_without(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(location: str, *, special_as_text: bool) -> Wrong:
        return Wrong(Fast(location, special_as_text=special_as_text), changed(lambda text: text == "last"))

    stand_in(monkeypatch, "gigatoken", make)
    document = corpus.documents - 1
    expected = (
        f"^data.tokenizer.engine: gigatoken cannot take the place of tokenizers: document {document}: token [0-9] "
    )
    for _ in range(2):  # a refusal is remembered, too
        with pytest.raises(InputError, match=expected):
            prepared(corpus, engine="gigatoken")
    info = prepared(corpus, engine="auto")
    assert info.engine == "tokenizers 2.0"
    assert info.proof.text.startswith(f"no other engine gives its ids; gigatoken is out: document {document}: token ")


@pytest.mark.usefixtures("_few", "fresh_cache")
def test_only_the_whole_corpus_shows_what_a_sample_does_not_hold(tmp_path, monkeypatch) -> None:
    from trainer.data.engines import proof_texts

    def make(location: str, *, special_as_text: bool) -> Wrong:
        return Wrong(
            Fast(location, special_as_text=special_as_text), changed(lambda text: text.startswith("number 33 "))
        )

    monkeypatch.setattr(proof_texts, "SAMPLE_BYTES", 1000)
    stand_in(monkeypatch, "tiktoken", make)
    texts = [f"number {number} of the texts" for number in range(100)]
    corpus = prepare_corpus(CorpusConfig(parquet=str(write_parquet(tmp_path / "a.parquet", texts))))
    info = prepared(corpus, engine="tiktoken")
    assert (info.proof.documents, info.proof.whole_corpus) == (25, False)
    with pytest.raises(InputError, match=r"tiktoken cannot take the place of tokenizers: document 33: token "):
        prepared(corpus, engine="tiktoken", prove="corpus")


@pytest.mark.usefixtures("_few", "fresh_cache")
def test_auto_takes_the_fastest_and_remembers_it(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "fastokens", Fast)
    proofs = []
    speeds = {"tokenizers": 1.0, "fastokens": 2.0}

    def count(*given: Any) -> proof.Proof:
        found = proof.prove(*given)
        assert set(found.mb_per_cpu_s) == set(speeds)
        proofs.append(found)
        return proof.Proof(found.documents, found.bytes, found.hard_cases, speeds, {})

    monkeypatch.setattr(choose, "prove", count)
    first = prepared(corpus, engine="auto")
    assert first.engine == "fastokens 1.0"
    assert first.proof.text == (
        f"proved to give the ids of tokenizers 2.0 on a sample of the corpus ({corpus.documents} documents, 0.0 MB) "
        f"and on {first.proof.hard_cases:,} other texts; MB of new text per CPU second: fastokens 2.0, tokenizers 1.0"
    )
    assert prepared(corpus, engine="auto") == first
    assert len(proofs) == 1
    speeds["tokenizers"] = 3.0
    assert prepared(corpus, engine="auto", special_tokens_in_text="as-text").engine == (
        "tokenizers 2.0, special tokens as text"
    )
    assert len(proofs) == 2


def test_special_tokens_may_be_refused(corpus: Corpus, tmp_path: Path) -> None:
    number = corpus.documents - 2
    expected = (
        f"^data.tokenizer.special_tokens_in_text: refuse: 1 document of a.parquet holds a special token as text, the "
        rf"first is document {number}: '<\|endoftext\|>'; allowed with them: as-special, as-text$"
    )
    for _ in range(2):
        with pytest.raises(InputError, match=expected):
            prepared(corpus, special_tokens_in_text="refuse")
    other = prepare_corpus(CorpusConfig(parquet=str(write_parquet(tmp_path / "b.parquet", ["no special", "token"]))))
    assert prepared(other, special_tokens_in_text="refuse") == prepared(other)


def test_what_sentencepiece_cannot_do_with_special_tokens(corpus: Corpus) -> None:
    expected = "sentencepiece cannot encode them as-special; allowed: null, as-text, refuse$"
    with pytest.raises(InputError, match=f"^data.tokenizer.special_tokens_in_text: {expected}"):
        prepared(corpus, PIECES, special_tokens_in_text="as-special")
    assert prepared(corpus, PIECES, special_tokens_in_text="as-text") == prepared(corpus, PIECES)
