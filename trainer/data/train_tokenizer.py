"""Trains a tokenizer on a bounded, deterministic sample of the corpus, with `tokenizers` or sentencepiece."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from trainer.data import cache
from trainer.data.corpus import Corpus, iter_texts
from trainer.errors import InputError, one_line
from trainer.files import read_json

MAX_VOCABULARY = 2**27  # rows of an embedding; hundreds of times the largest vocabulary in use
# Raise these when training changes: they are part of the cache keys.
TOKENIZER_RECIPE = 2
SENTENCEPIECE_RECIPE = 1

FACTS = "facts.json"
END_OF_TEXT = "<|endoftext|>"
UNKNOWN = "<unk>"

MODEL = "sentencepiece.model"

# Characters of text. BPE learns from 10 million in about 3 s on one core; unigram's EM is some ten times slower.
_SAMPLE_CHARACTERS = {"bpe": 10_000_000, "wordpiece": 10_000_000, "unigram": 2_000_000, "sentencepiece": 1_000_000}
_LONGEST_CHARACTERS = 200_000  # cap per document, so that one huge document is not the whole sample
LONGEST_WORD_BYTES = 2000  # UTF-8; a sample of nothing but such words trains in half a minute, not hours
_FEWEST_CHARACTERS = LONGEST_WORD_BYTES // 4  # minimum length of a longer word
_BLANK = re.compile(rf"\s{{{_FEWEST_CHARACTERS}}}")  # white space is a word too
_MAX_LINE_BYTES = 4_000  # sentencepiece's trainer drops longer lines


def train(kind: str, vocab_size: int, corpus: Corpus, folder: Path) -> None:
    """Train ``kind`` on a sample without giant words; write tokenizer.json and facts. InputError if none is left."""
    from tokenizers.models import BPE

    # Any model will do: it does not change where words end.
    splitter = (_bert if kind == "wordpiece" else _byte_level)(BPE())
    sampled = WithoutGiants(sample(corpus, _SAMPLE_CHARACTERS[kind]), splitter)
    texts = list(sampled)
    if sampled.left_out:
        giants = f"{sampled.left_out} word{'s' if sampled.left_out > 1 else ''} of more than {LONGEST_WORD_BYTES} bytes"
        if not texts:
            raise InputError(
                f"data.tokenizer.train: {corpus.name} has only {giants}, which would take minutes each; give "
                "data.tokenizer.pretrained or data.tokenizer.sentencepiece"
            )
        print(f"data.tokenizer.train: {giants} excluded from the training of the tokenizer", file=sys.stderr)
    if kind == "wordpiece":
        tokenizer = _train_wordpiece(texts, vocab_size)
    else:
        tokenizer = _train_byte_level(kind, texts, vocab_size)
    save(tokenizer, folder)
    write_facts(folder, tokenizer.get_vocab(), tokenizer.token_to_id(END_OF_TEXT), None, None)


def save(tokenizer: Any, folder: Path) -> None:
    """Write tokenizer.json; the library's own ``save`` raises a bare Exception for a full disk."""
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")


def sample(corpus: Corpus, characters: int) -> Iterator[str]:
    """Yield every k-th document, or the beginning of a very long one: about ``characters`` in total."""
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
    """Content of facts.json: the facts that `TokenizerInfo` needs about the tokenizer in the same folder."""

    vocab_size: int
    eos_id: int | None
    bos_id: int | None
    pad_id: int | None
    location: str | None  # path relative to the folder of facts.json; None: the ``tokenizer.json`` in that folder
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
    """Write facts.json into ``folder``. Raises InputError if ``vocabulary`` is empty or an id is too large."""
    largest = largest_id(vocabulary, location or "the tokenizer")
    facts = TokenizerFacts(
        vocab_size=largest + 1,  # Ids may have gaps: the embedding must hold the largest one.
        eos_id=eos_id,
        bos_id=bos_id,
        pad_id=pad_id,
        location=location,
        fingerprint=fingerprint or cache.file_fingerprint(folder / "tokenizer.json"),
    )
    (folder / FACTS).write_text(json.dumps(asdict(facts)))


def largest_id(vocabulary: dict[str, int], name: str) -> int:
    """Return the largest id. Raises InputError, naming ``name``, if there is none below MAX_VOCABULARY."""
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
    """Read facts.json. Raises InputError if it is damaged, or if the tokenizer was changed after it was written."""
    path = folder / FACTS
    try:
        facts = TypeAdapter(TokenizerFacts).validate_python(read_json(path))
    except (OSError, ValidationError, ValueError) as error:
        raise InputError(f"{path}: does not contain the facts of a tokenizer") from error
    file = folder / (facts.location or "tokenizer.json")
    if file.is_relative_to(folder) and file != folder and cache.file_fingerprint(file) != facts.fingerprint:
        raise InputError(f"{file}: does not match facts.json")
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


def _train_byte_level(kind: str, texts: list[str], vocab_size: int) -> Any:
    """Return a tokenizer of byte-level BPE (``kind`` bpe) or unigram, trained on ``texts``."""
    from tokenizers import models, pre_tokenizers, trainers

    tokenizer = _byte_level(models.BPE() if kind == "bpe" else models.Unigram())
    trainer = (trainers.BpeTrainer if kind == "bpe" else trainers.UnigramTrainer)(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _train_wordpiece(texts: list[str], vocab_size: int) -> Any:
    """Return a WordPiece over BERT's pre-tokenization, with an alphabet that fixes the order of its ``##x`` pieces."""
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


class WithoutGiants:
    """Iterates over texts without giant words, whose training time is quadratic; ``left_out`` counts these."""

    def __init__(self, texts: Iterable[str], tokenizer: Any) -> None:
        """Keep the texts. ``tokenizer``: its normalizer and pre-tokenizer define where words end."""
        self._texts = texts
        self._normalizer, self._pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
        self.left_out = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            if not _may_hold_a_giant(text):
                yield text
            elif (rest := self._cut(text)).strip():
                yield rest

    def _cut(self, text: str) -> str:
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        kept, piece_start = [], 0
        for _, (start, end) in self._pre_tokenizer.pre_tokenize_str(text):
            if end - start >= _FEWEST_CHARACTERS and len(text[start:end].encode()) > LONGEST_WORD_BYTES:
                kept.append(text[piece_start:start])
                piece_start = end
                self.left_out += 1
        return "\n".join([*kept, text[piece_start:]]) if kept else text


def _may_hold_a_giant(text: str) -> bool:
    longest = max(map(len, text.split()), default=0)
    return longest >= _FEWEST_CHARACTERS - 1 or _BLANK.search(text) is not None


def trained_sentencepiece(corpus: Corpus, vocab_size: int) -> str:
    """Return the path of the cached unigram model for this corpus and size. Raises InputError if training fails."""

    def check(folder: Path) -> None:
        if not (folder / MODEL).is_file():
            raise InputError(f"{folder / MODEL}: is missing")

    key = [SENTENCEPIECE_RECIPE, corpus.fingerprint, vocab_size]
    return str(
        cache.folder("sentencepiece", key, lambda to: _train_sentencepiece(corpus, vocab_size, to), check) / MODEL
    )


def _train_sentencepiece(corpus: Corpus, vocab_size: int, to: Path) -> None:
    import sentencepiece

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_lines(corpus),
            model_prefix=str(to / MODEL.removesuffix(".model")),
            vocab_size=vocab_size,
            model_type="unigram",
            byte_fallback=True,
            hard_vocab_limit=False,  # A small corpus has fewer pieces.
            num_threads=1,  # makes the model repeatable
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise InputError(
            f"data.tokenizer.train: sentencepiece cannot learn {vocab_size} pieces from {corpus.name}: "
            f"{one_line(str(error))}"
        ) from error
    (to / MODEL.replace(".model", ".vocab")).unlink(missing_ok=True)


def _lines(corpus: Corpus) -> Iterator[str]:
    for text in sample(corpus, _SAMPLE_CHARACTERS["sentencepiece"]):
        yield from (line for line in text.splitlines() if line.strip() and len(line.encode()) <= _MAX_LINE_BYTES)
