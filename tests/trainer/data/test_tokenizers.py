"""Tokenizers of every kind: trained, somebody else's, with and without special ids."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.data.conftest import write_parquet
from tests.trainer.refusals import refusal
from trainer.config import CorpusConfig, DataConfig, TokenizerConfig, TrainTokenizer
from trainer.data import train_tokenizer
from trainer.data.corpus import Corpus, prepare_corpus
from trainer.data.engines import libraries
from trainer.data.prepare import prepare
from trainer.data.tokenizers import TokenizerInfo, document_tokens, load_tokenizer, prepare_tokenizer
from trainer.data.train_tokenizer import LONGEST_WORD_BYTES, WithoutGiants, read_facts, write_facts
from trainer.errors import InputError

Kind = Literal["bpe", "unigram", "wordpiece"]
KINDS: tuple[Kind, ...] = ("bpe", "unigram", "wordpiece")


def trained(corpus: Corpus, kind: Kind, vocab_size: int = 300) -> TokenizerInfo:
    return prepare_tokenizer(TokenizerConfig(train=TrainTokenizer(kind=kind, vocab_size=vocab_size)), corpus)


@pytest.mark.parametrize("kind", KINDS)
def test_trained_tokenizers_encode_all_documents(corpus: Corpus, kind: Kind, texts: list[str]) -> None:
    info = trained(corpus, kind)
    tokenizer = load_tokenizer(info)
    batch = tokenizer.encode_batch(texts)
    assert batch == [tokenizer.encode(text) for text in texts]
    ids = {token for tokens in batch for token in tokens}
    assert ids
    assert max(ids) < info.vocab_size <= 300
    assert info.eos_id is not None
    assert info.eos_id not in ids
    assert [bool(tokens) for tokens in batch] == [bool(text) for text in texts]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_byte_level_tokenizers_lose_nothing(corpus: Corpus, kind: Kind, texts: list[str]) -> None:
    import tokenizers

    decoder = tokenizers.Tokenizer.from_file(trained(corpus, kind).location)
    for text in [*texts, "never seen: Ω\t\x00 ½"]:
        assert decoder.decode(decoder.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("bpe", marks=pytest.mark.nightly), "wordpiece"])
def test_training_again_gives_the_same_tokenizer(corpus, kind, tmp_path, monkeypatch) -> None:
    first = trained(corpus, kind)
    code = f"""
import sys
from trainer.config import CorpusConfig, TokenizerConfig, TrainTokenizer
from trainer.data.corpus import prepare_corpus
from trainer.data.tokenizers import prepare_tokenizer
corpus = prepare_corpus(CorpusConfig(parquet=sys.argv[1]))
print(prepare_tokenizer(TokenizerConfig(train=TrainTokenizer(kind={kind!r}, vocab_size=300)), corpus).fingerprint)
"""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    pattern = str(Path(corpus.files[0]).with_name("*.parquet"))
    again = subprocess.run([sys.executable, "-c", code, pattern], check=True, capture_output=True, text=True)
    assert again.stdout.strip() == first.fingerprint  # in another process: hash maps iterate in another order there


def test_cached_by_content_and_settings(corpus: Corpus, tmp_path: Path, texts: list[str]) -> None:
    first = trained(corpus, "bpe")
    assert trained(corpus, "bpe") == first
    assert trained(corpus, "bpe", 310).fingerprint != first.fingerprint
    other = prepare_corpus(CorpusConfig(parquet=str(write_parquet(tmp_path / "other.parquet", texts[:30]))))
    assert trained(other, "bpe").location != first.location


def test_the_end_of_document_id_closes_documents_that_have_tokens() -> None:
    assert document_tokens([[1, 2], [], [3]], 9) == [[1, 2, 9], [], [3, 9]]
    assert document_tokens([[1, 2], []], None) == [[1, 2], []]


def test_pretrained_without_special_ids_and_with_truncation(corpus, bare_pretrained, texts) -> None:
    from transformers import AutoTokenizer

    info = prepare_tokenizer(TokenizerConfig(pretrained=bare_pretrained), corpus)
    assert (info.eos_id, info.bos_id, info.pad_id) == (None, None, None)
    tokenizer, reference = load_tokenizer(info), AutoTokenizer.from_pretrained(bare_pretrained)
    assert max(map(len, tokenizer.encode_batch(texts))) > 5  # the truncation saved with it does not apply
    for text in texts:
        assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False, truncation=False)
    assert info.vocab_size == max(reference.get_vocab().values()) + 1


def test_pretrained_without_a_fast_backend(corpus: Corpus, tmp_path: Path, texts: list[str]) -> None:
    from transformers import ByT5Tokenizer

    ByT5Tokenizer().save_pretrained(tmp_path)
    info = prepare_tokenizer(TokenizerConfig(pretrained=str(tmp_path)), corpus)
    tokenizer = load_tokenizer(info)
    assert (info.eos_id, info.pad_id, info.bos_id) == (1, 0, None)
    assert tokenizer.encode("hi") == [ord("h") + 3, ord("i") + 3]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


def test_pretrained_is_imported_again_when_its_files_change(corpus, bare_pretrained, tmp_path) -> None:
    first = prepare_tokenizer(TokenizerConfig(pretrained=bare_pretrained), corpus)
    for file in Path(bare_pretrained).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["added_tokens"].append(
        {"id": 280, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
    )
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert prepare_tokenizer(TokenizerConfig(pretrained=str(tmp_path)), corpus).fingerprint != first.fingerprint


def test_sentencepiece_without_special_ids(corpus: Corpus, bare_sentencepiece: str, texts: list[str]) -> None:
    info = prepare_tokenizer(TokenizerConfig(sentencepiece=bare_sentencepiece), corpus)
    assert (info.eos_id, info.bos_id, info.pad_id) == (None, None, None)
    tokenizer = load_tokenizer(info)
    batch = tokenizer.encode_batch(texts)
    assert batch == [tokenizer.encode(text) for text in texts]
    assert max(token for tokens in batch for token in tokens) < info.vocab_size
    assert prepare_tokenizer(TokenizerConfig(sentencepiece=bare_sentencepiece), corpus) == info


@pytest.mark.parametrize(("vocabulary", "problem"), [
    ({}, "the vocabulary of the tokenizer is empty"),
    ({"a": 0, "b\n": 4_000_000_000}, "the id of token 'b\\\\n' is 4,000,000,000: a model would"),
])  # fmt: skip
def test_a_vocabulary_that_no_model_can_have_is_refused(tmp_path, vocabulary, problem) -> None:
    with pytest.raises(InputError, match=problem):
        write_facts(tmp_path, vocabulary, None, None, None, fingerprint="x")
    assert not list(tmp_path.iterdir())


def saved(vocabulary: dict[str, int], folder: Path) -> TokenizerConfig:
    """A folder as transformers saves a tokenizer of words, without an unknown token."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)
    return TokenizerConfig(pretrained=str(folder))


def test_an_id_that_no_model_can_have_is_refused_before_anything_counts_up_to_it(corpus, tmp_path, monkeypatch) -> None:
    """The library saves a vocabulary by going through every id: of one of 4e9 the process was aborted."""
    monkeypatch.setattr(train_tokenizer, "MAX_VOCABULARY", 100)
    monkeypatch.setattr(train_tokenizer, "save", lambda *_: pytest.fail("was saved first"))
    config = saved({"a": 0, "b": 100}, tmp_path)
    assert "the id of token 'b' is 100: " in refused(config, corpus)


def test_a_word_that_a_vocabulary_lacks_is_one_line(corpus: Corpus, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(prepare_tokenizer(saved({"a": 0, "b": 1}, tmp_path), corpus))
    assert tokenizer.encode("a b a") == [0, 1, 0]
    for encode in (lambda: tokenizer.encode("a c"), lambda: tokenizer.encode_batch(["a c"])):
        with pytest.raises(InputError, match=r"tokenizer.json cannot encode the corpus: WordLevel error: Missing"):
            encode()


def refused(config: TokenizerConfig, corpus: Corpus) -> str:
    return refusal(prepare_tokenizer, config, corpus)


def test_tokenizers_that_are_not_there(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = str(tmp_path / "missing")
    assert "no directory" in refused(TokenizerConfig(pretrained=missing), corpus)
    assert "no directory" in refused(TokenizerConfig(pretrained="./missing"), corpus)
    assert "no file" in refused(TokenizerConfig(sentencepiece=missing), corpus)
    (tmp_path / "empty").mkdir()
    assert "no tokenizer files" in refused(TokenizerConfig(pretrained=str(tmp_path / "empty")), corpus)
    (tmp_path / "text").write_text("no model")
    assert "not a sentencepiece model" in refused(TokenizerConfig(sentencepiece=str(tmp_path / "text")), corpus)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    assert "cannot load" in refused(TokenizerConfig(pretrained=str(tmp_path / "broken")), corpus)
    for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")  # reserved: no resolver knows it
    assert "cannot be reached" in refused(TokenizerConfig(pretrained="no-such/tokenizer"), corpus)
    assert "neither a directory nor a name" in refused(TokenizerConfig(pretrained="not a name!"), corpus)


def test_a_tokenizer_that_went_away(corpus: Corpus, bare_sentencepiece: str, tmp_path: Path) -> None:
    path = tmp_path / "copy.model"
    path.write_bytes(Path(bare_sentencepiece).read_bytes())
    info = prepare_tokenizer(TokenizerConfig(sentencepiece=str(path)), corpus)
    path.unlink()
    with pytest.raises(InputError, match="was deleted after"):
        load_tokenizer(info)


@pytest.mark.slow
def test_preparing_from_the_cache_loads_no_heavy_library(make_config: Callable[..., DataConfig]) -> None:
    config = make_config(path="tokens-padded")
    prepare(config)
    code = """
import sys
from trainer.config import DataConfig
from trainer.data.prepare import prepare
prepared = prepare(DataConfig.model_validate_json(sys.stdin.read()))
print(sorted({"torch", "pyarrow", "transformers", "tokenizers", "sentencepiece"} & set(sys.modules)))
"""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, input=config.model_dump_json(), check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_facts_that_a_later_version_added_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    write_facts(tmp_path, {"a": 0, "b": 6}, 3, None, None)
    facts = read_facts(tmp_path)
    path = tmp_path / "facts.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "of a later version": 1}))
    assert read_facts(tmp_path) == facts
    assert (facts.vocab_size, facts.eos_id) == (7, 3)


@pytest.mark.usefixtures("fresh_cache")
def test_a_tokenizer_that_changed_in_the_cache_is_trained_again_and_never_used(corpus, capsys) -> None:
    info = trained(corpus, "bpe")
    file = Path(info.location)
    content, before = file.read_text(), file.stat()
    changed = content.replace('"version": "1.0"', '"version": "1.1"')
    assert changed != content
    file.write_text(changed)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InputError, match="the tokenizer was changed after it was prepared"):
        load_tokenizer(info)
    assert trained(corpus, "bpe") == info
    assert f"{file.parent}: tokenizer.json differs from what was written; built again" in capsys.readouterr().err
    assert file.read_text() == content


LimitedKind = Literal["bpe", "wordpiece"]
LIMITED: tuple[LimitedKind, ...] = ("bpe", "wordpiece")
TEXTS = [" ".join(f"word{number * at % 31}" for at in range(20)) for number in range(40)]


def splitter(kind: LimitedKind) -> object:
    from tokenizers.models import BPE

    return {"bpe": train_tokenizer._byte_level, "wordpiece": train_tokenizer._bert}[kind](BPE())


def trained_on(folder: Path, kind: LimitedKind, texts: list[str]) -> TokenizerInfo:
    path = write_parquet(folder / f"{len(texts)}-{kind}.parquet", texts)
    config = TokenizerConfig(train=TrainTokenizer(kind=kind, vocab_size=300))
    return prepare_tokenizer(config, prepare_corpus(CorpusConfig(parquet=str(path))))


@pytest.mark.parametrize("kind", LIMITED)
def test_long_word_are_left_out_and_reported_in_one_line(tmp_path, kind, capsys) -> None:
    usual = trained_on(tmp_path, kind, TEXTS)
    assert capsys.readouterr().err == ""
    info = trained_on(tmp_path, kind, [*TEXTS, "z" * 50_000, "q" * 3000])
    assert capsys.readouterr().err == (
        "data.tokenizer.train: 2 words of more than 2000 bytes excluded from the training of the tokenizer\n"
    )
    assert Path(info.location).read_text() == Path(usual.location).read_text()
    assert load_tokenizer(info).encode("z" * 50_000)  # it is still a document


@pytest.mark.parametrize("kind", LIMITED)
def test_a_corpus_of_nothing_else_is_refused_in_one_line(tmp_path: Path, kind: LimitedKind) -> None:
    with pytest.raises(InputError, match="has only 3 words of more than 2000 bytes") as error:
        trained_on(tmp_path, kind, ["acgt" * 5000] * 3)
    assert "\n" not in str(error.value)


@given(st.lists(st.text(max_size=450), max_size=8))
def test_ordinary_texts_are_left_as_they_are(texts: list[str]) -> None:
    for kind in LIMITED:
        assert list(WithoutGiants(texts, splitter(kind))) == texts


@pytest.mark.parametrize("kind", LIMITED)
@pytest.mark.parametrize(("letter", "bytes_each"), [("a", 1), ("\u00e9", 2)], ids=["one byte", "two bytes"])
def test_the_limit_counts_bytes_and_its_neighbours_stay(kind: LimitedKind, letter: str, bytes_each: int) -> None:
    most = LONGEST_WORD_BYTES // bytes_each
    kept = f"before {letter * (most - 1)} after"
    assert list(WithoutGiants([kept], splitter(kind))) == [kept]
    found = WithoutGiants([f"before\n{letter * (most + 1)}\nafter"], splitter(kind))
    assert [text.split() for text in found] == [["before", "after"]]
    assert found.left_out == 1


def test_white_space_is_a_word_too() -> None:
    found = WithoutGiants(["a" + " " * 5000 + "b"], splitter("bpe"))
    assert [text.split() for text in found] == [["a", "b"]]
    assert found.left_out == 1


EVIL = """
from pathlib import Path
from transformers import PreTrainedTokenizerFast, PretrainedConfig
Path({mark!r}).write_text("ran")
class Evil(PreTrainedTokenizerFast): pass
class EvilConfig(PretrainedConfig): model_type = "evil"
"""


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
def test_code_of_a_folder_is_never_run_and_nobody_is_asked(corpus, bare_pretrained, tmp_path, monkeypatch, file):
    folder, mark = tmp_path / "evil", tmp_path / "mark"
    folder.mkdir()
    for path in Path(bare_pretrained).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "evil.py").write_text(EVIL.format(mark=str(mark)))
    code = [None, "evil.Evil"]
    content = {"tokenizer_class": "Evil", "model_type": "evil", "auto_map": {"AutoTokenizer": code}}
    (folder / file).write_text(json.dumps(content))
    asked: list[str] = []

    def yes(prompt: str = "") -> str:
        asked.append(prompt)
        return "y"

    monkeypatch.setattr("builtins.input", yes)  # a user at a terminal who agrees
    line = refused(TokenizerConfig(pretrained=str(folder)), corpus)
    assert f"{folder} carries code of its own ({file}: evil.Evil)" in line
    assert "\n" not in line
    with pytest.raises(InputError, match="carries code of its own"):  # what a run does with a slow one
        libraries.load_auto(str(folder))
    assert not asked
    assert not mark.exists()


def test_code_of_a_model_beside_an_ordinary_tokenizer_is_left_alone(corpus, bare_pretrained, tmp_path, monkeypatch):
    mark = tmp_path / "mark"
    for path in Path(bare_pretrained).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "evil.py").write_text(EVIL.format(mark=str(mark)))
    names = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": names}))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    prepare_tokenizer(TokenizerConfig(pretrained=str(tmp_path)), corpus)
    assert not mark.exists()
    (tmp_path / "tokenizer.json").unlink()  # now it takes the code to know what the tokenizer is
    line = refused(TokenizerConfig(pretrained=str(tmp_path)), corpus)
    assert "carries code of its own (config.json: evil.EvilConfig, config.json: evil.EvilModel)" in line
    assert not mark.exists()
