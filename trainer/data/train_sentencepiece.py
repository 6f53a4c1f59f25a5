"""Trains a SentencePiece unigram model on a bounded sample of the corpus, with that library's own trainer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainer.data import cache
from trainer.data.corpus import Corpus
from trainer.data.train_tokenizer import sample
from trainer.errors import InputError, one_line

SENTENCEPIECE_RECIPE = 1  # raise it when training changes: it is part of the cache key
MODEL = "sentencepiece.model"
_SAMPLE_CHARACTERS = 1_000_000  # its EM takes some 10 s for them on one core
_MAX_LINE_BYTES = 4_000  # bytes; the trainer leaves out longer ones


def trained(corpus: Corpus, vocab_size: int) -> str:
    """The model file, trained once for this corpus and size. Raises InputError where it cannot be."""
    key = [SENTENCEPIECE_RECIPE, corpus.fingerprint, vocab_size]
    return str(cache.folder("sentencepiece", key, lambda to: _train(corpus, vocab_size, to), _check) / MODEL)


def _train(corpus: Corpus, vocab_size: int, to: Path) -> None:
    import sentencepiece

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_lines(corpus),
            model_prefix=str(to / MODEL.removesuffix(".model")),
            vocab_size=vocab_size,
            model_type="unigram",
            byte_fallback=True,  # no text is unknown
            hard_vocab_limit=False,  # a small corpus has fewer pieces
            num_threads=1,  # the same sample gives the same model
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise InputError(
            f"data.tokenizer.train: sentencepiece cannot learn {vocab_size} pieces from {corpus.name}: "
            f"{one_line(str(error))}"
        ) from error
    (to / MODEL.replace(".model", ".vocab")).unlink(missing_ok=True)


def _lines(corpus: Corpus) -> Iterator[str]:
    for text in sample(corpus, _SAMPLE_CHARACTERS):
        yield from (line for line in text.splitlines() if line.strip() and len(line.encode()) <= _MAX_LINE_BYTES)


def _check(folder: Path) -> None:
    if not (folder / MODEL).is_file():
        raise InputError(f"{folder / MODEL}: is missing")
