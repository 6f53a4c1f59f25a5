"""Encodes with the library that a tokenizer was made for: `tokenizers`, sentencepiece or transformers.

These are the references: another engine is used only where its ids are theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from trainer.data.engines.base import Encoded, Engine, flat, joined
from trainer.errors import InputError, one_line


class Reference(Engine, Protocol):
    """What an engine must prove itself against, and what it takes to show where it fails."""

    def special_tokens(self) -> list[str]:
        """The tokens that stand for no text, as they are written."""

    def token_texts(self) -> list[str]:
        """Each token of the vocabulary, decoded alone: parts of a character become the replacement character."""

    def place(self, text: str, position: int) -> int:
        """About which character token ``position`` of ``text`` begins at."""


class TextCodec(Protocol):
    """Turns text into ids and ids into text."""

    def encode(self, text: str) -> list[int]:
        """The ids of one document, without special tokens."""

    def decode(self, ids: list[int]) -> str:
        """The text of ids, special tokens as they are written (a sentencepiece model leaves its control tokens out)."""


class Fast:
    """Encodes with the `tokenizers` library itself, without the transformers layer above it."""

    def __init__(self, location: str, *, special_as_text: bool = False) -> None:
        import tokenizers

        self._location = location
        self._tokenizer = tokenizers.Tokenizer.from_file(location)
        self._tokenizer.no_truncation()  # a saved tokenizer may carry both; documents are cut by packing alone
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
        return flat(self.encode_batch(list(texts)))  # the library has no other way out than lists

    def special_tokens(self) -> list[str]:
        added = self._tokenizer.get_added_tokens_decoder()
        return [token.content for _, token in sorted(added.items()) if token.special]

    def token_texts(self) -> list[str]:
        ids = sorted(set(self._tokenizer.get_vocab().values()))
        return list(self._tokenizer.decode_batch([[one] for one in ids], skip_special_tokens=False))

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def place(self, text: str, position: int) -> int:
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return int(offsets[position][0]) if position < len(offsets) else len(text)

    def _cannot(self, error: Exception) -> InputError:
        """The library raises plain Exceptions: of a word that a vocabulary without an unknown token lacks, say."""
        return InputError(f"data.tokenizer: {self._location} cannot encode the corpus: {one_line(str(error))}")


class SentencePiece:
    """Encodes with the sentencepiece library, in this thread alone. It takes special tokens in text for text."""

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

    def special_tokens(self) -> list[str]:
        model = self._model
        return [model.id_to_piece(one) for one in range(model.get_piece_size()) if model.is_control(one)]

    def token_texts(self) -> list[str]:
        return [str(self._model.decode([one])) for one in range(self._model.get_piece_size())]

    def decode(self, ids: list[int]) -> str:
        return str(self._model.decode(ids))

    def place(self, text: str, position: int) -> int:
        return min(len(str(self._model.decode(self.encode(text)[:position]))), len(text))


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

    def special_tokens(self) -> list[str]:
        return list(self._tokenizer.all_special_tokens)

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, clean_up_tokenization_spaces=False))
