"""Answers multiple-choice questions by likelihood: the most likely ending is the answer.

Four shares of right answers are computed. They differ in the divisor of an ending's log-likelihood:

    acc         none
    acc_norm    its characters: acc_norm of lm-evaluation-harness (version 0.4, api/task.py)
    acc_bytes   its bytes in UTF-8: acc_bytes of lm-evaluation-harness; the same as acc_norm for ASCII
    acc_tokens  its tokens: acc_norm of llm.c, and of scripts like nanoGPT's

An ending follows its context after a space. Its tokens include the space, its length does not. Context and ending are
encoded together, as in lm-evaluation-harness: the ending's tokens follow as many tokens as the context alone has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.compute.scores import EndingRow
from trainer.config import MultipleChoiceConfig, Objective
from trainer.data.engines.base import Engine
from trainer.data.engines.libraries import TextCodec
from trainer.data.questions import ENDINGS, TextQuestion, TokenQuestion, is_bin, read_bin, read_jsonl
from trainer.data.tokenizers import TokenizerInfo, load_codec, load_tokenizer
from trainer.errors import InputError

KEY = "evaluation.multiple_choice"
QUESTIONS_TRIED = 32  # contexts of a .bin file that the arm's tokenizer must reproduce


class ChoiceScores(NamedTuple):
    """Shares (0 to 1) of ``questions`` answered right; None if lengths are unknown, NaN for a diverged model."""

    questions: int
    acc: float
    acc_norm: float | None
    acc_bytes: float | None
    acc_tokens: float


@dataclass(frozen=True)
class Choices:
    """Every ending of every question after its context, tokenized: :data:`ENDINGS` rows per question, in order."""

    rows: tuple[EndingRow, ...]
    labels: NDArray[np.int64]
    texts: tuple[str, ...] | None  # texts of the endings, without the leading space; None: unknown
    shortened: int = 0  # rows that lost the beginning of their context, because they exceed the model's positions

    @property
    def what_was_left_out(self) -> str:
        """Sentence on the number of rows that lost the beginning of their contexts, for a log."""
        return (
            f"{self.shortened:,} of {len(self.rows):,} rows (a context with one ending) are longer than the model's "
            "positions: the beginning of their contexts is left out, as in lm-evaluation-harness"
        )

    def scores(self, likelihoods: Sequence[float]) -> ChoiceScores:
        """Return the shares of right answers by the log-likelihood of each row's ending, in the order of ``rows``."""
        sums = np.asarray(likelihoods, dtype=np.float64)
        tokens = np.array([row.scored for row in self.rows])
        by_character = by_byte = None
        if self.texts is not None:
            by_character = self._share(sums / np.array([len(text) for text in self.texts]))
            by_byte = self._share(sums / np.array([len(text.encode()) for text in self.texts]))
        return ChoiceScores(len(self.labels), self._share(sums), by_character, by_byte, self._share(sums / tokens))

    def _share(self, values: NDArray[np.float64]) -> float:
        if np.isnan(values).any():
            return float("nan")
        return float((values.reshape(-1, ENDINGS).argmax(axis=1) == self.labels).mean())


def load_choices(
    config: MultipleChoiceConfig, tokenizer: TokenizerInfo | None, longest_row: int | None, key: str = f"{KEY}.path"
) -> Choices:
    """Read and tokenize questions. A row above ``longest_row`` ids loses its context's beginning. Raises InputError.

    ``tokenizer`` None: only for a .bin file, whose ``acc_norm`` and ``acc_bytes`` are then unknown.
    """
    if is_bin(config.path):
        places, choices = _of_tokens(read_bin(config.path, key, config.most), tokenizer, key)
    else:
        places, choices = _of_text(config, tokenizer, key)
    return choices if longest_row is None else _fitting(choices, places, longest_row)


def check_causal(objective: Objective) -> None:
    """Raise InputError for a masked model, because it has no likelihood of following text."""
    if objective != "causal":
        raise InputError(f"{KEY}: the likelihood of an ending needs a causal model, but model.objective is masked")


def _of_text(config: MultipleChoiceConfig, info: TokenizerInfo | None, key: str) -> tuple[list[str], Choices]:
    if info is None or info.kind == "source":
        raise InputError(
            f"{key}: {config.path} holds text, but the tokenizer is unknown here; allowed: a .bin with token ids"
        )
    prompt = None if config.prompt == "auto" else config.prompt
    questions = list(read_jsonl(config.path, key, config.most, prompt))
    rows = _encoded(questions, load_tokenizer(info))
    texts = tuple(ending for question in questions for ending in question.endings)
    return [question.place for question in questions], Choices(
        tuple(rows), np.array([question.label for question in questions]), texts
    )


def _encoded(questions: Sequence[TextQuestion], engine: Engine) -> list[EndingRow]:
    # White space at the end of a context belongs to the ending, because a tokenizer joins it to the next word.
    contexts = [question.context.rstrip() for question in questions]
    wholes = [f"{question.context} {ending}" for question in questions for ending in question.endings]
    context_ids = engine.encode_batch(contexts)
    rows = []
    for number, ids in enumerate(engine.encode_batch(wholes)):
        context = context_ids[number // ENDINGS]
        ending = ids[len(context) :]
        if not context or not ending:
            question = questions[number // ENDINGS]
            place = "ctx" if not context else f"endings: number {number % ENDINGS} (from 0)"
            raise InputError(
                f"{question.place}: {place}: the tokenizer makes no token of it; give text that it can encode"
            )
        rows.append(EndingRow(np.array([*context, *ending], dtype=np.int64), len(ending)))
    return rows


def _of_tokens(questions: Sequence[TokenQuestion], info: TokenizerInfo | None, key: str) -> tuple[list[str], Choices]:
    rows = [
        EndingRow(np.concatenate([question.context, ending]), len(ending))
        for question in questions
        for ending in question.endings
    ]
    texts = None
    if info is not None and info.kind != "source":
        codec = load_codec(info)
        _check_tokens(questions, info, codec, key)
        texts = tuple(
            codec.decode(ending.tolist()).removeprefix(" ") for question in questions for ending in question.endings
        )
        if not all(texts):  # An ending of a single space has no length to divide by.
            texts = None
    return [question.place for question in questions], Choices(
        tuple(rows), np.array([question.label for question in questions]), texts
    )


def _check_tokens(questions: Sequence[TokenQuestion], info: TokenizerInfo, codec: TextCodec, key: str) -> None:
    """Raise InputError if the tokens are not this tokenizer's: a few contexts must survive decoding and encoding."""
    largest = max(int(part.max()) for question in questions for part in (question.context, *question.endings))
    if largest >= info.vocab_size:
        raise InputError(
            f"{key}: it holds the id {largest}, and the arm's tokenizer has {info.vocab_size} ids; allowed: a .bin "
            "made with that tokenizer, or a jsonl file"
        )
    for question in questions[:QUESTIONS_TRIED]:
        ids = question.context.tolist()
        if codec.encode(codec.decode(ids)) != ids:
            raise InputError(
                f"{question.place}: its context, decoded and encoded again by the arm's tokenizer, has other ids; "
                "allowed: a .bin made with that tokenizer, or a jsonl file"
            )


def _fitting(choices: Choices, places: Sequence[str], longest_row: int) -> Choices:
    shortened, rows = 0, []
    for number, row in enumerate(choices.rows):
        if row.scored >= longest_row:
            raise InputError(
                f"{places[number // ENDINGS]}: ending {number % ENDINGS} (from 0) has {row.scored} tokens, and the "
                f"model has rows of {longest_row} with at least one of the context; allowed: a model of more "
                "positions, or shorter endings"
            )
        shortened += len(row.ids) > longest_row
        rows.append(EndingRow(row.ids[-longest_row:], row.scored))
    return Choices(tuple(rows), choices.labels, choices.texts, shortened)
