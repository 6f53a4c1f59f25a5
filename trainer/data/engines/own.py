"""Encodes with the library that a tokenizer was made for: `tokenizers`, sentencepiece or transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer.data.engines.base import Encoded, flat, joined
from trainer.errors import InputError, one_line


class Fast:
    """Encodes with the `tokenizers` library itself, without the transformers layer above it."""

    def __init__(self, location: str) -> None:
        import tokenizers

        self._location = location
        self._tokenizer = tokenizers.Tokenizer.from_file(location)
        self._tokenizer.no_truncation()  # a saved tokenizer may carry both; documents are cut by packing alone
        self._tokenizer.no_padding()

    def encode(self, text: str) -> list[int]:
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        except Exception as error:
            raise self._cannot(error) from error

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        try:
            return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        except Exception as error:
            raise self._cannot(error) from error

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        return flat(self.encode_batch(list(texts)))  # the library has no other way out than lists

    def _cannot(self, error: Exception) -> InputError:
        """The library raises plain Exceptions: of a word that a vocabulary without an unknown token lacks, say."""
        return InputError(f"data.tokenizer: {self._location} cannot encode the corpus: {one_line(str(error))}")


class SentencePiece:
    """Encodes with the sentencepiece library, in this thread alone."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def encode(self, text: str) -> list[int]:
        return list(self._model.encode(text, out_type=int))

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return list(self._model.encode(texts, out_type=int, num_threads=1))

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        if not hasattr(self._model, "EncodeAsNumpy"):  # before 0.2.2
            return flat(self.encode_batch(list(texts)))
        return joined(self._model.EncodeAsNumpy(list(texts), num_threads=1))


class Slow:
    """Encodes with a transformers tokenizer that has no fast backend."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False, verbose=False))

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        return flat(self.encode_batch(list(texts)))
