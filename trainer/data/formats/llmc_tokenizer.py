"""Writes the tokenizer file with which llm.c prints samples (https://github.com/karpathy/llm.c, llmc/tokenizer.h).

The header has 256 int32 (magic 20240328, version 2, number of ids, end-of-text id), little-endian. For each id follow
one byte with a length from 1 to 255, and that many bytes of text. llm.c prints ids by putting their bytes end to end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.engines.byte_level import BYTE_OF
from trainer.data.tokenizers import TokenizerInfo, sentencepiece_model, special_ids
from trainer.errors import InputError, one_line
from trainer.files import expanded, write_bytes

MAGIC, VERSION = 20240328, 2
TOKENIZER_HEADER = 256  # int32 values
MAX_TOKEN_BYTES = 255  # a token's length is one byte in the file
_SPACE = "\u2581"  # SentencePiece's sign for a space
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class WrittenTokenizer:
    """Summary of a tokenizer file for llm.c. ``unused``: number of ids without a token, written as placeholders."""

    vocab_size: int
    eos_id: int
    unused: int


def write_tokenizer(info: TokenizerInfo, out: Path) -> WrittenTokenizer:
    """Write the tokenizer as a file for llm.c. Raises InputError if llm.c could not read or use it."""
    if info.eos_id is None:
        raise InputError(f"{info.location}: it has no end-of-text id, with which llm.c begins each sample")
    tokens: list[bytes] = [b""] * info.vocab_size
    for token_id, token in _token_bytes(info):
        if len(token) > MAX_TOKEN_BYTES:
            raise InputError(
                f"{info.location}: token {token_id} has {len(token):,} bytes ({one_line(repr(token)):.40}); llm.c's "
                f"file has room for {MAX_TOKEN_BYTES}"
            )
        tokens[token_id] = token
    unused = tokens.count(b"")
    header = np.zeros(TOKENIZER_HEADER, "<i4")
    header[:4] = MAGIC, VERSION, info.vocab_size, info.eos_id
    # llm.c refuses an empty token, so ids without a token get a placeholder. A model never chooses them.
    filled = [token or f"<|unused {token_id}|>".encode() for token_id, token in enumerate(tokens)]
    content = header.tobytes() + b"".join(bytes([len(token)]) + token for token in filled)
    write_bytes(expanded(out).absolute(), content)
    return WrittenTokenizer(info.vocab_size, info.eos_id, unused)


def _token_bytes(info: TokenizerInfo) -> Iterator[tuple[int, bytes]]:
    """Yield each id with a token, and the bytes that it adds to a text. Special tokens yield their written form."""
    if info.kind == "sentencepiece":
        model = sentencepiece_model(info.location)
        special = special_ids(info).ids
        for token_id in range(model.get_piece_size()):
            piece = model.id_to_piece(token_id)
            yield token_id, piece.encode() if token_id in special else _of_piece(piece)
        return
    if not info.location.endswith(".json"):
        raise InputError(f"{info.location}: only transformers can decode its ids; give one with a tokenizer.json")
    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(info.location)
    added = {token_id: token.content for token_id, token in backend.get_added_tokens_decoder().items()}
    text_of = _decoding(json.loads(Path(info.location).read_text(encoding="utf-8")).get("decoder"), info.location)
    for token, token_id in backend.get_vocab(with_added_tokens=True).items():
        yield token_id, added[token_id].encode() if token_id in added else text_of(token)


def _decoding(decoder: Any, location: str) -> Any:
    """Return the function from a token to bytes for a ``decoder`` of `tokenizers`. Raises InputError if unknown."""
    steps = decoder.get("decoders", [decoder]) if isinstance(decoder, dict) else []
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return _of_byte_level
    if "WordPiece" in kinds:
        return _of_word_piece
    if "Metaspace" in kinds or any(step.get("pattern") == {"String": _SPACE} for step in steps):
        return _of_piece
    raise InputError(
        f"{location}: how its tokens become text is not known here (decoder {', '.join(sorted(kinds)) or 'none'}); "
        "allowed: ByteLevel, Metaspace, WordPiece, SentencePiece models"
    )


def _of_piece(piece: str) -> bytes:
    byte = _BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte is not None else piece.replace(_SPACE, " ").encode()


def _of_word_piece(token: str) -> bytes:
    return token.removeprefix("##").encode() if token.startswith("##") else f" {token}".encode()


def _of_byte_level(token: str) -> bytes:
    try:
        return bytes(BYTE_OF[letter] for letter in token)
    except KeyError:  # The vocabulary has this token as plain text.
        return token.encode()
