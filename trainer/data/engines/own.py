"""Encodes with the library that a tokenizer was made for: `tokenizers`, sentencepiece or transformers.

These are the references: another engine is used only if its ids are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from trainer.data.engines.base import Encoded, Engine, flat, joined
from trainer.errors import InputError, one_line


class Reference(Engine, Protocol):
    """Engine of the library that a tokenizer was made for. Other engines are compared with it."""

    def special_tokens(self) -> list[str]:
        """Return the written form of the tokens that represent no text."""

    def token_texts(self) -> list[str]:
        """Return each token of the vocabulary, decoded alone: a part of a character becomes U+FFFD."""

    def place(self, text: str, position: int) -> int:
        """Return the character of ``text`` at which token ``position`` begins, approximately."""


class TextCodec(Protocol):
    """Interface that turns text into ids, and ids into text."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of one document, without special tokens."""

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, with special tokens in written form (sentencepiece omits its control tokens)."""


class Fast:
    """Engine of the `tokenizers` library itself, without the transformers layer above it."""

    def __init__(self, location: str, *, special_as_text: bool = False) -> None:
        import tokenizers

        self._location = location
        self._tokenizer = tokenizers.Tokenizer.from_file(location)
        self._tokenizer.no_truncation()  # A saved tokenizer may have both; only packing cuts documents.
        self._tokenizer.no_padding()
        if special_as_text:
            self._tokenizer.encode_special_tokens = True

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
        return flat(self.encode_batch(list(texts)))  # The library can only give lists.

    def special_tokens(self) -> list[str]:
        added = self._tokenizer.get_added_tokens_decoder()
        return [token.content for _, token in sorted(added.items()) if token.special]

    def token_texts(self) -> list[str]:
        ids = sorted(set(self._tokenizer.get_vocab().values()))
        return list(self._tokenizer.decode_batch([[token] for token in ids], skip_special_tokens=False))

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def place(self, text: str, position: int) -> int:
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return int(offsets[position][0]) if position < len(offsets) else len(text)

    def _cannot(self, error: Exception) -> InputError:
        """Return the InputError for an Exception of the library, such as for a word that the vocabulary lacks."""
        return InputError(f"data.tokenizer: {self._location} cannot encode the corpus: {one_line(str(error))}")


class SentencePiece:
    """Engine of the sentencepiece library, in the calling thread. It encodes special tokens in text as text."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def encode(self, text: str) -> list[int]:
        return list(self._model.encode(text, out_type=int))

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return list(self._model.encode(texts, out_type=int, num_threads=1))

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        if not hasattr(self._model, "EncodeAsNumpy"):  # sentencepiece before 0.2.2
            return flat(self.encode_batch(list(texts)))
        return joined(self._model.EncodeAsNumpy(list(texts), num_threads=1))

    def special_tokens(self) -> list[str]:
        model = self._model
        return [model.id_to_piece(token) for token in range(model.get_piece_size()) if model.is_control(token)]

    def token_texts(self) -> list[str]:
        return [str(self._model.decode([token])) for token in range(self._model.get_piece_size())]

    def decode(self, ids: list[int]) -> str:
        return str(self._model.decode(ids))

    def place(self, text: str, position: int) -> int:
        return min(len(str(self._model.decode(self.encode(text)[:position]))), len(text))


class Slow:
    """Engine of a transformers tokenizer that has no fast backend."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False, verbose=False))

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        return flat(self.encode_batch(list(texts)))

    def special_tokens(self) -> list[str]:
        return list(self._tokenizer.all_special_tokens)

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, clean_up_tokenization_spaces=False))
