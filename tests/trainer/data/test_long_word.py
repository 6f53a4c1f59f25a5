"""A word too long to be learned from costs a line, not minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.data.conftest import write_parquet
from trainer.config import CorpusConfig, TokenizerConfig, TrainTokenizer
from trainer.data import train_tokenizer
from trainer.data.corpus import prepare_corpus
from trainer.data.tokenizers import TokenizerInfo, load_tokenizer, prepare_tokenizer
from trainer.data.train_tokenizer import LONGEST_WORD_BYTES, WithoutGiants
from trainer.errors import InputError

Kind = Literal["bpe", "wordpiece"]
KINDS: tuple[Kind, ...] = ("bpe", "wordpiece")
TEXTS = [" ".join(f"word{number * at % 31}" for at in range(20)) for number in range(40)]


def splitter(kind: Kind) -> object:
    from tokenizers.models import BPE

    return {"bpe": train_tokenizer._byte_level, "wordpiece": train_tokenizer._bert}[kind](BPE())


def trained(folder: Path, kind: Kind, texts: list[str]) -> TokenizerInfo:
    path = write_parquet(folder / f"{len(texts)}-{kind}.parquet", texts)
    config = TokenizerConfig(train=TrainTokenizer(kind=kind, vocab_size=300))
    return prepare_tokenizer(config, prepare_corpus(CorpusConfig(parquet=str(path))))


@pytest.mark.parametrize("kind", KINDS)
def test_long_word_are_left_out_and_reported_in_one_line(
    tmp_path: Path, kind: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = trained(tmp_path, kind, TEXTS)
    assert capsys.readouterr().err == ""
    info = trained(tmp_path, kind, [*TEXTS, "z" * 50_000, "q" * 3000])
    assert capsys.readouterr().err == (
        "data.tokenizer.train: 2 words of more than 2000 bytes excluded from the training of the tokenizer\n"
    )
    assert Path(info.location).read_text() == Path(usual.location).read_text()
    assert load_tokenizer(info).encode("z" * 50_000)  # it is still a document


@pytest.mark.parametrize("kind", KINDS)
def test_a_corpus_of_nothing_else_is_refused_in_one_line(tmp_path: Path, kind: Kind) -> None:
    with pytest.raises(InputError, match="has only 3 words of more than 2000 bytes") as error:
        trained(tmp_path, kind, ["acgt" * 5000] * 3)
    assert "\n" not in str(error.value)


@given(st.lists(st.text(max_size=450), max_size=8))
def test_ordinary_texts_are_left_as_they_are(texts: list[str]) -> None:
    for kind in KINDS:
        assert list(WithoutGiants(texts, splitter(kind))) == texts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("letter", "bytes_each"), [("a", 1), ("\u00e9", 2)], ids=["one byte", "two bytes"])
def test_the_limit_counts_bytes_and_its_neighbours_stay(kind: Kind, letter: str, bytes_each: int) -> None:
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
