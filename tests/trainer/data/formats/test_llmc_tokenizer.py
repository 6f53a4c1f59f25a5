"""The tokenizer file of llm.c: read as its tokenizer.h does, ids give back the text they were made of."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.config import TokenizerConfig, TrainTokenizer
from trainer.data.corpus import Corpus
from trainer.data.engines.base import Engine
from trainer.data.kept_tokenizer import write_tokenizer
from trainer.data.tokenizers import TokenizerInfo, load_tokenizer, prepare_tokenizer
from trainer.errors import InputError

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
def byte_level(
    request: pytest.FixtureRequest, corpus: Corpus, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Engine, list[bytes]]:
    info = trained(corpus, request.param)
    out = tmp_path_factory.mktemp("llmc") / "tokenizer.bin"
    write_tokenizer(info, out)
    return load_tokenizer(info), read(out)[1]


@settings(deadline=None, max_examples=200)
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
