"""Encodes with libraries that a tokenizer was not made for: tiktoken, gigatoken and fastokens, each an extra.

They read the same tokenizer.json (gigatoken some sentencepiece models, too) and are much faster. None is used before it
has proved that its ids are the same (``proof.py``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.data.engines import byte_level
from trainer.data.engines.base import Encoded, flat, joined, lists
from trainer.data.engines.byte_level import CannotExpressError
from trainer.errors import InputError, one_line

# Characters of a batch from which gigatoken's encode_batch pays: making and reading its array takes a while.
_BATCH_CHARACTERS = 1 << 19

_REMEDY = "; without data.tokenizer.engine the tokenizer's own library encodes it"


class _FromFlat:
    """One document, and lists, by the same call as many end to end: what was proved of it holds for all."""

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        raise NotImplementedError

    def encode(self, text: str) -> list[int]:
        return list(self.encode_flat([text]).ids.tolist())

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return lists(self.encode_flat(texts))


class Tiktoken(_FromFlat):
    """Encodes with tiktoken, document by document, each into a buffer. Other threads may run meanwhile."""

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
    """Encodes with gigatoken in the calling thread: its own threads would not survive a fork.

    One of its tokenizers serves one thread at a time and raises in any other ("Already borrowed"). So each call takes
    one that is idle, or makes another. Document by document it holds Python's lock, and threads take turns; of a batch
    it lets go of it.
    """

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
        together = len(texts) > 1 and sum(map(len, texts)) >= _BATCH_CHARACTERS
        with _one_line("gigatoken", _REMEDY):
            try:
                tokenizer = self._idle.pop()
            except IndexError:
                tokenizer = self._make(self._json)
            try:
                if together:
                    return _of_awkward(tokenizer.encode_batch(list(texts), parallel=False))
                return joined([tokenizer.encode(text) for text in texts])
            finally:
                self._idle.append(tokenizer)


class Fastokens(_FromFlat):
    """Encodes with fastokens in the calling thread: its own threads would not survive a fork."""

    def __init__(self, location: str, *, special_as_text: bool) -> None:
        os.environ["FASTOKENS_BPE_THREADS"] = "1"  # read once, by its first tokenizer
        from fastokens._native import Tokenizer  # the package's own class, without its patches of transformers

        self._as_text = special_as_text
        with _one_line("fastokens"):
            self._tokenizer = Tokenizer.from_json_str(json.dumps(_content(location)))

    def encode_flat(self, texts: Sequence[str]) -> Encoded:
        import numpy as np

        if not texts:
            return flat([])
        with _one_line("fastokens", _REMEDY):
            ids, offsets = self._tokenizer.encode_batch_flat(list(texts), split_special_tokens=self._as_text)
        lengths = np.diff(np.frombuffer(offsets, dtype="<u8")).astype(np.int64)
        return Encoded(np.frombuffer(ids, dtype="<u4"), lengths)


def _of_awkward(array: Any) -> Encoded:
    """The lists of an awkward array, end to end, as they lie in its buffers (ListOffsetArray: offsets and content)."""
    import numpy as np

    offsets, content = np.asarray(array.layout.offsets.data), np.asarray(array.layout.content.data)
    return Encoded(content[offsets[0] : offsets[-1]], np.diff(offsets).astype(np.int64))


def _content(location: str) -> dict[str, Any]:
    """Of a tokenizer.json, without what would cut or fill documents. Raises CannotExpressError for one with chance."""
    content: dict[str, Any] = json.loads(Path(location).read_bytes())
    content["truncation"] = content["padding"] = None
    if content["model"].get("dropout"):
        raise CannotExpressError("its BPE drops merges by chance (dropout)")
    return content


def _content_of_pieces(location: str) -> dict[str, Any]:
    """The tokenizer.json that gigatoken itself makes of a sentencepiece model, where it can."""
    from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json

    try:
        content: dict[str, Any] = json.loads(sentencepiece_to_tokenizer_json(Path(location).read_bytes()))
    except ValueError as error:
        raise CannotExpressError(one_line(error)) from error
    return content


@contextmanager
def _one_line(library: str, remedy: str = "") -> Iterator[None]:
    """InputError in place of whatever the library raises; its panics are no Exceptions."""
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
