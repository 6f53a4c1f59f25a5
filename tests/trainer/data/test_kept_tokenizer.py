"""A tokenizer's folder: this harness and AutoTokenizer read the same ids and special tokens from it."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from trainer.config import TokenizerConfig, TrainTokenizer
from trainer.data.corpus import Corpus
from trainer.data.engines.base import Engine
from trainer.data.kept_tokenizer import keep, kept, write_tokenizer
from trainer.data.tokenizers import FOLDER, TokenizerInfo, load_tokenizer, prepare_tokenizer, special_ids
from trainer.errors import InputError

KINDS = ("bpe", "unigram", "wordpiece", "sentencepiece", "tokenizer.json", "model file", "of transformers alone")


@pytest.fixture(scope="module")
def made(corpus, bare_pretrained, bare_sentencepiece, tmp_path_factory) -> Callable[[str], TokenizerInfo]:
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
def test_auto_tokenizer_gives_the_same_ids_and_special_tokens(made, corpus, kind, texts, tmp_path) -> None:
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


def test_a_folder_of_an_earlier_version_ends_its_documents_too(made, corpus, tmp_path) -> None:
    info = made("bpe")
    (tmp_path / FOLDER).mkdir()
    shutil.copyfile(info.location, tmp_path / FOLDER / "tokenizer.json")
    shutil.copyfile(Path(info.location).with_name("facts.json"), tmp_path / FOLDER / "facts.json")
    for name in (FOLDER, f"{FOLDER}/tokenizer.json"):
        found = prepare_tokenizer(TokenizerConfig(pretrained=str(tmp_path / name)), corpus)
        assert (found.eos_id, found.fingerprint) == (info.eos_id, info.fingerprint)
    keep(info, tmp_path)
    assert auto(tmp_path).eos_token_id == info.eos_id


def test_a_folder_that_was_changed_is_read_as_anybodys(made, corpus, tmp_path) -> None:
    info = made("bpe")
    keep(info, tmp_path)
    path = tmp_path / FOLDER / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["merges"] = content["model"]["merges"][:-1]
    path.write_text(json.dumps(content))
    found = prepare_tokenizer(TokenizerConfig(pretrained=str(path.parent)), corpus)
    assert found.fingerprint != info.fingerprint
    assert found.eos_id == info.eos_id  # tokenizer_config.json names it


Kind = Literal["bpe", "unigram", "wordpiece", "sentencepiece"]


def trained(corpus: Corpus, kind: Kind) -> TokenizerInfo:
    return prepare_tokenizer(TokenizerConfig(train=TrainTokenizer(kind=kind, vocab_size=320)), corpus)


def read(path: Path) -> tuple[tuple[int, ...], list[bytes]]:
    """The header's first four numbers, and each token's bytes."""
    content = path.read_bytes()
    header = struct.unpack("<256i", content[:1024])
    assert not any(header[4:])
    at, tokens = 1024, []
    for _ in range(header[2]):
        length = content[at]
        assert length > 0
        tokens.append(content[at + 1 : at + 1 + length])
        at += 1 + length
    assert at == len(content)
    return header[:4], tokens


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def byte_level(request, corpus, tmp_path_factory) -> tuple[Engine, list[bytes]]:
    info = trained(corpus, request.param)
    out = tmp_path_factory.mktemp("llmc") / "tokenizer.bin"
    write_tokenizer(info, out)
    return load_tokenizer(info), read(out)[1]


@examples(200)
@given(text=st.text())
def test_bytes_of_byte_level_ids_are_the_text(byte_level: tuple[Engine, list[bytes]], text: str) -> None:
    engine, tokens = byte_level
    assert b"".join(tokens[one] for one in engine.encode(text)) == text.encode()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "sentencepiece"])
def test_header_and_special_tokens(corpus: Corpus, kind: Kind, tmp_path: Path) -> None:
    info = trained(corpus, kind)
    found = write_tokenizer(info, tmp_path / "tokenizer.bin")
    header, tokens = read(tmp_path / "tokenizer.bin")
    assert header == (20240328, 2, info.vocab_size, info.eos_id)
    assert (found.vocab_size, found.eos_id) == (info.vocab_size, info.eos_id)
    assert info.eos_id is not None
    assert tokens[info.eos_id] == (b"</s>" if kind == "sentencepiece" else b"<|endoftext|>")


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
def test_words_come_back_with_a_space_before_each(corpus: Corpus, kind: Kind, texts: list[str], tmp_path: Path) -> None:
    info = trained(corpus, kind)
    write_tokenizer(info, tmp_path / "tokenizer.bin")
    _, tokens = read(tmp_path / "tokenizer.bin")
    words = next(text for text in texts if len(text.split()) > 3 and text.isascii()).split()
    text = " ".join(word for word in words if word.isalpha())
    assert text
    assert b"".join(tokens[one] for one in load_tokenizer(info).encode(text)) == f" {text}".encode()


def test_a_tokenizer_that_llmc_cannot_use_is_refused(bare_pretrained: str, corpus: Corpus, tmp_path: Path) -> None:
    info = prepare_tokenizer(TokenizerConfig(pretrained=bare_pretrained), corpus)
    with pytest.raises(InputError, match="no end-of-text id"):
        write_tokenizer(info, tmp_path / "tokenizer.bin")
    assert not (tmp_path / "tokenizer.bin").exists()


def test_gaps_are_placeholders_and_long_tokens_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    def info(name: str, vocabulary: dict[str, int]) -> TokenizerInfo:
        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary))
        backend.decoder = tokenizers.decoders.WordPiece()
        PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>").save_pretrained(tmp_path / name)
        return prepare_tokenizer(TokenizerConfig(pretrained=str(tmp_path / name)), corpus)

    found = write_tokenizer(info("gap", {"</s>": 0, "fox": 3}), tmp_path / "gap.bin")
    assert found.unused == 2
    assert read(tmp_path / "gap.bin") == ((20240328, 2, 4, 0), [b"</s>", b"<|unused 1|>", b"<|unused 2|>", b" fox"])
    for name, length, is_refused in (("longest", 254, False), ("longer", 255, True)):  # a space comes first
        tokenizer = info(name, {"</s>": 0, "x" * length: 1})
        if is_refused:
            with pytest.raises(InputError, match="token 1 has 256 bytes"):
                write_tokenizer(tokenizer, tmp_path / "longer.bin")
        else:
            write_tokenizer(tokenizer, tmp_path / "longest.bin")
            assert len(read(tmp_path / "longest.bin")[1][1]) == 255
