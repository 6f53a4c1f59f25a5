"""Trains a tokenizer on a bounded, deterministic sample of the corpus, with the `tokenizers` library."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from trainer.data import cache
from trainer.data.corpus import Corpus, iter_texts
from trainer.data.long_word import LONGEST_WORD_BYTES, WithoutGiants
from trainer.errors import InputError, one_line
from trainer.files import read_json

MAX_VOCABULARY = 2**27  # rows of an embedding; hundreds of times the largest vocabulary in use
TOKENIZER_RECIPE = 2  # raise it when training changes: it is part of the cache key

FACTS = "facts.json"
END_OF_TEXT = "<|endoftext|>"
UNKNOWN = "<unk>"

# Characters of text. BPE learns from 10 million in about 3 s on one core; unigram's EM is some ten times slower.
_SAMPLE_CHARACTERS = {"bpe": 10_000_000, "wordpiece": 10_000_000, "unigram": 2_000_000}
_LONGEST_CHARACTERS = 200_000  # of one document, so that a single huge one cannot be the whole sample


def train(kind: str, vocab_size: int, corpus: Corpus, folder: Path) -> None:
    """Write ``tokenizer.json`` and its facts into ``folder``.

    The same sample gives the same BPE and WordPiece. The library's unigram trainer is not repeatable to the last digit.
    Giant words are left out, with one line on stderr. Raises InputError where nothing else is left.
    """
    from tokenizers.models import BPE

    # What a word is does not depend on the model.
    splitter = (_bert if kind == "wordpiece" else _byte_level)(BPE())
    sampled = WithoutGiants(sample(corpus, _SAMPLE_CHARACTERS[kind]), splitter)
    texts = list(sampled)
    if sampled.left_out:
        giants = f"{sampled.left_out} word{'s' if sampled.left_out > 1 else ''} of more than {LONGEST_WORD_BYTES} bytes"
        if not texts:
            raise InputError(
                f"data.tokenizer.train: {corpus.name} holds nothing but {giants}, which would take minutes each; "
                "give data.tokenizer.pretrained or data.tokenizer.sentencepiece"
            )
        print(f"data.tokenizer.train: {giants} left out of what the tokenizer learns from", file=sys.stderr)
    tokenizer = {"bpe": _bpe, "unigram": _unigram, "wordpiece": _wordpiece}[kind](texts, vocab_size)
    save(tokenizer, folder)
    write_facts(folder, tokenizer.get_vocab(), tokenizer.token_to_id(END_OF_TEXT), None, None)


def save(tokenizer: Any, folder: Path) -> None:
    """Write ``tokenizer.json``. The library's own ``save`` raises a bare Exception where the disk is full."""
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")


def sample(corpus: Corpus, characters: int) -> Iterator[str]:
    """Yield every k-th document of the corpus, about ``characters`` characters in total."""
    total = sum(min(len(text), _LONGEST_CHARACTERS) for texts in iter_texts(corpus) for text in texts)
    stride = max(1, -(-total // characters))
    index = 0
    for texts in iter_texts(corpus):
        for text in texts:
            if index % stride == 0 and text:
                yield text[:_LONGEST_CHARACTERS]
            index += 1


@dataclass(frozen=True)
class TokenizerFacts:
    """The content of facts.json, beside a ``tokenizer.json``: what `TokenizerInfo` needs to know of it."""

    vocab_size: int
    eos_id: int | None
    bos_id: int | None
    pad_id: int | None
    # Path of the tokenizer, relative to the folder of facts.json; None: the ``tokenizer.json`` beside facts.json.
    location: str | None
    fingerprint: str


def write_facts(
    folder: Path,
    vocabulary: dict[str, int],
    eos_id: int | None,
    bos_id: int | None,
    pad_id: int | None,
    location: str | None = None,
    fingerprint: str | None = None,
) -> None:
    """Write the facts that `TokenizerInfo` needs beside ``tokenizer.json``; ``location`` None means that file.

    Raises InputError for a vocabulary that no model can have.
    """
    largest = largest_id(vocabulary, location or "the tokenizer")
    facts = TokenizerFacts(
        vocab_size=largest + 1,  # ids may have gaps: the embedding must hold the largest
        eos_id=eos_id,
        bos_id=bos_id,
        pad_id=pad_id,
        location=location,
        fingerprint=fingerprint or cache.file_fingerprint(folder / "tokenizer.json"),
    )
    (folder / FACTS).write_text(json.dumps(asdict(facts)))


def largest_id(vocabulary: dict[str, int], name: str) -> int:
    """The largest id; InputError for a vocabulary that no model can have, which names the tokenizer by ``name``."""
    if not vocabulary:
        raise InputError(f"data.tokenizer: the vocabulary of {name} is empty")
    token, largest = max(vocabulary.items(), key=lambda item: item[1])
    if largest >= MAX_VOCABULARY:
        raise InputError(
            f"data.tokenizer: the id of token {one_line(repr(token)):.40} is {largest:,}: a model would hold a row "
            f"for each id up to it; at most {MAX_VOCABULARY - 1:,}"
        )
    return largest


def read_facts(folder: Path) -> TokenizerFacts:
    """Read what :func:`write_facts` wrote, this state of the code or another: keys that came later are left out.

    Raises InputError where it is damaged, or where the file beside it is not the one it is about.
    """
    path = folder / FACTS
    try:
        facts = TypeAdapter(TokenizerFacts).validate_python(read_json(path))
    except (OSError, ValidationError, ValueError) as error:
        raise InputError(f"{path}: not the facts of a tokenizer") from error
    file = folder / (facts.location or "tokenizer.json")
    if file.is_relative_to(folder) and file != folder and cache.file_fingerprint(file) != facts.fingerprint:
        raise InputError(f"{file}: is not the one that facts.json is about")
    return facts


def _byte_level(model: Any) -> Any:
    from tokenizers import Tokenizer, decoders, pre_tokenizers

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _bert(model: Any) -> Any:
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers

    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _byte_alphabet() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _bpe(texts: list[str], vocab_size: int) -> Any:
    from tokenizers import models, trainers

    return _trained(_byte_level(models.BPE()), trainers.BpeTrainer, texts, vocab_size)


def _unigram(texts: list[str], vocab_size: int) -> Any:
    from tokenizers import models, trainers

    return _trained(_byte_level(models.Unigram()), trainers.UnigramTrainer, texts, vocab_size)


def _trained(tokenizer: Any, make_trainer: Any, texts: list[str], vocab_size: int) -> Any:
    trainer = make_trainer(
        vocab_size=vocab_size, special_tokens=[END_OF_TEXT], initial_alphabet=_byte_alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _wordpiece(texts: list[str], vocab_size: int) -> Any:
    """Train WordPiece over BERT's pre-tokenization, with case kept.

    The trainer numbers its ``##x`` pieces in the order of a hash map, which differs between processes. Handing it
    the whole alphabet as special tokens fixes the order; the model is then rebuilt without them being special.
    """
    from tokenizers import AddedToken, models, trainers

    learning = _bert(models.WordPiece(unk_token=UNKNOWN))
    alphabet = _commonest_characters((learning.normalizer.normalize_str(text) for text in texts), vocab_size // 3)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[UNKNOWN, END_OF_TEXT, *alphabet, *("##" + character for character in alphabet)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    learning.train_from_iterator(texts, trainer)
    tokenizer = _bert(models.WordPiece(learning.get_vocab(), unk_token=UNKNOWN))
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in (UNKNOWN, END_OF_TEXT)]
    )
    return tokenizer


def _commonest_characters(texts: Iterator[str], most: int) -> list[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    ranked = sorted((character for character in counts if not character.isspace()), key=lambda c: (-counts[c], c))
    return sorted(ranked[:most])
