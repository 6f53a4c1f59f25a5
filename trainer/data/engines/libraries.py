"""Encodes with a tokenizer's own library, or with another one that reads the same files and is faster.

The own library is the one that the tokenizer was made for: `tokenizers`, sentencepiece or transformers. It is the
reference. The others are tiktoken, gigatoken and fastokens, each an extra. They read the same tokenizer.json (gigatoken
also some sentencepiece models). Each must first prove that its ids are the same (``proof.py``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any, Protocol

import numpy as np

from trainer.data.engines import byte_level
from trainer.data.engines.base import Encoded, Engine, flat, joined, lists
from trainer.data.engines.byte_level import CannotExpressError
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


_PRETRAINED = "data.tokenizer.pretrained"


def load_auto(location: str, name: str | None = None) -> Any:
    """Load an AutoTokenizer, or raise InputError if that fails or would run code that comes with it."""
    if code := carried_code(Path(location), of_tokenizer=True):
        raise _never_run(name or location, code)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(location, trust_remote_code=False)
    except Exception as error:  # transformers and the hub raise a dozen kinds; the user needs one line.
        code = carried_code(Path(location))
        if code or "trust_remote_code" in str(error):  # The harness has no option to follow that advice.
            raise _never_run(name or location, code) from error
        reason = shorten(str(error), 200, placeholder=" ...") or type(error).__name__
        raise InputError(f"{_PRETRAINED}: cannot load {name or location}: {reason}") from error


def carried_code(folder: Path, of_tokenizer: bool = False) -> list[str]:
    """Return a folder's own code (``auto_map``) as "file: class"; ``of_tokenizer``: True for the tokenizer's only."""
    code = []
    for file in ("tokenizer_config.json", "config.json"):
        try:
            content = json.loads((folder / file).read_bytes())
        except (OSError, ValueError, RecursionError):  # transformers reports the error in the file.
            continue
        names = content.get("auto_map") if isinstance(content, dict) else None
        if of_tokenizer and file == "config.json":
            names = names.get("AutoTokenizer") if isinstance(names, dict) else None
        classes = names.values() if isinstance(names, dict) else [names]
        flat = [name for entry in classes for name in (entry if isinstance(entry, list) else [entry])]
        code += [f"{file}: {one_line(name)}" for name in flat if name]
    return code


def _never_run(name: str, code: list[str]) -> InputError:
    listed = f" ({', '.join(code)})" if code else ""
    return InputError(
        f"{_PRETRAINED}: {name} carries code of its own{listed}, and code of a tokenizer's folder is never run; "
        "give a folder with a tokenizer.json and without auto_map"
    )


_BATCH_CHARACTERS = 1 << 19  # batch size from which gigatoken's encode_batch is worth the cost of its array

_REMEDY = "; without data.tokenizer.engine the tokenizer's own library encodes it"


class _FromFlat:
    """Base of engines whose other methods call ``encode_flat``. So the proof of equal ids covers all of them."""

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        raise NotImplementedError

    def encode(self, text: str) -> list[int]:
        return list(self.encode_flat([text]).ids.tolist())

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return lists(self.encode_flat(texts))


class Tiktoken(_FromFlat):
    """Engine of tiktoken, which encodes document by document. It releases Python's lock."""

    def __init__(self, location: str, *, special_as_text: bool) -> None:
        import numpy as np
        import tiktoken

        with _one_line("tiktoken"):
            bpe = byte_level.read(Path(location).read_text(encoding="utf-8"))
            as_text = bpe.special if special_as_text else frozenset()
            matched = {token: rank for token, rank in bpe.added.items() if token not in as_text}
            self._encoding = tiktoken.Encoding(
                location, pat_str=bpe.pattern, mergeable_ranks=bpe.ranks, special_tokens=matched
            )
        self._matched = frozenset(matched)
        self._ids = None if bpe.ids_are_ranks else np.array(bpe.ids, dtype=np.uint32)

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        encode, matched = self._encoding.encode_to_numpy, self._matched
        with _one_line("tiktoken", _REMEDY):
            encoded = joined([encode(text, allowed_special=matched, disallowed_special=()) for text in texts])
        return encoded if self._ids is None else Encoded(self._ids[encoded.ids], encoded.lengths)


class Gigatoken(_FromFlat):
    """Encodes in the calling thread (its own threads would not survive a fork), with a tokenizer per thread at once."""

    def __init__(self, location: str, *, special_as_text: bool) -> None:
        import gigatoken

        with _one_line("gigatoken"):
            content = _content(location) if location.endswith(".json") else _content_of_pieces(location)
            if special_as_text:
                added = content.get("added_tokens") or []
                content["added_tokens"] = [token for token in added if not token.get("special")]
            self._json = json.dumps(content)
            self._make = gigatoken.Tokenizer.from_json
            self._idle = [self._make(self._json)]

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        is_large = len(texts) > 1 and sum(map(len, texts)) >= _BATCH_CHARACTERS
        with _one_line("gigatoken", _REMEDY):
            try:
                tokenizer = self._idle.pop()
            except IndexError:
                tokenizer = self._make(self._json)
            try:
                if is_large:
                    return _from_awkward(tokenizer.encode_batch(list(texts), parallel=False))
                return joined([tokenizer.encode(text) for text in texts])
            finally:
                self._idle.append(tokenizer)


class Fastokens(_FromFlat):
    """Engine of fastokens, in the calling thread, because its own threads would not survive a fork."""

    def __init__(self, location: str, *, special_as_text: bool) -> None:
        os.environ["FASTOKENS_BPE_THREADS"] = "1"  # Its first tokenizer reads it.
        from fastokens._native import Tokenizer  # transformers is not patched here.

        self._as_text = special_as_text
        with _one_line("fastokens"):
            self._tokenizer = Tokenizer.from_json_str(json.dumps(_content(location)))

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        if not texts:
            return flat([])
        with _one_line("fastokens", _REMEDY):
            ids, offsets = self._tokenizer.encode_batch_flat(list(texts), split_special_tokens=self._as_text)
        lengths = np.diff(np.frombuffer(offsets, dtype="<u8")).astype(np.int64)
        return Encoded(np.frombuffer(ids, dtype="<u4"), lengths)


def _from_awkward(array: Any) -> Encoded:
    """Return the lists of an awkward array as Encoded, from its buffers (ListOffsetArray: offsets and content)."""
    offsets, content = np.asarray(array.layout.offsets.data), np.asarray(array.layout.content.data)
    return Encoded(content[offsets[0] : offsets[-1]], np.diff(offsets).astype(np.int64))


def _content(location: str) -> dict[str, Any]:
    """Return a tokenizer.json without truncation and padding. Raises CannotExpressError for dropout."""
    content: dict[str, Any] = json.loads(Path(location).read_bytes())
    content["truncation"] = content["padding"] = None
    if content["model"].get("dropout"):
        raise CannotExpressError("its BPE drops merges by chance (dropout)")
    return content


def _content_of_pieces(location: str) -> dict[str, Any]:
    """Return a sentencepiece model as a tokenizer.json, by gigatoken, or raise CannotExpressError."""
    from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json

    try:
        content: dict[str, Any] = json.loads(sentencepiece_to_tokenizer_json(Path(location).read_bytes()))
    except ValueError as error:
        raise CannotExpressError(one_line(error)) from error
    return content


@contextmanager
def _one_line(library: str, remedy: str = "") -> Iterator[None]:
    """Turn any error of ``library``, also a Rust panic, into an InputError of one line that ends in ``remedy``."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        first = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise InputError(f"data.tokenizer.engine: {library} raises {one_line(first):.200}{remedy}") from error


OTHERS: dict[str, Callable[..., Any]] = {"tiktoken": Tiktoken, "gigatoken": Gigatoken, "fastokens": Fastokens}
