"""A tokenizer's folder: this harness and AutoTokenizer read the same ids and special tokens from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.config import TokenizerConfig, TrainTokenizer
from trainer.data.corpus import Corpus
from trainer.data.kept_tokenizer import keep, kept
from trainer.data.tokenizers import FOLDER, TokenizerInfo, load_tokenizer, prepare_tokenizer, special_ids

KINDS = ("bpe", "unigram", "wordpiece", "sentencepiece", "tokenizer.json", "model file", "of transformers alone")


@pytest.fixture(scope="module")
def made(
    corpus: Corpus, bare_pretrained: str, bare_sentencepiece: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], TokenizerInfo]:
    """The tokenizer of a kind."""

    def make(kind: str) -> TokenizerInfo:
        if kind == "tokenizer.json":
            config = TokenizerConfig(pretrained=bare_pretrained)
        elif kind == "model file":
            config = TokenizerConfig(sentencepiece=bare_sentencepiece)
        elif kind == "of transformers alone":
            from transformers import ByT5Tokenizer

            folder = tmp_path_factory.mktemp("slow")
            ByT5Tokenizer().save_pretrained(folder)
            config = TokenizerConfig(pretrained=str(folder))
        else:
            config = TokenizerConfig(train=TrainTokenizer.model_validate({"kind": kind, "vocab_size": 320}))
        return prepare_tokenizer(config, corpus)

    return make


def auto(owner: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(owner / FOLDER)


@pytest.mark.parametrize("kind", KINDS)
def test_auto_tokenizer_gives_the_same_ids_and_special_tokens(
    made: Callable[[str], TokenizerInfo], corpus: Corpus, kind: str, texts: list[str], tmp_path: Path
) -> None:
    info = made(kind)
    keep(info, tmp_path)
    found = auto(tmp_path)
    assert (found.eos_token_id, found.bos_token_id, found.pad_token_id) == (info.eos_id, info.bos_id, info.pad_id)
    assert found.unk_token_id == special_ids(info).unknown
    assert max(found.get_vocab().values()) + 1 == info.vocab_size
    own = load_tokenizer(info)
    for text in (*texts, "  two\tspaces \n\n", "", "x "):
        assert found.encode(text, add_special_tokens=False) == own.encode(text)
    # Named as a tokenizer, the folder is the same one: pretokenized files of the one are those of the other.
    again = prepare_tokenizer(TokenizerConfig(pretrained=str(tmp_path / FOLDER)), corpus)
    for one in (again, kept(tmp_path)):
        assert one is not None
        same = ("vocab_size", "eos_id", "bos_id", "pad_id", "fingerprint", "engine")
        assert [getattr(one, name) for name in same] == [getattr(info, name) for name in same]


@pytest.fixture(scope="module")
def both(made: Callable[[str], TokenizerInfo], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    info, owner = made("bpe"), tmp_path_factory.mktemp("owner")
    keep(info, owner)
    return load_tokenizer(info), auto(owner)


@settings(deadline=None, max_examples=200)
@given(text=st.text())
def test_any_text_has_the_same_ids(both: tuple[Any, Any], text: str) -> None:
    own, found = both
    assert found.encode(text, add_special_tokens=False) == own.encode(text)


def test_a_folder_of_an_earlier_version_ends_its_documents_too(
    made: Callable[[str], TokenizerInfo], corpus: Corpus, tmp_path: Path
) -> None:
    info = made("bpe")
    (tmp_path / FOLDER).mkdir()
    shutil.copyfile(info.location, tmp_path / FOLDER / "tokenizer.json")
    shutil.copyfile(Path(info.location).with_name("facts.json"), tmp_path / FOLDER / "facts.json")
    for name in (FOLDER, f"{FOLDER}/tokenizer.json"):
        found = prepare_tokenizer(TokenizerConfig(pretrained=str(tmp_path / name)), corpus)
        assert (found.eos_id, found.fingerprint) == (info.eos_id, info.fingerprint)
    keep(info, tmp_path)
    assert auto(tmp_path).eos_token_id == info.eos_id


def test_a_folder_that_was_changed_is_read_as_anybodys(
    made: Callable[[str], TokenizerInfo], corpus: Corpus, tmp_path: Path
) -> None:
    info = made("bpe")
    keep(info, tmp_path)
    path = tmp_path / FOLDER / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["merges"] = content["model"]["merges"][:-1]
    path.write_text(json.dumps(content))
    found = prepare_tokenizer(TokenizerConfig(pretrained=str(path.parent)), corpus)
    assert found.fingerprint != info.fingerprint
    assert found.eos_id == info.eos_id  # tokenizer_config.json names it
