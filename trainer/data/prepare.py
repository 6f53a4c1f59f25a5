"""Everything a data configuration needs, built once or found in the cache, before any trainer process starts."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config import DataConfig
from trainer.data.corpus import Corpus, prepare_corpus
from trainer.data.pretokenize import Format, pretokenize
from trainer.data.tokenizers import TokenizerInfo, prepare_tokenizer
from trainer.errors import InputError


@dataclass(frozen=True)
class Prepared:
    """What the loader needs to know of the input; picklable, so that workers get it."""

    corpus: Corpus
    tokenizer: TokenizerInfo
    pretokenized: str | None  # folder with data.parquet and manifest.json; None for text-* paths

    @property
    def vocab_size(self) -> int:
        """Smallest embedding table that holds every token id."""
        return self.tokenizer.vocab_size


def prepare(config: DataConfig) -> Prepared:
    """Build what ``config`` needs, or find it in the cache; never imports torch (a hub tokenizer's first use does).

    InputError with one line for every input that cannot serve.
    """
    corpus = prepare_corpus(config.corpus)
    tokenizer = prepare_tokenizer(config.tokenizer, corpus)
    format = format_of(config)
    if format is None:
        return Prepared(corpus, tokenizer, None)
    return Prepared(corpus, tokenizer, pretokenize(corpus, tokenizer, format, config.sequence_length).folder)


def format_of(config: DataConfig) -> Format | None:
    """The pretokenized format that the path reads; None where it reads text."""
    formats: dict[str, Format] = {"tokens-padded": "padded", "tokens-stream": "token-list"}
    return formats.get(config.path)


def check_workers(config: DataConfig, prepared: Prepared) -> None:
    """InputError where there are more loader workers than documents for them."""
    documents = prepared.corpus.documents - prepared.corpus.empty
    if config.workers > documents:
        raise InputError(
            f"data.workers: {config.workers} workers but only {documents} document{'s' if documents != 1 else ''} "
            f"in the corpus {prepared.corpus.name}; at most {documents}"
        )
