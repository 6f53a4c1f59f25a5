"""A small corpus of awkward documents, and tokenizers of every kind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.config import CorpusConfig, DataConfig, TokenizerConfig, TrainTokenizer
from trainer.data.corpus import Corpus, prepare_corpus
from trainer.data.tokenizers import TokenizerInfo, prepare_tokenizer

WORDS = [
    "the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "étude", "漢字", "🙂", "ValueError(x[0])", ";",
    "None",
]  # fmt: skip


def make_texts(count: int = 60) -> list[str]:
    """Documents of very different lengths: empty ones, one character, many words, line breaks, several scripts."""
    texts = []
    for number in range(count):
        length = (number * number * 7 + 3 * number) % 97
        words = [WORDS[(number * 5 + at * (number + 3)) % len(WORDS)] for at in range(length)]
        texts.append("\n".join((" ".join(words[:20]), " ".join(words[20:]))).strip())
    texts[0], texts[5], texts[-1] = "", "x", ""
    assert "" in texts[1:-1] or count < 10
    return texts


def write_parquet(path: Path, texts: object, kind: pa.DataType | None = None, row_group: int = 7) -> Path:
    pq.write_table(pa.table({"text": pa.array(texts, kind or pa.string())}), path, row_group_size=row_group)
    return path


@pytest.fixture(scope="session")
def cache() -> Path:
    """The session's (see tests/conftest.py)."""
    return Path(os.environ["HARNESS_CACHE"])


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in which nothing was built yet."""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return make_texts()


@pytest.fixture(scope="session")
def corpus_glob(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> str:
    """Three files, one of them large_string, with row groups of 7."""
    folder = tmp_path_factory.mktemp("corpus")
    write_parquet(folder / "a.parquet", texts[:20])
    write_parquet(folder / "b.parquet", texts[20:45], pa.large_string())
    write_parquet(folder / "c.parquet", texts[45:])
    return str(folder / "*.parquet")


@pytest.fixture(scope="session")
def tokenizer_config() -> TokenizerConfig:
    return TokenizerConfig(train=TrainTokenizer(kind="bpe", vocab_size=300))


@pytest.fixture(scope="session")
def make_config(corpus_glob: str, tokenizer_config: TokenizerConfig) -> Callable[..., DataConfig]:
    def make(**changes: object) -> DataConfig:
        base = {"sequence_length": 16, "batch_size": 3} | {
            "corpus": CorpusConfig(parquet=corpus_glob),
            "tokenizer": tokenizer_config,
        }
        return DataConfig.model_validate(base | changes)

    return make


@pytest.fixture(scope="session")
def bare_pretrained(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> str:
    """A transformers tokenizer without pad, eos and bos, saved with truncation switched on."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    backend.enable_truncation(5)
    folder = tmp_path_factory.mktemp("pretrained")
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def bare_sentencepiece(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> str:
    """A sentencepiece model without pad, eos and bos."""
    import sentencepiece

    prefix = tmp_path_factory.mktemp("sentencepiece") / "model"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in texts for line in text.splitlines()),
        model_prefix=str(prefix),
        vocab_size=120,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
    )
    return f"{prefix}.model"


@pytest.fixture(scope="module")
def corpus(corpus_glob: str) -> Corpus:
    return prepare_corpus(CorpusConfig(parquet=corpus_glob))


@pytest.fixture(scope="module")
def info(corpus: Corpus, tokenizer_config: TokenizerConfig) -> TokenizerInfo:
    return prepare_tokenizer(tokenizer_config, corpus)
